"""Streams: what counts, once and in order, whatever happens to the database, the run and the listener."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from refold.adapters.memory.tables import MemoryViewDatabase, MemoryViewStore
from refold.core.errors import ConflictError, UnreachableError
from refold.core.events import Entry, RunFailed
from refold.core.wire import codec
from refold.gateway import streams
from refold.gateway.reading import ReadSide
from refold.gateway.streams import Channel, RunStreams, SentEvent
from refold.projections import service
from refold.projections.service import KeptProjection
from refold.projections.shipped.projection import Shipped
from tests.gateway.test_reading import Bench, ids
from tests.projections.histories import Pair, long
from tests.projections.source import ListedLog


class Unsteady(MemoryViewDatabase):
    """A database that raises an error for as long as it has one."""

    error: Exception | None = None

    def store(self, projection: str, generation: int) -> MemoryViewStore:
        if self.error is not None:
            raise self.error
        return super().store(projection, generation)


class Site:
    """Streams over a log in memory."""

    def __init__(self) -> None:
        self.log, self.database = ListedLog(), Unsteady()
        self.kept = KeptProjection(Shipped(), self.database, self.log)
        self.streams = RunStreams(ReadSide(self.database))

    def write(self, pairs: list[Pair]) -> None:
        for key, value in pairs:
            self.log.write(key, value)
        for _ in range(60):
            self.kept.turn(0.0)


pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(service, "REFRESH_S", 0.0)
    monkeypatch.setattr(streams, "AWAY_S", 0.02)
    monkeypatch.setattr(streams, "NEWS_S", 0.005)
    monkeypatch.setattr(streams, "SLOW_S", 1_000.0)
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


async def until(seen: list[int], last: int) -> None:
    async with asyncio.timeout(10):
        while not seen or seen[-1] < last:  # noqa: ASYNC110 - another task fills a list
            await asyncio.sleep(0.005)


async def test_a_stream_ends_behind_a_failure_and_one_behind_it_waits_for_a_retry(place: Site) -> None:
    before, after, failed = halves("sad")
    place.write(before)
    seen: list[int] = []
    await read(place.streams.run("sad", 0), seen)
    assert seen == list(range(1, failed + 1))

    back = asyncio.create_task(read(place.streams.run("sad", failed), seen))
    await asyncio.sleep(0.05)
    place.write(after)
    await asyncio.wait_for(back, 10)

    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > failed + 2
    assert place.streams.count == 0


async def test_a_failure_that_was_retried_by_now_ends_no_stream(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, failed = halves("sad")
    monkeypatch.setattr(streams, "PAGE_ENTRIES", len(before))
    place.write(before + after)
    seen: list[int] = []

    await read(place.streams.run("sad", 0), seen)

    assert seen == list(range(1, len(seen) + 1))
    assert seen[-1] > failed


@pytest.mark.parametrize("error", [UnreachableError("it is away"), ConflictError("generation 1 was dropped")])
async def test_what_is_written_while_the_database_is_away_comes_when_it_is_back(place: Site, error: Exception) -> None:
    before, _, failed = halves("sad")
    place.write(before[:2])
    seen: list[int] = []
    reader = asyncio.create_task(read(place.streams.run("sad", 0), seen))
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


async def test_the_stream_of_a_run_that_is_erased_ends(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SLOW_S", 0.01)
    before, _, _ = halves("sad")
    place.write(before[:3])
    seen: list[int] = []
    reader = asyncio.create_task(read(place.streams.run("sad", 0), seen))
    await until(seen, 3)

    place.log.mark("sad")
    place.log.bury("sad")
    place.write([])

    await asyncio.wait_for(reader, 10)


async def test_an_idle_stream_shows_that_it_lives(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.02)
    before, _, _ = halves("sad")
    place.write(before[:2])
    stream = place.streams.run("sad", 0)

    chunks = [await anext(stream) for _ in range(3)]
    await stream.aclose()  # type: ignore[attr-defined]

    assert chunks[0].startswith(b"id: 1\n")
    assert chunks[1:] == [b": still here\n\n"] * 2
    assert place.streams.count == 0


def sent(*seqs: int) -> list[SentEvent]:
    return [SentEvent(seq, b"x" * 100, ends=False) for seq in seqs]


async def test_a_gap_in_what_a_channel_is_given_is_read_from_the_view_and_holds_nobody_up() -> None:
    channel = Channel()
    channel.give(sent(1, 2))
    channel.give(sent(5, 6))

    assert channel.behind(2) is None
    assert [each.seq for each in channel.behind(4) or ()] == [5, 6]
    assert channel.behind(6) == []
    channel.note(8)
    assert channel.behind(6) is None


async def test_a_channel_keeps_bytes_and_not_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEPT_BYTES", 1_000)
    channel = Channel()

    channel.give(sent(*range(1, 101)))

    assert len(channel.events) == 10
    assert channel.behind(50) is None
    assert [each.seq for each in channel.behind(95) or ()] == [96, 97, 98, 99, 100]


def test_a_stream_too_many_is_a_problem_and_no_broken_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REFRESH_S", 0.0)
    monkeypatch.setattr(streams, "MOST_STREAMS", 0)
    site = Bench()
    with site.http:
        found = site.http.get("/api/runs/run-1/stream")

    assert (found.status_code, found.json()["code"]) == (503, "too_many_streams")
    assert found.headers["retry-after"]


def test_behind_the_end_of_a_run_there_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REFRESH_S", 0.0)
    site = Bench()
    with site.http:
        found = site.http.get("/api/runs/run-7/stream", headers={"Last-Event-ID": "33"})

    assert (found.status_code, found.content) == (204, b"")
