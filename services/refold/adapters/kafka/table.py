"""A compacted topic that is written by key: the last value of a key counts."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException

from refold.adapters.kafka import clients
from refold.adapters.kafka.errors import translate
from refold.core.errors import UnreachableError
from refold.core.ids import RunId, home
from refold.core.topics import RUN_VIEW
from refold.runtime.settings import KafkaSettings

ACKNOWLEDGED_S = 30.0


class RunViewTopic:
    """Writes `run-view`, each run into its home. Used by one thread."""

    def __init__(self, settings: KafkaSettings, partitions: int) -> None:
        self._producer = clients.producer(settings, "viewer")
        self._topic, self._partitions = settings.prefix + RUN_VIEW, partitions

    def write(self, values: Mapping[RunId, bytes | None]) -> None:
        """Write values by run, None for a tombstone. **Raises** UnreachableError where Kafka has not taken all."""
        failed: list[object] = []
        try:
            for run, value in values.items():
                at = home(run, self._partitions)
                done = lambda error, _: failed.append(error) if error else None  # noqa: E731
                self._producer.produce(self._topic, value, run.encode(), at, on_delivery=done)
            left = self._producer.flush(ACKNOWLEDGED_S)
        except KafkaException as error:
            raise translate(error, f"write {self._topic}") from None
        if left or failed:
            self._producer.purge()
            raise UnreachableError(f"{self._topic} has not taken {left or len(failed)} rows: {failed[:1]}")
