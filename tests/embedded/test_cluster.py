"""Three brokers without users: they are up within seconds, and outlive any one of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.embedded.cluster import KafkaCluster
from tests.waiting import eventually, under_load

READY_S = 25.0
"""5 s alone on two cores; beside a full machine it was 12."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Give a cluster of this file's own, to be hurt."""
    begun = time.monotonic()
    with KafkaCluster(tmp_path_factory.mktemp("three")) as running:
        assert time.monotonic() - begun < under_load(READY_S)
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("kept", 3, 3, config={"min.insync.replicas": "2"})])["kept"].result(60)
        yield running
        running.kill()


def write(cluster: KafkaCluster, partition: int) -> KafkaError | None:
    """Append a record to a partition; the error if it was refused."""
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    producer.produce("kept", b"here", partition=partition, on_delivery=lambda error, _: told.append(error))
    producer.flush(60)
    (error,) = told
    return error


def leader(cluster: KafkaCluster, partition: int) -> int:
    """The number of the node that leads a partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def known() -> int | None:
        found = admin.list_topics("kept", timeout=60).topics["kept"].partitions.get(partition)
        return found and found.leader

    return eventually(known, what=f"a broker knows of partition {partition}") or -1


def test_a_partition_goes_on_without_the_node_that_led_it(cluster: KafkaCluster) -> None:
    killed = leader(cluster, 0)

    cluster.nodes[killed - 1].kill()

    assert write(cluster, 0) is None
    assert leader(cluster, 0) != killed
    cluster.nodes[killed - 1].start()


@pytest.mark.long
def test_a_node_that_was_held_for_longer_than_its_session_is_passed_over_and_comes_back(cluster: KafkaCluster) -> None:
    held = leader(cluster, 1)
    pid = cluster.nodes[held - 1].pid

    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: leader(cluster, 1) not in (held, -1), what="another node leads")
        assert write(cluster, 1) is None
    finally:
        os.kill(pid, signal.SIGCONT)

    eventually(cluster.nodes[held - 1].answers, what="all three are there")
