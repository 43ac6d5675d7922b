"""The ledger in memory: a full peer of the one on Redis, for the simulator and for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple, TypeVar

from refold.ports import ledger

_Place = tuple[int, str]
_Value = TypeVar("_Value")

_STARTED_MS = ledger.STARTED_RETENTION // timedelta(milliseconds=1)


class CallEntry(NamedTuple):
    """What is known of a call. `request` and `takeover` belong to STARTED, `success` and `result` to DONE."""

    state: Literal["started", "done"]
    attempt: int
    token: str
    expires_ms: int
    closed: bool = False
    takeover: bool = False
    request: bytes = b""
    success: bool = False
    result: bytes = b""


class Snapshot(NamedTuple):
    """The whole content at one moment; entries never change, so only the dictionaries are copied."""

    entries: dict[_Place, CallEntry]
    leases: dict[_Place, dict[str, int]]
    outbox: dict[_Place, dict[str, bytes]]


class MemoryLedger:
    """A `refold.ports.ledger.Ledger` in plain dictionaries. `clock` gives milliseconds and never runs backwards."""

    def __init__(self, clock: Callable[[], int], *, retention: timedelta = ledger.DEFAULT_RETENTION) -> None:
        self._clock = clock
        self._keep = retention // timedelta(milliseconds=1)
        self._entries: dict[_Place, CallEntry] = {}
        self._leases: dict[_Place, dict[str, int]] = {}
        self._outbox: dict[_Place, dict[str, bytes]] = {}
        self._rules: dict[type, Callable[[Any, int], ledger.Reply]] = {
            ledger.Claim: self._claim,
            ledger.Renew: self._renew,
            ledger.Release: self._release,
            ledger.Complete: self._complete,
            ledger.Close: self._close,
            ledger.Lapsed: self._lapsed,
            ledger.Unsent: self._list_outbox,
            ledger.Sent: self._sent,
        }

    def run(self, operations: Sequence[ledger.Operation]) -> list[ledger.Reply]:
        """See `Ledger.run`; never raises."""
        now, rules = self._clock(), self._rules
        return [rules[type(operation)](operation, now) for operation in operations]

    def problems(self) -> list[str]:
        return []

    def wipe(self) -> None:
        """Forgets everything, as a server does that lost its disk."""
        self.rollback(Snapshot({}, {}, {}))

    def snapshot(self) -> Snapshot:
        """The content now, to go back to with `rollback` any number of times."""
        return Snapshot(self._entries.copy(), _copy(self._leases), _copy(self._outbox))

    def rollback(self, snapshot: Snapshot) -> None:
        """Goes back, as a server does that lost its last writes."""
        self._entries = snapshot.entries.copy()
        self._leases, self._outbox = _copy(snapshot.leases), _copy(snapshot.outbox)

    def entries(self) -> Mapping[tuple[int, str], CallEntry]:
        """What is known, by home and call; a copy."""
        now = self._clock()
        return {key: entry for key, entry in self._entries.items() if entry.expires_ms > now}

    def leases(self) -> Mapping[tuple[int, str], Mapping[str, int]]:
        """The end of each lease by call, by home and pool; to be read only, and only until the next operation."""
        return self._leases

    def outbox(self) -> Mapping[tuple[int, str], Mapping[str, bytes]]:
        """Results by field, by home and pool; to be read only, and only until the next operation."""
        return self._outbox

    def _find(self, home: int, call: str, now: int) -> CallEntry | None:
        entry = self._entries.get((home, call))
        if entry is not None and entry.expires_ms <= now:
            del self._entries[home, call]
            return None
        return entry

    def _claim(self, operation: ledger.Claim, now: int) -> ledger.Reply:
        home, pool, call, attempt, token, lease_ms, request = operation
        entry = self._find(home, call, now)
        if entry is not None:
            if entry.state == "done" and (entry.success or entry.attempt == attempt):
                return ledger.Stored(
                    self._put(home, pool, ledger.outbox_field(call, entry.attempt), entry.result), entry.result
                )
            if entry.closed or attempt < entry.attempt:
                return ledger.Superseded()
            if entry.state == "started":
                if entry.token == token:
                    return ledger.Claimed(entry.takeover)
                until = self._leases.get((home, pool), {}).get(call, 0)
                if until > now:
                    return ledger.Busy(until - now)
        takeover = entry is not None and entry.state == "started"
        self._entries[home, call] = CallEntry(
            "started", attempt, token, now + _STARTED_MS, takeover=takeover, request=request
        )
        self._leases.setdefault((home, pool), {})[call] = now + lease_ms
        return ledger.Claimed(takeover)

    def _renew(self, operation: ledger.Renew, now: int) -> ledger.Reply:
        home, pool, call, attempt, token, lease_ms, request = operation
        entry = self._find(home, call, now)
        if entry is None:
            entry = CallEntry("started", attempt, token, 0, request=request)
        elif entry.token != token:
            return ledger.Fenced()
        elif entry.state == "done" or entry.closed:
            return ledger.Renewed(closed=True)
        self._entries[home, call] = entry._replace(expires_ms=now + _STARTED_MS)
        self._leases.setdefault((home, pool), {})[call] = now + lease_ms
        return ledger.Renewed(closed=False)

    def _release(self, operation: ledger.Release, now: int) -> ledger.Reply:
        home, pool, call, token = operation
        entry = self._find(home, call, now)
        if entry is not None and entry.state == "started" and entry.token == token:
            del self._entries[home, call]
            self._unlease(home, pool, call)
        return None

    def _complete(self, operation: ledger.Complete, now: int) -> ledger.Reply:
        home, pool, call, attempt, token, success, result = operation
        entry = self._find(home, call, now)
        if entry is not None and entry.token != token:
            return ledger.Fenced()
        if entry is not None and entry.state == "done":
            return ledger.Completed(self._put(home, pool, ledger.outbox_field(call, entry.attempt), entry.result))
        closed = entry is not None and entry.closed
        self._entries[home, call] = CallEntry(
            "done", attempt, token, now + self._keep, closed=closed, success=success, result=result
        )
        self._unlease(home, pool, call)
        return ledger.Completed(self._put(home, pool, ledger.outbox_field(call, attempt), result))

    def _close(self, operation: ledger.Close, now: int) -> ledger.Reply:
        home, pool, call = operation
        entry = self._find(home, call, now)
        if entry is not None and entry.state == "started" and not entry.closed:
            self._entries[home, call] = entry._replace(closed=True, request=b"", expires_ms=now + self._keep)
            self._unlease(home, pool, call)
        return None

    def _lapsed(self, operation: ledger.Lapsed, now: int) -> ledger.Reply:
        home, pool, limit = operation
        leases = self._leases.get((home, pool))
        if not leases:
            return []
        due = sorted((until, call) for call, until in leases.items() if until <= now)[:limit]
        requests = []
        for _, call in due:
            entry = self._find(home, call, now)
            if entry is not None:
                requests.append(entry.request)
            else:
                del leases[call]
        return requests

    def _list_outbox(self, operation: ledger.Unsent, now: int) -> ledger.Reply:
        home, pool, limit = operation
        return list(self._outbox.get((home, pool), {}).items())[:limit]

    def _sent(self, operation: ledger.Sent, now: int) -> ledger.Reply:
        results = self._outbox.get((operation.home, operation.pool), {})
        for field in operation.fields:
            results.pop(field, None)
        return None

    def _put(self, home: int, pool: str, field: str, result: bytes) -> str:
        self._outbox.setdefault((home, pool), {})[field] = result
        return field

    def _unlease(self, home: int, pool: str, call: str) -> None:
        self._leases.get((home, pool), {}).pop(call, None)


def _copy(content: dict[_Place, dict[str, _Value]]) -> dict[_Place, dict[str, _Value]]:
    return {key: inner.copy() for key, inner in content.items()}
