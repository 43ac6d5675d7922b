"""The ledger in memory with a view of its content, and with the losses of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from refold.engine.adapters.memory.ledger import CallEntry, MemoryLedger

_Place = tuple[int, str]
_Name = tuple[int, str, str]

_Value = TypeVar("_Value")


class Snapshot(NamedTuple):
    entries: dict[_Name, CallEntry]
    leases: dict[_Place, dict[str, int]]
    outbox: dict[_Place, dict[str, bytes]]


class OpenLedger(MemoryLedger):
    """A ledger that tests read, empty and roll back."""

    def wipe(self) -> None:
        """Forget everything, like a server that lost its disk."""
        self.rollback(Snapshot({}, {}, {}))

    def snapshot(self) -> Snapshot:
        # Entries are immutable, so that only the dictionaries are copied.
        return Snapshot(self._entries.copy(), _copy(self._leases), _copy(self._outbox))

    def rollback(self, snapshot: Snapshot) -> None:
        """Return to a snapshot, like a server that lost its last writes."""
        self._entries = snapshot.entries.copy()
        self._leases, self._outbox = _copy(snapshot.leases), _copy(snapshot.outbox)

    def entries(self) -> Mapping[_Name, CallEntry]:
        now = self._clock()
        return {key: entry for key, entry in self._entries.items() if entry.expires_ms > now}

    def leases(self) -> Mapping[tuple[int, str], Mapping[str, int]]:
        """Live dictionary of lease ends by key, by home and pool; read-only."""
        return self._leases

    def outbox(self) -> Mapping[tuple[int, str], Mapping[str, bytes]]:
        """Live dictionary of results by field, by home and pool; read-only."""
        return self._outbox


def _copy(content: dict[_Place, dict[str, _Value]]) -> dict[_Place, dict[str, _Value]]:
    return {key: inner.copy() for key, inner in content.items()}
