"""Views in Postgres with UTF-8: rows go into a temporary table by COPY, and from there in one statement."""

from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import count
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from refold.console.sql.database import Hints, SqlViews
from refold.console.sql.statements import Statements
from refold.core.errors import ConflictError, UnreachableError, UsageError
from refold.core.tables import ViewKey, ViewRow

_CONNECT = {"connect_timeout": 10, "client_encoding": "utf8"}
"""Defaults of a connection, unless the URL has them."""
_LOCK_WAIT_S = 10
"""Longest wait for another session that holds a table, such as a dump."""
_CHANNEL = "refold_views"
_TYPES = {str: "text", int: "int8", bytes: "bytea"}
_LOCKED = (UnreachableError, "another session holds its tables: wait, or end that session")


class PostgresViews(SqlViews):
    """Views in Postgres. A pooler in between must pool sessions, which own locks and temporary tables. Removed rows
    stay in the files until autovacuum."""

    mark = "%s"
    # In the order of code points, as SQLite and Python have it: keys of all stores sort alike.
    text = sa.Text(collation="C")
    stillness = "REPEATABLE READ"
    away = "start it, or correct the URL"
    trouble: ClassVar[Hints] = {
        "22003": (UsageError, "a sum is beyond 64 bits"),
        "25006": (UnreachableError, "name the primary server, which takes writes"),
        "28": (UnreachableError, "correct the user and password in the URL"),
        "3D000": (UnreachableError, "create the database, or correct the URL"),
        "40": _LOCKED,
        "55": _LOCKED,
        "57014": _LOCKED,
        "2BP01": (UsageError, "drop the views that are made of it, or change them"),
        "42501": (UnreachableError, "grant its user the rights to create tables, views and temporary tables there"),
        "42P01": (ConflictError, "if its tables were dropped, open the generation in use"),
        "53": (UnreachableError, "make room on its disk, or let it have more connections"),
        "54": (UsageError, "a key or what is indexed is longer than Postgres takes"),
    }

    def __init__(self, url: sa.URL) -> None:
        self._cursors = count()
        self._locking: sa.Connection | None = None
        self._listening: sa.Connection | None = None
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={name: value for name, value in _CONNECT.items() if name not in url.query},
            hide_parameters=True,
            pool_pre_ping=True,
            # So that one writer keeps to the connection that has its temporary tables.
            pool_use_lifo=True,
        )
        sa.event.listen(engine, "connect", _set_up)
        super().__init__(url, engine)

    def enter(self, connection: sa.Connection) -> None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_number("refold"))))
        encoding = connection.execute(sa.text("show server_encoding")).scalar()
        if encoding != "UTF8":
            raise UsageError(f"the database {self.url} is in {encoding}", hint="create one with the encoding UTF8")

    def code(self, error: Any) -> str:
        return getattr(error, "sqlstate", None) or ""

    def cursor(self, connection: sa.Connection, *, streaming: bool = False) -> Any:
        driver: Any = connection.connection.driver_connection
        return driver.cursor(f"refold_{next(self._cursors)}" if streaming else "", binary=True)

    def find(self, cursor: Any, of: Statements, keys: Collection[ViewKey]) -> Iterator[ViewRow]:
        names = of.table.key_names
        arrays = ", ".join(f"%s::{_TYPES[of.table.columns[name]]}[]" for name in names)
        marks = ", ".join(f"asked{number}" for number in range(len(names)))
        same = " and ".join(f'"{name}" = asked{number}' for number, name in enumerate(names))
        columns = [list(column) for column in zip(*keys, strict=True)] or [[] for _ in names]
        cursor.execute(f"{of.select} join unnest({arrays}) as asked({marks}) on {same}", columns)
        return iter(cursor)

    def fill(self, cursor: Any, of: Statements, rows: Collection[ViewRow]) -> None:
        kinds = [_TYPES[kind] for kind in of.table.columns.values()]
        declared = ", ".join(f'"{name}" {kind}' for name, kind in zip(of.table.names, kinds, strict=True))
        # Its name changes with its columns: it outlasts a generation that is dropped and created again.
        staged = f"refold_{blake2b(f'{of.name} {declared}'.encode(), digest_size=16).hexdigest()}"
        cursor.execute(f'create temp table if not exists "{staged}" ({declared}) on commit delete rows')
        with cursor.copy(f'copy "{staged}" from stdin (format binary)') as copy:
            copy.set_types(kinds)
            for row in rows:
                copy.write_row(row)
        cursor.execute(of.upsert(f'select {of.columns} from "{staged}"'))

    def announce(self, connection: sa.Connection) -> None:
        # Without names of runs: 8,000 bytes hold few of them, and listeners read everything that is new.
        connection.execute(sa.text(f"notify {_CHANNEL}"))

    def wait(self, timeout_s: float) -> bool:
        with self._translating():
            try:
                if self._listening is None:
                    self._listening = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                    self._listening.execute(sa.text(f"listen {_CHANNEL}"))
                    return True  # changes before it are not notified
                driver: Any = self._listening.connection.driver_connection
                for _ in driver.notifies(timeout=timeout_s, stop_after=1):
                    pass
                return True
            except self._errors:
                if self._listening is not None:
                    self._listening.invalidate()
                    self._listening.close()
                self._listening = None
                raise

    def publish(self, connection: sa.Connection, name: str, query: str, *, exists: bool) -> None:
        if exists:
            try:  # in place, which keeps grants of users and their own views of it
                with connection.begin_nested():
                    connection.execute(sa.text(f'create or replace view "{name}" as {query}'))
                return
            except DBAPIError as error:
                if self.code(error.orig) != "42P16":  # columns are other ones
                    raise
        super().publish(connection, name, query, exists=exists)

    def lock(self, projection: str) -> bool:
        with self._translating():
            try:
                if self._locking is None:
                    self._locking = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                # Advisory locks are those of a database: another schema may have such views.
                schema = self._locking.execute(sa.select(sa.func.current_schema())).scalar()
                statement = sa.select(sa.func.pg_try_advisory_lock(_number(f"refold {schema} {projection}")))
                return bool(self._locking.execute(statement).scalar())
            except SQLAlchemyError:
                self._locking = None  # locks are gone with their connection
                raise

    def bytes(self) -> int:
        size = sa.select(sa.func.pg_database_size(sa.func.current_database()))
        with self.reading() as connection:
            return int(connection.execute(size).scalar() or 0)

    def close(self) -> None:
        if self._locking is not None:
            self._locking.invalidate()
            self._locking.close()
        if self._listening is not None:
            self._listening.invalidate()
        super().close()


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


def _set_up(connection: Any, record: object) -> None:
    connection.execute(f"set lock_timeout = '{_LOCK_WAIT_S}s'")
    # A rollback undoes SET, and each return to the pool is one.
    connection.commit()
