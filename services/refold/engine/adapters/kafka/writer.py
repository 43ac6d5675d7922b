"""Producers beside those of services and clients: of the archivist, of compacted tables, of live parts."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from refold.core.errors import UnreachableError
from refold.core.ids import home
from refold.core.messages import StreamPart
from refold.core.topics import run_stream
from refold.core.wire import codec
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import is_final, translate, translated
from refold.engine.ports.log import Delivery, Outgoing
from refold.engine.runtime.settings import KafkaSettings

ACKNOWLEDGED_S = 30.0

_Key = TypeVar("_Key", bound=str)

MOST_KBYTES, MOST_AGE_MS = 4_096, 5_000
"""Limits of waiting live parts: late parts are useless, and must not take memory from results."""

_LAST_S = 0.2


class KafkaWriter:
    """Implementation of `engine.archive.service.TopicWriter`: writes records in order and waits for all of them."""

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
            name = self._prefix + record.topic
            with translated(f"write to {name}"):
                clients.produce(self._producer, name, record, partial(answered, record.token))
        clients.flush(self._producer)
        if final:
            raise translate(final[0], f"write to {self._prefix}{records[0].topic}")
        return answers


class TableTopic:
    """Writer of a compacted topic, each key into its home: the last value of a key is valid. For one thread."""

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int) -> None:
        self._producer = clients.producer(settings, topic)
        self._topic, self._partitions = settings.prefix + topic, partitions

    def write(self, values: Mapping[_Key, bytes | None]) -> None:
        """Write values by key, None for a tombstone. **Raises** UnreachableError unless Kafka acknowledged all."""
        failed: list[object] = []
        done = lambda error, _: failed.append(error) if error else None  # noqa: E731
        with translated(f"write {self._topic}"):
            for key, value in values.items():
                record = Outgoing("", home(key, self._partitions), key.encode(), value, (), 0)
                clients.produce(self._producer, self._topic, record, done)
            left = self._producer.flush(ACKNOWLEDGED_S)
        if left or failed:
            self._producer.purge()
            raise UnreachableError(f"{self._topic} has not taken {left or len(failed)} rows: {failed[:1]}")


class KafkaLive:
    """Sender of live parts of calls to the `run-stream` of a `pool`, unconfirmed; each topic has `partitions`."""

    def __init__(self, settings: KafkaSettings, client: str, *, pool: str, partitions: int) -> None:
        self._settings, self._client, self._partitions = settings, f"{client} live", partitions
        self._name, self._lock = settings.prefix + run_stream(pool), threading.Lock()
        # Its own producer: neither a call nor a result may wait for live parts.
        self._producer: Producer | None = None

    def tell(self, part: StreamPart) -> None:
        """Send a part or drop it, without waiting or raising."""
        with suppress(KafkaException, BufferError):
            with self._lock:  # made with the first part: most executors stream nothing
                producer = self._producer = self._producer or self._connected()
            key, number = part.call_id.encode(), home(part.run_id, self._partitions)
            producer.produce(self._name, value=codec.encode(part), key=key, partition=number)
            producer.poll(0)

    def close(self) -> None:
        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.flush(_LAST_S)

    def _connected(self) -> Producer:
        lossy = {"enable.idempotence": False, "acks": "1", "linger.ms": 10}
        limits = {"delivery.timeout.ms": MOST_AGE_MS, "queue.buffering.max.kbytes": MOST_KBYTES}
        return clients.producer(self._settings, self._client, **lossy, **limits)
