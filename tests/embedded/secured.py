"""Three real brokers that ask who one is and what one may do: SCRAM, ACLs, and three copies of every record."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from refold.core.errors import UsageError
from refold.embedded import process
from refold.embedded.files import write_atomic
from refold.embedded.jars import Progress
from refold.embedded.kafka import EmbeddedKafka, fresh_id
from refold.embedded.ports import HOST, remembered_ports

ADMIN = "admin"
"""The super user: the brokers among themselves, and who makes topics and ACLs at first."""

_NODES = (1, 2, 3)
MECHANISM = "SCRAM-SHA-256"
_SECURED = {
    "inter.broker.listener.name": "CLIENT",
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    # Users of SCRAM stand in the metadata, which controllers cannot have yet when they first talk: PLAIN for them.
    "sasl.mechanism.controller.protocol": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.sasl.enabled.mechanisms": MECHANISM,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "false",
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
    """What the nodes of a secured cluster know of each other. `admin` is the one of `passwords` who may do all."""

    id: str
    addresses: Mapping[int, Address]
    passwords: Mapping[str, str]
    admin: str


def secured_properties(*, number: int, cluster: Cluster) -> dict[str, str]:
    """Return what one node of a secured cluster has else in server.properties than a single broker."""
    own, word = cluster.addresses[number], cluster.passwords[cluster.admin]
    client = f"CLIENT://{HOST}:{own.port}"
    login = f'required username="{cluster.admin}" password="{word}"'
    package = "org.apache.kafka.common.security"
    own_settings = {
        "node.id": str(number),
        "listeners": f"{client},CONTROLLER://{HOST}:{own.controller}",
        "advertised.listeners": client,
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{n.controller}" for n in cluster.addresses.values()),
        "super.users": f"User:{cluster.admin}",
        f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config": f"{package}.scram.ScramLoginModule {login};",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{package}.plain.PlainLoginModule {login} user_{cluster.admin}="{word}";'
        ),
    }
    return {**_SECURED, **own_settings}


class SecuredNode(EmbeddedKafka):
    """One broker and controller of the three."""

    brokers: ClassVar[int] = len(_NODES)

    def __init__(
        self,
        data_dir: Path,
        number: int,
        *,
        cluster: Cluster,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        own = cluster.addresses[number]
        data_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(data_dir / "ports.json", json.dumps({"port": own.port, "controller": own.controller}) + "\n")
        properties = secured_properties(number=number, cluster=cluster)
        super().__init__(data_dir, properties=properties, cache=cache, progress=progress)
        self._cluster = cluster

    def format_arguments(self) -> list[str]:
        """See `EmbeddedKafka`. A new cluster begins with its voters and its users."""
        nodes, users = self._cluster.addresses.items(), self._cluster.passwords.items()
        voters = ",".join(f"{number}@{HOST}:{node.controller}:{node.folder}" for number, node in nodes)
        scram = [f"--add-scram={MECHANISM}=[name={name},password={word}]" for name, word in users]
        return [f"--cluster-id={self._cluster.id}", f"--initial-controllers={voters}", *scram]

    def client_options(self) -> dict[str, str]:
        """See `EmbeddedKafka`."""
        return login(ADMIN, self._cluster.passwords[ADMIN])


class SecuredKafka:
    """A cluster on a folder; a second start there has the same ports, topics, ACLs, users and passwords.

    `users` are those that a new cluster begins with, besides `ADMIN`: each with a random password, and without any
    right until somebody gives it some. `nodes` may be killed and started one by one.
    """

    def __init__(
        self,
        data_dir: Path,
        users: Iterable[str] = (),
        *,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        folder = data_dir.resolve()
        self._cluster = _remembered(folder, users)
        self.nodes = [
            SecuredNode(folder / f"node-{number}", number, cluster=self._cluster, cache=cache, progress=progress)
            for number in _NODES
        ]

    @property
    def bootstrap(self) -> str:
        """The addresses for `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def users(self) -> tuple[str, ...]:
        """Who may log in."""
        return tuple(self._cluster.passwords)

    def client_options(self, user: str) -> dict[str, str]:
        """Return the librdkafka options with which a client is this user, as REFOLD_KAFKA__OPTIONS takes them.

        **Raises**: UsageError for a user that the cluster does not have.
        """
        if user not in self._cluster.passwords:
            raise UsageError(f"the cluster has no user {user!r}", hint=f"there are {', '.join(self.users)}")
        return login(user, self._cluster.passwords[user])

    def start(self) -> Self:
        """Start all nodes and wait until every one of them knows of all.

        **Raises**: what `EmbeddedServer.start` does; nothing is left running then.
        """
        try:
            # Threads only for the format, which waits for Java: a process dies with the thread that started it.
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(SecuredNode.prepare, self.nodes))
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


def login(user: str, password: str) -> dict[str, str]:
    """Return the librdkafka options of a user of the cluster."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
    }


def _remembered(folder: Path, users: Iterable[str]) -> Cluster:
    """Return the cluster that was made on the folder, or a new one."""
    names = [f"{what}-{number}" for number in _NODES for what in ("client", "controller")]
    ports = remembered_ports(folder / "ports.json", *names)
    path = folder / "cluster.json"
    if not path.exists():
        made = {
            "id": fresh_id(),
            "folders": [fresh_id() for _ in _NODES],
            "passwords": {user: secrets.token_urlsafe(24) for user in (ADMIN, *users)},
        }
        write_atomic(path, json.dumps(made) + "\n", mode=0o600)
    known = json.loads(path.read_text())
    addresses = {
        number: Address(ports[f"client-{number}"], ports[f"controller-{number}"], known["folders"][number - 1])
        for number in _NODES
    }
    return Cluster(known["id"], addresses, known["passwords"], ADMIN)
