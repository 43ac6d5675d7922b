"""Immutable sequences and tables that share their common part with longer versions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, SupportsIndex, TypeVar, overload

from immutables import Map

EMPTY: Map[Any, Any] = Map()

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class PersistentList(Sequence[T], Generic[T]):
    """Immutable sequence; `append` returns a longer one."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)

    def append(self, item: T) -> PersistentList[T]:
        items, length = self._items, self._length
        # After a failed speculation another version has appended to the shared list: its tail is not of this one.
        if len(items) != length:
            items = items[:length]
        items.append(item)
        longer: PersistentList[T] = _new(PersistentList)
        longer._items, longer._length = items, length + 1
        return longer

    def place(self, value: Any, *, key: Callable[[T], Any] | None = None) -> int:
        """Place of a value, or where to insert it, in a sequence sorted by `key`."""
        return bisect_left(self._items, value, 0, self._length, key=key)

    def find(self, value: Any) -> int | None:
        place = bisect_left(self._items, value, 0, self._length)
        return place if place < self._length and self._items[place] == value else None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and 0 <= index < self._length:
            return self._items[index]
        if isinstance(index, slice):
            return [self._items[n] for n in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else self._length + index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """Immutable mapping in order of insertion; `add` returns one with a further key."""

    __slots__ = ("_length", "_rows")

    def __init__(self) -> None:
        self._rows: dict[K, tuple[int, V]] = {}
        self._length = 0

    def add(self, key: K, value: V) -> PersistentMap[K, V]:
        """Mapping with one more key, which must be new."""
        rows, length = self._rows, self._length
        if len(rows) != length:
            rows = dict(islice(rows.items(), length))
        rows[key] = length, value
        longer: PersistentMap[K, V] = _new(PersistentMap)
        longer._rows, longer._length = rows, length + 1
        return longer

    def __getitem__(self, key: K) -> V:
        place, value = self._rows[key]
        if place >= self._length:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        place, value = self._rows.get(key, (self._length, None))
        return value if place < self._length else default

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return islice(self._rows, self._length)

    def __repr__(self) -> str:
        return repr(dict(self.items()))


_new: Any = object.__new__


def stable_repr(record: tuple[Any, ...]) -> str:
    """Text of a named tuple, equal for equal content: maps and sets are sorted."""
    fields = (sorted(field.items()) if isinstance(field, Map) else field for field in record)
    texts = (repr(sorted(field)) if isinstance(field, frozenset) else repr(field) for field in fields)
    return f"{type(record).__name__}({', '.join(texts)})"
