"""What the routes share: the view, the writer, the streams, and how much is asked for at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from refold.core.errors import not_installed

try:
    from fastapi import Depends, Header, Path, Query, Request, Response
    from fastapi.routing import APIRoute
    from starlette.concurrency import run_in_threadpool
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

from refold.client.awaiting import AsyncClient
from refold.client.platform import Platform
from refold.core.errors import TransientError
from refold.core.wire import canonical
from refold.gateway.reading import ReadSide, after_of
from refold.gateway.streams import RunStreams
from refold.gateway.writing import Refusals, WriteSide
from refold.operations.runs import Runs
from refold.ports.tables import ViewDatabase, ViewReader
from refold.views.api import LARGEST_NUMBER

MOST_READS = 64
WRITES_A_MINUTE = 60
DEFAULT_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0


class BusyError(TransientError):
    """More is asked for at once, or in a minute, than the gateway serves."""

    code = "busy"


@dataclass
class Gateway:
    """What the routes share. `actor` is in whose name everything is written."""

    platform: Platform
    database: ViewDatabase
    actor: str
    client: AsyncClient

    def __post_init__(self) -> None:
        refusals = Refusals(self.platform)
        self.reading = ReadSide(self.database, refusals.of)
        self.writing = WriteSide(self.platform, self.reading, refusals)
        self.streams = RunStreams(self.reading)
        self._reads = threading.BoundedSemaphore(MOST_READS)
        self._sent = threading.BoundedSemaphore(MOST_READS)
        self._writes: deque[float] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def view(self, after: str) -> Iterator[ViewReader]:
        """The view as of one moment. **Raises** BusyError."""
        with _one(self._reads), self.reading.still(after_of(after)) as view:
            yield view

    @contextmanager
    def log(self) -> Iterator[Runs]:
        """What is read from Kafka itself. **Raises** UnreachableError at once while it is away, BusyError."""
        with _one(self._reads):
            self.platform.knock()
            yield self.platform.runs

    def sending(self) -> AbstractContextManager[None]:
        """A large value on its way to a client, which may be slow. **Raises** BusyError."""
        return _one(self._sent)

    def check_rate(self) -> None:
        """Count a write. **Raises** BusyError when there were too many in the last minute."""
        now = time.monotonic()
        with self._lock:
            while self._writes and now - self._writes[0] > 60:
                self._writes.popleft()
            if len(self._writes) >= WRITES_A_MINUTE:
                raise BusyError(f"{WRITES_A_MINUTE} writes a minute", retry_after=60 - (now - self._writes[0]))
            self._writes.append(now)


@contextmanager
def _one(of: threading.BoundedSemaphore) -> Iterator[None]:
    if not of.acquire(blocking=False):
        raise BusyError(f"{MOST_READS} reads are under way", retry_after=1.0)
    try:
        yield
    finally:
        of.release()


class StrictRequest(Request):
    """A request whose body is read as every service reads JSON: no duplicate keys, no NaN, no lone surrogates."""

    async def json(self) -> Any:
        return await run_in_threadpool(canonical.parse, await self.body(), containers=canonical.MAX_CONTAINERS)


class StrictRoute(APIRoute):
    """A route that reads strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _gateway(request: Request) -> Gateway:
    found: Gateway = request.state.gateway
    return found


Site = Annotated[Gateway, Depends(_gateway)]
AfterHeader = Annotated[
    str,
    Header(alias="Refold-After", max_length=8_000, description="places of writes to wait for, as an answer named them"),
]
Key = Annotated[str, Header(alias="Idempotency-Key", max_length=200, description="the same again is the same input")]
WaitOption = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the outcome")]
Seq = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="number of an event")]
SeqOption = Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="events behind this one")]
