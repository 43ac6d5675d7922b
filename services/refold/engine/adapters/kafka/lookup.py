"""Single records by position."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.core.errors import UnreachableError
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import is_final, translate
from refold.engine.adapters.kafka.intake import OUT_OF_RANGE
from refold.engine.ports.log import Membership, Record
from refold.engine.runtime.settings import KafkaSettings

_ANSWER_S = 10.0
"""Timeout of a broker's answer: a restart takes 3-11 s, and the caller retries."""

_GONE = OUT_OF_RANGE | {KafkaError._PARTITION_EOF}


class KafkaLookup:
    """Reads single records with the rights of a member; for one thread at a time."""

    def __init__(self, settings: KafkaSettings, membership: Membership) -> None:
        self._settings, self._membership = settings, membership
        self._consumer: Consumer | None = None

    def __call__(self, topic: str, partition: int, offset: int) -> Record | None:
        """Record at an offset, None if it is gone. **Raises** UnreachableError; UsageError without the right."""
        if self._consumer is None:
            # A fetch beyond the record would wait at the broker, and the next look behind it: 100 ms each.
            own: dict[str, str | int] = {"auto.offset.reset": "error", "fetch.wait.max.ms": 0}
            own["client.id"] = f"{self._membership.member}-lookup"
            self._consumer = clients.consumer(self._settings, self._membership.group, **own)
        consumer, name = self._consumer, self._settings.prefix + topic
        try:
            consumer.assign([TopicPartition(name, partition, offset)])
            return self._first(consumer, topic, offset)
        except KafkaException as error:
            raise translate(error, f"read {name}") from None
        finally:
            consumer.unassign()

    def _first(self, consumer: Consumer, topic: str, offset: int) -> Record | None:
        deadline = time.monotonic() + _ANSWER_S
        while (left := deadline - time.monotonic()) > 0:
            message = consumer.poll(left)
            error = message.error() if message is not None else None
            if message is not None and error is None:
                record = clients.record(topic, message)
                return record if record.offset == offset else None
            if error is not None and error.code() in _GONE:
                return None
            if error is not None and is_final(error):
                raise translate(error, f"read {topic}")
        raise UnreachableError(
            f"the broker does not return the record at {topic}/{offset}", hint="`refold doctor` checks the broker"
        )
