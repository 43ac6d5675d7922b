"""Votes on approvals that nobody has asked for so far: the topics of a partition are read in any order."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from refold.ports.log import Record


@dataclass(frozen=True, slots=True)
class Parked:
    """A vote that waits for its request, until `due_ms` at the latest."""

    record: Record
    token: str
    due_ms: int


class Parking:
    """The parked votes of a lane, oldest approval first; no more than so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_approval: OrderedDict[str, list[Parked]] = OrderedDict()
        self._count = 0

    def park(self, approval: str, parked: Parked) -> list[Parked]:
        """Keeps a vote; returns those that had to go for it."""
        self._by_approval.setdefault(approval, []).append(parked)
        self._count += 1
        gone: list[Parked] = []
        while self._count > self._limit:
            gone += self.take(next(iter(self._by_approval)))
        return gone

    def take(self, approval: str) -> list[Parked]:
        """The votes on an approval, which are parked no longer."""
        found = self._by_approval.pop(approval, [])
        self._count -= len(found)
        return found

    def overdue(self, now: int) -> list[Parked]:
        """The votes whose time is over, which are parked no longer."""
        late = [name for name, parked in self._by_approval.items() if parked[0].due_ms <= now]
        return [parked for name in late for parked in self.take(name)]

    def next_due_ms(self) -> int | None:
        """When the next vote has waited long enough."""
        return min((parked[0].due_ms for parked in self._by_approval.values()), default=None)
