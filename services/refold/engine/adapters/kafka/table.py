"""Compacted topic as a table: the last value of a key is valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from confluent_kafka import KafkaException

from refold.core.errors import UnreachableError
from refold.core.ids import home
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import translate
from refold.engine.runtime.settings import KafkaSettings

ACKNOWLEDGED_S = 30.0

_Key = TypeVar("_Key", bound=str)


class TableTopic:
    """Writer of a topic, each key into its home; for one thread."""

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int) -> None:
        self._producer = clients.producer(settings, topic)
        self._topic, self._partitions = settings.prefix + topic, partitions

    def write(self, values: Mapping[_Key, bytes | None]) -> None:
        """Write values by key, None for a tombstone. **Raises** UnreachableError unless Kafka acknowledged all."""
        failed: list[object] = []
        try:
            for key, value in values.items():
                at = home(key, self._partitions)
                done = lambda error, _: failed.append(error) if error else None  # noqa: E731
                self._producer.produce(self._topic, value, key.encode(), at, on_delivery=done)
            left = self._producer.flush(ACKNOWLEDGED_S)
        except KafkaException as error:
            raise translate(error, f"write {self._topic}") from None
        if left or failed:
            self._producer.purge()
            raise UnreachableError(f"{self._topic} has not taken {left or len(failed)} rows: {failed[:1]}")
