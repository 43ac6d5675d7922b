"""Generations of views in a database: created, put in use, and dropped, in a transaction each."""

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from refold.console.sql.statements import Statements, short
from refold.console.sql.store import (
    GENERATIONS,
    META,
    POSITIONS,
    TABLES,
    VERSIONS,
    SqlDriver,
    SqlViewStore,
    physical_name,
    rows_about,
)
from refold.core.errors import ConflictError, NotFoundError, RefoldError, UnreachableError, UsageError
from refold.core.redaction import public_url
from refold.core.tables import ViewTable
from refold.engine.ports.tables import ViewDatabase

_VERSION = 1
"""Version of the tables that list the generations."""

Hints = Mapping[str, tuple[type[RefoldError], str]]
"""Our error and the next action, by the prefix of the driver's code."""


class SqlViews(SqlDriver, ViewDatabase):
    """View database with the parts that SQLite and Postgres share."""

    text: ClassVar[TypeEngine[str]]
    stillness: ClassVar[Any]
    trouble: ClassVar[Hints]
    away: ClassVar[str]

    def __init__(self, url: sa.URL, engine: sa.Engine) -> None:
        self.url = public_url(url.render_as_string(hide_password=True))
        self._engine = engine
        self._errors = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)
        with self.writing() as connection:
            self.enter(connection)
            META.create_all(connection)
            version = connection.execute(sa.select(VERSIONS.c.version)).scalar()
            if version is None:
                connection.execute(sa.insert(VERSIONS), {"version": _VERSION})
            elif version > _VERSION:
                raise UsageError(
                    f"the views in {self.url} are of version {version}, and this Refold has version {_VERSION}",
                    hint="use a newer Refold, or another database",
                )

    @abstractmethod
    def enter(self, connection: sa.Connection) -> None:
        """Wait for other processes that create the first tables, and check the database."""

    @abstractmethod
    def code(self, error: Any) -> str:
        """Driver's code of an error."""

    @abstractmethod
    def publish(self, connection: sa.Connection, name: str, query: str, *, exists: bool) -> None:
        """Create a view, or replace a `exists` one."""

    # What a store needs

    @contextmanager
    def reading(self, *, still: bool = False) -> Iterator[sa.Connection]:
        with self._translating(), self._engine.connect() as connection:
            if still:
                connection = connection.execution_options(isolation_level=self.stillness)
                connection.execute(sa.select(VERSIONS))  # the first read is the moment that the others see
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with self._translating(), self._engine.connect() as connection:
            connection = connection.execution_options(refold_writes=True)
            with connection.begin():
                yield connection

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (*self._errors, OverflowError) as error:
            cause: Any = getattr(error, "orig", None) or error
            code = "22003" if isinstance(cause, OverflowError) else self.code(cause)
            matches = (matches for start, matches in self.trouble.items() if code.startswith(start))
            kind, hint = next(matches, (UnreachableError, self.away))
            reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
            raise kind(f"the views in {self.url} cannot be used ({reason})", hint=hint, url=self.url) from error

    # Generations

    def generations(self, projection: str) -> dict[int, str]:
        columns = GENERATIONS.c
        statement = sa.select(columns.generation, columns.state).where(columns.projection == projection)
        with self.reading() as connection:
            return dict(iter(connection.execute(statement.order_by(columns.generation))))

    def projections(self) -> list[str]:
        with self.reading() as connection:
            return sorted(connection.execute(sa.select(GENERATIONS.c.projection).distinct()).scalars())

    def create(self, projection: str, generation: int, tables: Collection[ViewTable], notes: Mapping[str, str]) -> None:
        own = {"projection": projection, "generation": generation}
        with self.writing() as connection:
            if self._state(connection, projection, generation):
                raise ConflictError(f"there is a generation {generation} of {projection} already")
            connection.execute(sa.insert(GENERATIONS), {**own, "state": "building", "notes": json.dumps(dict(notes))})
            for table in tables:
                name = physical_name(projection, generation, table.name)
                self._check_free(connection, name)
                connection.execute(sa.insert(TABLES), {**own, "name": table.name, "physical": name, "public": 0})
                self._make(connection, name, table)

    def store(self, projection: str, generation: int) -> SqlViewStore:
        with self.reading() as connection:
            self._check(connection, projection, generation)
        return SqlViewStore(self, projection, generation)

    def switch(self, projection: str, generation: int, tables: Collection[ViewTable]) -> None:
        # In a transaction of its own: it takes its time, and readers need not wait for it.
        with self.writing() as connection:
            self._check(connection, projection, generation)
            for table in tables:
                for columns in table.indexes:
                    self._index(connection, physical_name(projection, generation, table.name), columns)
        with self.writing() as connection:
            self._check(connection, projection, generation)
            shown = sa.select(TABLES.c.name).where(TABLES.c.projection == projection, TABLES.c.public == 1)
            old = set(connection.execute(shown).scalars())
            for table in tables:
                if table.name not in old:
                    self._check_free(connection, table.name)
                of = Statements(physical_name(projection, generation, table.name), table, self.mark)
                self.publish(connection, table.name, of.select, exists=table.name in old)
            names = [table.name for table in tables]
            for name in old.difference(names):
                connection.execute(sa.text(f'drop view if exists "{name}"'))
            of_projection = GENERATIONS.c.projection == projection
            connection.execute(sa.update(GENERATIONS).where(of_projection).values(state="building"))
            connection.execute(sa.update(TABLES).where(TABLES.c.projection == projection).values(public=0))
            used = rows_about(GENERATIONS, projection, generation)
            connection.execute(sa.update(GENERATIONS).where(*used).values(state="serving"))
            used = [*rows_about(TABLES, projection, generation), TABLES.c.name.in_(names)]
            connection.execute(sa.update(TABLES).where(*used).values(public=1))

    def drop(self, projection: str, generation: int) -> None:
        with self.writing() as connection:
            self._check(connection, projection, generation)
            # First of all the row that each commit locks: then no writer is in the middle of these tables.
            connection.execute(sa.delete(GENERATIONS).where(*rows_about(GENERATIONS, projection, generation)))
            connection.execute(sa.delete(POSITIONS).where(*rows_about(POSITIONS, projection, generation)))
            own = rows_about(TABLES, projection, generation)
            columns = TABLES.c
            for name, physical, public in connection.execute(
                sa.select(columns.name, columns.physical, columns.public).where(*own)
            ).all():
                if public:
                    connection.execute(sa.text(f'drop view if exists "{name}"'))
                connection.execute(sa.text(f'drop table if exists "{physical}"'))
            connection.execute(sa.delete(TABLES).where(*own))
        self.cleanse(removed=True)

    def close(self) -> None:
        self._engine.dispose()

    def _state(self, connection: sa.Connection, projection: str, generation: int) -> str:
        statement = sa.select(GENERATIONS.c.state).where(*rows_about(GENERATIONS, projection, generation))
        return connection.execute(statement).scalar() or ""

    def _check(self, connection: sa.Connection, projection: str, generation: int) -> None:
        if not self._state(connection, projection, generation):
            raise NotFoundError(f"there is no generation {generation} of {projection} in {self.url}")

    def _check_free(self, connection: sa.Connection, name: str) -> None:
        shown = sa.select(TABLES.c.projection).where(TABLES.c.public == 1, TABLES.c.name == name)
        if owner := connection.execute(shown).scalar():
            raise UsageError(
                f"projection {owner} has a table {name} too", hint="users query it by this name: rename one of them"
            )
        if sa.inspect(connection).has_table(name):
            raise UsageError(f"{self.url} has a table {name} that is no view of Refold's", hint="rename one of them")

    def _make(self, connection: sa.Connection, name: str, table: ViewTable) -> None:
        kinds: dict[type, TypeEngine[Any]] = {str: self.text, int: sa.BigInteger(), bytes: sa.LargeBinary()}
        columns = [
            sa.Column(column, kinds[kind], primary_key=number < table.keys, autoincrement=False, nullable=False)
            for number, (column, kind) in enumerate(table.columns.items())
        ]
        # SQLite makes a sum that is too large a number with a fraction; Postgres refuses it by itself.
        whole = [
            sa.CheckConstraint(f"typeof(\"{column}\") = 'integer'").ddl_if(dialect="sqlite")
            for column in (table.names[table.keys :] if table.sums else ())
        ]
        sa.Table(name, sa.MetaData(), *columns, *whole, sqlite_with_rowid=table.keys == 1).create(connection)
        if "run_id" in table.names[1:]:
            self._index(connection, name, ("run_id",))

    def _index(self, connection: sa.Connection, name: str, columns: Sequence[str]) -> None:
        listed = ", ".join(f'"{column}"' for column in columns)
        index = short("__".join((name, *columns)))
        connection.execute(sa.text(f'create index if not exists "{index}" on "{name}" ({listed})'))
