"""Events of runs as server-sent events.

A shared watch looks for new entries in the view and wakes their streams. Each stream then reads the view from its own
place; streams at the same place share a read. The stream of a run ends after its last event, and when it is erased;
after `RunFailed` a returning client waits for a retry. Streams of several runs do not end.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from refold.client.platform import Platform
from refold.client.streams import MOST_WAITING_BYTES, LivePart, Tries, part_in
from refold.console.gateway import selecting
from refold.console.gateway.rates import DEFAULT_LIMITS, GatewayLimits, SharedRoom
from refold.console.gateway.reading import After, ReadSide, events_after
from refold.console.projections.projector import HEADS
from refold.console.projections.shipped.tables import RUN_SESSIONS, RUNS
from refold.core.errors import NotFoundError, RefoldError, TransientError
from refold.core.ids import RunId, parents_of, parse_call_id
from refold.core.messages import StreamPart
from refold.core.topics import RUN_LOG, RUN_STREAM, pool_of
from refold.engine.adapters.kafka.reader import KafkaLogReader, KafkaNews
from refold.engine.ports.tables import Query, ViewReader, Where
from refold.engine.runtime.outages import OUTAGES

GIVE_UP_S = 5.0
"""Seconds that a part waits until the view has its call."""
MOST_LIVE_CALLS = 10_000
"""Calls whose pool and last try are cached."""
RETRY_S = 1.0
PARTS_UNUSED_S = 60.0
"""Least seconds that the reader of parts stays open: those sent before it is open are lost."""


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
        self.view_changed, self._used_s = threading.Event(), -math.inf
        self._thread: threading.Thread | None = None

    def listen(self) -> None:
        self._used_s = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="refold-gateway-parts", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        settings = self._platform.settings.kafka
        while self._is_used():
            try:
                topics = KafkaLogReader(settings).names((RUN_STREAM,))
                with closing(KafkaNews(settings, topics, self._platform.runs.partitions)) as news:
                    while self._is_used():
                        records = news.take(0.01 if self._waiting else 0.1)
                        for record in records:
                            if part := part_in(record):
                                self._waiting.append(WaitingPart(time.monotonic(), pool_of(record.topic), part))
                        if (records or self._is_due()) and (parts := list(self._credible())):
                            self._give(parts)
            # The streams go on without parts: their events come from the view.
            except RefoldError as error:
                OUTAGES.failed("gateway.parts_unread", reason=error.message)
                time.sleep(RETRY_S)

    def _is_used(self) -> bool:
        return self._wanted("") or time.monotonic() - self._used_s < PARTS_UNUSED_S

    def close(self) -> None:
        self._used_s = -math.inf

    def _is_due(self) -> bool:
        """Return True if the view may have calls of parts that wait, or the first of them is to be dropped."""
        if self.view_changed.is_set():
            self.view_changed.clear()
            return True
        return bool(self._waiting) and time.monotonic() - self._waiting[0].received_s > GIVE_UP_S

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
        if (expected := self._pools.get(part.call_id) or looked_up.get(part.call_id)) is not None:
            return expected
        seq = parse_call_id(part.call_id)[1]
        events = events_after(self._reading.store(), RunId(part.run_id), seq - 1, 1)
        proposed = bool(events) and (events[0].seq, events[0].type) == (seq, "CallProposed")
        looked_up[part.call_id] = str(events[0].event["pool"]) if proposed else ""
        return looked_up[part.call_id]


_T = TypeVar("_T")

NET_S = 1.0
"""Seconds between looks where the database notifies of changes, in case a notification is lost."""
READS_AT_ONCE = 3
"""Concurrent reads of streams: the watch needs a thread too."""
SIGN_S = 1.0
"""Seconds between signs of life, and looks for a refusal, of a stream whose run the view lacks."""


class TooManyError(TransientError, code="too_many_streams"):
    """More streams than a process serves."""


@dataclass(eq=False)
class StreamListener:
    """A stream that waits for news. `over`: its run was erased, or has not begun. Live parts are dropped if its client
    is slow."""

    selection: selecting.Selection
    most_bytes: int
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    parts: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0

    def add(self, part: bytes) -> None:
        """Queue a live part and wake the stream; those that wait are dropped beyond `most_bytes`."""
        if self.waiting_bytes + len(part) > self.most_bytes:
            self.take()
        self.parts.append(part)
        self.waiting_bytes += len(part)
        self.news.set()

    def end(self) -> None:
        self.over = True
        self.news.set()

    def take(self) -> list[bytes]:
        parts, self.parts, self.waiting_bytes = self.parts, [], 0
        return parts


_SIGN = b": still here\n\n"
StreamKey = tuple[selecting.SelectionKind, str]


class RunStreams:
    """The streams of a process. Used on its event loop, except `begin`, which is thread-safe."""

    def __init__(
        self, reading: ReadSide, platform: Platform | None = None, limits: GatewayLimits = DEFAULT_LIMITS
    ) -> None:
        self._reading, self._limits = reading, limits
        self._live = LiveParts(platform, reading, self._is_watched, self._hand_over) if platform else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._listeners: dict[StreamKey, set[StreamListener]] = {}
        self._actors: Counter[str] = Counter()
        self._early = SharedRoom(limits.early, "streams of new runs")
        self._pages: dict[tuple[selecting.Selection, str], asyncio.Task[selecting.Page]] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._ends: dict[int, int] = {}

    @property
    def count(self) -> int:
        return self._actors.total()

    def check_room(self, actor: str = "") -> None:
        """Check that the process and the actor may have one more stream. **Raises** TooManyError."""
        most = self._limits.streams
        for count, limit in ((self.count, most), (self._actors[actor], most // 2)):
            if count >= limit:
                raise TooManyError(f"there are {count} streams", retry_after=5.0)

    def begin(
        self,
        kind: selecting.SelectionKind,
        name: str = "",
        last: str = "",
        after: After | None = None,
        *,
        parts: bool = False,
        from_now: bool = False,
    ) -> tuple[selecting.Selection, selecting.Cursor | None]:
        """Return the selection and its start, None at its end. `from_now`: skip the past of a family. **Raises**
        MalformedError, NotFoundError, GoneError; NotYetError if the view is behind the id."""
        reading = self._reading
        with reading.still(after) as view:
            log = view.notes().get("log", "")
            now = {number: (end, 0) for number, end in selecting.log_ends(view).items()}
            early = kind in ("run", "family") and reading.is_awaited(view, name)
            home = None if early else self._home(view, kind, name)
        selection = selecting.Selection(kind, name, home, log, parts, early)
        skips_past = early or from_now or kind in ("all", "inbox")
        at = selection.cursor(last) if last else _start_of(kind, now if skips_past else {})
        if isinstance(at, int):
            return selection, at if early or reading.check_seq(RunId(name), at) else None
        ends = {(RUN_LOG, number): offset + bool(events) for number, (offset, events) in at.items()}
        reading.check_after(After(ends))
        return selection, at

    def _home(self, view: ViewReader, kind: selecting.SelectionKind, name: str) -> int | None:
        """Return the partition of the events, None for all. **Raises** NotFoundError, GoneError."""
        if kind in ("run", "family"):
            self._reading.check(view, name)
            return int(view.rows(RUNS, [(name,)])[name,][RUNS.places["partition"]])
        if kind == "session" and not view.query(Query(RUN_SESSIONS, (Where("session", "=", name),), limit=1)):
            raise NotFoundError(f"no run is part of the session {name[:200]!r}")
        return None

    async def follow(
        self, selection: selecting.Selection, at: selecting.Cursor, *, named: bool = False, actor: str = ""
    ) -> AsyncIterator[bytes]:
        """Yield the events behind a place. `named`: begin with the place itself."""
        heartbeat_s = self._limits.heartbeat_s
        with self._listening(selection, actor) as listener:
            if selection.early:
                async with aclosing(self._until_begun(listener, actor)) as signs:
                    async for sign in signs:
                        yield sign
            if named:
                yield f"id: {selection.id_of(at)}\nevent: begun\ndata: {{}}\n\n".encode()
            complete, sent_s = False, time.monotonic()
            while True:
                if listener.news.is_set() or not complete:
                    # Before the read: an entry that comes during it sets the event again, and is read next.
                    listener.news.clear()
                    chunks, at, complete, over = await self._page(selection, at)
                    parts = listener.take()
                    # Parts are of the present: beside events of the past they are dropped.
                    for chunk in (*chunks, *selecting.chunks_of(parts if complete else ())):
                        yield chunk
                        sent_s = time.monotonic()
                    if over or listener.over:
                        return
                if time.monotonic() >= sent_s + heartbeat_s:
                    at = at if listener.news.is_set() or not complete else self._passed(at)
                    yield _heartbeat(selection, at)
                    sent_s = time.monotonic()
                if complete:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(sent_s + heartbeat_s - time.monotonic()):
                            await listener.news.wait()

    async def _until_begun(self, listener: StreamListener, actor: str) -> AsyncGenerator[bytes]:
        """Yield signs of life until the view has a new run, or else the reason why the stream is over."""
        reading, name, until = self._reading, listener.selection.name, time.monotonic() + self._limits.early_s
        try:
            with self._early.one(actor):
                while await _in_thread(lambda: reading.is_awaited(reading.store(), name)):
                    yield _SIGN
                    if time.monotonic() > until:
                        raise NotFoundError(f"there is no run {name} so far", hint="ask again later")
                    with suppress(TimeoutError):
                        await asyncio.wait_for(listener.news.wait(), SIGN_S)
                    listener.news.clear()  # before the next look, which may miss entries that come during it
        except RefoldError as error:
            listener.end()
            problem = {"code": error.code, "detail": error.message, "hint": error.hint}
            yield b"event: problem\ndata: %s\n\n" % selecting.json_bytes(problem)

    def close(self) -> None:
        self._loop = None
        if self._live is not None:
            self._live.close()
        if self._watcher is not None:
            self._watcher.cancel()

    @contextmanager
    def _listening(self, selection: selecting.Selection, actor: str) -> Iterator[StreamListener]:
        listener, key = StreamListener(selection, self._limits.parts_bytes), (selection.kind, selection.name)
        self._listeners.setdefault(key, set()).add(listener)
        self._actors[actor] += 1
        if self._watcher is None or self._watcher.done():
            self._loop = asyncio.get_running_loop()
            self._watcher = self._loop.create_task(self._watch())
        if selection.parts and self._live is not None:
            self._live.listen()
        try:
            yield listener
        finally:
            self._actors[actor] -= 1
            self._actors += Counter()  # forgets actors without a stream
            self._listeners[key].remove(listener)
            if not self._listeners[key]:
                del self._listeners[key]

    async def _page(self, selection: selecting.Selection, at: selecting.Cursor) -> selecting.Page:
        key = selection, selection.id_of(at)
        if (task := self._pages.get(key)) is None:
            task = self._pages[key] = asyncio.create_task(self._read(selection, at))
            task.add_done_callback(lambda _: self._pages.pop(key, None))
        # Shielded: a client that leaves must not cancel the read of the others.
        return await asyncio.shield(task)

    async def _read(self, selection: selecting.Selection, at: selecting.Cursor) -> selecting.Page:
        async with self._reads:
            try:
                return await _in_thread(lambda: selection.page(self._reading.store(), at))
            except RefoldError as error:  # the database is away, or the view was just switched
                OUTAGES.failed("gateway.view_unread", reason=error.message)
        await asyncio.sleep(self._limits.away_s)
        return selecting.Page([], at, complete=False)

    def _passed(self, at: selecting.Cursor) -> selecting.Cursor:
        """Return the place behind the last look, for a stream that it did not wake."""
        if isinstance(at, int):
            return at
        ends = {number: max(at.get(number, selecting.NOWHERE), (end, 0)) for number, end in self._ends.items()}
        return {**at, **ends}

    async def _watch(self) -> None:
        """Wake the streams for which the view has new entries, while there are streams."""
        positions: dict[int, int] | None = None
        self._ends, checked_s = {}, time.monotonic()
        while self._listeners:
            try:
                notified = positions is not None and await _in_thread(lambda: self._reading.wait(NET_S))
                ends, keys = await _in_thread(partial(self._look, positions))
                if time.monotonic() >= checked_s + self._limits.slow_s:
                    checked_s = time.monotonic()
                    for listener in await _in_thread(self._ended_listeners):
                        listener.end()
            except RefoldError as error:
                OUTAGES.failed("gateway.view_unread", reason=error.message)
                positions = None
                await asyncio.sleep(self._limits.away_s)
                continue
            # With the wake-ups, without an await between: `_passed` must not move a stream past entries to send.
            positions = self._ends = ends
            self._wake(keys)
            if not notified:
                await asyncio.sleep(self._limits.news_s)

    def _wake(self, keys: Collection[StreamKey]) -> None:
        if self._live is not None and keys:
            self._live.view_changed.set()
        # A read under way may have begun before these entries: no stream joins it any more.
        self._pages.clear()
        for key in keys:
            for listener in self._listeners.get(key, ()):
                listener.news.set()

    def _look(self, before: dict[int, int] | None) -> tuple[dict[int, int], Collection[StreamKey]]:
        """Return the ends of the log in the view, and the streams with entries since `before`; all, if it is None."""
        store, most = self._reading.store(), self._limits.look_entries
        ends, keys, everyone = selecting.log_ends(store), set[StreamKey](), [*self._listeners]
        if before is None:
            return ends, everyone
        for number, end in ends.items():
            if before.get(number, 0) < end:
                rows = store.query(selecting.entries_between(number, before.get(number, 0), end, most))
                if len(rows) == most:
                    return ends, everyone
                for run in {str(row[0]) for row in rows}:
                    keys.update(_keys_of(run))
                    if any(kind == "session" for kind, _ in everyone):
                        keys.update(("session", str(row[1])) for row in store.rows_of(RUN_SESSIONS, RunId(run)))
        return ends, keys

    def _ended_listeners(self) -> list[StreamListener]:
        listeners = [listener for group in [*self._listeners.values()] for listener in [*group]]
        store, names = self._reading.store(), {listener.selection.name for listener in listeners}
        heads, log = store.rows(HEADS, [(name,) for name in names]), store.notes().get("log", "")
        erased = {str(row[0]) for row in heads.values() if row[HEADS.places["status"]] == "erased"}
        return [listener for listener in listeners if listener.selection.is_gone(log, erased)]

    def _is_watched(self, run: str) -> bool:
        """True if a run's parts, or for the empty name any, are sent to clients. Thread-safe."""
        keys = _keys_of(run) if run else [*self._listeners]
        listeners = (listener for key in keys for listener in [*self._listeners.get(key, ())])
        return self._loop is not None and any(listener.selection.parts for listener in listeners)

    def _hand_over(self, parts: list[LivePart]) -> None:
        """Queue live parts for their streams on the event loop. Thread-safe."""
        with suppress(RuntimeError):  # the loop was closed
            if (loop := self._loop) is not None:
                loop.call_soon_threadsafe(self._queue_parts, parts)

    def _queue_parts(self, parts: list[LivePart]) -> None:
        for part in parts:
            message = b"event: part\ndata: %s\n\n" % selecting.json_bytes(asdict(part))
            for key in _keys_of(part.run_id):
                for listener in self._listeners.get(key, ()):
                    if listener.selection.parts:
                        listener.add(message)


def _keys_of(run: str) -> list[StreamKey]:
    """Return the streams of a run's events, except those of its sessions."""
    return [("all", ""), ("inbox", ""), ("run", run), *(("family", name) for name in (*parents_of(run), run))]


def _heartbeat(selection: selecting.Selection, at: selecting.Cursor) -> bytes:
    """Return a sign of life, which moves clients past positions without events for them."""
    return _SIGN if isinstance(at, int) else f"id: {selection.id_of(at)}\n: still here\n\n".encode()


def _start_of(kind: selecting.SelectionKind, positions: dict[int, tuple[int, int]]) -> selecting.Cursor:
    return 0 if kind == "run" else positions


async def _in_thread(work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
