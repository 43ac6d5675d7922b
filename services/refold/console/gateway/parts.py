"""Live output of calls for all streams of a process: one reader of `run-stream`, bounded and lossy."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from refold.client.platform import Platform
from refold.client.streams import MOST_WAITING_BYTES, LivePart, Tries, part_in
from refold.console.gateway.reading import ReadSide, events_after
from refold.core.errors import RefoldError
from refold.core.ids import RunId, parse_call_id
from refold.core.messages import StreamPart
from refold.core.topics import RUN_STREAM, pool_of
from refold.engine.adapters.kafka.reader import KafkaLogReader, KafkaNews
from refold.engine.runtime.outages import OUTAGES

GIVE_UP_S = 5.0
"""Seconds that a part waits until the view has its call."""
MOST_LIVE_CALLS = 10_000
"""Calls whose pool and last try are cached."""
RETRY_S = 1.0


class WaitingPart(NamedTuple):
    received_s: float
    pool: str
    part: StreamPart


class LiveParts:
    """Reader of live parts. `is_watched`: true if a run, or any (""), has listeners; `give` receives parts."""

    def __init__(
        self,
        platform: Platform,
        reading: ReadSide,
        is_watched: Callable[[str], bool],
        give: Callable[[list[LivePart]], object],
    ) -> None:
        self._platform, self._reading, self._wanted, self._give = platform, reading, is_watched, give
        self._pools: dict[str, str] = {}
        self._tries = Tries()
        self._waiting: list[WaitingPart] = []
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="refold-gateway-parts", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        settings = self._platform.settings.kafka
        while self._wanted(""):
            try:
                topics = KafkaLogReader(settings).names((RUN_STREAM,))
                with closing(KafkaNews(settings, topics, self._platform.runs.partitions)) as news:
                    while self._wanted(""):
                        for record in news.take(0.1):
                            if part := part_in(record):
                                self._waiting.append(WaitingPart(time.monotonic(), pool_of(record.topic), part))
                        if parts := list(self._credible()):
                            self._give(parts)
            # The streams go on without parts: their events come from the view.
            except RefoldError as error:
                OUTAGES.failed("gateway.parts_unread", reason=error.message)
                time.sleep(RETRY_S)

    def _credible(self) -> Iterator[LivePart]:
        """Yield parts whose call is in the view, with the pool of their topic. Parts before their call wait."""
        if len(self._pools) > MOST_LIVE_CALLS:
            self._pools, self._tries = {}, Tries()
        received, self._waiting = self._waiting, []
        looked_up, waiting_bytes = dict[str, str](), Counter[str]()
        for received_s, pool, part in received:
            if not self._wanted(part.run_id):
                continue
            expected = self._expected_pool(part, looked_up)
            # An executor can write only its own pool's topic, so it cannot forge other pools' parts.
            if expected == pool:
                self._pools[part.call_id] = pool
                if (live := self._tries.read(part)) is not None:
                    yield live
            elif not expected and time.monotonic() - received_s < GIVE_UP_S:
                waiting_bytes[pool] += len(part.data)
                if waiting_bytes[pool] < MOST_WAITING_BYTES:
                    self._waiting.append(WaitingPart(received_s, pool, part))

    def _expected_pool(self, part: StreamPart, looked_up: dict[str, str]) -> str:
        """Return the pool of a part's call, empty for an unknown call; a batch looks up each call once."""
        if not (expected := self._pools.get(part.call_id) or looked_up.get(part.call_id)):
            expected = looked_up[part.call_id] = self._pool(part)
        return expected

    def _pool(self, part: StreamPart) -> str:
        seq = parse_call_id(part.call_id)[1]
        events = events_after(self._reading.store(), RunId(part.run_id), seq - 1, 1)
        event = events[0] if events and events[0].seq == seq else None
        return str(event.event["pool"]) if event is not None and event.type == "CallProposed" else ""
