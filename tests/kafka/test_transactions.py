"""An open transaction of somebody else in an input topic: it keeps records back, and the service says so."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.ports.log import Assigned, Depth, Membership
from refold.engine.runtime import host
from refold.engine.runtime.host import Host
from refold.engine.runtime.settings import KafkaSettings
from tests.recovery.test_leaderless import Asking
from tests.waiting import eventually


@pytest.fixture
def reading(kafka: EmbeddedKafka) -> Iterator[KafkaEventLog]:
    """Give a member that reads a topic of its own, which has one record."""
    name = f"t{uuid4().hex}"
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"{name}.", partitions=1)
    new = NewTopic(f"{name}.asked", 1, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([new])[new.topic].result(60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(f"{name}.asked", b"first", partition=0)
    producer.flush(60)
    log = KafkaEventLog(settings, Membership(name, "a", ("asked",)))
    yield log
    log.close()


def test_an_open_transaction_is_seen_until_it_ends(reading: KafkaEventLog, kafka: EmbeddedKafka) -> None:
    values: list[bytes | None] = []

    def take() -> bool:
        taken = reading.take(100, 0.05)
        for change in taken.rebalances:
            if isinstance(change, Assigned):
                reading.read("asked", change.partition, 0)
        values.extend(record.value for record in taken.records)
        return False

    eventually(lambda: take() or values == [b"first"], what="the first record")
    config = {"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid4().hex}
    theirs = Producer(config)
    theirs.init_transactions(60)
    theirs.begin_transaction()
    theirs.produce(f"{reading._settings.prefix}asked", b"theirs", partition=0)
    theirs.flush(60)
    ours = Producer({"bootstrap.servers": kafka.bootstrap})
    ours.produce(f"{reading._settings.prefix}asked", b"behind", partition=0)
    ours.flush(60)

    eventually(lambda: take() or bool(reading.depth().unstable), what="the open transaction")
    assert list(reading.depth().unstable) == [("asked", 0)]
    assert values == [b"first"]

    theirs.abort_transaction(60)
    eventually(lambda: take() or values == [b"first", b"behind"], what="the record behind it")
    eventually(lambda: take() or not reading.depth().unstable, what="the end of the transaction")


class Held(MemoryEventLog):
    """A log of which a transaction keeps a place back."""

    seconds = 0.0

    def depth(self) -> Depth:
        return Depth({("asked", 0): 7}, 0, placed=True, unstable={("asked", 0): self.seconds})


@pytest.mark.parametrize(("seconds", "alarms"), [(host.UNSTABLE_S - 1, 0), (host.UNSTABLE_S + 1, 1)])
def test_a_transaction_that_stays_open_is_one_alarm_a_minute(
    seconds: float, alarms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "MEASURED_S", 0.0)
    log = Held(MemoryBroker(["t"], 2), Membership("g", "m", ("t",)))
    log.seconds = seconds
    served = Host([Asking()], log)

    with capture_logs() as lines:
        served.pump([])
        served.pump([])

    said = [line for line in lines if line["event"] == "transaction.open"]
    assert len(said) == served.vitals.alarms["transaction.open"] == alarms
    assert all((line["topic"], line["partition"], line["offset"]) == ("asked", 0, 7) for line in said)
