"""Events of runs as they come, by server-sent events: one query and one encoding per batch, however many listen.

A listener is a cursor, the number of the last event it was given. It reads what was read for all while that is there,
and else from the view, at its own pace: nothing is queued for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import structlog

from refold.core.errors import RefoldError, TransientError
from refold.core.topics import RUN_LOG
from refold.gateway.reading import ReadSide, events_after, events_in
from refold.ports.log import Place
from refold.ports.tables import Query, ViewReader, Where
from refold.projections.shipped.tables import ENTRIES
from refold.views.model import plain
from refold.views.run import RunEvent

_log = structlog.get_logger()
_T = TypeVar("_T")

NEWS_S = 0.05
"""How often the view is asked for entries that are new."""
HEARTBEAT_S = 15.0
SLOW_S = 5.0
"""How often a listener asks the view itself: an entry that was linked late is behind the position that is watched."""
KEPT_EVENTS = 1_000
"""Events of a run that are kept encoded for its listeners."""
MOST_STREAMS = 20_000
ENDS = ("RunCompleted", "RunFailed", "RunCancelled")


class TooManyError(TransientError):
    """More streams than a process serves."""

    code = "too_many_streams"


def encoded(event: RunEvent) -> bytes:
    """An event as a message of a stream; its id is the number of the event."""
    data = json.dumps(plain(event), ensure_ascii=False, separators=(",", ":"))
    return f"id: {event.seq}\nevent: {event.type}\ndata: {data}\n\n".encode()


class Channel:
    """The latest events of a run, encoded, and those who wait for more."""

    def __init__(self) -> None:
        self.events: deque[tuple[int, bytes, bool]] = deque(maxlen=KEPT_EVENTS)
        self.more = asyncio.Event()
        self.listeners = 0

    def count(self, change: int) -> None:
        """Count a listener, or that one has left."""
        self.listeners += change

    def give(self, events: list[RunEvent]) -> None:
        """Take events that follow those that are there; any others are left to be read from the view."""
        for event in events:
            if not self.events or event.seq == self.events[-1][0] + 1:
                self.events.append((event.seq, encoded(event), event.type in ENDS))
        self.more.set()
        self.more = asyncio.Event()

    def behind(self, seq: int) -> list[tuple[int, bytes, bool]] | None:
        """Return the events behind a number; None if they are not all here."""
        if not self.events or seq < self.events[0][0] - 1:
            return None
        return [each for each in self.events if each[0] > seq]


class RunStreams:
    """The streams of a process. Used on its event loop."""

    def __init__(self, reading: ReadSide) -> None:
        self._reading = reading
        self._channels: dict[str, Channel] = {}
        self._seen: dict[Place, int] = {}
        self._watch: asyncio.Task[None] | None = None
        self.count = 0

    async def run(self, run: str, after: int) -> AsyncIterator[bytes]:
        """Yield the events of a run behind a number, and on, until the run is over. **Raises** TooManyError."""
        if self.count >= MOST_STREAMS:
            raise TooManyError(f"there are {self.count} streams", retry_after=5.0)
        self._watch = self._watch or asyncio.get_running_loop().create_task(self._look_for_ever())
        channel = self._channels.setdefault(run, Channel())
        channel.count(1)
        self.count += 1
        try:
            async for chunk in self._follow(run, channel, after):
                yield chunk
        finally:
            self.count -= 1
            channel.count(-1)
            if not channel.listeners and self._channels.get(run) is channel:
                del self._channels[run]

    async def _follow(self, run: str, channel: Channel, seq: int) -> AsyncIterator[bytes]:
        heard = asked = time.monotonic()
        first = True
        while True:
            more, over = channel.more, False
            found = None if first or time.monotonic() - asked > SLOW_S else channel.behind(seq)
            if found is None or (not found and first):
                found = [
                    (event.seq, encoded(event), event.type in ENDS)
                    for event in await _in_thread(lambda: events_after(self._reading.store(), run, seq))  # noqa: B023
                ]
                asked = time.monotonic()
            first = False
            for seq, chunk, over in found:  # noqa: B007
                yield chunk
            if over:
                return
            if found:
                heard = time.monotonic()
                continue
            try:
                await asyncio.wait_for(more.wait(), min(SLOW_S, HEARTBEAT_S))
            except TimeoutError:
                if time.monotonic() - heard >= HEARTBEAT_S:
                    heard = time.monotonic()
                    yield b": still here\n\n"

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(NEWS_S)
            if not self._channels:
                self._seen = {}
                continue
            try:
                events = await _in_thread(self._look)
            except RefoldError as error:
                _log.warning("gateway.view_unread", reason=error.message)
                await asyncio.sleep(1.0)
                continue
            for run, found in events.items():
                if channel := self._channels.get(run):
                    channel.give(found)

    def _look(self) -> dict[str, list[RunEvent]]:
        """Return the events that are new since the last look, by run, of runs that somebody listens to."""
        store = self._reading.store()
        positions = {place: at for place, at in store.positions().items() if place[0] == RUN_LOG}
        before, self._seen = self._seen, positions
        found: dict[str, list[RunEvent]] = {}
        for place, at in positions.items():
            if place in before and at != before[place]:
                for row in _between(store, place[1], before[place], at):
                    if row[0] in self._channels:
                        found.setdefault(str(row[0]), []).extend(events_in(row))
        return found


def _between(store: ViewReader, partition: int, start: int, end: int) -> list[tuple[str | int | bytes, ...]]:
    where = Where("partition", "=", partition), Where("offset", ">=", start), Where("offset", "<", end)
    return store.query(Query(ENTRIES, where, order="offset", limit=100_000))


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
