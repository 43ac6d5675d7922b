"""The two ledgers under test, each with its clock and with a look at what it holds, in one shape."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import redis

from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.ports.ledger import (
    Claim,
    Close,
    Complete,
    Lapsed,
    Ledger,
    Operation,
    Renew,
    Reply,
    Sent,
    Unpublished,
    outbox_field,
)
from tests.simulator.world.open_ledger import OpenLedger

HOUR_MS = 3_600_000
DEADLINE_S = 60.0


class State(NamedTuple):
    """All that a ledger holds, except times: entries by home and key, leased keys and results by home and pool."""

    entries: dict[tuple[int, str], dict[str, object]]
    leased: dict[tuple[int, str], set[str]]
    outbox: dict[tuple[int, str], dict[str, bytes]]


class Bench(Protocol):
    """A ledger, ways to let time pass, and a look inside."""

    @property
    def ledger(self) -> Ledger:
        """The ledger."""
        ...

    def pass_ms(self, ms: int) -> None:
        """Returns when the ledger's own clock has moved on by at least `ms`."""
        ...

    def forget(self, home: int, key: str) -> None:
        """Loses an entry, as its retention does."""
        ...

    def expires_in_ms(self, home: int, key: str) -> int:
        """After how long an entry is going to be lost."""
        ...

    def state(self) -> State:
        """What the ledger holds."""
        ...

    def aside(self) -> dict[str, bytes]:
        """What was set aside of home 7 in pool `default`."""
        ...


class MemoryBench:
    """The ledger in memory; its clock moves only by `pass_ms`."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.ledger = OpenLedger(lambda: self.now)

    def pass_ms(self, ms: int) -> None:
        self.now += ms

    def forget(self, home: int, key: str) -> None:
        snapshot = self.ledger.snapshot()
        expired = snapshot.entries[home, "default", key]._replace(expires_ms=self.now)
        self.ledger.rollback(snapshot._replace(entries={**snapshot.entries, (home, "default", key): expired}))

    def expires_in_ms(self, home: int, key: str) -> int:
        return self.ledger.entries()[home, "default", key].expires_ms - self.now

    def state(self) -> State:
        entries = {}
        for (home, _, key), entry in self.ledger.entries().items():
            shown: dict[str, object] = {"state": entry.state, "call": entry.call}
            shown |= {"attempt": entry.attempt, "token": entry.token}
            if entry.taken_back:
                shown["back"] = entry.taken_back
            if entry.closed:
                shown["closed"] = True
            elif entry.state == "done":
                shown |= {"success": entry.success, "result": entry.result}
            else:
                shown |= {"takeover": entry.takeover, "order": entry.order, "owner": entry.owner}
            entries[home, key] = shown
        leased = {key: set(leases) for key, leases in self.ledger.leases().items() if leases}
        outbox = {key: dict(results) for key, results in self.ledger.outbox().items() if results}
        return State(entries, leased, outbox)

    def aside(self) -> dict[str, bytes]:
        return self.ledger.aside.get((7, "default"), {})


class RedisBench:
    """The ledger on a real server, under a prefix of its own; its clock is the server's."""

    def __init__(self, url: str) -> None:
        self.prefix = f"t{uuid4().hex}"
        self.ledger = RedisLedger(url, prefix=self.prefix)
        self.client: Any = redis.Redis.from_url(url, protocol=2)

    def pass_ms(self, ms: int) -> None:
        until, deadline = self._now_ms() + ms, time.monotonic() + DEADLINE_S
        while self._now_ms() < until:
            assert time.monotonic() < deadline, "the server's clock stands still"

    def forget(self, home: int, key: str) -> None:
        assert self.client.delete(f"{self.prefix}:default:{{{home}}}:effect:{key}") == 1

    def expires_in_ms(self, home: int, key: str) -> int:
        return int(self.client.pttl(f"{self.prefix}:default:{{{home}}}:effect:{key}"))

    def state(self) -> State:
        found = State({}, {}, {})
        for key in self.client.scan_iter(match=f"{self.prefix}:*", count=1000):
            _, pool, tag, kind, *name = key.decode().split(":", 4)
            home = int(tag[1:-1])
            if kind == "effect":
                found.entries[home, name[0]] = _shown(self.client.hgetall(key))
            elif kind == "held":
                found.leased[home, pool] = {held.decode() for held in self.client.zrange(key, 0, -1)}
            elif kind != "quarantine":
                assert kind == "outbox", f"{key!r} is no key of the ledger"
                found.outbox[home, pool] = {f.decode(): result for f, result in self.client.hgetall(key).items()}
        return found

    def aside(self) -> dict[str, bytes]:
        kept = self.client.hgetall(f"{self.prefix}:default:{{7}}:quarantine")
        return {name.decode(): content for name, content in kept.items()}

    def close(self) -> None:
        keys = list(self.client.scan_iter(match=f"{self.prefix}:*", count=1000))
        if keys:
            self.client.delete(*keys)
        self.client.close()
        self.ledger.close()

    def _now_ms(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000


def ask(bench: Bench, operation: Operation) -> Reply:
    """The reply to one operation."""
    (reply,) = bench.ledger.run([operation])
    return reply


def outbox_of(bench: Bench, *, limit: int = 100) -> dict[str, bytes]:
    """What the outbox lists."""
    reply: Any = ask(bench, Unpublished(7, "default", limit))
    found = dict(reply)
    assert len(found) == len(reply) <= limit
    return found


def _shown(raw: dict[bytes, bytes]) -> dict[str, object]:
    shown: dict[str, object] = {name.decode(): value for name, value in raw.items()}
    shown |= {"state": raw[b"state"].decode(), "attempt": int(raw[b"attempt"]), "token": raw[b"token"].decode()}
    shown["call"] = raw[b"call"].decode()
    for flag in ("closed", "success"):
        if flag in shown:
            shown[flag] = shown[flag] == b"1"
    if "takeover" in shown:
        shown["takeover"] = raw[b"takeover"].decode()
    if "back" in shown:
        shown["back"] = int(raw[b"back"])
    if b"owner" in raw:
        shown["owner"] = raw[b"owner"].decode()
    return shown


CALL = "r-1/2"


KEY = "key of r-1/2"


def claim(token: str, *, attempt: int = 1, lease_ms: int = HOUR_MS, call: str = CALL, home: int = 7) -> Claim:
    return Claim(
        home, "default", f"key of {call}", call, attempt, token, lease_ms, f"request {call}#{attempt}".encode()
    )


def renew(token: str, *, attempt: int = 1, lease_ms: int = HOUR_MS) -> Renew:
    return Renew(7, "default", KEY, CALL, attempt, token, lease_ms, f"request {CALL}#{attempt}".encode())


def complete(token: str, *, attempt: int = 1, success: bool = True, result: bytes = b'"ok"') -> Complete:
    return Complete(7, "default", KEY, CALL, attempt, token, success, result)


def sent(*fields: str) -> Sent:
    return Sent(7, "default", fields)


CLOSE = Close(7, "default", ((KEY, CALL, 0),))


LAPSED = Lapsed(7, "default", 100)


OUTBOX = Unpublished(7, "default", 100)


FIELD = outbox_field(CALL, 1)
