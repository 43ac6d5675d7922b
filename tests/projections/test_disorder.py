"""Copies, losers, orphans, jumps, tombstones and erasures: rows are those of a fold of the whole log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from refold.console.projections.projector import HEADS, Projector
from refold.console.projections.shipped import tables
from refold.core.errors import ConflictError
from refold.core.events import CallRepeated, Entry, RunCompleted, StatusSet
from refold.core.ids import RunId, log_key
from refold.core.tables import ViewTable
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from tests.projections.histories import NOW, Pair, begun, call, entries, log_of, long, marker, mixed
from tests.projections.judges import differences
from tests.projections.viewed import Log, Viewed

RUNS = [long(f"r-{number}", 2 + number % 4) for number in range(8)]
MIXED = mixed(RUNS, 1)


def spoilt(pairs: list[Pair], seed: int, kinds: tuple[str, ...]) -> list[Pair]:
    """The same log with more in it: copies, losers, orphans, tombstones of what does not count; or in another order."""
    rng, found = Random(seed), list(pairs)
    for kind in rng.choices(kinds, k=14):
        place = rng.randrange(len(found))
        key, value = found[place]
        later = rng.randrange(place + 1, len(found) + 1)
        entry = codec.decode(Entry, value) if value else None
        if entry is None:
            continue
        other = replace(entry, nonce=rng.randbytes(4), events=[StatusSet("lost")])
        if kind == "orphan":
            other = replace(other, prev=rng.randbytes(16))
        name, body = codec.encode_entry(other)
        match kind:
            case "copy":
                found.insert(later, (key, value))
            case "loser" | "orphan":
                found.insert(later, (log_key(entry.run_id, entry.seq, name), body))
            case "tombstone":
                found.insert(later, (log_key(entry.run_id, entry.seq, name), None))
            case "jump":
                found.insert(min(later, place + 15), found.pop(place))
    return found


def names(viewed: Viewed, run: str) -> list[str]:
    """The tables in which a run is named."""
    found = []
    for table in Projector.tables_of(viewed.projector.projection):
        for row in viewed.store.scan(table):
            if any(run.encode() in value if isinstance(value, bytes) else run in str(value) for value in row):
                found.append(table.name)
    return found


def totals(viewed: Viewed, table: ViewTable) -> list[int]:
    """The sums of a table over everything."""
    rows = [row[table.keys :] for row in viewed.store.scan(table)]
    return [sum(column) for column in zip(*rows, strict=True)]


def erasure(viewed: Viewed, run: str) -> Iterator[tuple[str, bytes]]:
    """The tombstones of a run, in order of its entries."""
    keys = [record.key for record in viewed.log if (record.key or b"").startswith(f"{run}/".encode())]
    return ((run, key) for key in dict.fromkeys(keys) if key)


def bury(viewed: Viewed, run: str) -> None:
    """Append the tombstones of a run."""
    for _, key in list(erasure(viewed, run)):
        viewed.add(viewed.log[0]._replace(topic=RUN_LOG, offset=ends(viewed, RUN_LOG), key=key, value=None))


def clean(viewed: Viewed, run: str) -> None:
    """Clean the log of what has a tombstone, as the broker does some time later."""
    buried = {record.key for record in viewed.log if record.value is None}
    viewed.log[:] = [each for each in viewed.log if each.value is None or each.key not in buried]


def ends(viewed: Viewed, topic: str) -> int:
    """Where the next record of a topic lies."""
    return viewed.store.positions().get((topic, 0), 0)


def mark(viewed: Viewed, run: str, *, gone: bool = False) -> None:
    """Append a marker, or what takes it back."""
    viewed.add(marker(run, ends(viewed, RUN_SNAPSHOT), gone=gone))


def again(viewed: Viewed, pairs: list[Pair]) -> None:
    """Append records that come late."""
    for key, value in pairs:
        viewed.add(viewed.log[0]._replace(topic=RUN_LOG, offset=ends(viewed, RUN_LOG), key=key, value=value))


ALL = ("copy", "loser", "orphan", "tombstone", "jump")


@pytest.mark.parametrize("kinds", [*((kind,) for kind in ALL), ALL], ids="-".join)
@pytest.mark.parametrize("seed", range(12))
def test_what_does_not_count_and_what_comes_out_of_order_changes_no_row(seed: int, kinds: tuple[str, ...]) -> None:
    log = log_of(spoilt(MIXED, seed, kinds))
    placed = {tables.ENTRIES.name}  # its rows say where a record lies

    for size in (1, 7, 5_000):
        viewed = Viewed.of(log, size)
        assert differences(viewed) == []
        if kinds != ("jump",) and "jump" not in kinds:
            straight = Viewed.of(log_of(MIXED)).digests()
            assert {name: digest for name, digest in viewed.digests().items() if name not in placed} == {
                name: digest for name, digest in straight.items() if name not in placed
            }


@pytest.mark.parametrize("kinds", [("jump",), ALL], ids="-".join)
@pytest.mark.parametrize("seed", range(12))
def test_a_disordered_log_gives_equal_rows_in_batches_of_any_size(seed: int, kinds: tuple[str, ...]) -> None:
    log = log_of(spoilt(MIXED, seed, kinds))

    assert Viewed.of(log, 1).digests() == Viewed.of(log, 9).digests() == Viewed.of(log).digests()


def test_a_jump_has_the_run_read_whole() -> None:
    pairs = long("r-1")
    pairs[2], pairs[3] = pairs[3], pairs[2]

    viewed = Viewed.of(log_of(pairs))

    assert viewed.projector.counts["repaired"] == 1
    assert viewed.row(tables.RUNS, "r-1")["seq"] == Viewed.of(log_of(long("r-1"))).row(tables.RUNS, "r-1")["seq"]
    assert differences(viewed) == []


def test_a_run_whose_beginning_is_gone_is_a_row_with_the_reason_and_the_others_go_on() -> None:
    viewed = Viewed.of(log_of([*long("r-1")[2:], *long("r-2")]))

    assert viewed.row(HEADS, "r-1")["reason"].startswith("gap")
    assert [row["run_id"] for row in viewed.rows(tables.RUNS)] == ["r-2"]


def test_a_record_in_a_partition_that_is_not_its_home_does_not_count() -> None:
    pairs = entries("r-1", begun(), [StatusSet("here")], [StatusSet("there")])
    log = Log(log_of(pairs), 2)
    other = 1 - Viewed(log).projector.histories.home(RunId("r-1"))
    log[:] = [each._replace(partition=other if number == 2 else 1 - other) for number, each in enumerate(log)]

    assert Viewed.of(log).row(tables.RUNS, "r-1")["says"] == "here"


def test_a_batch_that_is_sent_again_is_refused_whole() -> None:
    viewed = Viewed.of(log_of(MIXED[:20]))
    before = viewed.digests()

    with pytest.raises(ConflictError):
        viewed.projector.apply(viewed.log[10:], {(RUN_LOG, 0): (10, 20)})

    assert viewed.digests() == before


@pytest.mark.parametrize("size", [1, 5, 5_000])
def test_nothing_of_an_erased_run_stays_and_no_total_changes(size: int) -> None:
    viewed = Viewed.of(log_of(MIXED), size)
    before, kept = totals(viewed, tables.DAILY), totals(viewed, tables.FAMILIES)
    buried = [(RUN_LOG, key, None) for _, key in erasure(viewed, "r-3")]
    more = log_of([*((key, value) for _, key, value in buried), *long("r-9")])
    batch = [marker("r-3", 0), *(each._replace(offset=each.offset + len(MIXED)) for each in more)]
    viewed.log.extend(batch)

    viewed.apply(batch, size)

    others = totals(Viewed.of(log_of(long("r-9"))), tables.DAILY)
    assert set(names(viewed, "r-3")) == {"heads"}
    assert totals(viewed, tables.DAILY) == [one + more for one, more in zip(before, others, strict=True)]
    assert totals(viewed, tables.FAMILIES)[0] == kept[0]  # none of them lives
    assert totals(viewed, tables.FAMILIES)[5] == kept[5]  # one has gone, and another has come
    clean(viewed, "r-3")
    mark(viewed, "r-3", gone=True)
    assert names(viewed, "r-3") == []


def test_an_erased_run_does_not_come_back_with_what_comes_late() -> None:
    viewed = Viewed.of(log_of(MIXED))
    mark(viewed, "r-3")
    bury(viewed, "r-3")
    after = viewed.digests()

    again(viewed, long("r-3"))

    assert viewed.digests() == after
    assert set(names(viewed, "r-3")) == {"heads"}


def test_a_run_whose_marker_is_read_after_its_tombstones_does_not_come_back_either() -> None:
    viewed = Viewed.of(log_of(MIXED))
    viewed.log.append(said := marker("r-3", 0))  # it lies there, and is not consumed so far
    bury(viewed, "r-3")
    assert set(names(viewed, "r-3")) == {"heads"}
    again(viewed, long("r-3")[:2])
    viewed.apply([said])
    in_order = Viewed.of(log_of(MIXED))
    mark(in_order, "r-3")
    bury(in_order, "r-3")
    assert viewed.row(HEADS, "r-3") == in_order.row(HEADS, "r-3")
    assert (viewed.row(HEADS, "r-3")["marked"], viewed.row(HEADS, "r-3")["file"]) == (NOW, "a")

    again(viewed, long("r-3"))

    assert set(names(viewed, "r-3")) == {"heads"}
    clean(viewed, "r-3")
    mark(viewed, "r-3", gone=True)
    assert names(viewed, "r-3") == []


def test_orders_of_marker_and_tombstones_give_equal_rows() -> None:
    one, other = Viewed.of(log_of(MIXED)), Viewed.of(log_of(MIXED))

    mark(one, "r-5")
    bury(one, "r-5")
    other.log.append(said := marker("r-5", 0))
    bury(other, "r-5")
    other.apply([said])

    assert one.digests() == other.digests()


def test_a_marker_that_is_taken_back_leaves_the_run_as_it_was() -> None:
    viewed = Viewed.of(log_of(MIXED))
    before = viewed.digests()

    mark(viewed, "r-2")
    mark(viewed, "r-2", gone=True)

    assert viewed.digests() == before
    assert differences(viewed) == []


def test_a_marker_that_goes_names_no_run_that_was_never_known() -> None:
    viewed = Viewed.of(log_of(MIXED))

    mark(viewed, "r-77", gone=True)

    assert names(viewed, "r-77") == []


def test_a_run_that_could_not_be_told_is_gone_with_its_marker() -> None:
    viewed = Viewed.of(log_of([*long("r-1")[2:], *long("r-2")]))
    mark(viewed, "r-1")
    bury(viewed, "r-1")
    clean(viewed, "r-1")

    mark(viewed, "r-1", gone=True)

    assert names(viewed, "r-1") == []


def test_a_family_is_counted_together_and_goes_with_its_last_run() -> None:
    viewed = Viewed.of(log_of([*long("r-1"), *entries("r-1.1", begun(), [RunCompleted("1")])]))
    assert viewed.row(tables.FAMILIES, "r-1", 0)["completed"] == 2

    for run in ("r-1.1", "r-1"):
        mark(viewed, run)
        bury(viewed, run)
        clean(viewed, run)
        mark(viewed, run, gone=True)

    assert viewed.rows(tables.FAMILIES) == []
    assert names(viewed, "r-1") == []


def test_an_event_of_a_step_that_is_not_there_stops_nothing() -> None:
    strange = [*call(7)[1:], CallRepeated(9, 3)]

    assert Viewed.of(log_of(entries("r-1", begun(), strange))).row(tables.RUNS, "r-1")["steps"] == 0


@pytest.mark.parametrize("kinds", [("copy",), ("jump",), ALL], ids="-".join)
@pytest.mark.parametrize("seed", range(12))
def test_whoever_follows_what_counts_since_an_offset_gets_each_run_in_order_and_whole(
    seed: int, kinds: tuple[str, ...]
) -> None:
    log = log_of(spoilt(MIXED, seed, kinds))
    viewed, told = Viewed(log), dict[str, list[int]]()
    at: dict[int, int] = {}
    for start in range(0, len(log), 5):
        viewed.apply(log[start : start + 5], size=5)
        before, at = at, {place[1]: end for place, end in viewed.store.positions().items() if place[0] == RUN_LOG}
        rows = viewed.rows(tables.ENTRIES)
        new = [row for row in rows if before.get(row["partition"], 0) <= row["since_offset"] < at[row["partition"]]]
        for row in sorted(new, key=lambda row: (row["since_offset"], row["run_id"], row["seq"])):
            told.setdefault(row["run_id"], []).append(row["seq"])

    assert told == {run: [int(row[1]) for row in viewed.store.rows_of(tables.ENTRIES, RunId(run))] for run in told}
    assert sum(map(len, told.values())) == len(list(viewed.store.scan(tables.ENTRIES)))
