"""Sends inputs as any client does: to the home of the run, with CloudEvents headers, waiting for the ack."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.adapters.kafka import config
from refold.core import wire
from refold.core.headers import cloud_event
from refold.core.ids import home
from refold.core.messages import RunRequest, RunSignal
from refold.runtime.settings import KafkaSettings


class KafkaPublisher:
    """What the command line and the client send with. `partitions` is the count that all topics have."""

    def __init__(self, settings: KafkaSettings, *, partitions: int, source: str = "refold") -> None:
        self._settings, self._partitions, self._source = settings, partitions, source
        self._producer = Producer(config.producer(settings))

    def send(self, message: RunRequest | RunSignal, *, timeout_s: float = 10.0, trace: str = "") -> tuple[int, int]:
        """Publishes an input; returns its partition and offset. **Raises** UnreachableError without an ack in time."""
        topic = wire.SUBJECTS[type(message)]
        key = message.run_id if isinstance(message, RunRequest) else f"{message.run_id}/{message.signal_id}"
        now = time.time_ns() // 1_000_000
        headers = cloud_event(topic, message.run_id, id=key, source=self._source, at_ms=now, trace=trace)
        number = home(message.run_id, self._partitions)
        return self.send_raw(
            topic, number, key=key.encode(), value=wire.encode(message), headers=headers, wait=timeout_s
        )

    def send_raw(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes,
        value: bytes | None,
        headers: list[tuple[str, bytes]],
        wait: float = 10.0,
    ) -> tuple[int, int]:
        """Publishes bytes as they are, for example a dead letter again."""
        outcome: list[tuple[KafkaError | None, Message]] = []
        name = self._settings.prefix + topic
        try:
            self._producer.produce(
                name, value, key, partition, lambda error, message: outcome.append((error, message)), headers=headers
            )
            self._producer.flush(wait)
        except KafkaException as error:
            raise config.translate(error, self._settings.bootstrap) from None
        if not outcome:
            raise config.translate(KafkaError(KafkaError._TIMED_OUT), self._settings.bootstrap)
        failure, message = outcome[0]
        if failure:
            raise config.translate(failure, self._settings.bootstrap)
        return int(message.partition() or 0), int(message.offset() or 0)
