"""Events of runs as they come, by server-sent events: one query and one encoding per batch, however many listen.

A listener is a cursor, the number of the last event it was given. It reads what was read for all while that is there,
and else from the view, at its own pace: nothing is queued for it.

A stream ends behind the last event of a run that is over, and when the run is erased. A failed run may go on: a client
that comes back behind `RunFailed` waits for the events of a retry, however long that takes.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import structlog

from refold.core.errors import RefoldError, TransientError
from refold.core.topics import RUN_LOG
from refold.gateway.reading import ReadSide, events_after, events_in
from refold.ports.log import Place
from refold.ports.tables import Query, ViewReader, ViewRow, Where
from refold.projections.projector import HEADS
from refold.projections.shipped.tables import ENTRIES
from refold.views.model import plain
from refold.views.run import RunEvent

_log = structlog.get_logger()
_T = TypeVar("_T")

NEWS_S = 0.05
"""How often the view is asked for entries that are new."""
HEARTBEAT_S = 15.0
SLOW_S = 5.0
"""How often all runs that are listened to are looked up: an entry that was linked late is behind the position that is
watched, and an erased run has no entries."""
SWITCHED_S = 0.5
"""How often the generation in use is looked up. One that was dropped has no positions, so nothing is new in it."""
AWAY_S = 1.0
"""How long a stream waits while the database is away."""
KEPT_BYTES = 1 << 20
"""Of a run's latest events, encoded for its listeners."""
CHUNK_BYTES = 64 << 10
"""Of a chunk: a slow reader holds no more than this, and one page."""
PAGE_ENTRIES = 20
"""Entries that a listener reads from the view at a time."""
LOOK_ENTRIES = 2_000
"""Entries of a partition that are read at a time, of all runs."""
MOST_STREAMS = 20_000
ENDS = ("RunCompleted", "RunFailed", "RunCancelled")


class TooManyError(TransientError):
    """More streams than a process serves."""

    code = "too_many_streams"


class SentEvent(NamedTuple):
    """An event as it is sent. `ends`: the run is over by it."""

    seq: int
    data: bytes
    ends: bool


def encoded(event: RunEvent) -> SentEvent:
    """An event as a message of a stream; its id is the number of the event."""
    data = json.dumps(plain(event), ensure_ascii=False, separators=(",", ":"))
    # The log may contain lone surrogates, which have no form in UTF-8.
    message = f"id: {event.seq}\nevent: {event.type}\ndata: {data}\n\n".encode("utf-8", "replace")
    return SentEvent(event.seq, message, event.type in ENDS)


class Channel:
    """The latest events of a run, encoded and without gaps, and those who wait for more.

    `known` is the number of the last event that the view is known to have.
    """

    def __init__(self) -> None:
        self.events: deque[SentEvent] = deque()
        self.more = asyncio.Event()
        self.listeners = self.known = self._bytes = 0
        self.erased = False

    def count(self, change: int) -> None:
        """Count a listener, or that one has left."""
        self.listeners += change

    def note(self, seq: int, *, erased: bool = False) -> None:
        """Take note that the view has an event. Listeners read it there if it is not given."""
        if seq > self.known or erased:
            self.known, self.erased = max(seq, self.known), erased
            self._wake()

    def give(self, events: list[SentEvent]) -> None:
        """Take events in order. Where some before them are missing, the ones that are here are not kept."""
        for event in events:
            if self.events and event.seq <= self.events[-1].seq:
                continue
            if self.events and event.seq > self.events[-1].seq + 1:
                self.events.clear()
                self._bytes = 0
            self.events.append(event)
            self._bytes += len(event.data)
            self.known = max(self.known, event.seq)
        while self._bytes > KEPT_BYTES and len(self.events) > 1:
            self._bytes -= len(self.events.popleft().data)
        self._wake()

    def behind(self, seq: int) -> list[SentEvent] | None:
        """Return the events behind a number; None if they are not all here."""
        if seq >= self.known:
            return []
        if not self.events or seq < self.events[0].seq - 1 or self.events[-1].seq < self.known:
            return None
        return [self.events[place] for place in range(seq - self.events[0].seq + 1, len(self.events))]

    def _wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()


class StreamNews(NamedTuple):
    """What a look has found: new events by run, and for all runs that are listened to their last event and status."""

    events: dict[str, list[SentEvent]]
    heads: dict[str, tuple[int, str]]


class RunStreams:
    """The streams of a process. Used on its event loop."""

    def __init__(self, reading: ReadSide) -> None:
        self._reading = reading
        self._channels: dict[str, Channel] = {}
        self._seen: dict[Place, int] = {}
        self._slow, self._opened = -math.inf, 0.0  # the clock may have begun just now
        self._store: ViewReader | None = None
        self._watch: asyncio.Task[None] | None = None
        self.count = 0

    @property
    def runs(self) -> int:
        """How many runs are listened to."""
        return len(self._channels)

    def check_room(self) -> None:
        """**Raises** TooManyError if there are as many streams as a process serves."""
        if self.count >= MOST_STREAMS:
            raise TooManyError(f"there are {self.count} streams", retry_after=5.0)

    async def run(self, run: str, after: int) -> AsyncIterator[bytes]:
        """Yield the events of a run behind a number, and on, until the run is over or erased."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._look_for_ever())
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

    def close(self) -> None:
        """Look for no more events."""
        if self._watch is not None:
            self._watch.cancel()

    async def _follow(self, run: str, channel: Channel, seq: int) -> AsyncIterator[bytes]:
        heard, wait_s, found = time.monotonic(), 0.0, await self._read(run, seq)
        while True:
            more = channel.more
            for chunk in _chunks(found or ()):
                yield chunk
            if found:
                heard, seq = time.monotonic(), found[-1].seq
                channel.note(seq)
                if found[-1].ends and not await self._read(run, seq):
                    return
            elif channel.erased:
                return
            elif found is None or more is channel.more:
                wait_s = AWAY_S if found is None else heard + HEARTBEAT_S - time.monotonic()
                if not await _woken(more, wait_s) and time.monotonic() - heard >= HEARTBEAT_S:
                    heard = time.monotonic()
                    yield b": still here\n\n"
            found = channel.behind(seq) if found is not None else None
            if found is None:
                found = await self._read(run, seq)

    async def _read(self, run: str, seq: int) -> list[SentEvent] | None:
        """Return the next page of a run's events from the view; None while it is away, or was just switched."""
        try:
            return await _in_thread(
                lambda: [encoded(event) for event in events_after(self._reading.store(), run, seq, PAGE_ENTRIES)]
            )
        except RefoldError as error:
            _log.warning("gateway.view_unread", run=run, reason=error.message)
            return None

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(NEWS_S)
            if not self._channels:
                self._seen, self._slow = {}, -math.inf
                continue
            try:
                news = await _in_thread(self._look)
            except RefoldError as error:
                self._store = None
                _log.warning("gateway.view_unread", reason=error.message)
                await asyncio.sleep(AWAY_S)
                continue
            for run, events in news.events.items():
                if channel := self._channels.get(run):
                    channel.give(events)
            for run, (seq, status) in news.heads.items():
                if channel := self._channels.get(run):
                    channel.note(seq, erased=status == "erased")

    def _look(self) -> StreamNews:
        """Return what is new since the last look, of runs that somebody listens to. What a failed look had is looked
        for again."""
        if self._store is None or time.monotonic() - self._opened > SWITCHED_S:
            self._store, self._opened = self._reading.store(), time.monotonic()
        store = self._store
        positions = {place: at for place, at in store.positions().items() if place[0] == RUN_LOG}
        events: dict[str, list[SentEvent]] = {}
        seen = self._seen | positions  # those of a generation that was dropped are missing
        for place, at in positions.items():
            if (before := self._seen.get(place, at)) < at:
                rows = _between(store, place[1], before, at)
                if len(rows) == LOOK_ENTRIES:
                    seen[place] = int(rows[-1][ENTRIES.places["since_offset"]]) + 1
                for row in rows:
                    if row[0] in self._channels:
                        events.setdefault(str(row[0]), []).extend(map(encoded, events_in(row)))
        heads: dict[str, tuple[int, str]] = {}
        if time.monotonic() - self._slow > SLOW_S:
            heads = dict(_heads(store, list(self._channels)))
            self._slow = time.monotonic()
        self._seen = seen
        return StreamNews(events, heads)


def _chunks(events: Iterable[SentEvent]) -> Iterator[bytes]:
    """Events in few pieces: a write to a socket costs more than its bytes."""
    held: list[bytes] = []
    size = 0
    for event in events:
        held.append(event.data)
        size += len(event.data)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _between(store: ViewReader, partition: int, start: int, end: int) -> list[ViewRow]:
    where = Where("partition", "=", partition), Where("since_offset", ">=", start), Where("since_offset", "<", end)
    return store.query(Query(ENTRIES, where, order="since_offset", limit=LOOK_ENTRIES))


def _heads(store: ViewReader, runs: list[str]) -> Iterator[tuple[str, tuple[int, str]]]:
    for (run,), row in store.rows(HEADS, [(run,) for run in runs]).items():
        yield str(run), (int(row[HEADS.places["seq"]]), str(row[HEADS.places["status"]]))


async def _woken(more: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, within_s)):  # `wait_for` makes a task of each wait
            await more.wait()
    except TimeoutError:
        return False
    return True


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
