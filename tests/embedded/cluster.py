"""Three real brokers, each a controller too: every record has three copies, and any one of them may die."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from refold.dev import process
from refold.dev.files import write_atomic
from refold.dev.jars import Progress
from refold.dev.kafka import EmbeddedKafka, fresh_id
from refold.dev.ports import HOST, remembered_ports

# For tests that stop the broker (SIGSTOP): it loses its session, as a busy one does.
QUICK_SESSION = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
# No test is patient enough for the end of such a session: a killed broker is back without it.
LONG_SESSION = {"broker.session.timeout.ms": "600000"}
NODES = (1, 2, 3)
_COPIES = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Three of these on two busy cores: a session as short as that of the single node would end in a pause.
    "broker.session.timeout.ms": "3000",
}


@dataclass(frozen=True)
class Address:
    """Where a node listens, for clients and for controllers, and the id of its folder."""

    port: int
    controller: int
    folder: str


@dataclass(frozen=True)
class Cluster:
    """What the nodes of a cluster know of each other."""

    id: str
    addresses: Mapping[int, Address]


def node_properties(number: int, cluster: Cluster, *, listener: str = "PLAINTEXT") -> dict[str, str]:
    """What one node has in server.properties that a single broker has not, or otherwise."""
    own = cluster.addresses[number]
    client = f"{listener}://{HOST}:{own.port}"
    return {
        **_COPIES,
        "node.id": str(number),
        "listeners": f"{client},CONTROLLER://{HOST}:{own.controller}",
        "advertised.listeners": client,
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{n.controller}" for n in cluster.addresses.values()),
    }


class KafkaNode(EmbeddedKafka):
    """One broker and controller of the three."""

    brokers: ClassVar[int] = len(NODES)

    def __init__(
        self,
        data_dir: Path,
        number: int,
        *,
        cluster: Cluster,
        properties: Mapping[str, str],
        cache: Path | None = None,
        progress: Progress | None = None,
        log: Path | None = None,
    ) -> None:
        own = cluster.addresses[number]
        data_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(data_dir / "ports.json", json.dumps({"port": own.port, "controller": own.controller}) + "\n")
        super().__init__(data_dir, properties=properties, cache=cache, progress=progress, log=log)
        self._cluster = cluster

    def format_arguments(self) -> list[str]:
        """See `EmbeddedKafka`. A new cluster begins with its voters."""
        nodes = self._cluster.addresses.items()
        voters = ",".join(f"{number}@{HOST}:{node.controller}:{node.folder}" for number, node in nodes)
        return [f"--cluster-id={self._cluster.id}", f"--initial-controllers={voters}"]


NodeT = TypeVar("NodeT", bound=KafkaNode)


class Nodes(Generic[NodeT]):
    """Nodes that are started and stopped together; each of them may be killed and started by itself."""

    def __init__(self, nodes: Sequence[NodeT]) -> None:
        self.nodes = list(nodes)

    @property
    def bootstrap(self) -> str:
        """The addresses for `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes)

    def prepare(self) -> None:
        """Put on disk what all of them need. In threads, for the format waits for Java."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(KafkaNode.prepare, self.nodes))

    def start(self) -> Self:
        """Start all nodes and wait until every one of them knows of all.

        **Raises**: what `EmbeddedServer.start` does; nothing is left running then.
        """
        try:
            self.prepare()
            # Not in those threads: a process dies with the thread that started it.
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait_ready(alive=lambda: all(each.running for each in self.nodes))
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop all nodes cleanly, which takes 5 s; a start after it takes 4 s, and 7 s after a `kill`.

        All at once: one alone, after the others, would wait for a quorum that is no more.
        """
        for node in self.nodes:
            if node._process:
                process.ask(node._process)
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Crash all nodes; does nothing to those that are stopped."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class KafkaCluster(Nodes[KafkaNode]):
    """A cluster on a folder; a second start there has the same ports and topics. `logs`: where the nodes log."""

    def __init__(
        self, data_dir: Path, *, properties: Mapping[str, str] | None = None, logs: Path | None = None
    ) -> None:
        folder = data_dir.resolve()
        cluster = Cluster(*remembered(folder))
        super().__init__(
            [
                KafkaNode(
                    folder / f"node-{number}",
                    number,
                    cluster=cluster,
                    properties={**node_properties(number, cluster), **(properties or {})},
                    log=logs / f"broker-{number}.log" if logs else None,
                )
                for number in NODES
            ]
        )


def remembered(folder: Path) -> tuple[str, dict[int, Address]]:
    """The id and the addresses of the cluster that was made on the folder, or new ones."""
    names = [f"{what}-{number}" for number in NODES for what in ("client", "controller")]
    ports = remembered_ports(folder / "ports.json", *names)
    path = folder / "cluster.json"
    if not path.exists():
        write_atomic(path, json.dumps({"id": fresh_id(), "folders": [fresh_id() for _ in NODES]}) + "\n")
    known = json.loads(path.read_text())
    return known["id"], {
        number: Address(ports[f"client-{number}"], ports[f"controller-{number}"], known["folders"][number - 1])
        for number in NODES
    }
