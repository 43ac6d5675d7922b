"""Access to a platform: its log, catalog, and publisher of inputs."""

import getpass
import math
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import KafkaException

from refold.client import catalog
from refold.client.catalog import CatalogReader
from refold.client.operations.approvals import Approvals
from refold.client.operations.runs import Runs
from refold.client.operations.workers import Served, served, workers
from refold.client.reading.member import Workers
from refold.core.approval.signature import Trust
from refold.core.confusables import spelt
from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.core.run.state import RunState
from refold.core.topics import RUN_STREAM, TOOL_REQUESTED, executors, pool_of
from refold.engine.adapters.kafka import clients, light
from refold.engine.adapters.kafka.groups import GroupState, group_states
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.runtime.addresses import Addresses
from refold.engine.runtime.settings import LIGHT, Settings

KNOCK_S = 3.0
"""Seconds for a server to accept a connection; a request to Kafka takes 10 s to fail."""
KNOCK_AGAIN_S = 0.3
POOL_KNOWN_S = 3.0
"""Seconds for which answers about pools are cached: an open page asks at each event."""


@dataclass(frozen=True)
class Platform:
    """Access to a platform for commands and clients. Connections open at first use."""

    where: Addresses
    source: str = "refold-cli"

    @property
    def settings(self) -> Settings:
        return self.where.settings

    @cached_property
    def runs(self) -> Runs:
        """Runs in the log. **Raises** UnreachableError, at once when no broker listens."""
        self.knock()
        return Runs(KafkaLogReader(self.settings.kafka))

    def workers(self) -> Workers:
        self.knock()
        return workers(self.settings.kafka)

    def served(self) -> Served:
        return served(self.runs.reader, self.groups)

    def groups(self, names: Iterable[str]) -> dict[str, GroupState]:
        self.knock()
        return group_states(self.settings.kafka, names)

    def topics(self, kinds: Collection[str]) -> list[str]:
        self.knock()
        return KafkaLogReader(self.settings.kafka).names(kinds)

    def idle_pools(self, pools: Collection[str]) -> set[str]:
        """Pools without an executor, cached for `POOL_KNOWN_S`; empty if Kafka does not answer."""

        def without_executor(stale: list[str]) -> set[str]:
            groups = self.groups(map(executors, stale))
            return {pool for pool in stale if not groups[executors(pool)].members}

        return self._matching_pools("idle", pools, without_executor)

    def _matching_pools(self, kind: str, pools: Collection[str], match: Callable[[list[str]], set[str]]) -> set[str]:
        """Pools that `match` selects, cached by `kind` for `POOL_KNOWN_S`; a query that fails selects none."""
        now, cache = time.monotonic(), self._pool_matches
        if stale := [pool for pool in pools if now - cache.get((kind, pool), (-math.inf, False))[0] > POOL_KNOWN_S]:
            # Before Kafka answers: other requests do not ask meanwhile.
            cache.update({(kind, pool): (now, False) for pool in stale})
            with suppress(RefoldError):
                matches = match(stale)
                cache.update({(kind, pool): (now, pool in matches) for pool in stale})
        return {pool for pool in pools if cache[kind, pool][1]}

    @cached_property
    def _pool_matches(self) -> dict[tuple[str, str], tuple[float, bool]]:
        """Monotonic time in s of the last query, and True if the pool matched, by kind of query and pool."""
        return {}

    @cached_property
    def trust(self) -> Trust:
        """Root keys that sign the catalog. **Raises** UsageError when none is known here."""
        if pinned := self.where.trust:
            return pinned
        hint = "set REFOLD_TRUST to what `refold keys init` has printed, or to @FILE with that"
        raise UsageError("no root key is trusted here, so nothing in the catalog holds", hint=hint)

    @property
    def catalog(self) -> CatalogReader:
        return catalog.read(self.runs.reader, self.trust)

    @cached_property
    def approvals(self) -> Approvals:
        most = self.settings.max_payload_bytes
        return Approvals(self.runs.reader, self.trust, partitions=self.runs.partitions, payload_bytes=most)

    @cached_property
    def publisher(self) -> KafkaPublisher:
        most = self.settings.max_payload_bytes
        return KafkaPublisher(
            self.settings.kafka, partitions=self.runs.partitions, source=self.source, payload_bytes=most
        )

    @property
    def broken(self) -> str:
        """Fatal error of the publisher, which replaces its client; empty if it can write."""
        return self.publisher.broken if "publisher" in self.__dict__ else ""

    def without_topics(self, run: RunState) -> list[str]:
        """Pools of open calls without topics; empty if Kafka does not answer."""

        def absent(stale: list[str]) -> set[str]:
            present = set(map(pool_of, self.topics((TOOL_REQUESTED, RUN_STREAM))))
            return set(stale) - present if present else set()

        pools = set[str]() if run.over else {run.call(step).pool for step in run.open_calls()}
        return sorted(self._matching_pools("without topics", pools, absent))

    def knock(self) -> None:
        """**Raises** UnreachableError when no broker accepts a connection."""
        self.where.check()
        if not self._listens():
            raise UnreachableError(
                f"nobody listens at {self.settings.kafka.bootstrap}, where Kafka should be",
                hint="`refold dev` starts one here; --kafka or REFOLD_KAFKA__BOOTSTRAP names another",
            )

    def wait(self, timeout_s: float, notify: Callable[[str], object]) -> None:
        """Waits for a Kafka that is restarted, with one notice to `notify`. **Raises** as `knock` after `timeout_s`."""
        self.where.check()
        deadline, notified = time.monotonic() + timeout_s, False
        while not self._answers(again=notified):
            if time.monotonic() + KNOCK_AGAIN_S > deadline:
                return self.knock()
            if not notified:
                notify(f"waiting for Kafka at {self.settings.kafka.bootstrap}")
            notified = True
            time.sleep(KNOCK_AGAIN_S)
        return None

    def _listens(self) -> bool:
        return any(map(listens, self.settings.kafka.bootstrap.split(",")))

    def _answers(self, *, again: bool) -> bool:
        if not self._listens():
            return False
        try:  # a broker that has just been started listens before it can be used
            return not again or bool(clients.admin(self.settings.kafka).list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False


def login() -> str:
    try:
        return spelt(getpass.getuser())
    except (OSError, KeyError):
        return "cli"


def listens(server: str) -> bool:
    host, _, port = server.strip().rpartition(":")
    try:
        if server.startswith(LIGHT):
            light.connected(server.removeprefix(LIGHT)).close()
            return True
        socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), KNOCK_S).close()
    except (OSError, ValueError):
        return False
    return True
