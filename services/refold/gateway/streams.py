"""Events of runs as server-sent events: one query and one encoding per batch for all listeners.

A listener is a place in its channel's latest events. It reads on at its own pace, or from the view: nothing is queued
for it. The stream of a run ends after its last event, and when it is erased; after `RunFailed` a returning client waits
for a retry. Streams of several runs do not end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from refold.client.platform import Platform
from refold.client.streams import LivePart
from refold.core.errors import NotFoundError, RefoldError, TransientError
from refold.core.ids import RunId, parents_of
from refold.core.topics import RUN_LOG
from refold.gateway.parts import LiveParts
from refold.gateway.reading import After, ReadSide
from refold.gateway.selecting import (
    NOWHERE,
    Cursor,
    Page,
    Places,
    Selection,
    SelectionKind,
    SentEvent,
    looked_through,
    part_message,
    positions_in,
    told_of,
)
from refold.ports.tables import Query, ViewReader, Where
from refold.projections.projector import HEADS
from refold.projections.shipped.tables import RUN_SESSIONS, RUNS
from refold.runtime.outages import OUTAGES

_T = TypeVar("_T")

NEWS_S = 0.05
"""Seconds between looks for new entries in the view."""
NET_S = 1.0
"""Seconds between looks where the database notifies of changes, in case a notification is lost."""
HEARTBEAT_S = 15.0
SLOW_S = 5.0
"""Seconds between looks at all followed runs: an erased run has no entries."""
SWITCHED_S = 0.5
"""Seconds between look-ups of the generation in use."""
AWAY_S = 1.0
"""Seconds that a stream waits while the database is away."""
KEPT_BYTES = 1 << 20
"""Bytes of the latest encoded events that listeners share."""
FORGOTTEN_S = 2.0
"""Seconds without events after which they are dropped."""
CHUNK_BYTES = 64 << 10
"""Bytes of a chunk: a slow reader holds no more, and one page."""
PAGES_AT_ONCE = 3
"""Pages read at once: the look for news needs a thread too."""
MOST_SESSIONS = 10_000
"""Runs whose sessions are cached."""
MOST_STREAMS = 20_000


class TooManyError(TransientError):
    """More streams than a process serves."""

    code = "too_many_streams"


class StreamChunk(NamedTuple):
    """Joined events, the number and the place behind them. `ends`: their run is over."""

    end: int
    at: Cursor
    data: bytes
    ends: bool


@dataclass(eq=False)
class Channel:
    """Latest events of a selection, without gaps, from the number `first` on. `live`: it gets new ones."""

    selection: Selection
    events: deque[SentEvent] = field(default_factory=deque)
    first: int = 0
    listeners: int = 0
    live: bool = False
    over: bool = False
    heartbeats: int = 0
    heard: float = 0.0

    def __post_init__(self) -> None:
        self.more = asyncio.Event()
        self._bytes = 0
        self._joined = (-1, -1), StreamChunk(0, 0, b"", ends=False)

    @property
    def end(self) -> int:
        return self.first + len(self.events)

    def add(self, sent: SentEvent, now: float) -> None:
        self.heard = now
        self.events.append(sent)
        self._bytes += len(sent.data)
        while self._bytes > KEPT_BYTES and len(self.events) > 1:
            self._bytes -= len(self.events.popleft().data)
            self.first += 1

    def forget(self) -> None:
        self.first, self._bytes = self.end, 0  # slower listeners read from the view
        self.events.clear()

    def wake(self) -> None:
        self.more.set()
        self.more = asyncio.Event()

    def chunk(self, number: int, at: Cursor) -> StreamChunk:
        """Return joined events from a number on."""
        # A client may be ahead of the last look, through another gateway.
        while isinstance(at, int) and number < self.end and self.events[number - self.first].seq <= at:
            number += 1
        if number == self.end:
            return StreamChunk(number, at, b"", ends=False)
        # Joined, because a write costs more than its bytes.
        if self._joined[0] != (number, self.end):
            found, size, end = list[bytes](), 0, number
            while end < self.end and size < CHUNK_BYTES:
                found.append(self.events[end - self.first].data)
                size += len(found[-1])
                end += 1
            last = self.events[end - self.first - 1]
            ends = any(self.events[each - self.first].ends for each in range(number, end))
            self._joined = (number, self.end), StreamChunk(end, last.at, b"".join(found), ends)
        chunk = self._joined[1]
        # Parts have no number, and must not move a client back.
        return chunk._replace(at=at) if isinstance(at, int) and isinstance(chunk.at, int) and chunk.at < at else chunk

    def count(self, change: int) -> None:
        self.listeners += change

    def go_live(self, now: float) -> None:
        self.live, self.heard = True, now

    def finish(self) -> None:
        self.over = True

    def show_life(self, now: float) -> None:
        """Drop unused events, and give a sign of life when it is time."""
        if self.events and now - self.heard > FORGOTTEN_S:
            self.forget()
        if now - self.heard >= HEARTBEAT_S:
            self.heard, self.heartbeats = now, self.heartbeats + 1
            self.wake()


class StreamNews(NamedTuple):
    """Findings of a look: new events, its place, streams that are over, and if there is more at once."""

    events: list[tuple[Channel, SentEvent]]
    seen: Places
    over: list[Channel]
    more: bool


class RunStreams:
    """The streams of a process. Used on its event loop, except `begin`, which is thread-safe."""

    def __init__(self, reading: ReadSide, platform: Platform | None = None) -> None:
        self._reading = reading
        self._live = LiveParts(platform, reading, self._wants, self._hand_over) if platform else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: dict[tuple[str, str, bool], Channel] = {}
        self._of_parts = 0
        self._seen: Places | None = None
        self._slow, self._opened = -math.inf, -math.inf
        self._store: ViewReader | None = None
        self._log = ""
        self._of_sessions = 0
        self._looking = False
        self._sessions: dict[str, list[str]] = {}
        self._pages: dict[tuple[Channel, str], asyncio.Task[tuple[Page, int]]] = {}
        self._reads = asyncio.Semaphore(PAGES_AT_ONCE)
        self._watch: asyncio.Task[None] | None = None
        self.count = 0
        self._of: Counter[str] = Counter()

    @property
    def runs(self) -> int:
        return len(self._channels)

    def check_room(self, actor: str = "") -> None:
        """**Raises** TooManyError for too many streams of the process or the actor."""
        for count, most in ((self.count, MOST_STREAMS), (self._of[actor], MOST_STREAMS // 2)):
            if count >= most:
                raise TooManyError(f"there are {count} streams", retry_after=5.0)

    def begin(
        self,
        kind: SelectionKind,
        name: str = "",
        last: str = "",
        after: After | None = None,
        *,
        parts: bool = False,
        from_now: bool = False,
    ) -> tuple[Selection, Cursor | None]:
        """Return the selection and its start, None at its end. `from_now`: skip the past of a family. **Raises**
        MalformedError, NotFoundError, GoneError; NotYetError if the view is behind the id."""
        reading, where = self._reading, None
        with reading.still(after) as view:
            log, now = view.notes().get("log", ""), positions_in(view)
            if kind in ("run", "family"):
                reading.check(view, name)
                where = int(view.rows(RUNS, [(name,)])[name,][RUNS.places["partition"]])
            elif kind == "session":
                _check_session(view, name)
        found = Selection(kind, name, where, parts).tagged(log)
        begun: Cursor = 0 if kind == "run" else now if from_now or kind in ("all", "inbox") else {}
        at = found.opened(last) if last else begun
        if isinstance(at, int):
            return found, at if reading.check_seq(RunId(name), at) else None
        ends = {(RUN_LOG, number): offset + bool(given) for number, (offset, given) in at.items()}
        with reading.still(After(ends)):
            return found, at

    async def follow(
        self, selection: Selection, at: Cursor, *, named: bool = False, actor: str = ""
    ) -> AsyncIterator[bytes]:
        """Yield the events behind a place. `named`: begin with the place itself."""
        if self._watch is None or self._watch.done():
            self._loop = asyncio.get_running_loop()
            self._watch = self._loop.create_task(self._look_for_ever())
        key = selection.kind, selection.name, selection.parts
        channel = self._channels.setdefault(key, Channel(selection))
        self._of_parts += selection.parts
        if selection.parts and self._live is not None:
            self._live.listen()
        if not channel.listeners:
            self._of_sessions += selection.kind == "session"
            if self._seen is not None and not self._looking:  # a look under way may have passed over events for it
                channel.go_live(time.monotonic())
        channel.count(1)
        self.count += 1
        self._of[actor] += 1
        try:
            if named:
                yield f"id: {selection.sealed(at)}\nevent: begun\ndata: {{}}\n\n".encode()
            async for chunk in self._follow(channel, at):
                yield chunk
        finally:
            self.count -= 1
            self._of[actor] -= 1
            self._of += Counter()  # forgets actors without a stream
            self._of_parts -= selection.parts
            channel.count(-1)
            if not channel.listeners:
                self._of_sessions -= selection.kind == "session"
                del self._channels[key]

    def close(self) -> None:
        self._of_parts = 0
        if self._watch is not None:
            self._watch.cancel()

    async def _follow(self, channel: Channel, at: Cursor) -> AsyncIterator[bytes]:
        number, heartbeats = -1, channel.heartbeats  # -1: it is not up to date
        while True:
            more, ends, chunks = channel.more, False, list[bytes]()
            if heartbeats != channel.heartbeats:
                heartbeats = channel.heartbeats
                if number == channel.end and not isinstance(at, int):
                    at = self._seen or at
                chunks = [_heartbeat(channel.selection, at)]
            elif channel.first <= number < channel.end:
                number, at, chunk, ends = channel.chunk(number, at)
                chunks = [chunk] if chunk else []
            elif number >= channel.first or not channel.live:
                if channel.over:
                    return
                await more.wait()
            else:
                (events, at, _), number = await self._page(channel, at)
                chunks, ends = _chunks(events), bool(events) and events[-1].ends
            for chunk in chunks:
                yield chunk
            if ends and await self._is_over(channel, at):
                return

    async def _is_over(self, channel: Channel, at: Cursor) -> bool:
        """True if nothing follows the event that ended the run."""
        if not isinstance(at, int):
            return False
        page = await self._read(lambda store: channel.selection.page(store, at, None))
        return page is not None and not page.events

    async def _page(self, channel: Channel, at: Cursor) -> tuple[Page, int]:
        key = channel, channel.selection.sealed(at)
        task = self._pages.get(key)
        if task is None:
            task = self._pages[key] = asyncio.get_running_loop().create_task(self._load(channel, at))
            task.add_done_callback(lambda _: self._pages.pop(key, None))
        return await asyncio.shield(task)

    async def _load(self, channel: Channel, at: Cursor) -> tuple[Page, int]:
        async with self._reads:
            number, until = channel.end, self._seen or {}
            page = await self._read(lambda store: channel.selection.page(store, at, until))
        if page is None or (page.at == at and not page.whole):  # it is away, or no look has come to where a client is
            await asyncio.sleep(AWAY_S if page is None else NEWS_S)
            return Page([], at, whole=False), -1
        return page, number if page.whole else -1

    async def _read(self, read: Callable[[ViewReader], _T]) -> _T | None:
        """Read from the view; None while it is away, or was just switched."""
        try:
            return await _in_thread(lambda: read(self._reading.store()))
        except RefoldError as error:
            OUTAGES.failed("gateway.view_unread", reason=error.message)
            return None

    async def _look_for_ever(self) -> None:
        wait_s, more = NEWS_S, False
        while True:
            await asyncio.sleep(wait_s)
            wait_s = NEWS_S
            if not self._channels:
                self._seen, self._slow, self._store = None, -math.inf, None
                continue
            try:
                if self._seen is not None and not more and await _in_thread(lambda: self._reading.wait(NET_S)):
                    wait_s = 0.0
                known = [channel for channel in self._channels.values() if not channel.live]
                self._looking = True
                news = await _in_thread(self._look)
            except RefoldError as error:
                self._store = None
                OUTAGES.failed("gateway.view_unread", reason=error.message)
                wait_s = AWAY_S
            else:
                self._give(news, known)
                more = news.more
                wait_s = 0.0 if more else wait_s
            finally:
                self._looking = False
            for channel in list(self._channels.values()):
                channel.show_life(time.monotonic())

    def _give(self, news: StreamNews, known: list[Channel]) -> None:
        now, fed = time.monotonic(), dict[Channel, None]()
        for channel, sent in news.events:
            if channel.live:
                channel.add(sent, now)
                fed[channel] = None
        self._seen = news.seen
        for channel in known:
            channel.go_live(now)
        for channel in news.over:
            channel.finish()
            fed[channel] = None
        for channel in (*fed, *known):
            channel.wake()

    def _look(self) -> StreamNews:
        """Return events since the last look that succeeded."""
        store = self._opened_store()
        positions = positions_in(store)
        before = positions if self._seen is None else self._seen
        found: list[tuple[Channel, SentEvent]] = []
        seen, more = dict(before), False  # a generation that was dropped has no positions
        for number, (end, _) in positions.items():
            start = seen.get(number, NOWHERE)[0]
            if start < end:
                rows, reached = looked_through(store, number, start, end)
                listened = {str(row[0]): self._listened(store, str(row[0])) for row in rows}
                for told in told_of(row for row in rows if listened[str(row[0])]):
                    seen = {**seen, number: told.place}
                    for channel in listened[told.event.run_id]:
                        if sent := channel.selection.sent(told, seen):
                            found.append((channel, sent))
                seen[number] = reached, 0
                more |= reached < end
        return StreamNews(found, seen, self._over(store), more)

    def _opened_store(self) -> ViewReader:
        if self._store is None or time.monotonic() - self._opened > SWITCHED_S:
            self._store, self._opened = self._reading.store(), time.monotonic()
        return self._store

    def _listened(self, store: ViewReader, run: str) -> list[Channel]:
        keys = [("all", "", False), ("inbox", "", False)]
        for kind, name, _ in _with_parts(run):
            keys += (kind, name, False), (kind, name, True)
        if self._of_sessions:
            if run not in self._sessions:
                if len(self._sessions) >= MOST_SESSIONS:
                    self._sessions.clear()
                self._sessions[run] = [str(row[1]) for row in store.rows_of(RUN_SESSIONS, RunId(run))]
            keys += (("session", name, False) for name in self._sessions[run])
        return [channel for key in keys if (channel := self._channels.get(key)) is not None]

    def _wants(self, run: str) -> bool:
        """True if a run's parts, or for the empty name any, have listeners. Thread-safe."""
        return self._of_parts > 0 and (not run or any(key in self._channels for key in _with_parts(run)))

    def _hand_over(self, parts: list[LivePart]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._give_parts, parts)

    def _give_parts(self, parts: list[LivePart]) -> None:
        now = time.monotonic()
        for part in parts:
            for key in _with_parts(part.run_id):
                channel = self._channels.get(key)
                if channel is not None and channel.live:
                    channel.add(part_message(part, self._seen or {}, of_run=key[0] == "run"), now)
                    channel.wake()

    def _over(self, store: ViewReader) -> list[Channel]:
        """Return ended streams: of erased runs, and all if the log was replaced."""
        if time.monotonic() - self._slow <= SLOW_S:
            return []
        self._slow = time.monotonic()
        channels = dict(self._channels)
        before, self._log = self._log, store.notes().get("log", "")
        if before not in ("", self._log):
            return list(channels.values())
        mine = {key: channel for key, channel in channels.items() if key[0] in ("run", "family")}
        heads = store.rows(HEADS, [(name,) for name in {key[1] for key in mine}])
        gone = {name for (name,), row in heads.items() if row[HEADS.places["status"]] == "erased"}
        return [channel for key, channel in mine.items() if key[1] in gone]


def _with_parts(run: str) -> list[tuple[str, str, bool]]:
    return [("run", run, True), *(("family", each, True) for each in (*parents_of(run), run))]


def _check_session(view: ViewReader, name: str) -> None:
    if not view.query(Query(RUN_SESSIONS, (Where("session", "=", name),), limit=1)):
        raise NotFoundError(f"no run is part of the session {name[:200]!r}")


def _heartbeat(selection: Selection, at: Cursor) -> bytes:
    """Return a sign of life, which moves clients past positions without events for them."""
    return b": still here\n\n" if isinstance(at, int) else f"id: {selection.sealed(at)}\n: still here\n\n".encode()


def _chunks(events: list[SentEvent]) -> list[bytes]:
    found: list[bytes] = []
    for event in events:
        if found and len(found[-1]) < CHUNK_BYTES:
            found[-1] += event.data
        else:
            found.append(event.data)
    return found


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
