"""Batches that are small when they are sent and huge when they are read: none gets into a topic that services read."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Message, Producer

from refold.core.topics import APPROVAL_VOTED, CATALOG, RUN_REQUESTED, RUN_SIGNALLED, tool_completed
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.clients import MAX_MESSAGE_BYTES
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics, declared, expected_topics
from refold.engine.runtime.settings import KafkaSettings
from tests.kafka.secured import POOLS

BOMB_MIB = 32
PLATFORM = {"planner", "archivist"}
"""Who is believed not to harm whoever reads its topics, or could stop everything anyway."""


@pytest.fixture(scope="module")
def settings(kafka: EmbeddedKafka) -> KafkaSettings:
    """Give topics of their own."""
    made = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"bombs{uuid4().hex[:8]}.", partitions=1)
    Topics(made, POOLS).apply()
    return made


def sent(settings: KafkaSettings, topic: str, values: list[bytes], codec: str) -> set[int]:
    """What became of records that are sent in one batch, packed as well as can be; 0 is an acknowledgement."""
    codes: set[int] = set()

    def tell(error: KafkaError | None, _: Message) -> None:
        codes.add(error.code() if error else 0)

    level = {"gzip": 9, "lz4": 12, "zstd": 12, "snappy": -1}[codec]
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap,
            "compression.type": codec,
            "compression.level": level,
            "linger.ms": 60_000,
            "batch.size": MAX_MESSAGE_BYTES,
            "message.max.bytes": MAX_MESSAGE_BYTES,
            "log_level": 0,
        }
    )
    for number, value in enumerate(values):
        producer.produce(settings.prefix + topic, value, str(number).encode(), 0, on_delivery=tell)
    assert producer.flush(120) == 0
    return codes


@pytest.mark.parametrize(
    ("topic", "codec"),
    [(RUN_SIGNALLED, "gzip"), (APPROVAL_VOTED, "lz4"), (CATALOG, "zstd"), (tool_completed("default"), "snappy")],
)
def test_a_batch_that_unpacks_into_more_than_its_topic_takes_is_refused(
    settings: KafkaSettings, topic: str, codec: str
) -> None:
    before = len([*KafkaLogReader(settings).scan(topic)])

    assert KafkaError.MSG_SIZE_TOO_LARGE in sent(settings, topic, [bytes(1 << 20)] * BOMB_MIB, codec)

    arrived = len([*KafkaLogReader(settings).scan(topic)]) - before
    assert arrived <= 1, "the client may send the first one alone, which is no bomb"


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_what_honest_people_pack_arrives(settings: KafkaSettings, codec: str) -> None:
    values = [f"{codec} {number}".encode() * 1_000 for number in range(100)]
    before = len([*KafkaLogReader(settings).scan(RUN_REQUESTED)])

    assert sent(settings, RUN_REQUESTED, values, codec) == {0}
    assert [record.value for record in KafkaLogReader(settings).scan(RUN_REQUESTED)][before:] == values


def test_every_topic_that_others_write_is_measured_as_it_is_read() -> None:
    kept = {topic.name: topic.config.get("compression.type") for topic in expected_topics()}
    writers = {name.replace("*", "default"): set(each["writers"]) for name, each in declared()["topics"].items()}

    assert {name for name, how in kept.items() if how == "uncompressed"} == {
        name for name, who in writers.items() if who - PLATFORM
    }
