"""Three brokers under a supervisor of their own, beside a stack that is told their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.dev.supervisor import Child, Exit, Supervisor
from tests.embedded.cluster import KafkaCluster

NAMES = ("broker-1", "broker-2", "broker-3")


class Brokers:
    """A cluster whose nodes are started again when they die. `on_exit` gets every end."""

    def __init__(self, folder: Path, properties: Mapping[str, str] | None, on_exit: Callable[[Exit], None]) -> None:
        self._cluster = KafkaCluster(folder / "kafka", properties=properties, logs=folder / "logs")
        self.supervisor = Supervisor(on_exit=on_exit)
        self.bootstrap = self._cluster.bootstrap
        self._asker: AdminClient | None = None

    def start(self) -> None:
        """Starts all three and waits for them."""
        self._cluster.prepare()
        for name, node in zip(NAMES, self._cluster.nodes, strict=True):
            self.supervisor.add(Child(name, tuple(node.command()), node.log, grace=node.grace))
        for name, node in zip(NAMES, self._cluster.nodes, strict=True):
            node.wait_ready(alive=partial(self._first, name))

    def whole(self) -> bool:
        """Whether all three are there, as each of them says, and have all records: then one of them may go."""
        return all(node.answers() for node in self._cluster.nodes) and self._in_sync()

    def leader(self, topic: str, partition: int) -> str:
        """Who leads a partition now; empty while nobody does."""
        try:
            number = self._admin.list_topics(topic, timeout=5).topics[topic].partitions[partition].leader
        except (KafkaException, KeyError):
            return ""
        return f"broker-{number}" if number > 0 else ""

    def stop(self) -> None:
        """Ends all three, at once."""
        self.supervisor.stop()

    @property
    def _admin(self) -> AdminClient:
        self._asker = self._asker or AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._asker

    def _in_sync(self) -> bool:
        try:
            topics = self._admin.list_topics(timeout=5).topics.values()
        except KafkaException:
            return False
        return all(len(each.isrs) == len(each.replicas) for topic in topics for each in topic.partitions.values())

    def _first(self, name: str) -> bool:
        return self.supervisor.active and self.supervisor.restarts(name) == 0
