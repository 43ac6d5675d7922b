"""The tables of a projection during a batch: rows are read once by key, changed in memory, and written once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from refold.core.errors import UsageError
from refold.core.ids import RunId
from refold.ports.tables import Scalar, ViewChanges, ViewKey, ViewRow, ViewStore, ViewTable

LARGEST_ROW = 1 << 20
"""Bytes of a row at most: what is larger belongs into the log, or into a blob store."""
LARGEST_KEY = 600
"""Characters of a key, and of what an index has of a row: an entry of an index in Postgres has 2,704 bytes at most."""
_EXACT: dict[type[Scalar], Callable[[Any], Scalar]] = {
    str: str.__str__,
    int: int.__int__,
    bytes: lambda value: b"".join((value,)),
}
"""A value of a subclass, such as an enumeration's, as every store gives it back."""


def shares_of(table: ViewTable) -> ViewTable:
    """What each run has added to a table of sums: subtracted when the run is erased or read anew."""
    columns = {"run_id": str, **{name: kind for name, kind in table.columns.items() if name != "erased"}}
    return ViewTable(f"{table.name}_by_run", columns, table.keys, sums=True)


class Batch:
    """The rows that a batch has touched. `run` is the run whose events are applied.

    Where a run is forgotten, all its rows go, and its part of the sums is subtracted.
    """

    def __init__(self, store: ViewStore, tables: Collection[ViewTable], internal: Collection[ViewTable] = ()) -> None:
        self._store = store
        self._shares = {table: shares_of(table) for table in tables if table.sums}
        self.tables = (*internal, *tables, *self._shares.values())
        self._declared = frozenset(tables)
        self.run = RunId("")
        self._rows: dict[ViewTable, dict[ViewKey, list[Scalar] | None]] = {}
        self._dirty: dict[ViewTable, set[ViewKey]] = {}
        self._new: Collection[RunId] = ()
        self._likely: dict[tuple[str, ...], Collection[ViewKey]] = {}
        self._foreseen: set[ViewTable] = set()
        self.changes = ViewChanges(self.tables)

    def enter(self, run: RunId) -> None:
        """Go on with a run: what is read, written and added is in its name."""
        self.run = run

    def changed(self) -> ViewChanges:
        """Return all that the batch has changed."""
        for table, keys in self._dirty.items():
            known = self._rows[table]
            self.changes.rows[table] = {key: _tuple(known[key]) for key in keys}
        return self.changes

    # What projections do

    def get(self, of: ViewTable, **by: Scalar) -> dict[str, Scalar] | None:
        """See `View`."""
        row = self.row(of, self._key(of, by))
        return None if row is None else dict(zip(of.names, row, strict=True))

    def put(self, into: ViewTable, **values: Scalar) -> None:
        """See `View`."""
        self._check(into, sums=False)
        values.setdefault("run_id", self.run)
        if values.keys() != into.columns.keys():
            self._refuse_columns(into, values)
        row = [values[name] for name in into.names]
        self._check_row(into, row)
        key = tuple(row[: into.keys])
        self._check_own(into, key, row)
        if not into.keyed_by_run:
            self.row(into, key)  # it may be another run's
        self.write(into, key, row)

    def change(self, of: ViewTable, **values: Scalar) -> None:
        """See `View`."""
        self._check(of, sums=False)
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
        self._check_own(of, key, row)
        self.write(of, key, row)

    def drop(self, of: ViewTable, **by: Scalar) -> None:
        """See `View`."""
        self._check(of, sums=False)
        key = self._key(of, by)
        if self.row(of, key) is not None:
            self.write(of, key, None)

    def add(self, to: ViewTable, **values: Scalar) -> None:
        """See `View`."""
        self._check(to, sums=True)
        values["erased"] = 0
        key = self._key(to, values)
        if unknown := values.keys() - to.columns.keys():
            raise UsageError(f"sums {to.name} has no column {', '.join(sorted(unknown))}")
        row = [*key, *(values.get(name, 0) for name in to.names[to.keys :])]
        self._check_row(to, row)
        self.grow(to, tuple(row[: to.keys]), row[to.keys :])  # type: ignore[arg-type]

    def _check(self, table: ViewTable, *, sums: bool) -> None:
        if table not in self._declared:
            raise UsageError(f"table {table.name} is not this projection's", hint="make it an attribute of the class")
        if table.sums is not sums:
            what = "sums: use view.add(...)" if table.sums else "rows: use view.put(...)"
            raise UsageError(f"table {table.name} has {what}")

    def _key(self, table: ViewTable, values: dict[str, Scalar]) -> ViewKey:
        if "run_id" in table.key_names:
            values.setdefault("run_id", self.run)
        try:
            return tuple(values[name] for name in table.key_names)
        except KeyError as missing:
            raise UsageError(
                f"the key of {table.name} has {', '.join(table.key_names)}; {missing} is missing"
            ) from None

    def _refuse_columns(self, table: ViewTable, values: dict[str, Scalar]) -> None:
        missing, unknown = table.columns.keys() - values.keys(), values.keys() - table.columns.keys()
        said = [
            f"{', '.join(sorted(names))} {what}"
            for names, what in ((missing, "missing"), (unknown, "unknown"))
            if names
        ]
        raise UsageError(f"a row of {table.name} has the columns {', '.join(table.names)}: {'; '.join(said)}")

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

    # What the projector does, without a look at what was declared

    def fetch(self, table: ViewTable, keys: Iterable[ViewKey]) -> None:
        """Read the rows of these keys at once, where they were not read before."""
        known = self._rows.setdefault(table, {})
        wanted = [key for key in dict.fromkeys(keys) if key not in known]
        if wanted:
            found = self._store.rows(table, wanted)
            forgotten = self.changes.runs
            for key in wanted:
                row = found.get(key)
                gone = row is None or (forgotten and row[table.run_place] in forgotten)
                known[key] = None if gone or row is None else list(row)

    def has(self, table: ViewTable, key: ViewKey) -> bool:
        """True if there is a row of this key, which was read before."""
        return self._rows[table].get(key) is not None

    def foresee(self, runs: Collection[RunId], new: Collection[RunId], steps: Collection[ViewKey]) -> None:
        """Note the runs of the batch, those of which there are no rows yet, and the steps that its events are of.

        What is found by a run, or by a run and a step, is then read for all of them when one of them is asked for.
        """
        self._new = new
        self._likely = {
            ("run_id",): [(run,) for run in runs if run not in new],
            ("run_id", "step"): [key for key in steps if key[0] not in new],
        }

    def row(self, table: ViewTable, key: ViewKey) -> list[Scalar] | None:
        """Return a row, which the caller may not change. **Raises** UsageError if it is another run's."""
        known = self._rows.setdefault(table, {})
        if key not in known:
            if table.keyed_by_run and key[table.run_place] in self._new:
                return known.setdefault(key, None)
            likely = () if table in self._foreseen else self._likely.get(table.key_names, ())
            self._foreseen.add(table)
            self.fetch(table, (key, *likely))
        row = known[key]
        if row is not None:
            self._check_own(table, key, row)
        return row

    def write(self, table: ViewTable, key: ViewKey, row: list[Scalar] | None) -> None:
        """Write a row, or remove it."""
        self._rows.setdefault(table, {})[key] = row
        self._dirty.setdefault(table, set()).add(key)

    def grow(self, table: ViewTable, key: ViewKey, amounts: list[int]) -> None:
        """Add to the sums of a key, in the name of the run."""
        _grow(self.changes.sums.setdefault(table, {}), key, amounts)
        _grow(self.changes.sums.setdefault(self._shares[table], {}), (self.run, *key[:-1]), amounts)

    def forget(self, run: RunId, *, erased: bool) -> None:
        """Remove all rows of a run. What it has added to sums is subtracted; of an erased run it is kept as such."""
        for table, share in self._shares.items():
            pending = self.changes.sums.get(share, {})
            for added_before in self._store.rows_of(share, run) if run not in self.changes.runs else ():
                _grow(pending, added_before[: share.keys], list(added_before[share.keys :]))  # type: ignore[arg-type]
            for key in [key for key in pending if key[0] == run]:
                amounts = pending.pop(key)
                added = self.changes.sums.setdefault(table, {})
                _grow(added, (*key[1:], 0), [-amount for amount in amounts])
                if erased:
                    _grow(added, (*key[1:], 1), amounts)
        for table, known in self._rows.items():
            place = table.places.get("run_id", -1)
            for key, row in known.items():
                if row is not None and row[place] == run:
                    known[key] = None
        self.changes.runs.add(run)


def _grow(sums: dict[ViewKey, list[int]], key: ViewKey, amounts: list[int]) -> None:
    if (known := sums.get(key)) is None:
        sums[key] = list(amounts)
    else:
        for number, amount in enumerate(amounts):
            known[number] += amount


def _tuple(row: list[Scalar] | None) -> ViewRow | None:
    return None if row is None else tuple(row)
