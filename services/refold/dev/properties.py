"""Broker settings for a development machine: small, with quick restarts."""

from collections.abc import Mapping
from pathlib import Path

from refold.dev.ports import HOST

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
    # 8 MB instead of 128: the smallest that the cleaner accepts with one thread, enough for 300,000 keys a pass.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
_QUICK = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # A broker whose heartbeat is late loses its partitions; on a busy machine it is seconds late. After kill -9 the
    # controller refuses the new broker until the old one's session is over, so Kafka's 9 s would be the longer wait.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    # The controller writes an empty record twice a second, a third of an idle broker's cost.
    "metadata.max.idle.interval.ms": "10000",
}
# For tests that kill the broker often: it is back 4.5 s sooner, but lost for seconds under load.
QUICK_SESSION = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}


def server_properties(store: Path, *, port: int, controller_port: int, extra: Mapping[str, str]) -> str:
    """Text of server.properties; `extra` overrides the settings here."""
    client = f"PLAINTEXT://{HOST}:{port}"
    addresses = {
        "listeners": f"{client},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": client,
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "log.dirs": str(store),
    }
    settings = {**_SINGLE_NODE, **_SMALL, **_QUICK, **addresses, **extra}
    return "".join(f"{key}={value}\n" for key, value in settings.items())
