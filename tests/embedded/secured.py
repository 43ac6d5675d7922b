"""Three real brokers that ask who one is and what one may do: SCRAM, ACLs, and three copies of every record."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from refold.core.errors import UsageError
from refold.dev.files import write_atomic
from refold.dev.jars import Progress
from tests.embedded.cluster import NODES, Cluster, KafkaNode, Nodes, node_properties, remembered

ADMIN = "admin"
"""The super user: the brokers among themselves, and who makes topics and ACLs at first."""

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
}


@dataclass(frozen=True)
class SecuredNodes(Cluster):
    """What the nodes of a secured cluster know of each other. `admin` is the one of `passwords` who may do all."""

    passwords: Mapping[str, str]
    admin: str


def secured_properties(*, number: int, cluster: SecuredNodes) -> dict[str, str]:
    """Return what one node of a secured cluster has else in server.properties than a single broker."""
    word = cluster.passwords[cluster.admin]
    login = f'required username="{cluster.admin}" password="{word}"'
    package = "org.apache.kafka.common.security"
    own_settings = {
        "super.users": f"User:{cluster.admin}",
        f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config": f"{package}.scram.ScramLoginModule {login};",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{package}.plain.PlainLoginModule {login} user_{cluster.admin}="{word}";'
        ),
    }
    return {**node_properties(number, cluster, listener="CLIENT"), **_SECURED, **own_settings}


class SecuredNode(KafkaNode):
    """One broker and controller of the three."""

    def __init__(
        self,
        data_dir: Path,
        number: int,
        *,
        cluster: SecuredNodes,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        properties = secured_properties(number=number, cluster=cluster)
        super().__init__(data_dir, number, cluster=cluster, properties=properties, cache=cache, progress=progress)
        self._users = cluster.passwords

    def format_arguments(self) -> list[str]:
        """See `KafkaNode`. A new cluster begins with its users, too."""
        scram = [f"--add-scram={MECHANISM}=[name={name},password={word}]" for name, word in self._users.items()]
        return [*super().format_arguments(), *scram]

    def client_options(self) -> dict[str, str]:
        """See `EmbeddedKafka`."""
        return login(ADMIN, self._users[ADMIN])


class SecuredKafka(Nodes[SecuredNode]):
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
        self._cluster = SecuredNodes(*remembered(folder), _passwords(folder / "passwords.json", users), ADMIN)
        super().__init__(
            [
                SecuredNode(folder / f"node-{number}", number, cluster=self._cluster, cache=cache, progress=progress)
                for number in NODES
            ]
        )

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


def login(user: str, password: str) -> dict[str, str]:
    """Return the librdkafka options of a user of the cluster."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": password,
    }


def _passwords(path: Path, users: Iterable[str]) -> dict[str, str]:
    """Return the passwords that were made on the folder, or new ones."""
    if not path.exists():
        made = {user: secrets.token_urlsafe(24) for user in (ADMIN, *users)}
        write_atomic(path, json.dumps(made) + "\n", mode=0o600)
    found: dict[str, str] = json.loads(path.read_text())
    return found
