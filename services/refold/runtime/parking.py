"""Inputs about what is not known so far: the topics of a partition are read in any order."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """Something that waits for what it is about, until `due_ms` at the latest."""

    @property
    def due_ms(self) -> int: ...


W = TypeVar("W", bound=Waiting)


class Parking(Generic[W]):
    """What a lane has parked, by what it waits for, the longest waiting first; no more than so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: OrderedDict[str, list[W]] = OrderedDict()
        self._due: list[tuple[int, str]] = []
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
        if awaited not in self._waiting:
            self._waiting[awaited] = []
            heapq.heappush(self._due, (item.due_ms, awaited))
        self._waiting[awaited].append(item)
        self._count += 1
        return gone

    def take(self, awaited: str) -> list[W]:
        """What waits for this, and is parked no longer."""
        items = self._waiting.pop(awaited, [])
        self._count -= len(items)
        return items

    def overdue(self, now: int) -> list[W]:
        """What has waited long enough, with all that waits for the same, and is parked no longer."""
        items: list[W] = []
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now:
            items += self.take(heapq.heappop(self._due)[1])
        return items

    def next_due_ms(self) -> int | None:
        """When the next item has waited long enough."""
        while self._due:
            due_ms, awaited = self._due[0]
            if awaited in self._waiting and self._waiting[awaited][0].due_ms == due_ms:
                return due_ms
            heapq.heappop(self._due)  # what was taken meanwhile
        return None
