"""librdkafka's options from our settings, and its errors as ours."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from refold.core.errors import RefoldError, UnreachableError, UsageError
from refold.runtime.settings import KafkaSettings

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The largest record on the wire: an entry with an input and a proposal of the largest payload each, and headers.

The topics have the same limit (`infra/topics.yaml`), so what a producer accepts a broker accepts.
"""

Config = dict[str, Any]


def common(settings: KafkaSettings) -> Config:
    """Options of every client."""
    return {"bootstrap.servers": settings.bootstrap, "log_level": 3, "client.id": "refold", **settings.options}


def producer(settings: KafkaSettings) -> Config:
    """An idempotent producer that never waits for company and picks partitions as Java clients do."""
    return {
        **common(settings),
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0,
        "partitioner": "murmur2_random",
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "delivery.timeout.ms": 30_000,
        "queue.buffering.max.messages": 500_000,
    }


def consumer(settings: KafkaSettings, group: str) -> Config:
    """A consumer that commits only what it is told to and wakes at the first record."""
    return {
        **common(settings),
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "fetch.min.bytes": 1,
        "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
        "queued.max.messages.kbytes": 32_768,
    }


def translate(error: KafkaError | KafkaException, bootstrap: str) -> RefoldError:
    """A broker's error as a fact and the next action."""
    found = error.args[0] if isinstance(error, KafkaException) else error
    code, text = found.code(), found.str()
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return UsageError(f"a topic is missing ({text})", hint="create them with `refold topics apply`")
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return UsageError(f"Kafka refuses this principal ({text})", hint="grant it the ACLs of its service")
    if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._MSG_TIMED_OUT) and code == KafkaError.MSG_SIZE_TOO_LARGE:
        return UsageError(f"a record is too large ({text})", hint="lower REFOLD_MAX_PAYLOAD_BYTES")
    return UnreachableError(f"Kafka at {bootstrap} failed ({text})", hint="is it running? `refold doctor` looks")
