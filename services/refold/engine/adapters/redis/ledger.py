"""The ledger on Redis or Valkey: one Lua script per operation, one round trip per batch.

Keys of one home share the hash tag, and a script touches keys of one home only:

- `{prefix}:<pool>:{<home>}:effect:<idempotency key>`, a hash: `state` (started, done), `call`, `attempt`, `token`;
  while started also `takeover`, `order` and `owner`, when done `success` and `result`, and once a tombstone came
  `closed` alone, or `back` (the attempts up to this one are taken back)
- `{prefix}:<pool>:{<home>}:held`, a sorted set of idempotency keys by the end of their lease, on the server's clock
- `{prefix}:<pool>:{<home>}:outbox`, a hash of results by `outbox_field`
- `{prefix}:<pool>:{<home>}:quarantine`, a hash of what was set aside, `entry:<key>` and `result:<field>`
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from hashlib import sha1
from importlib.resources import files
from itertools import chain
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.exceptions import AuthenticationError, NoScriptError, ResponseError

from refold.core.errors import UnreachableError
from refold.engine.adapters.redis.link import ClusterLink, Link, RedisCommand, refused
from refold.engine.ports import ledger

_NAMES = ("claim", "renew", "release", "hand_over", "complete", "close", "lapsed", "unsent", "set_aside", "fill")
SCRIPTS = {name: files(__package__).joinpath(f"{name}.lua").read_text() for name in _NAMES}
"""Rules of the ledger in Lua, by name."""

_TIMEOUT = timedelta(seconds=5)

_LONGEST_MS = ledger.LONGEST_LEASE // timedelta(milliseconds=1)
_BROKEN = re.compile(r"^WRONGTYPE|user_script:\d+: (attempt to|bad argument)|rguments must be strings")
"""Errors of a script that met a value which no script writes."""

_NEEDED = (
    ("appendonly", "yes", "a crash of the server loses the whole ledger"),
    ("appendfsync", "always", "a crash of the machine loses results that were acknowledged"),
    ("maxmemory-policy", "noeviction", "a full server drops entries silently"),
)


class RedisLedger:
    """Ledger on one server or a `cluster`; for one thread at a time. `url`: `redis://[user:password@]host:port/db`,
    `rediss://` for TLS; for a cluster any nodes, separated by commas. `timeout` is of each connect, write and read."""

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
        # The names of scripts for EVALSHA.
        self._sha = {name: sha1(SCRIPTS[name].encode(), usedforsecurity=False).hexdigest() for name in SCRIPTS}
        self._timeout = timeout
        self._link = (ClusterLink if cluster else Link)(url, timeout=timeout, scripts=list(SCRIPTS.values()))

    def run(self, operations: Sequence[ledger.Operation]) -> list[ledger.Reply]:
        if not operations:
            return []
        commands = [_OPERATIONS[type(operation)][0](self, operation, self._at(operation)) for operation in operations]
        replies = self._link.exchange(commands)
        if any(isinstance(reply, ResponseError) for reply in replies):
            self._resend_after_no_script(commands, replies)
        return [
            ledger.Broken() if isinstance(reply, ResponseError) else _OPERATIONS[type(operation)][1](reply)
            for operation, reply in zip(operations, replies, strict=True)
        ]

    def problems(self) -> list[str]:
        """Faults of the live servers' settings and state, each with its remedy. **Raises** UnreachableError."""
        faults = []
        for url in self._link.masters():
            with closing(Link(url, timeout=self._timeout)) as link:
                faults += server_problems(link, cluster=isinstance(self._link, ClusterLink))
        return faults

    def servers(self) -> list[str]:
        """URLs of its servers, with passwords. **Raises** UnreachableError."""
        return self._link.masters()

    def open_to_all(self) -> bool:
        """True if a server admits clients without a password. **Raises** UnreachableError."""
        return any(open_to_all(url, timeout=self._timeout) for url in self.servers())

    def fullness(self) -> list[ledger.Filled]:
        """Memory in use and its limit, by server. **Raises** UnreachableError."""
        levels = []
        for url in self._link.masters():
            with closing(Link(url, timeout=self._timeout)) as link:
                memory = _info(link, "memory")
            levels.append(ledger.Filled(int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))))
        return levels

    def close(self) -> None:
        self._link.close()

    def _resend_after_no_script(self, commands: list[RedisCommand], replies: list[Any]) -> None:
        """Send commands again whose script a server has lost. **Raises** UnreachableError for any other refusal."""
        # Scripts are loaded with the connection, yet a server may be told to forget them. A refused command did
        # nothing, so it alone is sent again.
        again = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            self._link.teach()
            for i, reply in zip(again, self._link.exchange([commands[i] for i in again]), strict=True):
                replies[i] = reply
        # A broken entry concerns its own operation alone; any other refusal concerns the server.
        refusals = [reply for reply in replies if isinstance(reply, ResponseError) and not _BROKEN.search(str(reply))]
        if refusals:
            raise refused(self._link.url, refusals[0])

    def _at(self, operation: ledger.Operation) -> str:
        """Prefix of the keys of an operation's home and pool."""
        return f"{self._prefix}:{operation.pool}:{{{operation.home}}}:"

    def _script(self, name: str, keys: Sequence[str], *arguments: str | int | bytes) -> RedisCommand:
        return ("EVALSHA", self._sha[name], len(keys), *keys, *arguments)

    def _claim(self, operation: ledger.Claim, at: str) -> RedisCommand:
        limits = self._keep_started, _LONGEST_MS
        return self._script("claim", _entry(at, operation.key), *operation[2:8], *limits, operation.owner)

    def _renew(self, operation: ledger.Renew, at: str) -> RedisCommand:
        renewed = *operation[2:8], self._keep_started, operation.owner
        return self._script("renew", _entry(at, operation.key), *renewed)

    def _complete(self, operation: ledger.Complete, at: str) -> RedisCommand:
        _, _, key, call, attempt, token, success, result = operation
        keys = *_entry(at, key), f"{at}outbox"
        return self._script("complete", keys, key, call, attempt, token, int(success), result, self._retention_ms)

    def _close(self, operation: ledger.Close, at: str) -> RedisCommand:
        keys = f"{at}held", *(f"{at}effect:{key}" for key, *_ in operation.calls)
        calls = chain.from_iterable((key, call, str(attempt)) for key, call, attempt in operation.calls)
        return self._script("close", keys, self._keep_marker, *calls)

    def _lapsed(self, operation: ledger.Lapsed, at: str) -> RedisCommand:
        return self._script("lapsed", (f"{at}held",), f"{at}effect:", operation.limit, _LONGEST_MS, operation.heir)

    def _set_aside(self, operation: ledger.SetAside, at: str) -> RedisCommand:
        _, _, leases, fields, broken = operation
        limits = ledger.ASIDE, ledger.ASIDE_MOST_BYTES, self._retention_ms, len(leases), len(broken)
        keys = f"{at}held", f"{at}outbox", f"{at}quarantine"
        return self._script("set_aside", keys, f"{at}effect:", *limits, *map(_raw, (*leases, *broken, *fields)))


def _entry(at: str, key: str) -> tuple[str, str]:
    """Keys of the script of one entry, after the prefix `at`."""
    return f"{at}effect:{key}", f"{at}held"


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _raw(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _read_claim(reply: list[Any]) -> ledger.Reply:
    status = reply[0]
    if status == b"claimed":
        return ledger.Claimed(_text(reply[1]))
    if status == b"busy":
        return ledger.Busy(reply[1])
    if status == b"superseded":
        return ledger.Superseded(reply[1] == 1, reply[2], reply[3] == 1)
    return ledger.Stored(reply[1] or b"")


def _nothing(reply: object) -> ledger.Reply:
    return None


def _pairs(reply: list[bytes]) -> ledger.Reply:
    return [(_text(name), content) for name, content in zip(reply[::2], reply[1::2], strict=True)]


_OPERATIONS: dict[type, tuple[Callable[[RedisLedger, Any, str], RedisCommand], Callable[[Any], ledger.Reply]]] = {
    ledger.Claim: (RedisLedger._claim, _read_claim),
    ledger.Renew: (
        RedisLedger._renew,
        lambda reply: ledger.Fenced() if reply[0] == b"fenced" else ledger.Renewed(reply[1] == 1),
    ),
    ledger.Release: (lambda own, of, at: own._script("release", _entry(at, of.key), of.key, of.token), _nothing),
    ledger.HandOver: (
        lambda own, of, at: own._script("hand_over", _entry(at, of.key), of.key, of.token, int(of.begun)),
        _nothing,
    ),
    ledger.Complete: (
        RedisLedger._complete,
        lambda reply: ledger.Fenced() if reply[0] == b"fenced" else ledger.Completed(_text(reply[1])),
    ),
    ledger.Close: (RedisLedger._close, _nothing),
    ledger.Lapsed: (RedisLedger._lapsed, _pairs),
    ledger.Unpublished: (lambda own, of, at: own._script("unsent", (f"{at}outbox",), of.limit, of.most_bytes), _pairs),
    # HDEL wants at least one field, and no outbox field is empty.
    ledger.Sent: (lambda own, of, at: ("HDEL", f"{at}outbox", *map(_raw, of.fields or ("",))), _nothing),
    ledger.SetAside: (RedisLedger._set_aside, _nothing),
    ledger.Unlist: (lambda own, of, at: ("ZREM", f"{at}held", *of.leases), _nothing),
    ledger.Fill: (lambda own, of, at: own._script("fill", (at,)), lambda reply: ledger.Filled(*reply)),
}
"""How an operation becomes a command, and the command's reply an answer."""


def server_problems(link: Link, *, cluster: bool) -> list[str]:
    """Problems of a server, each with its remedy; `cluster`: it may be a shard. **Raises** UnreachableError."""
    problems = []
    replies = link.exchange([("CONFIG", "GET", name) for name, *_ in _NEEDED])
    for (name, expected, why), reply in zip(_NEEDED, replies, strict=True):
        line = f"CONFIG SET {name} {expected}"
        if isinstance(reply, ResponseError) or len(reply) != 2:
            problems.append(f"The server does not tell its {name}: make sure that it is {expected}, or {why}.")
        elif (actual := reply[1].decode()) != expected:
            problems.append(f"{name} is {actual}, so {why}: run `{line}` and keep it with `CONFIG REWRITE`.")
    return problems + _state_problems(link, cluster=cluster)


def open_to_all(url: str, *, timeout: timedelta) -> bool:
    """True if a server admits clients without a password, as any user or the URL's. **Raises** UnreachableError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if "ssl_certfile" in options:  # the certificate is the login
        return False
    login, _, place = parts.netloc.rpartition("@")
    user = options.pop("username", login.partition(":")[0])
    options.pop("password", None)
    bare = parts._replace(netloc=place, query=urlencode(options))
    logins = [bare, bare._replace(netloc=f"{user}:{token_hex(16)}@{place}")] if user else [bare]
    return any(_admits(urlunsplit(address), timeout) for address in logins)


def _admits(url: str, timeout: timedelta) -> bool:
    with closing(Link(url, timeout=timeout)) as link:
        try:
            (reply,) = link.exchange([("PING",)])
        except UnreachableError as error:
            if isinstance(error.__cause__, AuthenticationError):
                return False
            raise
    return not isinstance(reply, ResponseError)


def _state_problems(link: Link, *, cluster: bool) -> list[str]:
    info = _info(link, "persistence") | _info(link, "replication") | _info(link, "cluster")
    wrong = []
    if info.get("loading") == "1":
        wrong.append("The server is still loading its data: wait until `INFO persistence` says loading:0.")
    if info.get("aof_last_write_status", "ok") != "ok":
        wrong.append("The last write to the append-only file failed: free disk space, then look at the server's log.")
    if info.get("role", "master") != "master":
        where = f"{info.get('master_host')}:{info.get('master_port')}"
        wrong.append(
            f"The server is a replica of {where} and takes no writes: connect there, or run `REPLICAOF NO ONE`."
        )
    if cluster or info.get("cluster_enabled") != "1":
        return wrong
    if _info_fields(link.ask("CLUSTER", "INFO")).get("cluster_size", "1") != "1":
        wrong.append("The server is one shard of a cluster: set REFOLD_REDIS__CLUSTER=true, and its shards are found.")
    return wrong


def _info(link: Link, section: str) -> dict[str, str]:
    return _info_fields(link.ask("INFO", section))


def _info_fields(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}
