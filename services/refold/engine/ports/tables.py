"""Tables of a view and their store: SQLite, also in memory, or Postgres. A row belongs to one run, or it is a sum. Rows
of runs are replaced or removed by key, sums only grow: any order and size of batches leads to the same rows."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from refold.core.ids import RunId
from refold.core.tables import Scalar, ViewKey, ViewRow, ViewTable
from refold.engine.ports.log import Place

MOST_PAGE = 500
"""Default rows of a page."""

Test = Literal["=", ">", ">=", "<", "<=", "contains"]


class Where(NamedTuple):
    """A condition on a column, or on any of several separated by spaces. `contains` ignores case in ASCII."""

    column: str
    test: Test
    value: Scalar


class RunsWith(NamedTuple):
    """A condition on the run of a row: another table has a row of it that meets all of `where`, or none if `absent`."""

    table: ViewTable
    where: tuple[Where, ...]
    absent: bool = False


@dataclass(frozen=True)
class Query:
    """A page of the rows that meet all conditions, in order of a column and then of their key. `after` is that column
    and the key of the last row of the page before."""

    table: ViewTable
    where: tuple[Where, ...] = ()
    within: tuple[RunsWith, ...] = ()
    order: str = ""
    descending: bool = False
    after: ViewRow = ()
    limit: int = MOST_PAGE

    @property
    def sorting(self) -> tuple[str, ...]:
        first = () if self.order in ("", self.table.names[0]) else (self.order,)
        return (*first, *self.table.key_names)

    def place(self, row: ViewRow) -> ViewRow:
        """Return the `after` of the page behind a row."""
        return tuple(row[self.table.places[name]] for name in self.sorting)


@dataclass
class ViewChanges:
    """Changes of a batch, applied in one transaction and in this order: all rows of `runs` are deleted; `rows` are
    replaced, or removed if None, from tables of sums too; `sums` are added. `moves` are the positions of the log before
    and after: a store at another position refuses the whole batch."""

    tables: Collection[ViewTable]
    runs: set[RunId] = field(default_factory=set)
    rows: dict[ViewTable, dict[ViewKey, ViewRow | None]] = field(default_factory=dict)
    sums: dict[ViewTable, dict[ViewKey, list[int]]] = field(default_factory=dict)
    moves: dict[Place, tuple[int, int]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def fenced(positions: Mapping[Place, int]) -> dict[Place, tuple[int, int]]:
    """Return moves that go nowhere: a change with them is refused once another process has moved a position."""
    return {place: (at, at) for place, at in positions.items() if at}


class ViewReader(Protocol):
    """Tables of one generation of a projection, and its positions, for any thread. **Raises** UnreachableError from
    every method while the database is away, full or locked; ConflictError if the generation was dropped."""

    def rows(self, table: ViewTable, keys: Collection[ViewKey]) -> dict[ViewKey, ViewRow]: ...

    def rows_of(self, table: ViewTable, run: RunId) -> list[ViewRow]: ...

    def query(self, query: Query) -> list[ViewRow]: ...

    def count(self, query: Query) -> int:
        """Count the rows that meet the conditions of a query, on all pages."""

    def counts(self, query: Query, by: Collection[str]) -> dict[ViewRow, int]:
        """Count the rows that meet the conditions of a query, by their values in these columns."""

    def scan(self, table: ViewTable, *, in_order: bool = True) -> Iterator[ViewRow]:
        """Iterate over all rows as of one moment, in order of their keys or, which costs less, in any."""

    def positions(self) -> dict[Place, int]:
        """Return the offset of the next record to read, by topic and partition."""

    def notes(self) -> dict[str, str]:
        """Return the notes of the generation by name: its log's identity, and the reason if it is stopped."""


class ViewStore(ViewReader, Protocol):
    """Tables of one generation, with the right to write them, for one thread of one process."""

    def commit(self, changes: ViewChanges) -> None:
        """Apply a batch in one transaction. **Raises** ConflictError, with nothing applied, if a position has moved;
        UsageError if a sum exceeds 64 bits. After UnreachableError the positions show if it was applied."""

    def snapshot(self) -> AbstractContextManager[ViewReader]:
        """Open the tables, positions and notes as of one moment. For one thread, and not for hours."""


class ViewDatabase(Protocol):
    """A database with generations of projections, each a set of tables, numbered upwards by projection. Users query a
    view of each table's own name, with the rows of the generation in use."""

    def generations(self, projection: str) -> dict[int, str]:
        """Return the state of each generation by number: `building`, or `serving` (at most one)."""

    def projections(self) -> list[str]: ...

    def create(self, projection: str, generation: int, tables: Collection[ViewTable], notes: Mapping[str, str]) -> None:
        """Make a generation's tables, without indexes, and store its `notes`. **Raises** ConflictError if it exists."""

    def store(self, projection: str, generation: int) -> ViewStore:
        """Open a generation. **Raises** NotFoundError if there is none."""

    def switch(self, projection: str, generation: int, tables: Collection[ViewTable]) -> None:
        """Make the indexes of a generation, then put it in use in one transaction. Others stay until dropped. Users see
        only `tables` of it. **Raises** UsageError if one of their names is taken."""

    def drop(self, projection: str, generation: int) -> None:
        """Remove a generation; if it is in use, the names that users query go with it."""

    def lock(self, projection: str) -> bool:
        """Take the right to write a projection until the process ends; False while another process has it."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a change by any process; False at once: poll. For one thread. **Raises** UnreachableError."""

    def bytes(self) -> int: ...

    def close(self) -> None: ...


def rows_digest(table: ViewTable, rows: Iterable[ViewRow]) -> int:
    """Return a number of 128 bits that depends on the rows and not on their order. Sums of 0 do not count."""
    total = 0
    for row in rows:
        if table.sums and not any(row[table.keys :]):
            continue
        total += int.from_bytes(blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest())
    return total & ((1 << 128) - 1)
