"""Live parts of calls on the `run-stream` of their pool, sent without confirmation."""

from __future__ import annotations

import threading
from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from refold.core.ids import home
from refold.core.messages import StreamPart
from refold.core.topics import run_stream
from refold.core.wire import codec
from refold.engine.adapters.kafka import clients
from refold.engine.runtime.settings import KafkaSettings

MOST_KBYTES, MOST_AGE_MS = 4_096, 5_000
"""Limits of waiting live parts: late parts are useless, and must not take memory from results."""

_LAST_S = 0.2


class KafkaLive:
    """Live output of a pool's executors. `partitions` is the count of every topic."""

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
        own = {
            "enable.idempotence": False,
            "acks": "1",
            "delivery.timeout.ms": MOST_AGE_MS,
            "queue.buffering.max.kbytes": MOST_KBYTES,
            "linger.ms": 20,
        }
        return clients.producer(self._settings, self._client, **own)
