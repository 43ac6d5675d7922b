"""Blob-store requests from other threads, repeated until the store answers: an outage fails no run."""

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from refold.core.errors import BlobError, UnreachableError
from refold.core.events import Failure
from refold.engine.ports.blobs import Blobs
from refold.engine.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob
from refold.engine.runtime.outages import OUTAGES

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""First and longest pause between requests to an unreachable store."""

BACKENDS = 2
"""Concurrent values: each is in memory about three times, and may have hundreds of megabytes."""


def until_answered(ask: Callable[[], T], stopping: Callable[[], bool], **facts: object) -> T | None:
    """Answer of a store; None if the process stops first. **Raises** errors of `ask` except UnreachableError."""
    pause_s = FIRST_PAUSE_S
    while not stopping():
        try:
            return ask()
        except UnreachableError as error:
            OUTAGES.failed("blob.unanswered", **facts, error=str(error))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return None


class BlobBackend:
    """Loads and saves large values in threads, and passes the answers to `report`."""

    def __init__(self, blobs: Blobs | None, report: Callable[[BlobLoaded | BlobSaved | BaseException], None]) -> None:
        self._blobs, self._report = blobs, report
        self._threads = ThreadPoolExecutor(BACKENDS, thread_name_prefix="blobs")
        self._later: list[tuple[float, int, LoadBlob | SaveBlob, float]] = []
        self._lock = threading.Lock()
        self.open = 0

    def take(self, order: LoadBlob | SaveBlob) -> None:
        self.open += 1
        self._threads.submit(self._carry_out, order, FIRST_PAUSE_S)

    def again(self) -> None:
        """Submit unanswered orders again that are due."""
        # Repeated on a schedule, not in the thread: a store that withholds one value would block all others.
        with self._lock:
            while self._later and self._later[0][0] <= time.monotonic():
                _, _, order, pause_s = heapq.heappop(self._later)
                self._threads.submit(self._carry_out, order, pause_s)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _carry_out(self, order: LoadBlob | SaveBlob, pause_s: float) -> None:
        try:
            self._report(self._loaded(order) if isinstance(order, LoadBlob) else self._saved(order))
        except UnreachableError as error:
            OUTAGES.failed("blob.unanswered", run_id=order.run, error=str(error))
            with self._lock:
                due_s = time.monotonic() + pause_s
                heapq.heappush(self._later, (due_s, order.number, order, min(2 * pause_s, LONGEST_PAUSE_S)))
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that takes turns
            self._report(error)

    def _loaded(self, order: LoadBlob) -> BlobLoaded:
        if self._blobs is None:
            message = f"{order.pointer[:80]} lies in a blob store, and none is set: REFOLD_BLOBS__URL"
            if order.kept:  # the operator's mistake, which must not end a run
                raise UnreachableError(message)
            return BlobLoaded(order.number, Failure("blob_missing", message))
        try:
            return BlobLoaded(order.number, self._blobs.get(order.run, order.pointer))
        except BlobError as error:
            return BlobLoaded(order.number, Failure(error.fields["code"], str(error)))

    def _saved(self, order: SaveBlob) -> BlobSaved:
        assert self._blobs is not None, "only a service that has a blob store wants something kept there"
        self._blobs.put(order.run, order.text)
        return BlobSaved(order.number)
