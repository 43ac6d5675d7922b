"""Ledger in memory: a full peer of the one on Redis."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from refold.core.ids import CallId
from refold.engine.ports import ledger

_Place = tuple[int, str]
_Name = tuple[int, str, str]
"""Home, pool and idempotency key."""

_LONGEST_MS = ledger.LONGEST_LEASE // timedelta(milliseconds=1)
_STARTED_MS = ledger.STARTED_RETENTION // timedelta(milliseconds=1)


class CallEntry(NamedTuple):
    """State of an idempotency key. `order`, `owner` and `takeover` are for STARTED, `success` and `result` for DONE.
    `takeover`: token of the claim that was taken over. Attempts up to `taken_back` cannot begin."""

    state: Literal["started", "done"]
    call: CallId
    attempt: int
    token: str
    expires_ms: int
    closed: bool = False
    takeover: str = ""
    order: bytes = b""
    success: bool = False
    result: bytes = b""
    owner: str = ""
    taken_back: int = 0

    def taken_over(self, call: CallId) -> str:
        """Token of the claim that a new one takes over; empty if no attempt can have begun."""
        return (self.token or self.takeover) if self.state == "started" or self.call != call else ""

    def answers(self, call: CallId, attempt: int) -> bool:
        """True if the stored result is the answer to a claim."""
        return self.state == "done" and (self.success or (self.call == call and self.attempt == attempt))

    def supersedes(self, attempt: int) -> ledger.Superseded | None:
        """Reply to a claim of the same call for an attempt that cannot begin any more."""
        done = self.state == "done"
        if attempt <= self.taken_back:
            return ledger.Superseded(closed=True, done=True)
        return ledger.Superseded(False, self.result if done else self.order, done) if attempt < self.attempt else None


class MemoryLedger:
    """Ledger in dictionaries. `clock` returns ms, never backwards; `aside` is the quarantine by home and pool."""

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        retention: timedelta = ledger.DEFAULT_RETENTION,
        marker: timedelta = ledger.MARKER_RETENTION,
    ) -> None:
        self._clock = clock
        self._retention_ms = retention // timedelta(milliseconds=1)
        self._keep_marker = marker // timedelta(milliseconds=1)
        self.filled = ledger.Filled(0, 0)
        self._entries: dict[_Name, CallEntry] = {}
        self._leases: dict[_Place, dict[str, int]] = {}
        self._outbox: dict[_Place, dict[str, bytes]] = {}
        self.aside: dict[_Place, dict[str, bytes]] = {}
        self._rules: dict[type, Callable[[Any, int], ledger.Reply]] = {
            ledger.Claim: self._claim,
            ledger.Renew: self._renew,
            ledger.Release: self._release,
            ledger.HandOver: self._hand_over,
            ledger.Complete: self._complete,
            ledger.Close: self._close,
            ledger.Lapsed: self._lapsed,
            ledger.Unpublished: self._list_outbox,
            ledger.Sent: self._sent,
            ledger.SetAside: self._set_aside,
            ledger.Unlist: self._unlist,
            ledger.Fill: lambda operation, now: self.filled,
        }

    def run(self, operations: Sequence[ledger.Operation]) -> list[ledger.Reply]:
        now, rules = self._clock(), self._rules
        return [rules[type(operation)](operation, now) for operation in operations]

    def _find(self, home: int, pool: str, key: str, now: int) -> CallEntry | None:
        entry = self._entries.get((home, pool, key))
        if entry is not None and entry.expires_ms <= now:
            del self._entries[home, pool, key]
            return None
        return entry

    def _claim(self, operation: ledger.Claim, now: int) -> ledger.Reply:
        home, pool, key, call, attempt, token, lease_ms, order, owner = operation
        entry = self._find(home, pool, key, now)
        if entry is not None and (standing := self._standing(entry, operation, now)) is not None:
            return standing
        takeover = entry.taken_over(call) if entry else ""
        self._entries[home, pool, key] = CallEntry(
            "started", call, attempt, token, now + _STARTED_MS, takeover=takeover, order=order, owner=owner
        )
        self._leases.setdefault((home, pool), {})[key] = now + lease_ms
        return ledger.Claimed(takeover)

    def _standing(self, entry: CallEntry, operation: ledger.Claim, now: int) -> ledger.Reply:
        """Reply to a claim by the state of its key; None if the claim may proceed."""
        own = entry.call == operation.call
        if entry.closed:
            return ledger.Superseded(closed=True) if own else None
        if entry.answers(operation.call, operation.attempt):
            return ledger.Stored(entry.result)
        if own and (superseded := entry.supersedes(operation.attempt)) is not None:
            return superseded
        if entry.state == "started":
            if entry.token == operation.token:
                return ledger.Claimed(entry.takeover)
            until = self._leases.get((operation.home, operation.pool), {}).get(operation.key, 0)
            if now < until <= now + _LONGEST_MS:
                return ledger.Busy(until - now)
        return None

    def _renew(self, operation: ledger.Renew, now: int) -> ledger.Reply:
        home, pool, key, call, attempt, token, lease_ms, order, owner = operation
        entry = self._find(home, pool, key, now)
        if entry is None:
            entry = CallEntry("started", call, attempt, token, 0, order=order)
        elif entry.token != token:
            return ledger.Fenced()
        elif entry.state == "done" or entry.closed:
            return ledger.Renewed(closed=True)
        self._entries[home, pool, key] = entry._replace(expires_ms=now + _STARTED_MS, owner=owner)
        self._leases.setdefault((home, pool), {})[key] = now + lease_ms
        return ledger.Renewed(closed=False)

    def _release(self, operation: ledger.Release, now: int) -> ledger.Reply:
        home, pool, key, token = operation
        entry = self._find(home, pool, key, now)
        if entry is not None and entry.state == "started" and entry.token == token:
            del self._entries[home, pool, key]
            self._unlease(home, pool, key)
            if entry.takeover and not entry.closed:
                self._entries[home, pool, key] = entry._replace(token="")
        return None

    def _hand_over(self, operation: ledger.HandOver, now: int) -> ledger.Reply:
        home, pool, key, token, begun = operation
        entry = self._find(home, pool, key, now)
        if entry is not None and entry.state == "started" and entry.token == token and not entry.closed:
            self._entries[home, pool, key] = entry._replace(token=token if begun else "")
            self._leases.setdefault((home, pool), {})[key] = 0
        return None

    def _complete(self, operation: ledger.Complete, now: int) -> ledger.Reply:
        home, pool, key, call, attempt, token, success, result = operation
        entry = self._find(home, pool, key, now)
        if entry is not None and entry.token != token:
            return ledger.Fenced()
        if entry is not None and entry.state == "done" and not entry.closed:
            field = ledger.outbox_field(entry.call, entry.attempt)
            return ledger.Completed(self._put(home, pool, field, entry.result))
        if entry is None or not entry.closed:
            back, until_ms = entry.taken_back if entry else 0, now + self._retention_ms
            self._entries[home, pool, key] = CallEntry(
                "done", call, attempt, token, until_ms, success=success, result=result, taken_back=back
            )
            self._unlease(home, pool, key)
        return ledger.Completed(self._put(home, pool, ledger.outbox_field(call, attempt), result))

    def _close(self, operation: ledger.Close, now: int) -> ledger.Reply:
        home, pool, calls = operation
        for key, call, attempt in calls:
            entry = self._find(home, pool, key, now)
            if entry is None or entry.call != call or entry.closed:
                continue
            if attempt:
                if entry.attempt <= attempt:
                    self._entries[home, pool, key] = entry._replace(taken_back=attempt)
            else:
                self._entries[home, pool, key] = CallEntry(
                    entry.state, call, entry.attempt, entry.token, now + self._keep_marker, closed=True
                )
                self._unlease(home, pool, key)
        return None

    def _lapsed(self, operation: ledger.Lapsed, now: int) -> ledger.Reply:
        home, pool, limit, heir = operation
        leases = self._leases.get((home, pool))
        if not leases:
            return []
        if heir:
            self._inherit(operation, leases, now)
        due = sorted((until, key) for key, until in leases.items() if not now < until <= now + _LONGEST_MS)[:limit]
        orders: list[tuple[str, bytes]] = []
        for _, key in due:
            entry = self._find(home, pool, key, now)
            if entry is not None and entry.order and not entry.taken_back:
                orders.append((key, entry.order))
            else:
                del leases[key]
        return orders

    def _inherit(self, operation: ledger.Lapsed, leases: dict[str, int], now: int) -> None:
        """End the leases of earlier incarnations of an heir."""
        for key in leases:
            entry = self._find(operation.home, operation.pool, key, now)
            if entry is not None and ledger.inherits(operation.heir, entry.owner):
                leases[key] = 0

    def _list_outbox(self, operation: ledger.Unpublished, now: int) -> ledger.Reply:
        home, pool, limit, most_bytes = operation
        listed: list[tuple[str, bytes]] = []
        for field, result in list(self._outbox.get((home, pool), {}).items())[:limit]:
            if most_bytes <= 0:
                break
            listed.append((field, result))
            most_bytes -= len(result)
        return listed

    def _sent(self, operation: ledger.Sent, now: int) -> ledger.Reply:
        results = self._outbox.get((operation.home, operation.pool), {})
        for field in operation.fields:
            results.pop(field, None)
        return None

    def _set_aside(self, operation: ledger.SetAside, now: int) -> ledger.Reply:
        home, pool, leases, fields, broken = operation
        for key in (*leases, *broken):
            entry = self._find(home, pool, key, now)
            self._keep_aside(home, pool, f"entry:{key}", (entry.order or entry.result) if entry else b"")
            self._unlease(home, pool, key)
        for key in broken:
            self._entries.pop((home, pool, key), None)
        for field in fields:
            self._keep_aside(home, pool, f"result:{field}", self._outbox.get((home, pool), {}).pop(field, b""))
        return None

    def _unlist(self, operation: ledger.Unlist, now: int) -> ledger.Reply:
        for key in operation.leases:
            self._unlease(operation.home, operation.pool, key)
        return None

    def _keep_aside(self, home: int, pool: str, name: str, content: bytes) -> None:
        aside = self.aside.setdefault((home, pool), {})
        if len(aside) < ledger.ASIDE:
            aside.setdefault(name, content[: ledger.ASIDE_MOST_BYTES])

    def _put(self, home: int, pool: str, field: str, result: bytes) -> str:
        self._outbox.setdefault((home, pool), {})[field] = result
        return field

    def _unlease(self, home: int, pool: str, key: str) -> None:
        self._leases.get((home, pool), {}).pop(key, None)
