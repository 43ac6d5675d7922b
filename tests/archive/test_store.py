"""The files of an archive: written once, complete or not there, and verified by their bytes alone."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import reader as avro_reader
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import ConflictError, MalformedError, NotFoundError, UsageError
from refold.core.ids import RunId
from refold.engine.archive.collecting import batches, runs_of_log, whole_runs
from refold.engine.archive.container import ArchivedRecord, ArchivedRun, digest_of, flaws, pack_runs, unpack_runs
from refold.engine.archive.store import ArchiveStore
from tests.archive.world import DAY, NOW, World
from tests.core.hostile import zigzag

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
    assert flaws(run) == []


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

    assert flaws(run) == []
    assert [flaws(each) for each in unreadable_result if not flaws(each)] == []


def relabelled(run: ArchivedRun, records: tuple[Any, ...]) -> ArchivedRun:
    """A copy that lies well: its digest is right."""
    return dataclasses.replace(run, records=records, digest=digest_of(records))


def test_a_file_that_was_cut_or_changed_is_told(world: World, runs: list[ArchivedRun]) -> None:
    content = pack_runs(runs)

    for unreadable_result in (content[:-1], content[:100], b"", b"Obj\1" + content[4:-20] + b"x" * 20, b"{}"):
        with pytest.raises(MalformedError):
            list(unpack_runs(unreadable_result, "there"))


ODD_INDEXES = (
    *('[{"run": 1}]', "{", "[7]", "null", "[" * 100_000, '"x"', "\\xff", '[{"run_id": []}]'),
    *('{"a": {"a": 1}}', "[null]", "1e999", "", '[{"file": "x"}]'),
)


@pytest.mark.parametrize("content", ODD_INDEXES)
def test_an_index_that_is_none_is_named_and_the_other_files_are_read(
    world: World, runs: list[ArchivedRun], content: str
) -> None:
    first = world.archive_store.keep(runs[:1])[RunId("a")]
    world.archive_store.keep(runs[1:])
    index = next(path for path in world.folder.rglob("*.json") if path.stem == Path(first).stem)
    index.write_text(content)
    unread: list[MalformedError] = []

    assert sorted(line.run_id for line in world.archive_store.lines(unread)) == ["a.1", "a.2"]
    assert [index.name in error.message for error in unread] == [True]
    assert world.archive_store.get("a.1") == runs[1]
    with pytest.raises(NotFoundError, match="has no run a"):
        world.archive_store.get("a")


@pytest.mark.parametrize(("field", "value"), [("ended_ms", 2**53), ("ended_ms", "1"), ("run_id", 7), ("records", None)])
def test_a_line_of_an_index_that_lies_makes_no_list_fail(
    world: World, runs: list[ArchivedRun], field: str, value: object
) -> None:
    world.archive_store.keep(runs)
    [index] = world.folder.rglob("*.json")
    rows = json.loads(index.read_text())
    rows[0][field] = value
    index.write_text(json.dumps(rows))
    unread: list[MalformedError] = []

    assert list(world.archive_store.lines(unread)) == []
    assert len(unread) == 1


def test_the_next_copy_is_read_where_the_newest_cannot_be(world: World, runs: list[ArchivedRun]) -> None:
    world.archive_store.keep(runs[:1])
    again = replace(runs[0], ended_ms=runs[0].ended_ms + DAY)
    [newest] = world.archive_store.keep([again]).values()
    (world.folder / newest).write_bytes(b"Obj\1")

    assert world.archive_store.get("a") == runs[0]


def test_an_archivist_files_beside_a_file_that_is_damaged(world: World, runs: list[ArchivedRun]) -> None:
    first = world.archive_store.keep(runs[:1])[RunId("a")]
    for number, kind in enumerate(("json", "avro")):
        for path in world.folder.rglob(f"{Path(first).stem}.{kind}"):
            path.write_bytes(b"[" * 100_000)
        (world.folder / "index" / first).with_name(f"{Path(first).stem[:-1]}{number + 1}.json").write_text("7")

        kept = world.archive_store.keep(runs)

        assert kept[RunId("a")] != first or kind == "json"
        assert all(run in list(world.archive_store.runs(kept[run.run_id])) for run in runs)


_HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"


def hostile_files() -> Iterator[bytes]:
    """Files of Avro that no archive has: other schemas, codecs, sizes."""
    for schema in (
        {"type": "array", "items": "null"},
        {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
        "string",
        {"type": "enum", "name": "E", "symbols": []},
        {"type": "nothing"},
    ):
        for body in (b"", _HUGE, b"\x02" * 9_000):
            yield _file(json.dumps(schema).encode(), b"null", body)
    nested = b'{"type":"array","items":' * 20_000
    for content in (nested, b"null", b"", b"\xff", b'{"type":', b"[]", b"{}", b'["null"]'):
        yield _file(content, b"deflate", b"\x00")
    for codec in (b"", b"snappy", b"nothing", b"\xff"):
        yield _file(json.dumps(SCHEMA).encode(), codec, b"\x00")
    for body in (zlib.compress(b"x" * 99), b"\x00", b"", _HUGE):
        yield _file(json.dumps(SCHEMA).encode(), b"deflate", body)
    for body in (_HUGE * 9, b"\x02a" * 6 + _HUGE + b"\x01" * 50):
        yield _file(json.dumps(SCHEMA).encode(), b"null", body)


SCHEMA: Any = json.loads(avro_reader(BytesIO(pack_runs([]))).metadata["avro.schema"])


def _file(schema: bytes, codec: bytes, body: bytes) -> bytes:
    parts = [b"Obj\x01\x04"]
    for text in (b"avro.schema", schema, b"avro.codec", codec):
        parts += [zigzag(len(text)), text]
    return b"".join([*parts, b"\0", b"s" * 16, zigzag(1), zigzag(len(body)), body, b"s" * 16])


def test_no_file_of_a_stranger_does_more_than_be_named() -> None:
    for content in hostile_files():
        with pytest.raises(MalformedError, match="^there cannot be read"):
            list(unpack_runs(content, "there"))


@given(st.data())
def test_a_file_with_other_bytes_is_named_or_read_to_other_runs(data: st.DataObject) -> None:
    content = _packed()
    for _ in range(data.draw(st.integers(1, 3))):
        at, to = (data.draw(st.integers(0, len(content))) for _ in range(2))
        put = data.draw(st.one_of(st.binary(max_size=9), st.just(_HUGE), st.just(b"\x01"), st.just(content[at:to])))
        content = content[:at] + put + content[to if data.draw(st.booleans()) else at + len(put) :]
    with suppress(MalformedError):
        for run in list(unpack_runs(content, "there")):
            flaws(run)


@cache
def _packed() -> bytes:
    records = tuple(ArchivedRecord(n, 1_700_000_000_000, b"k" * n, b"v" * 40) for n in range(3))
    run = ArchivedRun(RunId("a"), "deploy", "completed", 0, 1_700_000_000_000, "00", digest_of(records), records)
    return pack_runs([run, replace(run, run_id=RunId("b"))])


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
    put = store._objects.put
    monkeypatch.setattr(store._objects, "put", lambda path, _: put(path, content))

    with pytest.raises(ConflictError, match="does not hold what was written"):
        store.keep(runs[:2])
