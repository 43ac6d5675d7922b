"""Streams: what counts, once and in order, whatever happens to the database, the run and the listener."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refold.client.platform import Platform
from refold.client.reading.run import RunEvent
from refold.client.streams import LivePart
from refold.console.gateway import selecting
from refold.console.gateway.rates import GatewayLimits
from refold.console.gateway.reading import NotYetError, ReadSide
from refold.console.gateway.selecting import Selection
from refold.console.gateway.streams import RunStreams, StreamListener
from refold.console.projections.service import KeptProjection
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import ENTRIES
from refold.console.sql.opening import open_views
from refold.core.errors import ConflictError, MalformedError, NotFoundError, RefoldError, UnreachableError
from refold.core.events import ApprovalDecided, CallProposed, Cause, Entry, Event, RunFailed
from refold.core.ids import RunId, call_id
from refold.core.messages import StreamPart
from refold.core.tables import ViewRow
from refold.core.topics import RUN_REQUESTED
from refold.core.wire import codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.adapters.kafka.writer import KafkaLive
from refold.engine.ports.tables import Query
from refold.engine.runtime.addresses import Addresses
from refold.engine.runtime.settings import KafkaSettings, Settings
from tests.gateway.test_reading import Bench, ids
from tests.projections.histories import Pair, asked, begun, call, entries, long, mixed
from tests.projections.memory_views import MemoryViewDatabase, MemoryViewStore
from tests.projections.source import ListedLog
from tests.projections.test_disorder import spoilt


class Unsteady(MemoryViewDatabase):
    """A database that raises an error for as long as it has one."""

    error: Exception | None = None

    reads = 0
    release: threading.Event | None = None
    held = 0

    def store(self, projection: str, generation: int) -> MemoryViewStore:
        self.reads += 1
        if self.error is not None:
            raise self.error
        store = super().store(projection, generation)
        return store if self.release is None else Late(store, self)  # type: ignore[return-value]


class Late:
    """A store whose rows of a run's page arrive once the database releases them."""

    def __init__(self, store: MemoryViewStore, database: Unsteady) -> None:
        self._store, self._database = store, database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def query(self, query: Query) -> list[ViewRow]:
        rows = self._store.query(query)
        if query.order == "seq" and self._database.release is not None:
            self._database.held += 1
            self._database.release.wait(10)
        return rows


class Site:
    """Streams over a log in memory."""

    def __init__(self) -> None:
        self.log, self.database = ListedLog(), Unsteady()
        self.kept = KeptProjection(Shipped(), self.database, self.log, refresh_s=0.0)
        self.limits = GatewayLimits(away_s=0.02, news_s=0.005, slow_s=1_000.0)
        self.refused: dict[Cause, RefoldError] = {}
        self.reading = ReadSide(self.database, self.refused.get)
        self.streams = RunStreams(self.reading, limits=self.limits)

    def write(self, pairs: list[Pair]) -> None:
        for key, value in pairs:
            self.log.write(key, value)
        for _ in range(60):
            self.kept.turn(0.0)

    def rebuild(self) -> None:
        """Builds the next generation, and switches to it."""
        there = max(self.database.generations(Shipped.name))
        self.database.create(Shipped.name, there + 1, self.kept.tables, self.kept.begun())
        for _ in range(200):
            self.kept.turn(0.0)
        assert list(self.database.generations(Shipped.name)) == [there + 1]

    def follow(self, name: str, last: int | str = 0, kind: Any = "run") -> AsyncIterator[bytes]:
        selection, at = self.streams.begin(kind, name, str(last or ""))
        assert at is not None
        return self.streams.follow(selection, at)


pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place() -> Site:
    return Site()


def halves(run: str) -> tuple[list[Pair], list[Pair], int]:
    """A run up to its failure, the rest of it, and the number of its failure."""
    pairs = list(long(run))
    for number, (_, value) in enumerate(pairs, start=1):
        entry = codec.decode(Entry, value or b"")
        if isinstance(entry.events[-1], RunFailed):
            return pairs[:number], pairs[number:], entry.last_seq
    raise AssertionError("it fails nowhere")


async def read(stream: AsyncIterator[bytes], seen: list[int]) -> None:
    async for chunk in stream:
        seen += ids(chunk.decode())


async def read_all(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - another task makes it so
            await asyncio.sleep(0.005)


async def until(seen: list[int], last: int) -> None:
    async with asyncio.timeout(10):
        while not seen or seen[-1] < last:  # noqa: ASYNC110 - another task fills a list
            await asyncio.sleep(0.005)


async def test_a_stream_ends_behind_a_failure_and_one_behind_it_waits_for_a_retry(place: Site) -> None:
    before, after, failed = halves("sad")
    place.write(before)
    seen: list[int] = []
    await read(place.follow("sad"), seen)
    assert seen == list(range(1, failed + 1))

    back = asyncio.create_task(read(place.follow("sad", failed), seen))
    await asyncio.sleep(0.05)
    place.write(after)
    await asyncio.wait_for(back, 10)

    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > failed + 2
    assert place.streams.count == 0


async def test_a_failure_that_was_retried_by_now_ends_no_stream(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, failed = halves("sad")
    monkeypatch.setattr(selecting, "PAGE_ENTRIES", len(before))
    place.write(before + after)
    seen: list[int] = []

    await read(place.follow("sad"), seen)

    assert seen == list(range(1, len(seen) + 1))
    assert seen[-1] > failed


@pytest.mark.parametrize("error", [UnreachableError("it is away"), ConflictError("generation 1 was dropped")])
async def test_what_is_written_while_the_database_is_away_comes_when_it_is_back(place: Site, error: Exception) -> None:
    before, _, failed = halves("sad")
    place.write(before[:2])
    seen: list[int] = []
    reader = asyncio.create_task(read(place.follow("sad"), seen))
    await until(seen, 3)
    await asyncio.sleep(0.03)

    place.database.error = error
    await asyncio.sleep(0.03)
    stands, place.database.error = place.database.error, None
    place.write(before[2:4])
    place.database.error = stands
    await asyncio.sleep(0.03)
    place.database.error = None
    place.write(before[4:])
    await asyncio.wait_for(reader, 10)

    assert seen == list(range(1, failed + 1))


async def test_the_stream_of_a_run_that_is_erased_ends(place: Site) -> None:
    place.limits.slow_s = 0.01
    before, _, _ = halves("sad")
    place.write(before[:3])
    seen: list[int] = []
    reader = asyncio.create_task(read(place.follow("sad"), seen))
    await until(seen, 3)

    place.log.mark("sad")
    place.log.bury("sad")
    place.write([])

    await asyncio.wait_for(reader, 10)


@pytest.mark.parametrize(("kind", "name"), [("run", "sad"), ("family", "sad"), ("session", "s-1"), ("inbox", "")])
async def test_streams_of_a_log_that_was_replaced_end(place: Site, kind: str, name: str) -> None:
    place.limits.slow_s = 0.01
    before, _, _ = halves("sad")
    place.write(before[:3])
    reader = asyncio.create_task(read_all(place.follow(name, kind=kind)))
    await eventually(lambda: place.streams.count == 1)
    await asyncio.sleep(0.05)
    assert not reader.done()

    place.log.name = "log-2"
    place.rebuild()

    await asyncio.wait_for(reader, 10)


async def test_an_idle_stream_shows_that_it_lives(place: Site) -> None:
    place.limits.heartbeat_s = 0.02
    before, _, _ = halves("sad")
    place.write(before[:2])
    stream = place.follow("sad")

    chunks = [await anext(stream) for _ in range(3)]
    await stream.aclose()  # type: ignore[attr-defined]

    assert chunks[0].startswith(b"id: 1\n")
    assert chunks[1:] == [b": still here\n\n"] * 2
    assert place.streams.count == 0


async def test_a_slow_client_holds_bytes_of_parts_and_misses_the_older_ones() -> None:
    listener = StreamListener(Selection("run", "r", parts=True), most_bytes=40)

    for number in range(1, 101):
        listener.add(b"%03d." % number)
        assert sum(map(len, listener.parts)) <= 40

    assert listener.take() == [b"%03d." % number for number in range(91, 101)]
    assert listener.take() == []


def told(chunks: bytes) -> list[tuple[str, str, int]]:
    """Ids, runs and numbers of the events in a stream."""
    found = []
    for message in chunks.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in message.splitlines())
        if fields.get("data", "{}") != "{}":
            data = json.loads(fields["data"])
            found.append((fields["id"], data["run_id"], data["seq"]))
    return found


class Follower:
    """A client of a stream of several runs, which leaves and comes back behind the last id."""

    def __init__(self, place: Site, kind: str, name: str = "", last: str = "") -> None:
        self.place, self.kind, self.name, self.last = place, kind, name, last
        self.seen: list[tuple[str, str, int]] = []

    async def run(self, leave: int = 1 << 30) -> None:
        stream = self.place.follow(self.name, self.last, self.kind)
        async for chunk in stream:
            for each in told(chunk):
                self.seen.append(each)
                self.last = each[0]
                leave -= 1
                if not leave:  # in the middle of a chunk
                    await stream.aclose()  # type: ignore[attr-defined]
                    return

    def numbers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _, run, seq in self.seen:
            found.setdefault(run, []).append(seq)
        return found


def whole(place: Site, *runs: str) -> dict[str, list[int]]:
    """The numbers of all events of runs, as the view has them."""
    found = {}
    for run in runs:
        rows = place.streams._reading.store().rows_of(ENTRIES, RunId(run))
        found[run] = list(range(1, int(rows[-1][2]) + 1))
    return found


FAMILY = ("pa", "pa.1", "pa.1.1", "pa.2", "pa.2_3")
OTHERS = ("pa-1", "p", "paa", "pa2")


async def test_a_family_is_followed_with_children_that_begin_later(place: Site) -> None:
    place.write(mixed([long(run) for run in (*OTHERS, "pa", "pa.1")], 3))
    follower = Follower(place, "family", "pa")
    task = asyncio.create_task(follower.run())
    below = Follower(place, "family", "pa.1")
    other = asyncio.create_task(below.run())
    await asyncio.sleep(0.05)

    place.write(mixed([long(run) for run in FAMILY[2:]], 4))
    expected = whole(place, *FAMILY)
    await eventually(lambda: follower.numbers() == expected)
    task.cancel()
    other.cancel()

    assert below.numbers() == whole(place, "pa.1", "pa.1.1")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["all", "session", "family"])
async def test_who_leaves_anywhere_goes_on_without_a_gap_also_in_a_view_that_was_built_anew(
    place: Site, kind: str, seed: int
) -> None:
    rng = random.Random(seed)
    runs = [f"fam.{number}" if kind == "family" else f"r-{number}" for number in range(1, 6)]
    pairs = spoilt(mixed([*(long(run) for run in runs), long("fam")], seed), seed, ("copy", "loser", "orphan", "jump"))
    place.write(pairs[:1])
    await asyncio.sleep(0)
    names = {"all": "", "session": "s-1", "family": "fam"}
    place.write(pairs[1:5])
    begun = place.streams.begin("all")[0].id_of({}) if kind == "all" else ""
    follower = Follower(place, kind, names[kind], begun)
    rest = pairs[5:]
    for start in range(0, len(rest), 12):
        task = asyncio.create_task(follower.run(rng.randint(1, 30)))
        await asyncio.sleep(0.02)
        place.write(rest[start : start + 12])
        await asyncio.sleep(0.03)
        if rng.random() < 0.3:
            place.rebuild()
        task.cancel()
    expected = whole(place, *runs, "fam")
    task = asyncio.create_task(follower.run())
    await eventually(lambda: follower.numbers() == expected)
    task.cancel()


@pytest.mark.parametrize(("kind", "name"), [("family", "pa"), ("session", "s-1"), ("all", "")])
async def test_a_stream_that_waits_is_woken_by_entries_of_its_runs(place: Site, kind: str, name: str) -> None:
    place.write(long("pa")[:2])
    follower = Follower(place, kind, name)
    task = asyncio.create_task(follower.run())
    await eventually(lambda: place.streams.count == 1)
    await asyncio.sleep(0.05)

    for pair in long("pa")[2:]:
        place.write([pair])
        last = whole(place, "pa")["pa"][-1]
        await eventually(lambda: follower.numbers().get("pa", [0])[-1] == last)  # noqa: B023 - it is awaited here
    task.cancel()


async def test_more_entries_than_a_look_reads_wake_every_stream(place: Site) -> None:
    place.limits.look_entries = 1
    place.write(long("pa")[:2])
    follower = Follower(place, "family", "pa")
    task = asyncio.create_task(follower.run())
    await eventually(lambda: follower.numbers() == whole(place, "pa"))

    others = [pair for number in range(8) for pair in long(f"other-{number}")]
    place.write([*others, *long("pa")[2:]])  # the first entry of its partition is another run's
    await eventually(lambda: follower.numbers() == whole(place, "pa"))
    task.cancel()


async def test_a_generation_is_switched_amid_a_stream(place: Site) -> None:
    pairs = mixed([long(f"r-{number}") for number in range(4)], 5)
    place.write(pairs[:20])
    follower = Follower(place, "session", "s-1")
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(0.05)

    place.rebuild()
    place.write(pairs[20:])

    await eventually(lambda: follower.numbers() == whole(place, *(f"r-{number}" for number in range(4))))
    task.cancel()


async def test_a_member_that_is_erased_amid_a_stream_holds_no_other_up(place: Site) -> None:
    place.write(long("pa") + long("pa.1"))
    follower = Follower(place, "family", "pa")
    task = asyncio.create_task(follower.run())
    await eventually(lambda: follower.numbers() == whole(place, "pa", "pa.1"))

    place.log.mark("pa.1")
    place.log.bury("pa.1")
    place.write(long("pa.2"))

    await eventually(
        lambda: "pa.2" in follower.numbers() and follower.numbers()["pa.2"] == whole(place, "pa.2")["pa.2"]
    )
    again = Follower(place, "family", "pa")
    other = asyncio.create_task(again.run())
    await eventually(lambda: again.numbers() == whole(place, "pa", "pa.2"))
    task.cancel()
    other.cancel()


async def test_the_inbox_has_what_is_asked_and_decided_and_the_place_of_what_is_not_sent(place: Site) -> None:
    place.limits.heartbeat_s = 0.1
    place.write(long("before"))
    selection, at = place.streams.begin("inbox")
    assert at is not None
    chunks: list[str] = []

    async def read() -> None:
        async for chunk in place.streams.follow(selection, at, named=True):
            chunks.append(chunk.decode())

    task = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    question: list[list[Event]] = [begun(), [*call(1)[:1], asked(1)], [ApprovalDecided(1, 4, "reject", actors=["ada"])]]
    place.write([*long("other"), *entries("r-1", *question)])
    await eventually(lambda: "still here" in "".join(chunks[-1:]))
    task.cancel()

    text = "".join(chunks)
    assert chunks[0] == f"id: {selection.id_of(at)}\nevent: begun\ndata: {{}}\n\n"
    assert [each[1:] for each in told(text.encode()) if each[1] == "r-1"] == [("r-1", 4), ("r-1", 5)]
    last = selection.cursor(chunks[-1].splitlines()[0].removeprefix("id: "))
    assert last == {number: (end, 0) for number, end in selecting.log_ends(place.streams._reading.store()).items()}


async def test_an_id_that_is_none_or_of_another_stream_is_refused_and_one_ahead_waits(place: Site) -> None:
    place.write(long("pa"))
    selection, _ = place.streams.begin("family", "pa")
    good = selection.id_of({0: (3, 1), 1: (3, 1)})
    tag = good.partition("/")[0]
    for wrong in (
        "7", "x", "/", f"{tag}/x", f"{tag}/0", f"{tag}/0:", f"{tag}/0:1+", f"{tag}/0:-1", f"{tag}/0:1,", f"{tag}/0:1:2",
        f"{tag}/0:\u0661", f"{tag}/{'9' * 19}:1", f"00000000{good[8:]}", f"{tag}", "é", f"{tag}/,", f"{tag}/0:1;1:2",
    ):  # fmt: skip
        with pytest.raises(MalformedError):
            place.streams.begin("family", "pa", wrong)
    for kind, name in (("all", ""), ("inbox", ""), ("session", "s-1"), ("run", "pa"), ("family", "pa.1")):
        with pytest.raises((MalformedError, NotFoundError)):
            place.streams.begin(kind, name, good)  # type: ignore[arg-type]
    assert place.streams.begin("family", "pa", good)[1] in ({0: (3, 1)}, {1: (3, 1)})
    for ahead in (f"{tag}/0:999", f"{tag}/77:1", f"{tag}/1:{10**17}", f"{tag}/0:999+1"):
        with pytest.raises(NotYetError):
            place.streams.begin("family", "pa", ahead)


async def test_who_knows_more_than_the_last_look_gets_nothing_twice(place: Site) -> None:
    before, _, failed = halves("sad")
    place.write(before[:2])
    first: list[int] = []
    other = asyncio.create_task(read(place.follow("sad"), first))
    await until(first, 3)

    place.write(before[2:])  # a look comes after this
    seen: list[int] = []
    await read(place.follow("sad", failed - 3), seen)
    await asyncio.wait_for(other, 10)

    assert first == list(range(1, failed + 1))
    assert seen == [failed - 2, failed - 1, failed]


async def test_a_page_is_read_once_for_all_who_ask_for_it(place: Site) -> None:
    before, _, failed = halves("sad")
    place.write(before)
    reads = place.database.reads
    seen: list[list[int]] = [[] for _ in range(50)]

    await asyncio.gather(*(read(place.follow("sad"), each) for each in seen))

    assert seen == [list(range(1, failed + 1))] * 50
    assert place.database.reads - reads < 50 * 3 + 20


async def test_a_stream_joins_no_read_that_began_before_its_news(place: Site) -> None:
    before, _, _ = halves("sad")
    place.write(before[:2])
    seen: list[int] = []
    later: list[int] = []
    first = asyncio.create_task(read(place.follow("sad"), seen))
    await until(seen, 3)
    await asyncio.sleep(0.05)
    place.database.release = threading.Event()
    second = asyncio.create_task(read(place.follow("sad", seen[-1]), later))
    await eventually(lambda: place.database.held == 1)

    place.write(before[2:4])
    await eventually(lambda: place.database.held == 2)
    place.database.release.set()

    await until(seen, seen[-1] + 1)
    await until(later, seen[-1])
    first.cancel()
    second.cancel()


def test_a_stream_too_many_is_a_problem_and_no_broken_answer() -> None:
    site = Bench(streams=0)
    with site.http:
        found = site.http.get("/api/runs/run-1/stream")

    assert (found.status_code, found.json()["code"]) == (503, "too_many_streams")
    assert found.headers["retry-after"]


SENT = Cause(RUN_REQUESTED, 0, 1_007)


@pytest.mark.parametrize("kind", ["run", "family"])
async def test_a_stream_of_a_run_that_was_just_requested_here_waits_for_it(place: Site, kind: Any) -> None:
    before, _, failed = halves("sad")
    place.write(long("another"))
    with pytest.raises(NotFoundError):
        place.streams.begin(kind, "sad")
    place.reading.note_sent("sad", SENT)
    chunks: list[bytes] = []

    async def collect() -> None:
        async for chunk in place.follow("sad", kind=kind):
            chunks.append(chunk)

    task = asyncio.create_task(collect())
    await eventually(lambda: bool(chunks))
    assert chunks[0] == b": still here\n\n"
    assert place.streams._early._held.total() == 1
    place.write(before)
    await eventually(lambda: b'"RunFailed"' in b"".join(chunks))
    assert place.streams._early._held.total() == 0
    task.cancel()

    assert [seq for _, _, seq in told(b"".join(chunks))] == list(range(1, failed + 1)) if kind == "family" else True
    assert kind == "family" or ids(b"".join(chunks).decode()) == list(range(1, failed + 1))
    with pytest.raises(NotFoundError):
        place.streams.begin(kind, "other")


async def test_a_stream_of_a_run_that_is_refused_or_late_says_so_and_ends(place: Site) -> None:
    place.write(long("another"))
    place.reading.note_sent("late", SENT)
    place.reading.note_sent("odd", replace(SENT, offset=1_008))
    place.limits.early_s = 0.0
    late = (await read_all(place.follow("late"))).decode()
    place.limits.early_s = 60.0
    refused = asyncio.create_task(read_all(place.follow("odd")))
    await eventually(lambda: place.streams._early._held.total() == 1)

    place.refused[replace(SENT, offset=1_008)] = MalformedError("its input is odd")
    odd = (await asyncio.wait_for(refused, 10)).decode()

    assert late.startswith(": still here\n\nevent: problem\ndata: ")
    assert json.loads(late.rpartition("data: ")[2])["code"] == "not_found"
    assert json.loads(odd.rpartition("data: ")[2]) == {"code": "malformed", "detail": "its input is odd", "hint": ""}
    assert place.streams._early._held.total() == place.streams.count == 0
    with pytest.raises(MalformedError):  # known by now
        place.streams.begin("run", "odd")


async def test_one_actor_has_half_of_the_streams_that_wait_for_their_run() -> None:
    place = Site()
    place.streams = RunStreams(place.reading, limits=GatewayLimits(early=4, news_s=0.005))
    place.write(long("another"))
    place.reading.note_sent("new", SENT)

    def follow(actor: str) -> asyncio.Task[bytes]:
        selection, at = place.streams.begin("run", "new")
        assert at is not None
        return asyncio.create_task(read_all(place.streams.follow(selection, at, actor=actor)))

    first = [follow("mal") for _ in range(5)]
    await eventually(lambda: sum(task.done() for task in first) == 3)
    other = follow("ada")
    await eventually(lambda: place.streams._early._held.total() == 3)
    ended = [(await task).decode() for task in first if task.done()]
    place.write(long("new"))
    waiting = [task for task in (*first, other) if not task.done()]
    whole_runs = await asyncio.wait_for(asyncio.gather(*waiting), 10)

    assert [json.loads(text.rpartition("data: ")[2])["code"] for text in ended] == ["busy"] * 3
    assert len(whole_runs) == 3
    assert all(b'"RunCompleted"' in chunks for chunks in whole_runs)


def test_a_run_that_nobody_has_requested_here_is_missing_at_once() -> None:
    site = Bench()
    site.gateway.reading.note_sent("new", SENT)
    site.limits.early_s = 0.0
    with site.http:
        unknown = site.http.get("/api/runs/unknown/stream")
        late = site.http.get("/api/runs/new/stream")

    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert (late.status_code, "event: problem" in late.text) == (200, True)


class Counting(ReadSide):
    """Counts what the watch and the reader of parts do."""

    waits = looks = looked_up = 0

    def wait(self, timeout_s: float) -> bool:
        self.waits += 1
        return super().wait(timeout_s)

    def store(self) -> Any:
        self.looks += 1
        self.looked_up += threading.current_thread().name == "refold-gateway-parts"
        return super().store()


@pytest.mark.long
async def test_a_part_waits_for_its_call_without_work_and_goes_out_with_it(place: Site, kafka: EmbeddedKafka) -> None:
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"parts-{uuid.uuid4().hex[:8]}.", partitions=1)
    Topics(settings, ("default",)).apply()
    reading = Counting(place.database)
    streams = RunStreams(reading, Platform(Addresses(Settings(kafka=settings), dev=False, lost=None)), place.limits)
    place.write(entries("r-1", begun()))
    selection, at = streams.begin("run", "r-1", parts=True)
    assert at is not None
    chunks: list[bytes] = []

    async def collect() -> None:
        async for chunk in streams.follow(selection, at):
            chunks.append(chunk)

    task = asyncio.create_task(collect())
    proposed = entries("r-1", begun(), list(call(1)[:1]))
    (seq,) = [codec.decode(Entry, value or b"").seq for _, value in proposed[1:]]
    pool = next(event.pool for event in call(1) if isinstance(event, CallProposed))
    live, sent = KafkaLive(settings, "test", pool=pool, partitions=1), itertools.count(1)
    assert streams._live is not None
    while not streams._live._waiting:  # until the reader is open
        live.tell(StreamPart(RunId("r-1"), call_id(RunId("r-1"), seq), 1, 1, next(sent), "text", '{"text":"hello"}'))
        await asyncio.sleep(0.05)

    before, looked = reading.looked_up, time.monotonic()
    await asyncio.sleep(1.0)
    assert reading.looked_up - before < 4 * (time.monotonic() - looked)  # with parts that were on their way
    place.write(proposed)

    await eventually(lambda: b"event: part" in b"".join(chunks))
    text = b"".join(chunks)
    assert text.index(b'"CallProposed"') < text.index(b"event: part")
    task.cancel()
    streams.close()
    live.close()


class SqliteSite:
    """Streams over views in a SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.log, self.database = ListedLog(), open_views(f"sqlite:///{folder}/views.db")
        self.kept = KeptProjection(Shipped(), self.database, self.log, refresh_s=1_000.0)
        self.reading = Counting(self.database)
        self.streams = RunStreams(self.reading)
        for _ in range(5):
            self.kept.turn(0.0)

    async def write(self, pairs: list[Pair]) -> None:
        def work() -> None:
            for name, value in pairs:
                self.log.write(name, value)
            while not self.kept.turn(0.0):
                pass

        await asyncio.to_thread(work)

    def follow(self, run: str, seen: list[int]) -> asyncio.Task[None]:
        selection, at = self.streams.begin("run", run)
        assert at is not None
        return asyncio.create_task(read(self.streams.follow(selection, at), seen))

    def close(self) -> None:
        self.streams.close()
        self.kept.close()
        self.database.close()


@pytest.fixture
def sqlite_site(tmp_path: Path) -> Iterator[SqliteSite]:
    with closing(SqliteSite(tmp_path)) as site:
        yield site


async def test_a_stream_over_sqlite_looks_when_the_view_has_changed_and_not_before(sqlite_site: SqliteSite) -> None:
    reading, seen = sqlite_site.reading, list[int]()
    before, _, _ = halves("sad")
    await sqlite_site.write(before[:2])
    task = sqlite_site.follow("sad", seen)
    await until(seen, 3)
    await eventually(lambda: reading.waits >= 2)
    await asyncio.sleep(0.1)

    quiet = reading.looks
    await asyncio.sleep(0.4)
    assert reading.looks == quiet
    for number, pair in enumerate(before[2:5], start=1):
        await sqlite_site.write([pair])
        await until(seen, codec.decode(Entry, pair[1] or b"").last_seq)
        await asyncio.sleep(0.1)
        assert reading.looks <= quiet + 3 * number  # the watch's, and the stream's own
    task.cancel()


async def test_a_stream_over_sqlite_goes_on_when_notifications_are_lost(
    sqlite_site: SqliteSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", lost)
    monkeypatch.setattr("refold.console.gateway.streams.NET_S", 0.1)
    seen: list[int] = []
    before, _, failed = halves("sad")
    await sqlite_site.write(before[:2])
    task = sqlite_site.follow("sad", seen)
    await until(seen, 3)
    await eventually(lambda: sqlite_site.reading.waits >= 2)

    await sqlite_site.write(before[2:])

    await asyncio.wait_for(task, 10)
    assert seen == list(range(1, failed + 1))


def test_behind_the_end_of_a_run_there_is_no_more() -> None:
    site = Bench()
    with site.http:
        found = site.http.get("/api/runs/run-7/stream", headers={"Last-Event-ID": "33"})

    assert (found.status_code, found.content) == (204, b"")


async def test_parts_come_beside_events_without_an_id_and_move_nobody(place: Site) -> None:
    before, _, failed = halves("sad")
    place.write(before[:2])
    chunks: dict[str, list[bytes]] = {"run": [], "family": [], "plain": []}

    async def follow(kind: str, parts: bool) -> None:
        selection, at = place.streams.begin("family" if kind == "family" else "run", "sad", parts=parts)
        assert at is not None
        async for chunk in place.streams.follow(selection, at):
            chunks["plain" if not parts else kind].append(chunk)

    tasks = [asyncio.create_task(follow(*each)) for each in (("run", True), ("family", True), ("run", False))]
    await eventually(lambda: all(each and b'"seq":3' in each[-1] for each in chunks.values()))
    await asyncio.sleep(0.03)

    assert place.streams._is_watched("sad")
    assert place.streams._is_watched("sad.1")
    assert not place.streams._is_watched("bad")
    place.streams._hand_over([LivePart("sad", "sad/3", 1, 1, "text", {"text": "a\nb\ud800"}, supersedes=True)])
    await eventually(lambda: b"event: part" in chunks["run"][-1] and b"event: part" in chunks["family"][-1])
    place.write(before[2:])
    await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 10)
    tasks[1].cancel()

    (message,) = [each for each in b"".join(chunks["run"]).split(b"\n\n") if each.startswith(b"event: part")]
    assert json.loads(message.splitlines()[1].removeprefix(b"data: "))["supersedes"] is True
    assert len(message.splitlines()) == 2
    assert ids(b"".join(chunks["run"]).decode()) == ids(b"".join(chunks["plain"]).decode()) == [*range(1, failed + 1)]
    assert b"event: part" not in b"".join(chunks["plain"])


@pytest.mark.parametrize("run", ["r", "a\n\nid: 9\ndata: {}", 'a"', "\0\r"])
def test_no_id_of_a_run_is_written_raw_into_a_stream(run: str) -> None:
    place = {"topic": "run-log", "partition": 0, "offset": 0, "key": "", "cause": None, "actor": "p"}
    event = RunEvent(run_id=run, seq=1, type="RunStarted", at_ms=1, event={}, **place)
    selection = Selection("all")

    name, kind, data, *rest = selection.message(event, {}).split(b"\n")
    assert (name, kind, rest) == (f"id: {selection.tag}/".encode(), b"event: RunStarted", [b"", b""])
    assert json.loads(data.removeprefix(b"data: ")) == {"run_id": run, **event.dump()}
