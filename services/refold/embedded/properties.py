"""The settings of brokers that fit a development machine: one that comes back quickly, or three that ask who one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from refold.embedded.ports import HOST

_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_SMALL = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # 8 MB instead of 128: the smallest that the cleaner accepts with one thread, enough for 300,000 keys a
    # pass.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
_QUICK = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # After kill -9 the controller refuses the new broker until the old one's session is over: 9 s by default.
    # 1.5 s with a heartbeat every 0.3 s outlives the pauses of a loaded two-core machine.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
}
MECHANISM = "SCRAM-SHA-256"
_SECURED = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
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


def secured_properties(store: Path, *, number: int, cluster: Cluster) -> str:
    """Return the text of server.properties for one node of a secured cluster."""
    own, word = cluster.addresses[number], cluster.passwords[cluster.admin]
    client = f"CLIENT://{HOST}:{own.port}"
    login = f'required username="{cluster.admin}" password="{word}"'
    package = "org.apache.kafka.common.security"
    own_settings = {
        "node.id": str(number),
        "listeners": f"{client},CONTROLLER://{HOST}:{own.controller}",
        "advertised.listeners": client,
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{n.controller}" for n in cluster.addresses.values()),
        "log.dirs": str(store),
        "super.users": f"User:{cluster.admin}",
        f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config": f"{package}.scram.ScramLoginModule {login};",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{package}.plain.PlainLoginModule {login} user_{cluster.admin}="{word}";'
        ),
    }
    return _text({**_SMALL, **_QUICK, **_SECURED, **own_settings})


def server_properties(store: Path, *, port: int, controller_port: int, extra: Mapping[str, str]) -> str:
    """Return the text of server.properties; `extra` wins over what is set here."""
    client = f"PLAINTEXT://{HOST}:{port}"
    addresses = {
        "listeners": f"{client},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": client,
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "log.dirs": str(store),
    }
    merged = {**_SINGLE_NODE, **_SMALL, **_QUICK, **addresses, **extra}
    return _text(merged)


def _text(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())
