"""Views in a database that is killed, away, full, locked, or of another version; and what an erased run leaves."""

from __future__ import annotations

import importlib
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event

from refold.cli.errors import not_installed
from refold.console.sql import postgres as adapter
from refold.console.sql import sqlite
from refold.console.sql.opening import open_views
from refold.core.errors import UnreachableError, UsageError
from refold.core.ids import RunId
from refold.core.tables import ViewTable
from refold.engine.ports.tables import ViewChanges
from tests.contract.table_benches import CALLS, DAILY, FLAGS, REFUNDS, TABLES, Bench, PostgresBench, SqliteBench

PLACE = ("run-log", 0)
WRITES = """
import sys
from tests.contract.table_benches import CALLS, DAILY, TABLES
from refold.console.sql.opening import open_views
from refold.engine.ports.tables import ViewChanges

store = open_views(sys.argv[1]).store("work", 1)
at = store.positions().get(("run-log", 0), 0)
while True:
    rows = {("r-1", 50 * at + n): ("r-1", 50 * at + n, "t", b"x" * 100) for n in range(50)}
    sums = {DAILY: {("d", 0): [50, 1]}}
    store.commit(ViewChanges(TABLES, rows={CALLS: rows}, sums=sums, moves={("run-log", 0): (at, at + 1)}))
    at += 1
    print(at, flush=True)
"""


def one(run: str, step: int, tool: str = "t", raw: bytes = b"") -> ViewChanges:
    return ViewChanges(TABLES, rows={CALLS: {(run, step): (run, step, tool, raw)}})


def test_position_and_rows_agree_after_each_of_five_kills(durable: Bench) -> None:
    durable.views.create("work", 1, TABLES, {})
    store, seed = durable.views.store("work", 1), random.Random(7)
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES, durable.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline() for _ in range(seed.randrange(1, 12))]
            assert all(said), writer.stderr and writer.stderr.read().decode()
            writer.send_signal(signal.SIGKILL)

        with store.snapshot() as now:
            at, calls, sums = now.positions()[PLACE], list(now.scan(CALLS)), list(now.scan(DAILY))

        assert at >= int(said[-1])
        assert [row[1] for row in calls] == list(range(50 * at))
        assert sums == [("d", 0, 50 * at, at)]


def test_no_byte_of_an_erased_run_stays_in_the_file(tmp_path: Path) -> None:
    bench, seed = SqliteBench(tmp_path), random.Random(3)
    bench.views.create("work", 1, TABLES, {})
    store = bench.views.store("work", 1)
    files = [bench.path, bench.path.with_name("views.db-wal")]
    for number in range(40):
        changes = ViewChanges(TABLES)
        for run in ("victim-7f3a", "other-run-1", "other-run-2"):
            word = f"canary-{run}".encode()
            steps = [seed.randrange(300) for _ in range(20)]
            raw = [word * seed.randrange(1, 120) for _ in steps]
            changes.rows.setdefault(CALLS, {}).update(
                {(run, step): (run, step, f"canary-{run}", text) for step, text in zip(steps, raw, strict=True)}
            )
            changes.rows.setdefault(REFUNDS, {})[f"{run}/{number}",] = (f"{run}/{number}", run, number)
            changes.rows.setdefault(FLAGS, {})[run, f"canary-{run}-{number}"] = (run, f"canary-{run}-{number}")
        store.commit(changes)
    assert any(b"victim-7f3a" in file.read_bytes() for file in files)

    store.commit(ViewChanges(TABLES, runs={RunId("victim-7f3a")}))

    assert [b"victim-7f3a" in file.read_bytes() for file in files] == [False, False]
    assert b"other-run-1" in files[0].read_bytes()


def test_a_reader_delays_the_cut_of_the_log_and_no_writer(tmp_path: Path) -> None:
    bench = SqliteBench(tmp_path)
    bench.views.create("work", 1, TABLES, {})
    store = bench.views.store("work", 1)
    store.commit(one("victim-7f3a", 1))
    with store.snapshot() as before:
        store.commit(ViewChanges(TABLES, runs={RunId("victim-7f3a")}))
        assert len(before.rows_of(CALLS, RunId("victim-7f3a"))) == 1

    store.commit(one("r-2", 1))

    files = [bench.path, bench.path.with_name("views.db-wal")]
    assert [b"victim-7f3a" in file.read_bytes() for file in files] == [False, False]


def test_a_database_of_a_newer_refold_is_refused(durable: Bench) -> None:
    durable.run("update refold_views set version = 2")

    with pytest.raises(UsageError, match="of version 2, and this Refold has version 1: use a newer Refold"):
        open_views(durable.url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql+asyncpg://h/d",
        "mysql://h",
        "nonsense",
        "",
        "x://:p@",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a database for views: write sqlite:///"):
        open_views(url)


@pytest.mark.parametrize(
    ("package", "url", "extra"), [("sqlalchemy", "sqlite:///x", "views"), ("psycopg", "postgresql://h/d", "postgres")]
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, url: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("refold.console.sql")]:
        monkeypatch.delitem(sys.modules, name)

    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("refold.console.sql.opening").open_views(url)
    assert f"which is not installed: pip install 'refold[{extra}]'" in str(not_installed(caught.value))


def test_a_postgres_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(UnreachableError, match="start it, or correct the URL") as caught:
        open_views("postgresql://user:sesame@/d?host=/nowhere")

    assert "postgresql:///d" in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=f"sqlite:///{tmp_path}/no/views.db cannot be used .*make its folder"):
        open_views(f"sqlite:///{tmp_path}/no/views.db")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "views.db").write_bytes(b"no database " * 1_000)

    with pytest.raises(UnreachableError, match="move the file away, and build the views anew"):
        open_views(f"sqlite:///{tmp_path}/views.db")


@pytest.mark.parametrize(
    ("setting", "hint"), [("max_page_count = 1", "make room on its disk"), ("query_only = 1", "let this user write")]
)
def test_a_sqlite_that_is_full_or_read_only_changes_nothing(tmp_path: Path, setting: str, hint: str) -> None:
    bench = SqliteBench(tmp_path)
    bench.views.create("work", 1, TABLES, {})
    store = bench.views.store("work", 1)
    store.commit(one("r-1", 1))

    with set_for_connections(bench, f"pragma {setting}"), pytest.raises(UnreachableError, match=hint):
        store.commit(one("r-2", 1, raw=bytes(1_000_000)))

    store.commit(one("r-3", 1))
    assert [row[0] for row in store.scan(CALLS)] == ["r-1", "r-3"]


@contextmanager
def set_for_connections(bench: SqliteBench, statement: str) -> Iterator[None]:
    """Have the connections of a database begin with a statement for a while."""
    engine = bench.views._engine  # type: ignore[attr-defined]

    def begin(connection: sqlite3.Connection, record: object) -> None:
        connection.execute(statement)

    event.listen(engine, "connect", begin)
    engine.dispose()
    yield
    event.remove(engine, "connect", begin)
    engine.dispose()


def test_a_sqlite_that_another_process_writes_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_SETTINGS", ("journal_mode = wal", "busy_timeout = 10"))
    bench = SqliteBench(tmp_path)
    bench.views.create("work", 1, TABLES, {})
    store = bench.views.store("work", 1)

    with closing(sqlite3.connect(bench.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(UnreachableError, match="database is locked.*another process writes it"):
            store.commit(one("r-1", 1))
        assert list(store.scan(CALLS)) == []

    store.commit(one("r-1", 1))


def test_a_postgres_table_that_another_session_holds_is_locked(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "_LOCK_WAIT_S", 0.05)
    bench = PostgresBench(postgres)
    bench.views.create("work", 1, TABLES, {})
    store = bench.views.store("work", 1)

    with closing(psycopg.connect(bench.url)) as other:
        other.execute("lock table work__1__calls in access exclusive mode")
        with pytest.raises(UnreachableError, match="another session holds its tables"):
            store.commit(one("r-1", 1))

    store.commit(one("r-1", 1))
    bench.views.close()


def test_a_postgres_that_takes_no_writes_or_has_no_such_database_is_named(postgres: str) -> None:
    with pytest.raises(UnreachableError, match="name the primary server"):
        open_views(f"{postgres}&options=-cdefault_transaction_read_only%3Don")
    with pytest.raises(UnreachableError, match="start it, or correct the URL"):
        open_views(postgres.replace("/postgres?", "/nowhere?"))


def test_a_postgres_whose_connections_break_is_used_again(postgres: str) -> None:
    bench = PostgresBench(postgres)
    bench.views.create("work", 1, TABLES, {})
    store = bench.views.store("work", 1)
    store.commit(one("r-1", 1))
    assert bench.views.lock("work")

    bench.run("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")

    with pytest.raises(UnreachableError):
        bench.views.lock("work")
    store.commit(one("r-2", 1))
    assert bench.views.lock("work")
    assert [row[0] for row in store.scan(CALLS)] == ["r-1", "r-2"]
    bench.views.close()


def test_what_users_make_of_a_name_in_postgres_outlasts_a_switch(postgres: str) -> None:
    bench = PostgresBench(postgres)
    for number in (1, 2):
        bench.views.create("work", number, TABLES, {})
        bench.views.store("work", number).commit(one(f"r-{number}", 1))
    bench.views.switch("work", 1, (CALLS,))
    bench.run("create view mine as select run_id from calls")

    bench.views.switch("work", 2, (CALLS,))

    assert bench.asked("mine") == [("r-2",)]
    calls = ViewTable("calls", {"run_id": str}, 1)
    bench.views.create("work", 3, (calls,), {})
    with pytest.raises(UsageError, match="drop the views that are made of it, or change them"):
        bench.views.switch("work", 3, (calls,))
    assert bench.asked("mine") == [("r-2",)]
    bench.views.close()


def test_texts_in_postgres_are_in_the_order_of_code_points_wherever_it_was_made(postgres: str) -> None:
    bench = PostgresBench(postgres)
    bench.views.create("work", 1, TABLES, {})
    wanted = "select distinct collation_name from information_schema.columns where table_name like 'work__1__%%'"

    with closing(psycopg.connect(bench.url)) as connection:
        found = connection.execute(f"{wanted} and data_type = 'text' and table_schema = %s", (bench.schema,)).fetchall()

    assert found == [("C",)]
    bench.views.close()


def test_rows_are_found_by_their_indexes(durable: Bench) -> None:
    durable.views.create("work", 1, TABLES, {})
    durable.views.switch("work", 1, (CALLS, DAILY))

    if durable.url.startswith("sqlite"):
        with closing(sqlite3.connect(durable.url.removeprefix("sqlite:///"))) as connection:
            found = {name for (name,) in connection.execute("select name from sqlite_master where type = 'index'")}
    else:
        with closing(psycopg.connect(durable.url)) as connection:
            found = {name for (name,) in connection.execute("select indexname from pg_indexes")}

    assert {"work__1__calls__tool", "work__1__refunds__run_id"} <= found
