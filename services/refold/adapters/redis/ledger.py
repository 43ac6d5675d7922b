"""The ledger on Redis or Valkey: one Lua script per operation, one round trip per batch.

Keys of one home share the hash tag, and a script touches keys of one home only:

- `{prefix}:{<home>}:call:<call>`, a hash: `state` (started, done), `attempt`, `token`; while started also `takeover`,
  `request` and, once a tombstone came, `closed`; when done also `success` and `result`
- `{prefix}:{<home>}:leases:<pool>`, a sorted set of calls by the end of their lease, in ms on the server's clock
- `{prefix}:{<home>}:outbox:<pool>`, a hash of results by `outbox_field`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from redis.exceptions import NoScriptError

from refold.adapters.redis import checks, scripts
from refold.adapters.redis.link import Link, first_refusal, pack
from refold.ports.ledger import (
    DEFAULT_RETENTION,
    STARTED_RETENTION,
    Busy,
    Claim,
    Claimed,
    Close,
    Complete,
    Completed,
    Fenced,
    Lapsed,
    Operation,
    Release,
    Renew,
    Renewed,
    Reply,
    Sent,
    Stored,
    Superseded,
    Unsent,
    outbox_field,
)

_TIMEOUT = timedelta(seconds=5)


class RedisLedger:
    """A `refold.ports.ledger.Ledger` on one server, for one thread at a time.

    `url` is `redis://[user:password@]host:port/db`, `rediss://` for TLS; `timeout` is that of a connect, of a write
    and of a read.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "refold",
        retention: timedelta = DEFAULT_RETENTION,
        timeout: timedelta = _TIMEOUT,
    ) -> None:
        self._prefix = prefix
        self._keep = retention // timedelta(milliseconds=1)
        self._keep_started = STARTED_RETENTION // timedelta(milliseconds=1)
        self._sha = {name: scripts.sha_of(source) for name, source in scripts.SOURCES.items()}
        self._loads = [pack("SCRIPT", "LOAD", source) for source in scripts.SOURCES.values()]
        self._link = Link(url, timeout=timeout, greeting=self._loads)
        self._packers: dict[type, Callable[[Any], bytes]] = {
            Claim: self._claim,
            Renew: self._renew,
            Release: self._release,
            Complete: self._complete,
            Close: self._close,
            Lapsed: self._lapsed,
            Unsent: self._outbox,
            Sent: self._sent,
        }

    def run(self, operations: Sequence[Operation]) -> list[Reply]:
        """See `Ledger.run`."""
        if not operations:
            return []
        packers = self._packers
        commands = [packers[type(operation)](operation) for operation in operations]
        replies = self._link.exchange(commands)
        if first_refusal(replies):
            self._mend(commands, replies)
        return [
            _READERS[type(operation)](operation, reply) for operation, reply in zip(operations, replies, strict=True)
        ]

    def problems(self) -> list[str]:
        """See `Ledger.problems`. **Raises** UnreachableError."""
        return checks.server_problems(self._link)

    def close(self) -> None:
        """Hangs up."""
        self._link.close()

    def _mend(self, commands: list[bytes], replies: list[Any]) -> None:
        # Scripts are loaded with the connection, yet a server may be told to forget them. A refused command did
        # nothing, so it alone is sent again.
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            fresh = self._link.exchange([*self._loads, *(commands[i] for i in again)])
            for i, reply in zip(again, fresh[len(self._loads) :], strict=True):
                replies[i] = reply
        if error := first_refusal(replies):
            raise self._link.refused(error)

    def _claim(self, operation: Claim) -> bytes:
        home, pool, call, attempt, token, lease_ms, request = operation
        at = f"{self._prefix}:{{{home}}}:"
        return pack(
            *("EVALSHA", self._sha["claim"], 3, f"{at}call:{call}", f"{at}leases:{pool}", f"{at}outbox:{pool}"),
            *(call, attempt, token, lease_ms, request, self._keep_started),
        )

    def _renew(self, operation: Renew) -> bytes:
        home, pool, call, attempt, token, lease_ms, request = operation
        at = f"{self._prefix}:{{{home}}}:"
        return pack(
            *("EVALSHA", self._sha["renew"], 2, f"{at}call:{call}", f"{at}leases:{pool}"),
            *(call, attempt, token, lease_ms, request, self._keep_started),
        )

    def _release(self, operation: Release) -> bytes:
        home, pool, call, token = operation
        at = f"{self._prefix}:{{{home}}}:"
        return pack("EVALSHA", self._sha["release"], 2, f"{at}call:{call}", f"{at}leases:{pool}", call, token)

    def _complete(self, operation: Complete) -> bytes:
        home, pool, call, attempt, token, success, result = operation
        at = f"{self._prefix}:{{{home}}}:"
        return pack(
            *("EVALSHA", self._sha["complete"], 3, f"{at}call:{call}", f"{at}leases:{pool}", f"{at}outbox:{pool}"),
            *(call, attempt, token, 1 if success else 0, result, self._keep),
        )

    def _close(self, operation: Close) -> bytes:
        home, pool, call = operation
        at = f"{self._prefix}:{{{home}}}:"
        return pack("EVALSHA", self._sha["close"], 2, f"{at}call:{call}", f"{at}leases:{pool}", call, self._keep)

    def _lapsed(self, operation: Lapsed) -> bytes:
        home, pool, limit = operation
        at = f"{self._prefix}:{{{home}}}:"
        return pack("EVALSHA", self._sha["lapsed"], 1, f"{at}leases:{pool}", f"{at}call:", limit)

    def _outbox(self, operation: Unsent) -> bytes:
        # A random choice, so that what is published but not yet acknowledged cannot keep the rest waiting.
        key = f"{self._prefix}:{{{operation.home}}}:outbox:{operation.pool}"
        return pack("HRANDFIELD", key, operation.limit, "WITHVALUES")

    def _sent(self, operation: Sent) -> bytes:
        # HDEL wants at least one field, and no outbox field is empty.
        return pack(
            "HDEL", f"{self._prefix}:{{{operation.home}}}:outbox:{operation.pool}", *(operation.fields or ("",))
        )


def _read_claim(operation: Claim, reply: list[Any]) -> Reply:
    word = reply[0]
    if word == b"claimed":
        return Claimed(reply[1] == 1)
    if word == b"busy":
        return Busy(reply[1])
    if word == b"superseded":
        return Superseded()
    return Stored(outbox_field(operation.call, int(reply[1])), reply[2])


def _read_renew(operation: Renew, reply: list[Any]) -> Reply:
    return Fenced() if reply[0] == b"fenced" else Renewed(reply[1] == 1)


def _read_complete(operation: Complete, reply: list[Any]) -> Reply:
    return Fenced() if reply[0] == b"fenced" else Completed(outbox_field(operation.call, int(reply[1])))


def _read_nothing(operation: Operation, reply: Any) -> Reply:
    return None


def _read_requests(operation: Lapsed, reply: list[bytes]) -> Reply:
    return reply


def _read_outbox(operation: Unsent, reply: list[bytes]) -> Reply:
    return [(field.decode(), result) for field, result in zip(reply[::2], reply[1::2], strict=True)]


_READERS: dict[type, Callable[[Any, Any], Reply]] = {
    Claim: _read_claim,
    Renew: _read_renew,
    Release: _read_nothing,
    Complete: _read_complete,
    Close: _read_nothing,
    Lapsed: _read_requests,
    Unsent: _read_outbox,
    Sent: _read_nothing,
}
