"""The contract of `refold.engine.ports.tables`: rows, sums and positions of one generation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Thread

import pytest
from benchmarks.views import digests, log_of, project
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.console.projections.batch import shares_of
from refold.console.projections.projector import CALLS as PROPOSED
from refold.console.projections.projector import HEADS, Projector
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import RUN_VALUES
from refold.console.sql.opening import view_in_memory
from refold.core.errors import ConflictError, UsageError
from refold.core.events import StatusSet
from refold.core.ids import RunId
from refold.core.tables import Scalar, ViewKey, ViewRow, ViewTable
from refold.engine.ports.tables import ViewChanges, ViewStore, rows_digest
from tests.contract.table_benches import CALLS, DAILY, FLAGS, REFUNDS, SHARES, TABLES, Bench, Work
from tests.projections.histories import begun, entries
from tests.projections.histories import log_of as history_of

PLACE = ("run-log", 3)
HARD = "\x00 \ud800 \udfff\ud800 \x1a001a \U0001f600 é"
"""What Postgres or an encoding refuses, and what looks as if it had been put in its place."""


def opened(bench: Bench, notes: dict[str, str] | None = None) -> ViewStore:
    bench.views.create("work", 1, TABLES, notes or {})
    return bench.views.store("work", 1)


def put(table: ViewTable, *rows: ViewRow) -> ViewChanges:
    return ViewChanges(TABLES, rows={table: {row[: table.keys]: row for row in rows}})


def added(**amounts: list[int]) -> ViewChanges:
    return ViewChanges(TABLES, sums={DAILY: {(day, 0): amount for day, amount in amounts.items()}})


def test_rows_are_read_back_as_they_were_written(bench: Bench) -> None:
    store = opened(bench)
    rows = [("r-1", 2, HARD, bytes(range(256))), ("r-1", -(1 << 63), "", b""), ("r-2", (1 << 63) - 1, "'%s\"?", b"\\")]

    store.commit(put(CALLS, *rows))
    found = store.rows(CALLS, [("r-1", 2), ("r-2", (1 << 63) - 1), ("r-3", 1)])

    assert found == {rows[0][:2]: rows[0], rows[2][:2]: rows[2]}
    assert {type(value) for row in found.values() for value in (row, *row)} == {tuple, str, int, bytes}
    assert list(store.scan(CALLS)) == sorted(rows, key=lambda row: row[:2])
    assert store.rows_of(CALLS, RunId("r-1")) == [rows[1], rows[0]]


def test_texts_that_no_database_takes_are_keys_too(bench: Bench) -> None:
    store = opened(bench)
    store.commit(put(REFUNDS, *((key, f"run {key}", 1) for key in HARD)))

    store.commit(ViewChanges(TABLES, rows={REFUNDS: {("\x00",): None}}, runs={RunId("run \ud800")}))

    left = set(HARD) - {"\x00", "\ud800"}
    assert set(store.rows(REFUNDS, [(key,) for key in HARD])) == {(key,) for key in left}
    assert {row[0] for row in store.scan(REFUNDS)} == left
    assert store.rows_of(REFUNDS, RunId("run \x1a")) == [("\x1a", "run \x1a", 1)]


def test_a_row_replaces_the_one_with_its_key(bench: Bench) -> None:
    store = opened(bench)
    store.commit(put(REFUNDS, ("a", "r-1", 1), ("b", "r-1", 2)))

    store.commit(put(REFUNDS, ("a", "r-2", 3)))
    store.commit(put(FLAGS, ("r-1", "x")))
    store.commit(put(FLAGS, ("r-1", "x")))

    assert list(store.scan(REFUNDS)) == [("a", "r-2", 3), ("b", "r-1", 2)]
    assert store.rows_of(REFUNDS, RunId("r-2")) == [("a", "r-2", 3)]
    assert list(store.scan(FLAGS)) == [("r-1", "x")]


def test_rows_of_a_run_go_before_its_new_ones_come(bench: Bench) -> None:
    store = opened(bench)
    store.commit(put(CALLS, ("r-1", 1, "a", b""), ("r-1", 2, "b", b""), ("r-2", 1, "c", b"")))
    store.commit(ViewChanges(TABLES, sums={SHARES: {("r-1", "d"): [1, 1], ("r-2", "d"): [1, 1]}}))

    changes = put(CALLS, ("r-1", 3, "new", b""))
    changes.runs.add(RunId("r-1"))
    store.commit(changes)

    assert list(store.scan(CALLS)) == [("r-1", 3, "new", b""), ("r-2", 1, "c", b"")]
    assert list(store.scan(SHARES)) == [("r-2", "d", 1, 1)]


def test_sums_are_added_to_what_is_there(bench: Bench) -> None:
    store = opened(bench)

    store.commit(added(monday=[2, 500], tuesday=[1, 0]))
    store.commit(added(monday=[1, -600]))

    assert list(store.scan(DAILY)) == [("monday", 0, 3, -100), ("tuesday", 0, 1, 0)]


def test_a_sum_beyond_64_bits_is_refused_with_its_batch(durable: Bench) -> None:
    store = opened(durable)
    store.commit(added(monday=[1, (1 << 63) - 1]))

    for amount in (1, 1 << 63):
        with pytest.raises(UsageError, match="64 bits"):
            store.commit(added(monday=[1, amount], tuesday=[1, 1]))

    assert list(store.scan(DAILY)) == [("monday", 0, 1, (1 << 63) - 1)]


def test_many_keys_are_read_in_one_call(bench: Bench) -> None:
    store = opened(bench)
    rows = [(f"r-{n % 7}", n, "t", b"") for n in range(5_000)]
    store.commit(put(CALLS, *rows))

    found = store.rows(CALLS, [(f"r-{n % 7}", n) for n in range(0, 10_000, 2)])

    assert sorted(found.values(), key=lambda row: row[1]) == rows[::2]
    assert store.rows(CALLS, []) == {}


def test_a_position_moves_from_what_it_was(bench: Bench) -> None:
    store = opened(bench)

    store.commit(ViewChanges(TABLES, moves={PLACE: (0, 7), ("run-snapshot", 0): (0, 1)}))
    store.commit(ViewChanges(TABLES, moves={PLACE: (7, 9)}))

    assert store.positions() == {PLACE: 9, ("run-snapshot", 0): 1}


@pytest.mark.parametrize("before", [0, 6, 8])
def test_a_writer_that_was_given_up_changes_nothing(bench: Bench, before: int) -> None:
    store, zombie = opened(bench), bench.views.store("work", 1)
    store.commit(ViewChanges(TABLES, moves={PLACE: (0, 7)}))

    changes = put(CALLS, ("r-1", 1, "a", b""))
    changes.sums[DAILY] = {("d", 0): [1, 1]}
    changes.moves |= {("run-snapshot", 0): (0, 3), PLACE: (before, 9)}
    changes.notes["why"] = "late"
    with pytest.raises(ConflictError, match=f"is at 7, not at {before}"):
        zombie.commit(changes)

    assert store.positions() == {PLACE: 7}
    assert [list(store.scan(table)) for table in (CALLS, DAILY)] == [[], []]
    assert store.notes() == {}


def test_notes_are_kept_and_changed_with_a_batch(bench: Bench) -> None:
    store = opened(bench, {"log": "a", "why": ""})

    store.commit(ViewChanges(TABLES, notes={"why": "it raised"}))

    assert bench.views.store("work", 1).notes() == {"log": "a", "why": "it raised"}


def test_a_snapshot_is_of_one_moment(bench: Bench) -> None:
    store = opened(bench)
    store.commit(ViewChanges(TABLES, rows=put(CALLS, ("r-1", 1, "a", b"")).rows, moves={PLACE: (0, 1)}))

    with store.snapshot() as before:
        changes = put(CALLS, ("r-2", 1, "b", b""))
        changes.moves[PLACE], changes.notes["n"] = (1, 2), "new"
        changes.runs.add(RunId("r-1"))
        store.commit(changes)

        assert before.positions() == {PLACE: 1}
        assert before.notes() == {}
        assert list(before.scan(CALLS)) == before.rows_of(CALLS, RunId("r-1")) == [("r-1", 1, "a", b"")]
        assert set(before.rows(CALLS, [("r-1", 1), ("r-2", 1)])) == {("r-1", 1)}
    assert (store.positions(), list(store.scan(CALLS))) == ({PLACE: 2}, [("r-2", 1, "b", b"")])


def test_a_scan_is_of_one_moment_and_may_be_left(bench: Bench) -> None:
    store = opened(bench)
    rows = [("r-1", n, "t", b"") for n in range(5_000)]
    store.commit(put(CALLS, *rows))

    left, scan = store.scan(CALLS), store.scan(CALLS)
    assert next(left) == next(scan) == rows[0]
    store.commit(ViewChanges(TABLES, runs={RunId("r-1")}))

    assert list(scan) == rows[1:]
    del left
    assert list(store.scan(CALLS)) == []


def test_two_threads_read_while_one_writes(bench: Bench) -> None:
    store, seen = opened(bench), list[tuple[int, int]]()
    done = list[bool]()

    def read() -> None:
        while not done:
            with store.snapshot() as now:
                seen.append((now.positions().get(PLACE, 0), len(list(now.scan(CALLS)))))

    # In memory a copy is made while another thread writes: that is no snapshot, and nobody needs it.
    readers = [Thread(target=read) for _ in range(2 if bench.url else 0)]
    for reader in readers:
        reader.start()
    for n in range(50):
        changes = put(CALLS, *(("r-1", 10 * n + m, "t", b"") for m in range(10)))
        changes.moves[PLACE] = (n, n + 1)
        store.commit(changes)
    done.append(True)
    for reader in readers:
        reader.join()

    assert all(rows == 10 * position for position, rows in seen)
    assert len(list(store.scan(CALLS))) == 500


RUNS = st.sampled_from(["r-1", "r-2", "r-\U0001f600"])
TEXTS = st.sampled_from(["", "a", "b", "\x00", "\x1a0000", "\ud800", "\uffff", "\U0001f600"]) | st.text(max_size=3)
NUMBERS = st.integers(-(1 << 40), 1 << 40)


def test_a_view_in_memory_is_one_for_all_threads_and_its_own() -> None:
    read: list[int] = []
    with view_in_memory(TABLES) as store, view_in_memory(TABLES) as other:
        store.commit(put(FLAGS, ("r-1", "late")))
        reader = Thread(target=lambda: read.append(len(store.rows_of(FLAGS, RunId("r-1")))))
        reader.start()
        reader.join()

        assert read == [1]
        assert other.rows_of(FLAGS, RunId("r-1")) == []


def rows_for(table: ViewTable) -> st.SearchStrategy[dict[ViewKey, ViewRow | None]]:
    values = {str: TEXTS, int: st.integers(-2, 2), bytes: st.binary(max_size=3)}
    columns = [RUNS if name == "run_id" else values[kind] for name, kind in table.columns.items()]
    pair = st.tuples(st.tuples(*columns), st.booleans())
    return st.lists(pair, max_size=6).map(lambda made: {row[: table.keys]: row if kept else None for row, kept in made})


def sums_for(table: ViewTable) -> st.SearchStrategy[dict[ViewKey, list[int]]]:
    first: st.SearchStrategy[str] = RUNS if table is SHARES else st.sampled_from(["mo", "tu"])
    second: st.SearchStrategy[Scalar] = st.sampled_from(["mo", "tu"]) if table is SHARES else st.integers(0, 1)
    keys: st.SearchStrategy[ViewKey] = st.tuples(first, second)
    return st.dictionaries(keys, st.lists(NUMBERS, min_size=2, max_size=2), max_size=4)


CHANGES = st.builds(
    ViewChanges,
    tables=st.just(TABLES),
    runs=st.sets(RUNS, max_size=2),
    rows=st.fixed_dictionaries({table: rows_for(table) for table in (CALLS, REFUNDS, FLAGS)}),
    sums=st.fixed_dictionaries({table: sums_for(table) for table in (DAILY, SHARES)}),
)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """Give numbers of generations."""
    return count(1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(CHANGES, min_size=1, max_size=5))
def test_all_stores_end_with_equal_rows_whatever_is_written(
    benches: list[Bench], numbers: Iterator[int], batches: list[ViewChanges]
) -> None:
    number, ends = next(numbers), []

    for bench in benches:
        bench.views.create("random", number, TABLES, {})
        store = bench.views.store("random", number)
        for changes in batches:
            store.commit(changes)
        runs = [RunId(run) for run in ("r-1", "r-2", "r-\U0001f600")]
        ends.append(
            [(sorted(store.scan(table)), rows_digest(table, store.scan(table))) for table in TABLES]
            + [(sorted(store.rows_of(table, run)), 0) for table in (CALLS, REFUNDS, SHARES) for run in runs]
        )
        bench.views.drop("random", number)

    assert ends[0] == ends[1] == ends[2]


def test_a_log_gives_equal_digests_in_each_store_and_in_batches_of_any_size(benches: list[Bench]) -> None:
    log, found = log_of(120), []
    tables = (*Work.tables, HEADS, PROPOSED, shares_of(Work.daily))

    for number, size in ((1, 7), (2, 100), (3, 5_000)):
        for bench in benches:
            bench.views.create("work", number, tables, {})
            store = bench.views.store("work", number)
            project(store, log, size, Work())
            found.append((digests(store, Work.tables), [rows_digest(table, store.scan(table)) for table in tables]))

    assert all(each == found[0] for each in found)
    assert found[0][0]["daily"] != "0" * 32


def test_exposed_values_of_any_text_and_size_are_equal_in_each_store(benches: list[Bench]) -> None:
    texts = ['"\x00 \\ud800 \U0001f600"', f'"{"y" * 65_000}"', "{}"]
    shown = [StatusSet(text, f"v{number}") for number, text in enumerate(texts)]
    pairs = entries("r-1", begun(), [StatusSet("asks"), *shown], [StatusSet("", "v2"), StatusSet("7", "v0")])
    found = []

    for number, size in ((1, 1), (2, 100)):
        for bench in benches:
            bench.views.create("values", number, Projector.tables_of(Shipped()), {})
            store = bench.views.store("values", number)
            project(store, history_of(pairs), size, Shipped())
            found.append(sorted(store.rows_of(RUN_VALUES, RunId("r-1"))))

    assert [row[1:3] for row in found[0]] == [("", "asks"), ("v0", "7"), ("v1", texts[1])]
    assert all(each == found[0] for each in found)
