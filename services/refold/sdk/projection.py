"""Projections of users: table declarations, and their base class."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

from refold.core.errors import UsageError
from refold.core.events import Entry, Event
from refold.core.ids import RunId, call_id
from refold.core.tables import Scalar, ViewTable

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
_KINDS = (str, int, bytes)
RESERVED_TABLES = frozenset({"heads", "calls"})

RESERVED_COLUMN = "erased"

SHARES = "_by_run"


def key(**columns: type[Scalar]) -> dict[str, type[Scalar]]:
    """Declare the key columns of a table."""
    return columns


def table(
    name: str, by: dict[str, type[Scalar]], /, *, indexes: tuple[tuple[str, ...], ...] = (), **columns: type[Scalar]
) -> ViewTable:
    """Declare a table whose rows belong to one run each: `run_id` is among its columns. **Raises** UsageError."""
    view_table = _table(name, by, columns, sums=False, indexes=indexes)
    if view_table.columns.get("run_id") is not str:
        hint = "a row belongs to one run; what many runs have a part in is declared with sums(...)"
        raise UsageError(f"table {name} has no column run_id=str", hint=hint)
    return view_table


def sums(
    name: str,
    by: dict[str, type[Scalar]],
    /,
    *,
    indexes: tuple[tuple[str, ...], ...] = (),
    forgets: bool = False,
    **columns: type[int],
) -> ViewTable:
    """Declare a table of sums: whole numbers that `View.add` increases, from any run.

    A further key column, `erased`, is 1 for the parts of erased runs. With `forgets` these parts are removed instead:
    choose it for keys with ids of runs. **Raises** UsageError.
    """
    if wrong := [name for name, kind in columns.items() if kind is not int]:
        hint = "only numbers are added up"
        raise UsageError(f"sums {name} has columns that are no int: {', '.join(wrong)}", hint=hint)
    if "run_id" in by:
        raise UsageError(f"sums {name} has run_id in its key", hint="declare what belongs to one run with table(...)")
    view_table = _table(name, by, columns, sums=True, indexes=indexes)
    return replace(view_table, columns={**by, RESERVED_COLUMN: int, **columns}, keys=len(by) + 1, forgets=forgets)


def _table(
    name: str, by: dict[str, type[Scalar]], columns: dict[str, Any], *, sums: bool, indexes: tuple[tuple[str, ...], ...]
) -> ViewTable:
    _check_names(name, {**by, **columns}, sums=sums)
    if wrong := [column for column, kind in {**by, **columns}.items() if kind not in _KINDS]:
        raise UsageError(f"columns of {name} are neither str, int nor bytes: {', '.join(wrong)}")
    if not by or (not columns and sums) or set(by) & set(columns):
        raise UsageError(f"table {name} needs a key, and other names for its other columns")
    all_columns = {**by, **columns}
    if unknown := [column for index in indexes for column in index if column not in all_columns]:
        raise UsageError(f"indexes of {name} name columns that it has not: {', '.join(unknown)}")
    return ViewTable(name, all_columns, len(by), sums, indexes)


def _check_names(table: str, columns: dict[str, Any], *, sums: bool) -> None:
    if table in RESERVED_TABLES or table.endswith(SHARES) or (sums and RESERVED_COLUMN in columns):
        hint = f"reserved are {', '.join(sorted(RESERVED_TABLES))}, *{SHARES}, and in sums {RESERVED_COLUMN}"
        raise UsageError(f"table {table} has a name or a column that is reserved", hint=hint)
    for name in (table, *columns):
        if not _NAME.fullmatch(name):
            hint = "use a-z, 0-9 and _, at most 48 of them"
            raise UsageError(f"{name!r} is no name of a table or a column", hint=hint)


class View(Protocol):
    """Tables of a projection while it applies an event. Rows of other runs can be neither read nor written.

    **Raises** UsageError for an undeclared table or column, a value of another type, or a row of another run.
    """

    def get(self, of: ViewTable, /, **by: Scalar) -> dict[str, Scalar] | None:
        """Return a row of this run, or None."""
        ...

    def put(self, into: ViewTable, /, **values: Scalar) -> None:
        """Write a whole row, in place of the one with its key. `run_id` may be left out."""
        ...

    def change(self, of: ViewTable, /, **values: Scalar) -> None:
        """Change some columns of the row with this key, if it exists."""
        ...

    def drop(self, of: ViewTable, /, **by: Scalar) -> None:
        """Remove a row, if it is there."""
        ...

    def add(self, to: ViewTable, /, **values: Scalar) -> None:
        """Add numbers to the sums of a key; columns not named stay."""
        ...


class Recorded:
    """An event of a run's history. `called` is its call, if it has one.

    **Units**: `at_ms` since 1970 in UTC, from the entry; `day` is its date in UTC, `2026-11-23`.
    """

    def __init__(self, entry: Entry, event: Event, seq: int, called: "Called | None") -> None:
        self.entry, self.event, self.seq, self.called = entry, event, seq, called

    @property
    def run_id(self) -> RunId:
        """Id of the run."""
        return self.entry.run_id

    @property
    def at_ms(self) -> int:
        """Time of the entry."""
        return self.entry.at_ms

    @property
    def day(self) -> str:
        """Date of the entry in UTC."""
        return day_of(self.entry.at_ms)

    @property
    def call(self) -> "Called":
        """Call of the event. **Raises** UsageError for an event without one."""
        if self.called is None:
            raise UsageError(f"{type(self.event).__name__} is of no call", hint="name events of calls in `events`")
        return self.called

    @cached_property
    def result(self) -> Any:
        """Result of the event, as data. **Raises** UsageError for an event without one."""
        text = getattr(self.event, "result", None)
        if not isinstance(text, str):
            raise UsageError(f"{type(self.event).__name__} has no result")
        return json.loads(text) if text else None


class Called(NamedTuple):
    """A call as proposed. `json_args` is the text of its arguments."""

    run_id: str
    step: int
    seq: int
    tool: str
    json_args: str
    key: str
    effect: str
    pool: str
    label: str

    @property
    def call_id(self) -> str:
        return call_id(RunId(self.run_id), self.seq)

    @property
    def args(self) -> Any:
        """Arguments as data."""
        return json.loads(self.json_args) if self.json_args else None


def day_of(at_ms: int) -> str:
    return _date_of_day(at_ms // 86_400_000)


@lru_cache(maxsize=10_000)
def _date_of_day(days: int) -> str:
    return datetime.fromtimestamp(days * 86_400, UTC).date().isoformat()


class Projection:
    """Base class of projections. `events` are the types that `apply` is called with; empty means all.

    Give a class whose rows change a higher `version`: it is built beside the one in use, and replaces it once it has
    caught up. So does one with other `inputs`: a name for the dependencies of rows beside log and code.
    """

    version: ClassVar[int] = 1
    inputs: str = ""
    events: ClassVar[tuple[type, ...]] = ()
    name: ClassVar[str] = ""
    tables: ClassVar[tuple[ViewTable, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__dict__.get("name", "") or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.tables = tuple({id(table): table for table in vars(cls).values() if isinstance(table, ViewTable)}.values())
        if len(set(cls.tables)) < len(cls.tables):
            raise UsageError(f"projection {cls.name} has two tables of one name")
        if not _NAME.fullmatch(cls.name):
            raise UsageError(f"{cls.name!r} is no name of a projection", hint="use a-z, 0-9 and _, at most 48 of them")
        if not cls.tables:
            hint = "refunds = table('refunds', key(id=str), ...)"
            raise UsageError(f"projection {cls.name} has no tables", hint=hint)
        if not isinstance(cls.version, int) or cls.version < 1:
            raise UsageError(f"the version of projection {cls.name} is {cls.version!r}", hint="count from 1")

    @classmethod
    def names(cls) -> set[str]:
        """Return the names of it and its tables, which are unique in a database."""
        return {cls.name, *(table.name for table in cls.tables)}

    def apply(self, view: View, recorded: Recorded) -> None:
        """Fill the tables from one event. Pure: no clock, no I/O, no state of its own."""
        raise NotImplementedError
