"""The drill of a mirror that repeats records, cleaned by the real log cleaner, and taken over by a real planner."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from refold.core.topics import RUN_LOG
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.cleaning import EAGER, JUNK
from tests.planner.mirror import again, mirrored
from tests.planner.rig import TOPICS, Rig
from tests.planner.test_copies import judge, platform
from tests.waiting import eventually

RUNS = 300


def copied_to(kafka: str, prefix: str, source: MemoryBroker) -> Producer:
    """Writes all topics of a platform into topics of another prefix, whose cleaner is eager."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    config = {"cleanup.policy": "compact", **EAGER}
    topics = [NewTopic(prefix + name, source.partitions, 1, config=config) for name in TOPICS]
    for future in admin.create_topics(topics).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "log_level": 0})
    for name in TOPICS:
        for number in range(source.partitions):
            for record in source.log(name, number).records:
                headers = list(record.read_headers() or ())
                producer.produce(prefix + name, record.value, record.key, number, headers=headers)
                producer.poll(0)
    assert producer.flush(60) == 0
    return producer


def taken_back(settings: KafkaSettings, partitions: int) -> MemoryBroker:
    """What the broker has of all topics by now, each record at its offset and with its time."""
    at_ms = 0
    reader, broker = KafkaLogReader(settings), MemoryBroker(TOPICS, partitions, clock_ms=lambda: at_ms)
    for name in TOPICS:
        for record in reader.scan(name):
            if record.key != JUNK:
                at_ms = record.at_ms
                broker.skip(name, record.partition, record.offset - broker.log(name, record.partition).end)
                broker.write(again(record))
    return broker


@pytest.mark.long
@pytest.mark.parametrize(
    ("ahead", "alarm"),
    [
        pytest.param(0, "marks.foreign", id="within"),
        pytest.param(5_000, "log.shrunk", id="beyond", marks=pytest.mark.long),
    ],
)
def test_a_mirror_that_repeats_records_is_cleaned_and_taken_over(kafka: EmbeddedKafka, ahead: int, alarm: str) -> None:
    """`ahead`: by so much the original's offsets are higher, and so its marks in the mirror's `run-snapshot`."""
    rng, prefix = random.Random(11), f"mirrored-{ahead}."
    before = platform(RUNS, rng, watched=40, unwatched=20, ahead=ahead)
    repeated = mirrored(before.broker, rng, repeats=0.05, clean=False)
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix)
    producer = copied_to(kafka.bootstrap, prefix, repeated)

    def cleaned() -> bool:
        for number in range(repeated.partitions):
            producer.produce(prefix + RUN_LOG, b"?", JUNK, number)
        assert producer.flush(60) == 0
        keys = [record.key for record in KafkaLogReader(settings).scan(RUN_LOG) if record.key != JUNK]
        return len(keys) == len(set(keys))

    eventually(cleaned, within=90, what="a copy and its original are both there")
    after = Rig(before.world, taken_back(settings, repeated.partitions))

    judge(before, after, RUNS)
    assert len(after.stalled) < RUNS / 10
    assert after.planner.counts[alarm] == repeated.partitions
