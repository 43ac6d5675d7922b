"""Inputs about what is not known so far: the topics of a partition are read in any order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from refold.ports.log import Record


class Waiting(Protocol):
    """Something that waits for what it is about, until `due_ms` at the latest."""

    @property
    def due_ms(self) -> int: ...


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Parked:
    """A vote that waits for its request, until `due_ms` at the latest."""

    record: Record
    token: str
    due_ms: int


class Parking(Generic[W]):
    """What a lane has parked, by what it waits for, the longest waiting first; no more than so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: OrderedDict[str, list[W]] = OrderedDict()
        self._count = 0

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._waiting))

    @property
    def full(self) -> bool:
        """Whether something would have to go for the next."""
        return self._count >= self._limit

    def park(self, awaited: str, item: W) -> list[W]:
        """Keeps an item; returns those that had to go for it."""
        gone: list[W] = []
        while self.full and self._waiting:
            gone += self.take(next(iter(self._waiting)))
        self._waiting.setdefault(awaited, []).append(item)
        self._count += 1
        return gone

    def take(self, awaited: str) -> list[W]:
        """What waits for this, and is parked no longer."""
        items = self._waiting.pop(awaited, [])
        self._count -= len(items)
        return items

    def overdue(self, now: int) -> list[W]:
        """What has waited long enough, and is parked no longer."""
        late = [awaited for awaited, items in self._waiting.items() if items[0].due_ms <= now]
        return [item for awaited in late for item in self.take(awaited)]

    def next_due_ms(self) -> int | None:
        """When the next item has waited long enough."""
        return min((items[0].due_ms for items in self._waiting.values()), default=None)
