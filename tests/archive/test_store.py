"""The files of an archive: written once, complete or not there, and verified by their bytes alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fastavro import reader as avro_reader

from refold.archive import inspection
from refold.archive.collecting import batches, runs_of_log, whole_runs
from refold.archive.container import ArchivedRun, digest_of, pack_runs, unpack_runs
from refold.archive.store import ArchiveStore
from refold.core.errors import ConflictError, MalformedError, NotFoundError, UsageError
from tests.archive.world import NOW, World

DAY_FOLDER = "2023/11/14"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give topics with runs that are over, all in one partition."""
    world = World(tmp_path / "archive")
    for name in ("a", "a.1", "a.2"):
        world.run(name)
    return world


@pytest.fixture
def runs(world: World) -> list[ArchivedRun]:
    """Give the runs as they go into an archive."""
    return taken(world)


def taken(world: World) -> list[ArchivedRun]:
    found = []
    for partition in range(4):
        found += whole_runs(world.chronicle.reader, partition, runs_of_log(world.chronicle.reader, partition).ended)
    return found


def test_a_run_is_taken_whole_with_what_was_void(world: World) -> None:
    world.chronicle.void("a")

    run = next(run for run in taken(world) if run.run_id == "a")

    assert len(run.records) == 5
    assert (run.status, run.agent, run.ended_ms) == ("completed", "deploy", NOW)
    assert inspection.flaws(run) == []


def test_any_avro_library_reads_a_file(world: World, runs: list[ArchivedRun]) -> None:
    world.archive_store.keep(runs)
    [file] = world.archive_store.files()

    with (world.folder / file).open("rb") as content:
        rows: list[Any] = list(avro_reader(content))

    assert [row["run_id"] for row in rows] == ["a", "a.1", "a.2"]
    assert file.startswith(DAY_FOLDER)


def test_equal_runs_make_equal_bytes(runs: list[ArchivedRun]) -> None:
    assert pack_runs(runs) == pack_runs(list(unpack_runs(pack_runs(runs), "there")))


def test_what_is_there_is_not_written_again(world: World, runs: list[ArchivedRun]) -> None:
    first = world.archive_store.keep(runs[:2])
    before = {path: path.read_bytes() for path in world.folder.rglob("*.*")}

    second = world.archive_store.keep(runs)

    assert {run: second[run] for run in first} == first
    assert second["a.2"] == f"{first['a'].removesuffix('-0.avro')}-1.avro"  # type: ignore[index]
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_is_never_written_over(world: World, runs: list[ArchivedRun]) -> None:
    first = world.archive_store.keep(runs[:1])
    another = ArchiveStore(world.folder.as_uri())
    another._files_of = lambda place: []  # type: ignore[method-assign]  # it looked before the other wrote

    second = another.keep(runs[1:])

    assert set(first.values()) & set(second.values()) == set()
    assert sorted(line.run_id for line in world.archive_store.lines()) == ["a", "a.1", "a.2"]


def test_an_index_that_was_not_written_is_made_from_its_file(world: World, runs: list[ArchivedRun]) -> None:
    world.archive_store.keep(runs)
    [index] = world.folder.rglob("*.json")
    lines, content = list(world.archive_store.lines()), index.read_bytes()
    index.unlink()

    assert list(world.archive_store.lines()) == lines

    assert not index.exists()
    world.archive_store.keep(runs)
    assert index.read_bytes() == content


def test_a_line_says_where_a_run_lies_and_what_it_is(world: World, runs: list[ArchivedRun]) -> None:
    world.archive_store.keep(runs)

    line = next(line for line in world.archive_store.lines() if line.run_id == "a")

    assert (line.head, line.digest, line.records) == (runs[0].head, runs[0].digest, 4)
    assert world.archive_store.get("a") == runs[0]
    with pytest.raises(NotFoundError):
        world.archive_store.get("b")


def test_files_are_bounded_by_bytes_and_hold_families_whole(world: World) -> None:
    for name in ("b", "c"):
        world.run(name)
    ended = [run for number in range(4) for run in runs_of_log(world.chronicle.reader, number).ended.values()]
    size = ended[0].size

    together = [{run.run_id for run in batch} for batch in batches(ended, 1)]
    assert sorted(map(sorted, together)) == [["a", "a.1", "a.2"], ["b"], ["c"]]
    assert [len(batch) for batch in batches([run for run in ended if run.run_id in "bc"], 2 * size + 100)] == [2]


def test_every_byte_of_a_run_is_verified(runs: list[ArchivedRun]) -> None:
    run = runs[0]
    first, *others = run.records
    unreadable_result = [
        dataclasses.replace(run, records=(first._replace(value=first.value[:-1] + b"?"), *others)),
        dataclasses.replace(run, records=(first._replace(key=first.key[:-1] + b"?"), *others)),
        dataclasses.replace(run, records=(first._replace(at_ms=1), *others)),
        dataclasses.replace(run, records=(first._replace(offset=99), *others)),
        dataclasses.replace(run, head="00"),
        dataclasses.replace(run, status="failed"),
        dataclasses.replace(run, digest="00"),
        *(relabelled(run, run.records[:number] + run.records[number + 1 :]) for number in range(len(run.records))),
        relabelled(run, (*run.records, *runs[1].records[:1])),
    ]

    assert inspection.flaws(run) == []
    assert [inspection.flaws(each) for each in unreadable_result if not inspection.flaws(each)] == []


def relabelled(run: ArchivedRun, records: tuple[Any, ...]) -> ArchivedRun:
    """A copy that lies well: its digest is right."""
    return dataclasses.replace(run, records=records, digest=digest_of(records))


def test_a_file_that_was_cut_or_changed_is_told(world: World, runs: list[ArchivedRun]) -> None:
    content = pack_runs(runs)

    for unreadable_result in (content[:-1], content[:100], b"", b"Obj\1" + content[4:-20] + b"x" * 20, b"{}"):
        with pytest.raises(MalformedError):
            list(unpack_runs(unreadable_result, "there"))


def test_an_index_that_is_none_is_told(world: World, runs: list[ArchivedRun]) -> None:
    world.archive_store.keep(runs)
    [index] = world.folder.rglob("*.json")
    index.write_text(json.dumps([{"run": 1}]))

    with pytest.raises(MalformedError):
        list(world.archive_store.lines())


@pytest.mark.parametrize("url", ["nowhere", "ftp://x/y", "s3://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        ArchiveStore(url)


def test_an_archive_may_be_in_memory(runs: list[ArchivedRun]) -> None:
    archive_store = ArchiveStore("memory:///")

    archive_store.keep(runs)

    assert archive_store.get("a.1") == runs[1]


def test_a_file_that_holds_as_many_other_runs_is_not_what_was_written(
    world: World, runs: list[ArchivedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that serves another file of the same size would have these runs erased, which are nowhere else."""
    store, content = world.archive_store, pack_runs(runs[1:])
    put = store._put
    monkeypatch.setattr(store, "_put", lambda path, _: put(path, content))

    with pytest.raises(ConflictError, match="does not hold what was written"):
        store.keep(runs[:2])
