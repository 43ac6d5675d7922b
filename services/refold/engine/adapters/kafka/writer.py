"""Producer of the archivist: writes records in order and waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import is_final, translate
from refold.engine.ports.log import Delivery, Outgoing
from refold.engine.runtime.settings import KafkaSettings


class KafkaWriter:
    """Implementation of `engine.archive.service.TopicWriter`."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self._prefix = settings.prefix
        self._producer = clients.producer(settings, name)

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """Write records and wait. **Raises** UsageError for a missing or forbidden topic."""
        answers: list[Delivery] = []
        final: list[KafkaError] = []

        def answered(token: int, error: KafkaError | None, message: Message) -> None:
            answers.append(clients.delivery(token, error, message))
            if error is not None and is_final(error):
                final.append(error)

        for record in records:
            self._produce(record, partial(answered, record.token))
        clients.flush(self._producer)
        if final:
            raise translate(final[0], f"write to {self._prefix}{records[0].topic}")
        return answers

    def _produce(self, record: Outgoing, answered: Callable[[KafkaError | None, Message], None]) -> None:
        topic, partition, key, value, headers, _, _ = record
        name = self._prefix + topic
        while True:
            try:
                self._producer.produce(name, value, key, partition, headers=list(headers), on_delivery=answered)
                return
            except BufferError:
                self._producer.poll(1.0)  # as much waits as the client holds: the broker is slower than we are
            except KafkaException as error:
                raise translate(error, f"write to {name}") from None
