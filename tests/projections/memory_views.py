"""Views in memory, in plain dictionaries: a second account of what a database does, for tests and the simulator."""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any, TypeVar

from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.core.ids import RunId
from refold.core.tables import ViewKey, ViewRow, ViewTable
from refold.engine.ports.log import Place
from refold.engine.ports.tables import Query, Test, ViewChanges, ViewReader, Where

_Method = TypeVar("_Method", bound=Callable[..., Any])
_LOCK = threading.RLock()
"""Held by each statement: a thread that reads must not see half of a commit. One for all: stores are deep-copied."""


def statement(method: _Method) -> _Method:
    @wraps(method)
    def locked(*arguments: Any, **named: Any) -> Any:
        with _LOCK:
            return method(*arguments, **named)

    return locked  # type: ignore[return-value]


class MemoryViewStore:
    def __init__(self, notes: Mapping[str, str] | None = None) -> None:
        self._rows: dict[ViewTable, dict[ViewKey, ViewRow]] = {}
        self._by_run: dict[ViewTable, dict[RunId, set[ViewKey]]] = {}
        self._positions: dict[Place, int] = {}
        self._notes = dict(notes or {})

    @statement
    def rows(self, table: ViewTable, keys: Collection[ViewKey]) -> dict[ViewKey, ViewRow]:
        known = self._rows.get(table, {})
        return {key: known[key] for key in keys if key in known}

    @statement
    def rows_of(self, table: ViewTable, run: RunId) -> list[ViewRow]:
        known = self._rows.get(table, {})
        return [known[key] for key in sorted(self._by_run.get(table, {}).get(run, ()))]

    @statement
    def query(self, query: Query) -> list[ViewRow]:
        found = self._found(query)
        found.sort(key=query.place, reverse=query.descending)
        if query.after:
            behind = operator.lt if query.descending else operator.gt
            found = [row for row in found if behind(query.place(row), query.after)]
        return found[: query.limit]

    @statement
    def count(self, query: Query) -> int:
        return len(self._found(query))

    @statement
    def counts(self, query: Query, by: Collection[str]) -> dict[ViewRow, int]:
        places = [query.table.places[name] for name in by]
        return dict(Counter(tuple(row[place] for place in places) for row in self._found(query)))

    def _found(self, query: Query) -> list[ViewRow]:
        found = self._meeting(query.table, query.where)
        for within in query.within:
            runs = {row[within.table.run_place] for row in self._meeting(within.table, within.where)}
            found = [row for row in found if (row[query.table.run_place] in runs) != within.absent]
        return found

    def _meeting(self, table: ViewTable, where: Collection[Where]) -> list[ViewRow]:
        rows = self._rows.get(table, {}).values()
        return [row for row in rows if all(meets(table, row, each) for each in where)]

    @statement
    def scan(self, table: ViewTable, *, in_order: bool = True) -> Iterator[ViewRow]:
        known = self._rows.get(table, {})
        return iter([known[key] for key in sorted(known)])

    @statement
    def commit(self, changes: ViewChanges) -> None:
        for place, (before, _) in changes.moves.items():
            if self._positions.get(place, 0) != before:
                raise ConflictError(f"{place} is at {self._positions.get(place, 0)}, not at {before}")
        for table in changes.tables:
            for run in changes.runs:
                for key in self._by_run.get(table, {}).pop(run, ()):
                    del self._rows[table][key]
        for table, rows in changes.rows.items():
            self._put(table, rows)
        for table, sums in changes.sums.items():
            known = self._rows.get(table, {})
            kept = {key: known[key][table.keys :] for key in sums if key in known}
            self._put(table, {key: (*key, *_sum(amounts, kept.get(key))) for key, amounts in sums.items()})
        for place, (_, after) in changes.moves.items():
            self._positions[place] = after
        self._notes |= changes.notes

    def _put(self, table: ViewTable, rows: Mapping[ViewKey, ViewRow | None]) -> None:
        known, by_run = self._rows.setdefault(table, {}), self._by_run.setdefault(table, {})
        run: Any = table.places.get("run_id")
        for key, row in rows.items():
            old = known.pop(key, None)
            if row is not None:
                known[key] = row
            if run is None:
                continue
            if old is not None and (row is None or row[run] != old[run]):
                by_run[old[run]].discard(key)
            if row is not None and (old is None or row[run] != old[run]):
                by_run.setdefault(row[run], set()).add(key)

    @statement
    def positions(self) -> dict[Place, int]:
        return dict(self._positions)

    @statement
    def notes(self) -> dict[str, str]:
        return dict(self._notes)

    @contextmanager
    def snapshot(self) -> Iterator[ViewReader]:
        yield deepcopy(self)

    @statement
    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryViewStore:
        """Rows are tuples of scalars: they need no copies, and each page reads a snapshot."""
        copied = MemoryViewStore(self._notes)
        copied._rows = {table: dict(rows) for table, rows in self._rows.items()}
        copied._by_run = {table: {run: set(keys) for run, keys in runs.items()} for table, runs in self._by_run.items()}
        copied._positions = dict(self._positions)
        return copied


def _sum(amounts: Sequence[int], known: ViewRow | None) -> Sequence[Any]:
    return [a + b for a, b in zip(amounts, known, strict=True)] if known else amounts  # type: ignore[operator]


def meets(table: ViewTable, row: ViewRow, where: Where) -> bool:
    values = [row[table.places[name]] for name in where.column.split()]
    return any(_TESTS[where.test](value, where.value) for value in values)


_TESTS: dict[Test, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "contains": lambda value, wanted: wanted.lower() in value.lower(),
}


class MemoryViewDatabase:
    """See `ViewDatabase`. `public` names the generation behind each name that users query."""

    def __init__(self) -> None:
        self._stores: dict[str, dict[int, MemoryViewStore]] = {}
        self._serving: dict[str, int] = {}
        self.public: dict[str, MemoryViewStore] = {}

    def generations(self, projection: str) -> dict[int, str]:
        serving = self._serving.get(projection)
        return {
            number: "serving" if number == serving else "building"
            for number in sorted(self._stores.get(projection, {}))
        }

    def projections(self) -> list[str]:
        return sorted(name for name, stores in self._stores.items() if stores)

    def create(self, projection: str, generation: int, tables: Collection[ViewTable], notes: Mapping[str, str]) -> None:
        if generation in self._stores.setdefault(projection, {}):
            raise ConflictError(f"there is a generation {generation} of {projection} already")
        self._stores[projection][generation] = MemoryViewStore(notes)

    def store(self, projection: str, generation: int) -> MemoryViewStore:
        if (found := self._stores.get(projection, {}).get(generation)) is None:
            raise NotFoundError(f"there is no generation {generation} of {projection}")
        return found

    def switch(self, projection: str, generation: int, tables: Collection[ViewTable]) -> None:
        store, own = self.store(projection, generation), self._stores[projection].values()
        others = {name: each for name, each in self.public.items() if each not in own}
        if taken := sorted(table.name for table in tables if table.name in others):
            raise UsageError(f"another projection has a table {', '.join(taken)} too", hint="rename one of them")
        self._serving[projection] = generation
        self.public = others | {table.name: store for table in tables}

    def drop(self, projection: str, generation: int) -> None:
        store = self.store(projection, generation)
        del self._stores[projection][generation]
        if self._serving.get(projection) == generation:
            del self._serving[projection]
        self.public = {name: each for name, each in self.public.items() if each is not store}

    def lock(self, projection: str) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return False

    def bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass
