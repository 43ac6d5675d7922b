"""Rows of a projection during a batch: read once by key, changed in memory, written once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from refold.core.errors import UsageError
from refold.core.ids import RunId
from refold.core.tables import Scalar, ViewKey, ViewTable
from refold.engine.ports.tables import ViewChanges, ViewStore
from refold.engine.runtime.watchdog import Mark
from refold.sdk.projection import SHARES

LARGEST_ROW = 1 << 20
"""Characters of text and bytes of a row at most; larger values belong in the log or a blob store."""
LARGEST_KEY = 600
"""Characters of a key or an indexed value at most: Postgres limits an index entry to 2,704 bytes."""
_EXACT: dict[type[Scalar], Callable[[Any], Scalar]] = {
    str: str.__str__,
    int: int.__int__,
    bytes: lambda value: b"".join((value,)),
}
"""Converters of subclasses, such as enumerations, to the types of stores."""

APPLIES = Mark()
"""Projection whose `apply` runs; it is not interrupted while the store is read."""


def shares_of(table: ViewTable) -> ViewTable:
    """Return the table of each run's part in sums, to subtract when the run is erased or read again."""
    columns = {"run_id": str, **{name: kind for name, kind in table.columns.items() if name != "erased"}}
    return ViewTable(f"{table.name}{SHARES}", columns, table.keys, sums=True)


class Batch:
    """Rows read and changed by a batch of records; `run` is the run whose events are applied."""

    def __init__(self, store: ViewStore, tables: Collection[ViewTable], internal: Collection[ViewTable] = ()) -> None:
        self._store = store
        self._shares = {table: shares_of(table) for table in tables if table.sums}
        self.tables = (*internal, *tables, *self._shares.values())
        self._declared = frozenset(tables)
        self.run = RunId("")
        # By the names of tables: their own hash is a function in Python, and every row asks for it.
        self._rows: dict[str, dict[ViewKey, list[Scalar] | None]] = {table.name: {} for table in self.tables}
        self._dirty: dict[str, dict[ViewKey, list[Scalar] | None]] = {table.name: {} for table in self.tables}
        self._added: dict[RunId, dict[str, dict[ViewKey, list[int]]]] = {}
        self._totals: dict[ViewTable, dict[ViewKey, list[int]]] = {table: {} for table in self._shares}
        self.new: Collection[RunId] = ()
        self._likely: dict[tuple[str, ...], Collection[ViewKey]] = {}
        self._foreseen: set[str] = set()
        self.changes = ViewChanges(self.tables)
        self.indexes: dict[RunId, dict[ViewKey, list[ViewKey]]] = {}
        """Keys of a run's dead letters by topic, partition and record key; loaded at the first tombstone."""

    def enter(self, run: RunId) -> None:
        self.run = run

    def changed(self) -> ViewChanges:
        """Return all changes; nothing may be written afterwards."""
        for table in self.tables:
            if dirty := self._dirty[table.name]:
                self.changes.rows[table] = {key: None if row is None else tuple(row) for key, row in dirty.items()}
        for table, share in self._shares.items():
            totals, shares = self._totals[table], self._shares_added(table)
            for (_, *key), amounts in shares.items():
                _add_to(totals, (*key, 0), amounts)
            if table.forgets and self.changes.runs:
                self._remove_empty_sums(table, totals)
            self.changes.sums.update({of: sums for of, sums in ((table, totals), (share, shares)) if sums})
        return self.changes

    def _shares_added(self, table: ViewTable) -> dict[ViewKey, list[int]]:
        runs = self._added.items()
        return {(run, *key): amounts for run, added in runs for key, amounts in added.get(table.name, {}).items()}

    def _remove_empty_sums(self, table: ViewTable, totals: dict[ViewKey, list[int]]) -> None:
        # Keys of sums to which no run contributes would name erased runs.
        for key, row in self._store.rows(table, list(totals)).items():
            if not any(_added_up(row[table.keys :], totals[key])):
                self.changes.rows.setdefault(table, {})[key] = None
                del totals[key]

    # For projections: see `View`.

    def get(self, of: ViewTable, /, **by: Scalar) -> dict[str, Scalar] | None:
        self._check_declared(of, sums=False)
        row = self.row(of, self._key(of, by))
        return None if row is None else of.named(row)

    def put(self, into: ViewTable, /, **values: Scalar) -> None:
        self._check_declared(into, sums=False)
        values.setdefault("run_id", self.run)
        if values.keys() != into.columns.keys():
            self._refuse_columns(into, values)
        row = [values[name] for name in into.names]
        self._check_row(into, row)
        self._check_run(into, row[into.run_place])
        key = tuple(row[: into.keys])
        if not into.keyed_by_run:
            self.row(into, key)  # it may be another run's
        self.write(into, key, row)

    def change(self, of: ViewTable, /, **values: Scalar) -> None:
        self._check_declared(of, sums=False)
        key = self._key(of, values)
        row = self.row(of, key)
        if row is None:
            return
        if unknown := values.keys() - of.columns.keys():
            raise UsageError(f"table {of.name} has no column {', '.join(sorted(unknown))}")
        row = list(row)
        for name, value in values.items():
            row[of.places[name]] = value
        self._check_row(of, row)
        self._check_run(of, row[of.run_place])
        self.write(of, key, row)

    def drop(self, of: ViewTable, /, **by: Scalar) -> None:
        self._check_declared(of, sums=False)
        key = self._key(of, by)
        if self.row(of, key) is not None:
            self.write(of, key, None)

    def add(self, to: ViewTable, /, **values: Scalar) -> None:
        self._check_declared(to, sums=True)
        values["erased"] = 0
        key = self._key(to, values)
        if unknown := values.keys() - to.columns.keys():
            raise UsageError(f"sums {to.name} has no column {', '.join(sorted(unknown))}")
        row = [*key, *(values.get(name, 0) for name in to.names[to.keys :])]
        self._check_row(to, row)
        totals = self.totals_of(to, tuple(row[: to.keys - 1]))
        totals[:] = _added_up(row[to.keys :], totals)

    def _check_declared(self, table: ViewTable, *, sums: bool) -> None:
        if table not in self._declared:
            raise UsageError(f"table {table.name} is not this projection's", hint="make it an attribute of the class")
        if table.sums is not sums:
            hint = "sums: use view.add(...)" if table.sums else "rows: use view.put(...)"
            raise UsageError(f"table {table.name} has {hint}")

    def _check_run(self, table: ViewTable, run: Scalar) -> None:
        if run != self.run:
            hint = "leave run_id out of it"
            raise UsageError(f"a row of {table.name} is asked for in the name of run {run!r}", hint=hint)

    def _key(self, table: ViewTable, values: dict[str, Scalar]) -> ViewKey:
        if "run_id" in table.key_names:
            self._check_run(table, values.setdefault("run_id", self.run))
        try:
            return tuple(values[name] for name in table.key_names)
        except KeyError as missing:
            names = ", ".join(table.key_names)
            raise UsageError(f"the key of {table.name} has {names}; {missing} is missing") from None

    def _refuse_columns(self, table: ViewTable, values: dict[str, Scalar]) -> None:
        missing, unknown = table.columns.keys() - values.keys(), values.keys() - table.columns.keys()
        faults = ((missing, "missing"), (unknown, "unknown"))
        parts = [f"{', '.join(sorted(names))} {fault}" for names, fault in faults if names]
        raise UsageError(f"a row of {table.name} has the columns {', '.join(table.names)}: {'; '.join(parts)}")

    def _check_row(self, table: ViewTable, row: list[Scalar]) -> None:
        size = 0
        for number, ((name, kind), value) in enumerate(zip(table.columns.items(), row, strict=True)):
            if type(value) is not kind:
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise UsageError(f"{table.name}.{name} is a {kind.__name__}, not {type(value).__name__}")
                value = row[number] = _EXACT[kind](value)
            if kind is int:
                if not -(1 << 63) <= value < 1 << 63:  # type: ignore[operator]
                    raise UsageError(f"{table.name}.{name} is beyond 64 bits")
            else:
                size += len(value)  # type: ignore[arg-type]
        if size > LARGEST_KEY:
            self._check_size(table, row, size)

    def _check_size(self, table: ViewTable, row: list[Scalar], size: int) -> None:
        if size > LARGEST_ROW:
            raise UsageError(f"a row of {table.name} has {size} characters, and {LARGEST_ROW} is the most")
        for names in (table.key_names, *table.indexes):
            values = [row[table.places[name]] for name in names]
            if (length := sum(len(value) for value in values if not isinstance(value, int))) > LARGEST_KEY:
                raise UsageError(
                    f"{', '.join(names)} of a row of {table.name} has {length} characters, and {LARGEST_KEY} is the"
                    " most for what rows are found by",
                    hint="cut it short, or take a digest of it",
                )

    def _check_own(self, table: ViewTable, key: ViewKey, row: list[Scalar]) -> None:
        if row[table.run_place] != self.run:
            raise UsageError(
                f"the row {key!r} of {table.name} belongs to run {row[table.run_place]!r}",
                hint="a row belongs to one run: put the run's id into the key, or declare the table with sums(...)",
            )

    # For the projector, without checks of declarations

    def fetch(self, table: ViewTable, keys: Iterable[ViewKey]) -> None:
        """Read the rows of these keys that are not cached, in one query."""
        cached = self._rows[table.name]
        missing = [key for key in dict.fromkeys(keys) if key not in cached]
        if missing:
            with APPLIES.shield():
                stored = self._store.rows(table, missing)
            forgotten = self.changes.runs
            for key in missing:
                row = stored.get(key)
                gone = row is None or (forgotten and row[table.run_place] in forgotten)
                cached[key] = None if gone or row is None else list(row)

    def has(self, table: ViewTable, key: ViewKey) -> bool:
        return self._rows[table.name].get(key) is not None

    def foresee(self, runs: Collection[RunId], new: Collection[RunId], steps: Collection[ViewKey]) -> None:
        """Set the runs and steps of the batch: the first lookup by run, or by run and step, reads all of them."""
        self.new = new
        self._likely = {
            ("run_id",): [(run,) for run in runs if run not in new],
            ("run_id", "step"): [key for key in steps if key[0] not in new],
        }

    def row(self, table: ViewTable, key: ViewKey) -> list[Scalar] | None:
        """Return a row, read-only. **Raises** UsageError if it belongs to another run."""
        cached = self._rows[table.name]
        if key not in cached:
            if table.keyed_by_run and key[table.run_place] in self.new:
                return cached.setdefault(key, None)
            likely = () if table.name in self._foreseen else self._likely.get(table.key_names, ())
            self._foreseen.add(table.name)
            self.fetch(table, (key, *likely))
        row = cached[key]
        if row is not None:
            self._check_own(table, key, row)
        return row

    def edit(self, table: ViewTable, key: ViewKey) -> list[Any] | None:
        """Return a row of the batch's run, to be changed in place; None if it does not exist."""
        row = self._rows[table.name].get(key)
        if row is None or row[table.run_place] != self.run:
            row = self.row(table, key)
        if row is not None:
            self._dirty[table.name][key] = row
        return row

    def write(self, table: ViewTable, key: ViewKey, row: list[Scalar] | None) -> None:
        self._rows[table.name][key] = self._dirty[table.name][key] = row

    def rows_of(self, table: ViewTable) -> list[list[Scalar]]:
        """Return the run's rows in key order. Scans all rows of the table in the batch."""
        run, cached = self.run, self._rows[table.name]
        stored = () if run in self.changes.runs else self._store.rows_of(table, run)
        fresh = {row[: table.keys]: list(row) for row in stored if row[: table.keys] not in cached}
        fresh |= {key: row for key, row in cached.items() if row is not None and row[table.run_place] == run}
        return [fresh[key] for key in sorted(fresh)]

    def totals_of(self, table: ViewTable, key: ViewKey) -> list[int]:
        """Return the run's additions to the sums of a key (without `erased`), to be changed in place."""
        if (added := self._added.get(self.run)) is None:
            added = self._added[self.run] = {}
        if (sums := added.get(table.name)) is None:
            sums = added[table.name] = {}
        if (amounts := sums.get(key)) is None:
            amounts = sums[key] = [0] * (len(table.columns) - table.keys)
        return amounts

    def forget(self, run: RunId, *, erased: bool) -> None:
        """Remove all rows of a run and subtract its part of the sums; an erased run's part stays, marked as such."""
        pending = self._added.pop(run, {})
        self.indexes.pop(run, None)
        for table, share in self._shares.items():
            totals, keeps = self._totals[table], erased and not table.forgets
            for row in self._store.rows_of(share, run) if run not in self.changes.runs else ():
                key, amounts = row[1 : share.keys], list(row[share.keys :])
                _add_to(totals, (*key, 0), [-amount for amount in amounts])  # type: ignore[operator]
                if keeps:
                    _add_to(totals, (*key, 1), amounts)  # type: ignore[arg-type]
            for key, added in pending.get(table.name, {}).items() if keeps else ():
                _add_to(totals, (*key, 1), added)
        for table in self.tables:
            if table not in self._totals:
                self._drop_cached_rows(table, run)
        self.changes.runs.add(run)

    def _drop_cached_rows(self, table: ViewTable, run: RunId) -> None:
        rows, dirty = self._rows[table.name], self._dirty[table.name]
        for key, values in rows.items():
            if values is not None and values[table.run_place] == run:
                rows[key] = None
                # The store removes all rows of the run: a change beside that would write this one back.
                dirty.pop(key, None)


def _added_up(one: Sequence[Any], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _add_to(sums: dict[ViewKey, list[int]], key: ViewKey, amounts: Sequence[int]) -> None:
    before = sums.get(key)
    sums[key] = list(amounts) if before is None else _added_up(before, amounts)
