"""Rows of runs reach `run-view`, whenever a projector dies or loses its lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

import pytest

from refold.console.projections import service
from refold.console.projections.projector import Projector
from refold.console.projections.publishing import REPLACED, RunRows
from refold.console.projections.service import serving
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import RUNS
from refold.core.errors import ConflictError, UnreachableError
from refold.core.ids import RunId
from refold.core.messages import RunView
from refold.core.wire import codec
from refold.engine.ports.tables import ViewChanges
from tests.contract.table_benches import SqliteBench
from tests.projections.memory_views import MemoryViewDatabase
from tests.projections.source import ListedLog, attentive
from tests.projections.test_service import settle


class Topic:
    """A compacted topic. `dies` is at which write its writer dies, before or after it is there."""

    def __init__(self) -> None:
        self.values: dict[RunId, bytes | None] = {}
        self.writes, self.dies, self.late = 0, 0, False

    def write(self, values: Mapping[RunId, bytes | None]) -> None:
        self.writes += 1
        if self.writes == self.dies and not self.late:
            raise UnreachableError("killed before")
        self.values |= values
        if self.writes == self.dies:
            raise UnreachableError("killed behind")

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """The values of a reader that knows the last one of each key."""
        views = [codec.decode(RunView, value) for _, value in sorted(self.values.items()) if value is not None]
        return [tuple(getattr(view, name) for name in RUNS.names) for view in views]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BACKOFF_S", (0.0, 0.0))


def rows(database: MemoryViewDatabase) -> list[tuple[object, ...]]:
    return list(database.public[RUNS.name].scan(RUNS))


def test_a_record_has_the_columns_of_a_row() -> None:
    assert list(get_type_hints(RunView).items()) == list(RUNS.columns.items())


@pytest.mark.parametrize("late", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("dies", range(1, 9))
def test_a_writer_that_dies_at_a_write_leaves_nothing_unwritten(dies: int, late: bool) -> None:
    log, database, topic = ListedLog(), MemoryViewDatabase(), Topic()
    log.finish("r-2")  # nothing is in the other partition so far
    settle(attentive(Shipped(), database, log, send=topic.write))
    topic.writes, topic.dies, topic.late = 0, dies, late
    steps = [("finish", "r-3"), ("mark", "r-2"), ("bury", "r-2"), ("finish", "r-5")]
    for step, run in steps:
        getattr(log, step)(run)
        settle(attentive(Shipped(), database, log, send=topic.write))

    assert topic.rows == rows(database)
    assert topic.values[RunId("r-2")] is None


def test_nothing_names_an_erased_run_that_was_passed_on() -> None:
    log, database, topic = ListedLog(), MemoryViewDatabase(), Topic()
    log.finish("r-1")
    slot = attentive(Shipped(), database, log, send=topic.write)
    settle(slot)
    log.mark("r-1")
    log.bury("r-1")

    settle(slot)

    assert topic.values == {"r-1": None}
    assert database.store(Shipped.name, serving(database, Shipped.name)).notes()[REPLACED] == ""


def test_a_rebuild_writes_no_old_row_and_the_topic_follows_the_new_generation() -> None:
    log, database, topic = ListedLog(), MemoryViewDatabase(), Topic()
    log.finish("r-1")
    slot = attentive(Shipped(), database, log, send=topic.write)
    settle(slot)
    before, topic.values = topic.rows, {}
    database.create(Shipped.name, 2, slot.tables, slot.begun())

    settle(slot)

    assert serving(database, Shipped.name) == 2
    assert topic.rows == before == rows(database)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_runs_that_were_erased_while_no_generation_could_go_on_are_buried(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version reads the log after the erasure, so it has never heard of the run."""
    log, topic = ListedLog(), Topic()
    database = MemoryViewDatabase() if kind == "memory" else SqliteBench(tmp_path).views
    for run in ("r-1", "r-2"):
        log.finish(run)
    slot = attentive(Shipped(), database, log, send=topic.write)
    settle(slot)
    slot.close()
    log.mark("r-1")
    log.bury("r-1")

    monkeypatch.setattr(Shipped, "version", Shipped.version + 1)
    settle(attentive(Shipped(), database, log, send=topic.write))

    assert topic.values[RunId("r-1")] is None
    assert topic.rows == list(database.store(Shipped.name, 2).scan(RUNS))
    assert [row[0] for row in topic.rows] == ["r-2"]


def test_a_zombie_ends_with_the_newer_row() -> None:
    log, database, topic = ListedLog(), MemoryViewDatabase(), Topic()
    log.finish("r-1")
    settle(attentive(Shipped(), database, log))
    store = database.store(Shipped.name, serving(database, Shipped.name))
    seen: list[int] = []

    def overtaken(values: Mapping[RunId, bytes | None]) -> None:
        if not seen:  # another process goes on, and is there first
            (row,) = store.scan(RUNS)
            newer = (*row[: RUNS.places["says"]], "newer", *row[RUNS.places["says"] + 1 :])
            store.commit(ViewChanges((RUNS,), rows={RUNS: {(row[0],): newer}}))
            topic.write({RunId(str(row[0])): codec.encode(RunView(*newer))})  # type: ignore[arg-type]
        seen.append(1)
        topic.write(values)

    RunRows(store, overtaken).begin()

    assert topic.rows == list(store.scan(RUNS))
    assert len(seen) == 2


def test_a_zombie_cannot_clear_what_its_successor_has_left_to_publish() -> None:
    log, database = ListedLog(), MemoryViewDatabase()
    log.finish("r-1")
    settle(attentive(Shipped(), database, log))
    store = database.store(Shipped.name, serving(database, Shipped.name))

    def overtaken(values: Mapping[RunId, bytes | None]) -> None:
        place, at = next((place, at) for place, at in store.positions().items() if at)
        if not store.notes().get(REPLACED):  # a batch of the successor removes a run, and is not published yet
            store.commit(ViewChanges((), moves={place: (at, at + 1)}, notes={REPLACED: "r-1"}))

    with pytest.raises(ConflictError):
        RunRows(store, overtaken).begin()

    assert store.notes()[REPLACED] == "r-1"


def test_a_zombie_whose_generation_is_dropped_ends_with_the_newer_row(tmp_path: Path) -> None:
    log, database, topic = ListedLog(), SqliteBench(tmp_path).views, Topic()
    log.finish("r-1")
    tables, writes = Projector.tables_of(Shipped()), []

    def overtaken(values: Mapping[RunId, bytes | None]) -> None:
        writes.append(values)
        if len(writes) == 1:  # it stands still, and another process builds the view anew
            (row,) = database.store(Shipped.name, 1).scan(RUNS)
            newer = (*row[: RUNS.places["says"]], "newer", *row[RUNS.places["says"] + 1 :])
            database.create(Shipped.name, 2, tables, {})
            database.store(Shipped.name, 2).commit(ViewChanges((RUNS,), rows={RUNS: {(row[0],): newer}}))
            database.switch(Shipped.name, 2, Shipped.tables)
            database.drop(Shipped.name, 1)
        topic.write(values)

    slot = attentive(Shipped(), database, log, send=overtaken)
    while not writes:
        slot.turn(0.0)

    assert len(writes) == 2
    assert [row[RUNS.places["says"]] for row in topic.rows] == ["newer"]
    database.close()
