"""Generations of views in a database, and their rows, by the SQL that SQLite and Postgres share."""

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from refold.console.sql.statements import Statements, escaped, short, unescaped
from refold.core.errors import ConflictError, NotFoundError, RefoldError, UnreachableError, UsageError
from refold.core.ids import RunId
from refold.core.redaction import public_url
from refold.core.tables import Scalar, ViewKey, ViewRow, ViewTable
from refold.engine.ports.log import Place
from refold.engine.ports.tables import Query, ViewChanges, ViewDatabase, ViewReader, ViewStore, Where

_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})
_SCANNED = 2_000
"""Rows of a scan in memory."""

META = sa.MetaData()
_OF: dict[str, Any] = {"projection": sa.Text, "generation": sa.BigInteger}


def _table(name: str, key: dict[str, Any], **others: Any) -> sa.Table:
    keyed = [sa.Column(column, kind, primary_key=True, autoincrement=False) for column, kind in key.items()]
    return sa.Table(name, META, *keyed, *(sa.Column(column, kind, nullable=False) for column, kind in others.items()))


VERSIONS = _table("refold_views", {"version": sa.Integer})
GENERATIONS = _table("refold_generations", _OF, state=sa.Text, notes=sa.Text)
POSITIONS = _table("refold_positions", {**_OF, "topic": sa.Text, "partition": sa.BigInteger}, next_offset=sa.BigInteger)
TABLES = _table("refold_tables", {**_OF, "name": sa.Text}, physical=sa.Text, public=sa.Integer)
"""Tables of each generation: logical and physical name; `public` is 1 for those that users see."""

_VERSION = 1
"""Version of the tables that list the generations."""

Hints = Mapping[str, tuple[type[RefoldError], str]]
"""Our error and the next action, by the prefix of the driver's code."""

Lend = Callable[[], AbstractContextManager[sa.Connection]]


class SqlViews(ViewDatabase):
    """View database with the parts that SQLite and Postgres share. **Raises** UnreachableError, also in the body of
    `reading` and `writing`."""

    mark: ClassVar[str]
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

    def enter(self, connection: sa.Connection) -> None:
        """Wait for other processes that create the first tables, unless `writing` does, and check the database."""

    @abstractmethod
    def code(self, error: Any) -> str:
        """Driver's code of an error."""

    def publish(self, connection: sa.Connection, name: str, query: str, *, exists: bool) -> None:
        """Create the view that users query by this name, in place of one that `exists`."""
        if exists:
            connection.execute(sa.text(f'drop view if exists "{name}"'))
        connection.execute(sa.text(f'create view "{name}" as {query}'))

    @abstractmethod
    def cursor(self, connection: sa.Connection, *, streaming: bool = False) -> Any:
        """Open a driver's cursor; `streaming`: rows are fetched in portions."""

    @abstractmethod
    def find(self, cursor: Any, of: Statements, keys: Collection[ViewKey]) -> Iterator[ViewRow]:
        """Existing rows of these keys."""

    @abstractmethod
    def fill(self, cursor: Any, of: Statements, rows: Collection[ViewRow]) -> None:
        """Write rows; sums are added."""

    def announce(self, connection: sa.Connection) -> None:
        """Notify listeners in other processes of a change at its commit, where the database can."""

    def wait(self, timeout_s: float) -> bool:
        return False

    def cleanse(self, *, removed: bool) -> None:
        """Remove traces of removed rows after a transaction, without raising, where they outlast it."""

    @contextmanager
    def reading(self, *, still: bool = False) -> Iterator[sa.Connection]:
        """Lend a connection for reads, all as of one moment if `still`."""
        with self._translating(), self._engine.connect() as connection:
            if still:
                connection = connection.execution_options(isolation_level=self.stillness)
                connection.execute(sa.select(VERSIONS))  # the first read is the moment that the others see
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Lend a connection for one transaction."""
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
            if self._state_of(connection, projection, generation):
                raise ConflictError(f"there is a generation {generation} of {projection} already")
            connection.execute(sa.insert(GENERATIONS), {**own, "state": "building", "notes": json.dumps(dict(notes))})
            for table in tables:
                name = physical_name(projection, generation, table.name)
                self._check_free(connection, name)
                connection.execute(sa.insert(TABLES), {**own, "name": table.name, "physical": name, "public": 0})
                self._create_table(connection, name, table)

    def store(self, projection: str, generation: int) -> ViewStore:
        with self.reading() as connection:
            self._check_exists(connection, projection, generation)
        return SqlViewStore(self, projection, generation, self.reading)

    def switch(self, projection: str, generation: int, tables: Collection[ViewTable]) -> None:
        # In a transaction of its own: it takes its time, and readers need not wait for it.
        with self.writing() as connection:
            self._check_exists(connection, projection, generation)
            for table in tables:
                for columns in table.indexes:
                    self._create_index(connection, physical_name(projection, generation, table.name), columns)
        with self.writing() as connection:
            self._check_exists(connection, projection, generation)
            shown = sa.select(TABLES.c.name).where(TABLES.c.projection == projection, TABLES.c.public == 1)
            old = set(connection.execute(shown).scalars())
            for table in tables:
                if table.name not in old:
                    self._check_free(connection, table.name)
                query = Statements(physical_name(projection, generation, table.name), table, self.mark).select
                self.publish(connection, table.name, query, exists=table.name in old)
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
            self._check_exists(connection, projection, generation)
            # First of all the row that each commit locks: then no writer is in the middle of these tables.
            connection.execute(sa.delete(GENERATIONS).where(*rows_about(GENERATIONS, projection, generation)))
            connection.execute(sa.delete(POSITIONS).where(*rows_about(POSITIONS, projection, generation)))
            own = rows_about(TABLES, projection, generation)
            listed = sa.select(TABLES.c.name, TABLES.c.physical, TABLES.c.public).where(*own)
            for name, physical, public in connection.execute(listed).all():
                if public:
                    connection.execute(sa.text(f'drop view if exists "{name}"'))
                connection.execute(sa.text(f'drop table if exists "{physical}"'))
            connection.execute(sa.delete(TABLES).where(*own))
        self.cleanse(removed=True)

    def close(self) -> None:
        self._engine.dispose()

    def _state_of(self, connection: sa.Connection, projection: str, generation: int) -> str:
        statement = sa.select(GENERATIONS.c.state).where(*rows_about(GENERATIONS, projection, generation))
        return connection.execute(statement).scalar() or ""

    def _check_exists(self, connection: sa.Connection, projection: str, generation: int) -> None:
        if not self._state_of(connection, projection, generation):
            raise NotFoundError(f"there is no generation {generation} of {projection} in {self.url}")

    def _check_free(self, connection: sa.Connection, name: str) -> None:
        shown = sa.select(TABLES.c.projection).where(TABLES.c.public == 1, TABLES.c.name == name)
        if owner := connection.execute(shown).scalar():
            hint = "users query it by this name: rename one of them"
            raise UsageError(f"projection {owner} has a table {name} too", hint=hint)
        if sa.inspect(connection).has_table(name):
            raise UsageError(f"{self.url} has a table {name} that is no view of Refold's", hint="rename one of them")

    def _create_table(self, connection: sa.Connection, name: str, table: ViewTable) -> None:
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
            self._create_index(connection, name, ("run_id",))

    def _create_index(self, connection: sa.Connection, name: str, columns: Sequence[str]) -> None:
        listed = ", ".join(f'"{column}"' for column in columns)
        index = short("__".join((name, *columns)))
        connection.execute(sa.text(f'create index if not exists "{index}" on "{name}" ({listed})'))


class SqlViewReader:
    """Reads a generation; `lend` provides a connection for each call."""

    def __init__(self, driver: SqlViews, projection: str, generation: int, lend: Lend) -> None:
        self._driver, self._lend, self._of = driver, lend, (projection, generation)
        self._statements: dict[ViewTable, Statements] = {}

    def rows(self, table: ViewTable, keys: Collection[ViewKey]) -> dict[ViewKey, ViewRow]:
        of = self._sql(table)
        named = escaped(keys, [place for place in of.texts if place < table.keys])
        with self._lend() as connection:
            matches = list(self._driver.find(self._driver.cursor(connection), of, named))  # type: ignore[arg-type]
        return {row[: table.keys]: row for row in unescaped(matches, of.texts)}

    def rows_of(self, table: ViewTable, run: RunId) -> list[ViewRow]:
        of = self._sql(table)
        return self._fetch(f'{of.select} where "run_id" = {of.mark} order by {of.keys}', [run], of.texts)

    def query(self, query: Query) -> list[ViewRow]:
        of = self._sql(query.table)
        conditions, arguments = self._where(query)
        sorting = [f'"{name}"' for name in query.sorting]
        if query.after:
            marks = ", ".join([of.mark] * len(sorting))
            conditions.append(f"({', '.join(sorting)}) {'<' if query.descending else '>'} ({marks})")
            arguments += query.after
        order = ", ".join(f"{name} desc" if query.descending else name for name in sorting)
        page = f"{of.select}{_clause(conditions)} order by {order} limit {query.limit:d}"
        return self._fetch(page, arguments, of.texts)

    def _where(self, query: Query) -> tuple[list[str], list[Scalar]]:
        arguments = list[Scalar]()
        conditions = _conditions(query.where, self._driver.mark, arguments)
        for within in query.within:
            inner = _clause(_conditions(within.where, self._driver.mark, arguments))
            test = "not in" if within.absent else "in"
            conditions.append(f'"run_id" {test} (select "run_id" from "{self._sql(within.table).name}"{inner})')
        return conditions, arguments

    def _fetch(self, statement: str, arguments: list[Scalar], texts: Sequence[int]) -> list[ViewRow]:
        places = [place for place, value in enumerate(arguments) if isinstance(value, str)]
        (values,) = escaped([tuple(arguments)], places)
        with self._lend() as connection:
            cursor = self._driver.cursor(connection)
            cursor.execute(statement, values)
            return unescaped(cursor.fetchall(), texts)

    def count(self, query: Query) -> int:
        return sum(self.counts(query, ()).values())

    def counts(self, query: Query, by: Collection[str]) -> dict[ViewRow, int]:
        texts = [place for place, name in enumerate(by) if query.table.columns[name] is str]
        conditions, arguments = self._where(query)
        columns = ", ".join(f'"{name}"' for name in by)
        chosen, grouped = (f"{columns}, ", f" group by {columns}") if columns else ("", "")
        counted = f'select {chosen}count(*) from "{self._sql(query.table).name}"{_clause(conditions)}{grouped}'
        rows = self._fetch(counted, arguments, texts)
        return {row[:-1]: int(row[-1]) for row in rows}

    def scan(self, table: ViewTable, *, in_order: bool = True) -> Iterator[ViewRow]:
        of = self._sql(table)
        with self._lend() as connection:
            cursor = self._driver.cursor(connection, streaming=True)
            cursor.execute(f"{of.select} order by {of.keys}" if in_order else of.select)
            while rows := cursor.fetchmany(_SCANNED):
                yield from unescaped(rows, of.texts)
            cursor.close()

    def positions(self) -> dict[Place, int]:
        columns = POSITIONS.c
        statement = sa.select(columns.topic, columns.partition, columns.next_offset).where(*self._own_rows(POSITIONS))
        with self._lend() as connection:
            return {(topic, partition): offset for topic, partition, offset in connection.execute(statement)}

    def notes(self) -> dict[str, str]:
        with self._lend() as connection:
            return self._notes(connection)

    def _notes(self, connection: sa.Connection, *, lock: bool = False) -> dict[str, str]:
        statement = sa.select(GENERATIONS.c.notes).where(*self._own_rows(GENERATIONS))
        text = connection.execute(statement.with_for_update() if lock else statement).scalar()
        if text is None:
            projection, generation = self._of
            raise ConflictError(f"generation {generation} of {projection} was dropped", hint="open the one in use")
        notes: dict[str, str] = json.loads(text)
        return notes

    def _own_rows(self, table: sa.Table) -> list[Any]:
        return rows_about(table, *self._of)

    def _sql(self, table: ViewTable) -> Statements:
        if (statements := self._statements.get(table)) is None:
            statements = Statements(physical_name(*self._of, table.name), table, self._driver.mark)
            self._statements[table] = statements
        return statements


class SqlViewStore(SqlViewReader):
    """Reads and writes a generation."""

    @contextmanager
    def snapshot(self) -> Iterator[ViewReader]:
        with self._driver.reading(still=True) as connection:
            yield SqlViewReader(self._driver, *self._of, lambda: nullcontext(connection))

    def commit(self, changes: ViewChanges) -> None:
        with self._driver.writing() as connection:
            notes = self._notes(connection, lock=True)
            self._move_positions(connection, changes.moves)
            cursor = self._driver.cursor(connection)
            # Before the rows: a run that was read anew has new ones in the same batch.
            if changes.runs:
                self._remove_runs(cursor, changes)
            for table, rows in changes.rows.items():
                self._put_rows(cursor, self._sql(table), rows)
            for table, sums in changes.sums.items():
                of = self._sql(table)
                added = escaped([(*key, *amounts) for key, amounts in sums.items()], of.texts)
                self._driver.fill(cursor, of, added)  # type: ignore[arg-type]
            if changes.notes:
                noted = sa.update(GENERATIONS).where(*self._own_rows(GENERATIONS))
                connection.execute(noted, {"notes": json.dumps(notes | changes.notes)})
            self._driver.announce(connection)
        self._driver.cleanse(removed=bool(changes.runs))

    def _move_positions(self, connection: sa.Connection, steps: Mapping[Place, tuple[int, int]]) -> None:
        own = dict(zip(_OF, self._of, strict=True))
        for (topic, partition), (before, after) in steps.items():
            at = [POSITIONS.c.topic == topic, POSITIONS.c.partition == partition, *self._own_rows(POSITIONS)]
            statement = sa.update(POSITIONS).where(*at, POSITIONS.c.next_offset == before).values(next_offset=after)
            if connection.execute(statement).rowcount:
                continue
            position = connection.execute(sa.select(POSITIONS.c.next_offset).where(*at)).scalar()
            if position is not None or before:
                raise ConflictError(f"{(topic, partition)} is at {position or 0}, not at {before}")
            first = {**own, "topic": topic, "partition": partition, "next_offset": after}
            connection.execute(sa.insert(POSITIONS), first)

    def _remove_runs(self, cursor: Any, changes: ViewChanges) -> None:
        runs = escaped([(run,) for run in changes.runs], [0])
        for table in changes.tables:
            if "run_id" in table.places:
                cursor.executemany(self._sql(table).delete("run_id"), runs)

    def _put_rows(self, cursor: Any, of: Statements, rows: Mapping[ViewKey, ViewRow | None]) -> None:
        values = escaped([row for row in rows.values() if row is not None], of.texts)
        if values:
            self._driver.fill(cursor, of, values)  # type: ignore[arg-type]
        if len(values) < len(rows):
            places = [place for place in of.texts if place < of.table.keys]
            gone = escaped([key for key, row in rows.items() if row is None], places)
            cursor.executemany(of.delete(*of.table.key_names), gone)


def rows_about(table: sa.Table, projection: str, generation: int) -> list[Any]:
    return [table.c.projection == projection, table.c.generation == generation]


def physical_name(projection: str, generation: int, table: str) -> str:
    return short(f"{projection}__{generation}__{table}")


def _clause(conditions: list[str]) -> str:
    return f" where {' and '.join(conditions)}" if conditions else ""


def _conditions(where: tuple[Where, ...], mark: str, arguments: list[Scalar]) -> list[str]:
    conditions = []
    for column, test, value in where:
        names = column.split()
        if test == "contains":
            value = f"%{str(value).lower().translate(_LIKE)}%"
            either = (f"lower(\"{name}\") like {mark} escape '\\'" for name in names)
        else:
            either = (f'"{name}" {test} {mark}' for name in names)
        arguments += [value] * len(names)
        conditions.append(f"({' or '.join(either)})")
    return conditions
