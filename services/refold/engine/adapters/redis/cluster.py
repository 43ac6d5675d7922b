"""Connections to a Redis cluster: each command goes to the node of its key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from refold.core.errors import UsageError
from refold.core.redaction import public_url
from refold.engine.adapters.redis.link import RedisCommand, unreachable

_ELSEWHERE = MovedError | AskError | TryAgainError
"""Errors of a node for a key that moved, or is moving."""


class ClusterLink:
    """Connections to the masters of a cluster; for one thread at a time. Slots are read at first use and after a move.
    A batch goes to each node in one piece."""

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
            return self._exchange(commands)

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
        except (RedisError, RedisClusterException, OSError) as error:
            # A master is gone, or a slot has no node at the moment: slots are read again before the next batch.
            self._stale = True
            raise unreachable(self.url, error) from error

    def _exchange(self, commands: Sequence[RedisCommand]) -> list[Any]:
        cluster, replies = self._connected(), list[Any]([None] * len(commands))
        by_node: dict[str, tuple[Any, list[int]]] = {}
        for place, command in enumerate(commands):
            node = cluster.get_node_from_key(_key_of(command))
            if node is None:
                raise ClusterDownError(f"no master has the slot of {_key_of(command)}")
            by_node.setdefault(node.name, (node, []))[1].append(place)
        for node, places in by_node.values():
            for place, reply in zip(places, self._pipe(node, [commands[i] for i in places]), strict=True):
                # It was not executed there; the client asks the slot's current node, and learns its address.
                replies[place] = self._follow(commands[place]) if isinstance(reply, _ELSEWHERE) else reply
        down = next((reply for reply in replies if isinstance(reply, ClusterDownError)), None)
        if down is not None:
            raise down
        return replies

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
            first, *others = self._hosts
            self._cluster = RedisCluster.from_url(
                self._url(first),
                startup_nodes=[_node(host) for host in others],
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


def _node(host: str) -> Any:
    name, _, port = host.partition(":")
    return ClusterNode(name, int(port or 6379))  # type: ignore[no-untyped-call]  # it has no types at all


def _key_of(command: RedisCommand) -> Any:
    return command[3] if command[0] == "EVALSHA" else command[1]
