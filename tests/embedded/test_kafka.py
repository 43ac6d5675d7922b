"""The embedded broker keeps what it acknowledged, comes back quickly, and says why when it does not start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from refold.core.errors import RefoldError
from refold.dev.kafka import EmbeddedKafka
from refold.dev.ports import HOST
from tests.embedded.cluster import LONG_SESSION
from tests.waiting import eventually, under_load


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Give a broker of this file's own, to be killed."""
    folder = tmp_path_factory.mktemp("killed")
    with EmbeddedKafka(folder, properties={"log.cleaner.backoff.ms": "250", **LONG_SESSION}) as running:
        yield running


def create(broker: EmbeddedKafka, topic: str) -> None:
    """Create a topic with one partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()


def write(broker: EmbeddedKafka, topic: str, value: bytes) -> None:
    """Append one record and see it acknowledged."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, record: failures.append(error))
    producer.flush(60)
    assert failures == [None]


def is_open(port: int) -> bool:
    """Tell whether something listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def read(broker: EmbeddedKafka, topic: str, count: int) -> list[bytes | None]:
    """Read so many records from the start of the topic."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [record.value() for record in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


def test_an_acknowledged_record_survives_kill_9_at_the_same_address(broker: EmbeddedKafka) -> None:
    address = broker.bootstrap
    create(broker, "survives")
    write(broker, "survives", b"before")

    os.kill(broker.pid, signal.SIGKILL)
    eventually(lambda: not broker.running)
    began = time.monotonic()
    broker.start()
    write(broker, "survives", b"after")
    back = time.monotonic() - began

    assert broker.bootstrap == address
    assert read(broker, "survives", 2) == [b"before", b"after"]
    # 1.8 s alone on two cores, with any session timeout.
    assert back < under_load(10)


def test_a_broker_killed_with_its_owner_is_back_as_quickly(broker: EmbeddedKafka) -> None:
    create(broker, "orphaned")
    write(broker, "orphaned", b"before")
    broker.kill()

    with EmbeddedKafka(broker.data_dir, properties=LONG_SESSION) as second:
        write(second, "orphaned", b"after")
        assert read(second, "orphaned", 2) == [b"before", b"after"]

    broker.start()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.4])
def test_a_broker_killed_before_it_serves_is_back_as_quickly(broker: EmbeddedKafka, after_s: float) -> None:
    broker.kill()
    broker.launch()
    eventually(lambda: is_open(broker.controller_port))
    until = time.monotonic() + after_s
    while time.monotonic() < until:
        broker.answers()
    broker.kill()

    broker.start()

    write(broker, "survives", b"later")


def test_another_object_on_the_folder_finds_ports_and_records(broker: EmbeddedKafka) -> None:
    create(broker, "stays")
    write(broker, "stays", b"here")
    broker.stop()

    with EmbeddedKafka(broker.data_dir) as second:
        assert (second.port, second.controller_port) == (broker.port, broker.controller_port)
        assert read(second, "stays", 1) == [b"here"]

    broker.start()


def test_extra_properties_reach_the_broker(broker: EmbeddedKafka) -> None:
    node = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    live = admin.describe_configs([node])[node].result()

    assert live["log.cleaner.backoff.ms"].value == "250"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_broker_maps_its_ahead_of_time_cache(broker: EmbeddedKafka) -> None:
    maps = Path(f"/proc/{broker.pid}/maps").read_text()

    assert "/aot/broker-" in maps


def test_a_format_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    half = EmbeddedKafka(tmp_path)
    half.prepare()
    (half.data_dir / "store" / "meta.properties").unlink()

    with half:
        assert half.answers()


def test_a_broker_that_cannot_start_shows_its_log(broker: EmbeddedKafka, tmp_path: Path) -> None:
    shutil.copytree(broker.data_dir / "store", tmp_path / "store")
    broken = EmbeddedKafka(tmp_path, properties={"num.io.threads": "0"})

    with pytest.raises(RefoldError, match="ended while starting") as caught:
        broken.start()

    assert "num.io.threads" in caught.value.fields["tail"]
    assert not broken.running
