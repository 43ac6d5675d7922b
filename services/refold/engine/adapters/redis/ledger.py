"""The ledger on Redis or Valkey: one Lua script per operation, one round trip per batch.

Keys of one home share the hash tag, and a script touches keys of one home only:

- `{prefix}:<pool>:{<home>}:effect:<idempotency key>`, a hash: `state` (started, done), `call`, `attempt`, `token`;
  while started also `takeover`, `order` and `owner`, when done `success` and `result`, and once a tombstone came
  `closed` alone, or `back` (the attempts up to this one are taken back)
- `{prefix}:<pool>:{<home>}:held`, a sorted set of idempotency keys by the end of their lease, on the server's clock
- `{prefix}:<pool>:{<home>}:outbox`, a hash of results by `outbox_field`
- `{prefix}:<pool>:{<home>}:quarantine`, a hash of what was set aside, `entry:<key>` and `result:<field>`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import sha1
from importlib.resources import files
from itertools import chain
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from refold.engine.adapters.redis import checks
from refold.engine.adapters.redis.cluster import ClusterLink
from refold.engine.adapters.redis.link import Link, RedisCommand, first_refusal, refused
from refold.engine.ports import ledger

_NAMES = ("claim", "renew", "release", "hand_over", "complete", "close", "lapsed", "unsent", "set_aside", "fill")
SCRIPTS = {name: files(__package__).joinpath(f"{name}.lua").read_text() for name in _NAMES}
"""Rules of the ledger in Lua, by name."""

_TIMEOUT = timedelta(seconds=5)

_LONGEST_MS = ledger.LONGEST_LEASE // timedelta(milliseconds=1)
_BROKEN = re.compile(r"^WRONGTYPE|user_script:\d+: (attempt to|bad argument)|rguments must be strings")
"""Redis errors for a value of an unexpected type."""


class RedisLedger:
    """Ledger on one server or a `cluster`; for one thread at a time. `url`: `redis://[user:password@]host:port/db`,
    `rediss://` for TLS; for a cluster any nodes, separated by commas. `timeout` bounds a connect, a write and a
    read."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "refold",
        retention: timedelta = ledger.DEFAULT_RETENTION,
        marker: timedelta = ledger.MARKER_RETENTION,
        timeout: timedelta = _TIMEOUT,
        cluster: bool = False,
    ) -> None:
        self._prefix = prefix
        self._retention_ms = retention // timedelta(milliseconds=1)
        self._keep_marker = marker // timedelta(milliseconds=1)
        self._keep_started = ledger.STARTED_RETENTION // timedelta(milliseconds=1)
        sources = list(SCRIPTS.values())
        # The names of scripts for EVALSHA.
        self._sha = {name: sha1(SCRIPTS[name].encode(), usedforsecurity=False).hexdigest() for name in SCRIPTS}
        self._timeout = timeout
        self._link = (ClusterLink if cluster else Link)(url, timeout=timeout, scripts=sources)
        self._writers: dict[type, Callable[[Any], RedisCommand]] = {
            ledger.Claim: self._claim,
            ledger.Renew: self._renew,
            ledger.Release: self._release,
            ledger.HandOver: self._hand_over,
            ledger.Complete: self._complete,
            ledger.Close: self._close,
            ledger.Lapsed: self._lapsed,
            ledger.Unpublished: self._outbox,
            ledger.Sent: self._sent,
            ledger.SetAside: self._set_aside,
            ledger.Unlist: self._unlist,
            ledger.Fill: self._fill,
        }

    def run(self, operations: Sequence[ledger.Operation]) -> list[ledger.Reply]:
        if not operations:
            return []
        writers = self._writers
        commands = [writers[type(operation)](operation) for operation in operations]
        replies = self._link.exchange(commands)
        if first_refusal(replies):
            self._mend(commands, replies)
        return [
            ledger.Broken() if isinstance(reply, ResponseError) else _READERS[type(operation)](operation, reply)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def problems(self) -> list[str]:
        faults = []
        for url in self._link.masters():
            link = Link(url, timeout=self._timeout)
            try:
                faults += checks.server_problems(link, cluster=isinstance(self._link, ClusterLink))
            finally:
                link.close()
        return faults

    def servers(self) -> list[str]:
        """URLs of its servers, with passwords. **Raises** UnreachableError."""
        return self._link.masters()

    def open_to_all(self) -> bool:
        """True if a server admits clients without a password. **Raises** UnreachableError."""
        return any(checks.open_to_all(url, timeout=self._timeout) for url in self.servers())

    def fullness(self) -> list[ledger.Filled]:
        return [checks.filled(url, timeout=self._timeout) for url in self._link.masters()]

    def close(self) -> None:
        self._link.close()

    def _mend(self, commands: list[RedisCommand], replies: list[Any]) -> None:
        # Scripts are loaded with the connection, yet a server may be told to forget them. A refused command did
        # nothing, so it alone is sent again.
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            self._link.teach()
            for i, reply in zip(again, self._link.exchange([commands[i] for i in again]), strict=True):
                replies[i] = reply
        if error := first_refusal(reply for reply in replies if not _is_broken(reply)):
            raise refused(self._link.url, error)

    def _claim(self, operation: ledger.Claim) -> RedisCommand:
        home, pool, key, call, attempt, token, lease_ms, order, owner = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return (
            *("EVALSHA", self._sha["claim"], 2, f"{at}effect:{key}", f"{at}held"),
            *(key, call, attempt, token, lease_ms, order, self._keep_started, _LONGEST_MS, owner),
        )

    def _renew(self, operation: ledger.Renew) -> RedisCommand:
        home, pool, key, call, attempt, token, lease_ms, order, owner = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return (
            *("EVALSHA", self._sha["renew"], 2, f"{at}effect:{key}", f"{at}held"),
            *(key, call, attempt, token, lease_ms, order, self._keep_started, owner),
        )

    def _release(self, operation: ledger.Release) -> RedisCommand:
        home, pool, key, token = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return ("EVALSHA", self._sha["release"], 2, f"{at}effect:{key}", f"{at}held", key, token)

    def _hand_over(self, operation: ledger.HandOver) -> RedisCommand:
        home, pool, key, token, begun = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        keys = "EVALSHA", self._sha["hand_over"], 2, f"{at}effect:{key}", f"{at}held"
        return (*keys, key, token, 1 if begun else 0)

    def _complete(self, operation: ledger.Complete) -> RedisCommand:
        home, pool, key, call, attempt, token, success, result = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return (
            *("EVALSHA", self._sha["complete"], 3, f"{at}effect:{key}", f"{at}held", f"{at}outbox"),
            *(key, call, attempt, token, 1 if success else 0, result, self._retention_ms),
        )

    def _close(self, operation: ledger.Close) -> RedisCommand:
        home, pool, calls = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return (
            *("EVALSHA", self._sha["close"], 1 + len(calls), f"{at}held"),
            *(f"{at}effect:{key}" for key, *_ in calls),
            self._keep_marker,
            *chain.from_iterable((key, call, str(attempt)) for key, call, attempt in calls),
        )

    def _lapsed(self, operation: ledger.Lapsed) -> RedisCommand:
        home, pool, limit, heir = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return ("EVALSHA", self._sha["lapsed"], 1, f"{at}held", f"{at}effect:", limit, _LONGEST_MS, heir)

    def _outbox(self, operation: ledger.Unpublished) -> RedisCommand:
        home, pool, limit, most_bytes = operation
        key = f"{self._prefix}:{pool}:{{{home}}}:outbox"
        return ("EVALSHA", self._sha["unsent"], 1, key, limit, most_bytes)

    def _fill(self, operation: ledger.Fill) -> RedisCommand:
        return ("EVALSHA", self._sha["fill"], 1, f"{self._prefix}:{operation.pool}:{{{operation.home}}}:")

    def _sent(self, operation: ledger.Sent) -> RedisCommand:
        # HDEL wants at least one field, and no outbox field is empty.
        fields = map(_raw, operation.fields or ("",))
        return ("HDEL", f"{self._prefix}:{operation.pool}:{{{operation.home}}}:outbox", *fields)

    def _unlist(self, operation: ledger.Unlist) -> RedisCommand:
        return ("ZREM", f"{self._prefix}:{operation.pool}:{{{operation.home}}}:held", *operation.leases)

    def _set_aside(self, operation: ledger.SetAside) -> RedisCommand:
        home, pool, leases, fields, broken = operation
        at = f"{self._prefix}:{pool}:{{{home}}}:"
        return (
            *("EVALSHA", self._sha["set_aside"], 3, f"{at}held", f"{at}outbox", f"{at}quarantine"),
            *(f"{at}effect:", ledger.ASIDE, ledger.ASIDE_MOST_BYTES, self._retention_ms, len(leases), len(broken)),
            *map(_raw, (*leases, *broken, *fields)),
        )


def _is_broken(reply: object) -> bool:
    """True if a script met a value that no script writes."""
    return isinstance(reply, ResponseError) and bool(_BROKEN.search(str(reply)))


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _raw(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _read_claim(operation: ledger.Claim, reply: list[Any]) -> ledger.Reply:
    status = reply[0]
    if status == b"claimed":
        return ledger.Claimed(_text(reply[1]))
    if status == b"busy":
        return ledger.Busy(reply[1])
    if status == b"superseded":
        return ledger.Superseded(reply[1] == 1, reply[2], reply[3] == 1)
    return ledger.Stored(reply[1] or b"")


def _read_renew(operation: ledger.Renew, reply: list[Any]) -> ledger.Reply:
    return ledger.Fenced() if reply[0] == b"fenced" else ledger.Renewed(reply[1] == 1)


def _read_complete(operation: ledger.Complete, reply: list[Any]) -> ledger.Reply:
    if reply[0] == b"fenced":
        return ledger.Fenced()
    return ledger.Completed(_text(reply[1]))


def _read_nothing(operation: ledger.Operation, reply: Any) -> ledger.Reply:
    return None


def _read_fill(operation: ledger.Fill, reply: list[int]) -> ledger.Reply:
    return ledger.Filled(*reply)


def _read_pairs(operation: ledger.Operation, reply: list[bytes]) -> ledger.Reply:
    return [(_text(name), content) for name, content in zip(reply[::2], reply[1::2], strict=True)]


_READERS: dict[type, Callable[[Any, Any], ledger.Reply]] = {
    ledger.Claim: _read_claim,
    ledger.Renew: _read_renew,
    ledger.Release: _read_nothing,
    ledger.HandOver: _read_nothing,
    ledger.Complete: _read_complete,
    ledger.Close: _read_nothing,
    ledger.Lapsed: _read_pairs,
    ledger.Unpublished: _read_pairs,
    ledger.Sent: _read_nothing,
    ledger.SetAside: _read_nothing,
    ledger.Unlist: _read_nothing,
    ledger.Fill: _read_fill,
}
