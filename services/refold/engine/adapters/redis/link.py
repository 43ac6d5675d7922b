"""Connections to one server, and to a cluster: a batch goes to each node in one piece, and nothing is retried."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import hiredis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from refold.core.errors import UnreachableError, UsageError
from refold.core.redaction import public_url

RedisCommand = tuple[str | int | bytes, ...]

_ELSEWHERE = exceptions.MovedError | exceptions.AskError | exceptions.TryAgainError
"""Errors of a node for a key that moved, or is moving."""


class Link:
    """Connection to a server, opened on demand with its `scripts`, dropped after errors. For one thread at a time."""

    def __init__(self, url: str, *, timeout: timedelta, scripts: Sequence[str] = ()) -> None:
        self.url, self._named = public_url(url), url
        self._greeting: list[RedisCommand] = [("SCRIPT", "LOAD", source) for source in scripts]
        self._greeted = False
        seconds = timeout.total_seconds()
        try:
            limits = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
            pool = ConnectionPool.from_url(url, **limits, retry=Retry(NoBackoff(), 0))
            # RESP2, whatever the URL asks for: replies are flat lists of bytes, cheapest to take apart.
            pool.connection_kwargs["protocol"] = 2
            self._connection: Any = pool.make_connection()
        except (ValueError, TypeError) as error:
            hint = "write redis://HOST:PORT/0, or rediss:// for TLS"
            raise UsageError(f"{self.url} is not the URL of a Redis", hint=hint) from error

    def exchange(self, commands: Sequence[RedisCommand]) -> list[Any]:
        """Replies in order; a refused command's is its error. **Raises** UnreachableError: outcomes are unknown."""
        try:
            if not self._greeted:
                self._connection.connect()
                self._roundtrip(self._greeting)
                self._greeted = True
            return self._roundtrip(commands)
        except BaseException as error:
            # Replies may still be under way; the next batch must never take them for its own.
            self.close()
            if isinstance(error, RedisError | OSError):
                raise unreachable(self.url, error) from error
            raise

    def ask(self, *command: str) -> Any:
        """Reply to one command. **Raises** UnreachableError, also if it is refused."""
        (reply,) = self.exchange([command])
        if isinstance(reply, ResponseError):
            raise refused(self.url, reply)
        return reply

    def masters(self) -> list[str]:
        return [self._named]

    def teach(self) -> None:
        """Load the scripts again, after a server has flushed them. **Raises** UnreachableError."""
        self.exchange(self._greeting)

    def close(self) -> None:
        self._greeted = False
        self._connection.disconnect()

    def _roundtrip(self, commands: Sequence[RedisCommand]) -> list[Any]:
        replies: list[Any] = []
        # Its stub wants a tuple of one.
        packed = b"".join(hiredis.pack_command(command) for command in commands)  # type: ignore[arg-type]
        self._connection.send_packed_command([packed], check_health=False)
        read = self._connection.read_response
        for _ in commands:
            try:
                replies.append(read(disable_decoding=True))
            except ResponseError as error:
                replies.append(error)
        return replies


class ClusterLink:
    """Connections to the masters of a cluster, whose slots are read again after a move. For one thread at a time."""

    def __init__(self, url: str, *, timeout: timedelta, scripts: Sequence[str] = ()) -> None:
        self.url, self._seconds, self._scripts = public_url(url), timeout.total_seconds(), scripts
        self._scheme, separator, rest = url.partition("://")
        self._user, self._at, hosts = rest.partition("/")[0].rpartition("@")
        self._hosts = hosts.split(",")
        if not separator or self._scheme not in ("redis", "rediss") or not all(self._hosts):
            raise UsageError(f"{self.url} is not the URL of a cluster", hint="write redis://HOST:PORT,HOST:PORT")
        self._cluster: Any = None
        self._stale = False

    def exchange(self, commands: Sequence[RedisCommand]) -> list[Any]:
        """As `Link.exchange`; commands go to the nodes of their keys."""
        with self._translating_errors():
            cluster, replies = self._connected(), list[Any]([None] * len(commands))
            by_node: dict[str, tuple[Any, list[int]]] = {}
            for place, command in enumerate(commands):
                node = cluster.get_node_from_key(_key_of(command))
                if node is None:
                    raise exceptions.ClusterDownError(f"no master has the slot of {_key_of(command)}")
                by_node.setdefault(node.name, (node, []))[1].append(place)
            for node, places in by_node.values():
                for place, reply in zip(places, self._pipe(node, [commands[i] for i in places]), strict=True):
                    # It was not executed there; the client asks the slot's current node, and learns its address.
                    replies[place] = self._follow(commands[place]) if isinstance(reply, _ELSEWHERE) else reply
            if down := next((reply for reply in replies if isinstance(reply, exceptions.ClusterDownError)), None):
                raise down
            return replies

    def teach(self) -> None:
        with self._translating_errors():
            for node in self._connected().get_primaries():
                self._pipe(node, [("SCRIPT", "LOAD", source) for source in self._scripts])

    def masters(self) -> list[str]:
        with self._translating_errors():
            return [self._url(f"{node.host}:{node.port}") for node in self._connected().get_primaries()]

    def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, exceptions.RedisClusterException, OSError) as error:
            # A master is gone, or a slot has no node at the moment: slots are read again before the next batch.
            self._stale = True
            raise unreachable(self.url, error) from error

    def _pipe(self, node: Any, commands: Sequence[RedisCommand]) -> list[Any]:
        pipe = self._cluster.get_redis_connection(node).pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def _follow(self, command: RedisCommand) -> Any:
        try:
            return self._cluster.execute_command(*command)
        except ResponseError as error:
            return error

    def _url(self, hosts: str) -> str:
        return f"{self._scheme}://{self._user}{self._at}{hosts}"

    def _connected(self) -> Any:
        if self._cluster is None:
            first, others = self._hosts[0], [host.partition(":") for host in self._hosts[1:]]
            self._cluster = RedisCluster.from_url(
                self._url(first),
                startup_nodes=[ClusterNode(name, int(port or 6379)) for name, _, port in others],  # type: ignore[no-untyped-call]
                protocol=2,
                # Nothing is retried here: operations are repeatable, and the caller sends the batch again.
                retry=Retry(NoBackoff(), 0),
                require_full_coverage=False,
                socket_timeout=self._seconds,
                socket_connect_timeout=self._seconds,
            )
        elif self._stale:
            self._cluster.nodes_manager.initialize()
        self._stale = False
        return self._cluster


def _key_of(command: RedisCommand) -> Any:
    return command[3] if command[0] == "EVALSHA" else command[1]


def refused(url: str, error: RedisError) -> UnreachableError:
    return UnreachableError(f"the Redis at {url} refuses: {error}", hint="see `refold doctor`, and retry", url=url)


def unreachable(url: str, error: BaseException) -> UnreachableError:
    hint = "start it, or correct the address in REFOLD_REDIS__URL"
    if isinstance(error, AuthenticationError):
        hint = "correct the user and password in REFOLD_REDIS__URL"
    reason = str(error) or type(error).__name__
    return UnreachableError(f"the Redis at {url} does not answer ({reason})", hint=hint, url=url)
