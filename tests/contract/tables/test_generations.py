"""The contract of `refold.engine.ports.tables`: generations, the names that users query, and who may write."""

from __future__ import annotations

import subprocess
import sys
from threading import Thread

import pytest

from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.tables import ViewTable
from refold.engine.ports.tables import ViewChanges
from tests.contract.table_benches import CALLS, DAILY, FLAGS, PUBLIC, REFUNDS, SHARES, TABLES, Bench
from tests.waiting import eventually

LOCKS = """
import sys
from refold.console.sql.opening import open_views
views = open_views(sys.argv[1])
print(views.lock("work"), views.lock("other"), flush=True)
sys.stdin.readline()
"""


def fill(bench: Bench, generation: int, tool: str) -> None:
    bench.views.create("work", generation, TABLES, {})
    store = bench.views.store("work", generation)
    store.commit(ViewChanges(TABLES, rows={CALLS: {("r-1", 1): ("r-1", 1, tool, b"")}}))


def test_users_see_the_generation_in_use_and_no_other(bench: Bench) -> None:
    fill(bench, 1, "old")
    assert bench.asked("calls") is None

    bench.views.switch("work", 1, PUBLIC)
    fill(bench, 2, "new")
    before = bench.asked("calls"), bench.views.generations("work")
    bench.views.switch("work", 2, PUBLIC)

    assert before == ([("r-1", 1, "old", b"")], {1: "serving", 2: "building"})
    assert bench.asked("calls") == [("r-1", 1, "new", b"")]
    assert bench.views.generations("work") == {1: "building", 2: "serving"}
    assert bench.asked("daily_by_run") is None
    assert bench.views.projections() == ["work"]


def test_a_name_goes_when_the_generation_in_use_does_not_have_it(bench: Bench) -> None:
    fill(bench, 1, "old")
    bench.views.switch("work", 1, PUBLIC)
    fill(bench, 2, "new")

    bench.views.switch("work", 2, (CALLS,))

    assert bench.asked("calls") == [("r-1", 1, "new", b"")]
    assert bench.asked("refunds") is None


def test_columns_may_be_others_in_the_next_generation(durable: Bench) -> None:
    fill(durable, 1, "old")
    durable.views.switch("work", 1, PUBLIC)
    for number, columns in enumerate(({"run_id": str, "n": int, "more": str}, {"n": int, "run_id": str}), 2):
        calls = ViewTable("calls", columns, 1)
        durable.views.create("work", number, (calls,), {})
        row = tuple({"run_id": "r", "n": 1, "more": "m"}[name] for name in columns)
        durable.views.store("work", number).commit(ViewChanges((calls,), rows={calls: {row[:1]: row}}))  # type: ignore[dict-item]

        durable.views.switch("work", number, (calls,))

        assert durable.asked("calls") == [row]


def test_a_dropped_generation_leaves_nothing_and_its_number_is_free(bench: Bench) -> None:
    fill(bench, 1, "old")
    bench.views.switch("work", 1, PUBLIC)
    zombie = bench.views.store("work", 1)
    zombie.commit(ViewChanges(TABLES, moves={("run-log", 0): (0, 5)}))

    bench.views.drop("work", 1)

    assert (bench.names(), bench.views.generations("work"), bench.views.projections()) == (set(), {}, [])
    with pytest.raises(NotFoundError, match="no generation 1 of work"):
        bench.views.store("work", 1)
    with pytest.raises(NotFoundError, match="no generation 1 of work"):
        bench.views.drop("work", 1)
    with pytest.raises(NotFoundError, match="no generation 1 of work"):
        bench.views.switch("work", 1, PUBLIC)
    fill(bench, 1, "again")
    assert bench.views.store("work", 1).positions() == {}
    assert list(bench.views.store("work", 1).scan(CALLS)) == [("r-1", 1, "again", b"")]


def test_a_writer_of_a_dropped_generation_is_refused(durable: Bench) -> None:
    fill(durable, 1, "old")
    zombie = durable.views.store("work", 1)
    durable.views.drop("work", 1)

    with pytest.raises(ConflictError, match="generation 1 of work was dropped"):
        zombie.commit(ViewChanges(TABLES, moves={("run-log", 0): (0, 5)}))
    with pytest.raises(ConflictError, match="open the generation in use"):
        list(zombie.scan(CALLS))
    with pytest.raises(ConflictError, match="was dropped"):
        zombie.notes()


def test_another_generation_stays_when_one_is_dropped(bench: Bench) -> None:
    fill(bench, 1, "old")
    fill(bench, 2, "new")
    bench.views.switch("work", 2, PUBLIC)

    bench.views.drop("work", 1)

    assert bench.asked("calls") == [("r-1", 1, "new", b"")]
    assert bench.views.generations("work") == {2: "serving"}


def test_a_generation_is_made_once(bench: Bench) -> None:
    fill(bench, 1, "old")

    with pytest.raises(ConflictError, match="there is a generation 1 of work already"):
        bench.views.create("work", 1, TABLES, {})

    assert list(bench.views.store("work", 1).scan(CALLS)) == [("r-1", 1, "old", b"")]


def test_a_name_of_another_projection_is_refused(bench: Bench) -> None:
    fill(bench, 1, "old")
    bench.views.switch("work", 1, PUBLIC)
    bench.views.create("other", 1, (CALLS, SHARES), {})

    with pytest.raises(UsageError, match="has a table calls too"):
        bench.views.switch("other", 1, (CALLS,))

    assert bench.asked("calls") == [("r-1", 1, "old", b"")]
    assert bench.views.generations("other") == {1: "building"}


def test_a_name_of_a_users_table_is_refused(durable: Bench) -> None:
    durable.run("create table refunds (mine text)")
    durable.run("create table work__2__flags (mine text)")
    fill(durable, 1, "old")

    with pytest.raises(UsageError, match="a table refunds that is no view of Refold's"):
        durable.views.switch("work", 1, (CALLS, REFUNDS))
    with pytest.raises(UsageError, match="a table work__2__flags that is no view of Refold's"):
        fill(durable, 2, "new")

    assert durable.asked("calls") is None
    assert durable.views.generations("work") == {1: "building"}


def test_long_names_stay_apart(durable: Bench) -> None:
    projection = "p" * 48
    tables = [ViewTable("t" * 47 + end, {"id": str, "run_id": str, "n": int}, 1, indexes=(("n",),)) for end in "ab"]
    durable.views.create(projection, 1, tables, {})
    store = durable.views.store(projection, 1)

    store.commit(ViewChanges(tables, rows={table: {("i",): ("i", "r", n)} for n, table in enumerate(tables)}))
    durable.views.switch(projection, 1, tables)

    assert [durable.asked(table.name) for table in tables] == [[("i", "r", 0)], [("i", "r", 1)]]


def test_a_reader_never_misses_a_name(durable: Bench) -> None:
    fill(durable, 1, "old")
    fill(durable, 2, "new")
    durable.views.switch("work", 1, PUBLIC)
    seen, done = list[object](), list[bool]()

    def read() -> None:
        while not done:
            seen.append(durable.asked("calls"))

    readers = [Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(20):
        durable.views.switch("work", 2 - number % 2, PUBLIC if number % 3 else (CALLS, DAILY, FLAGS))
    done.append(True)
    for reader in readers:
        reader.join()

    assert seen
    assert all(rows in ([("r-1", 1, "old", b"")], [("r-1", 1, "new", b"")]) for rows in seen)


def test_one_process_writes_a_projection(durable: Bench) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKS, durable.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True True\n"
        meanwhile = durable.views.lock("work"), durable.views.lock("third")
        other.kill()

    assert meanwhile == (False, True)
    assert eventually(lambda: durable.views.lock("work"))  # a server notices in a moment that a client is gone
    assert [durable.views.lock(name) for name in ("work", "third")] == [True, True]


def test_a_database_is_opened_again_with_what_is_in_it(durable: Bench) -> None:
    from refold.console.sql.opening import open_views

    fill(durable, 1, "old")
    durable.views.switch("work", 1, PUBLIC)
    assert durable.views.bytes() > 10_000
    durable.views.close()

    again = open_views(durable.url)

    assert again.generations("work") == {1: "serving"}
    assert again.store("work", 1).rows(CALLS, [("r-1", 1)]) == {("r-1", 1): ("r-1", 1, "old", b"")}
    again.close()
