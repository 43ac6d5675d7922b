"""Reads whole topics with one consumer and no group: from their ends (clients) or from positions (views)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from refold.core.errors import UnreachableError
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.errors import is_final, translate
from refold.engine.adapters.kafka.intake import OUT_OF_RANGE
from refold.engine.ports.log import Place, Record
from refold.engine.runtime.settings import KafkaSettings

SOME = 1_000
"""Most messages per call: each costs a kilobyte besides its bytes."""

_AHEAD = {
    "queued.max.messages.kbytes": 8_192,
    # When brokers answer: an answer for each record would cost them more than the record did.
    "fetch.min.bytes": 65_536,
    "fetch.wait.max.ms": 50,
    # Never a silent reset: the owner of a position has to see that it is gone.
    "auto.offset.reset": "error",
}
"""Options of readers of whole topics, which tolerate a short delay."""


class KafkaNews:
    """Records of whole topics, from their ends at construction or from `starts`. Waits out a broker's restart; for one
    thread. **Raises** UsageError, UnreachableError."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[str],
        partitions: int,
        *,
        starts: Mapping[Place, int] | None = None,
    ) -> None:
        self._names = clients.Names(settings.prefix)
        self.reached: dict[Place, int] = {}
        self._consumer: Consumer = clients.consumer(settings, "reader", **(_AHEAD if starts is not None else {}))
        places = [TopicPartition(self._names[topic], number) for topic in topics for number in range(partitions)]
        try:
            if starts is None:
                ends = offsets.latest(self._consumer, places)
            else:
                ends = {(self._names[topic], number): start for (topic, number), start in starts.items()}
            self._consumer.assign([TopicPartition(topic, number, start) for (topic, number), start in ends.items()])
        except BaseException:
            self._consumer.close()
            raise

    def take(self, timeout_s: float) -> list[Record]:
        """New records, in order per partition; waits for the first. **Raises** errors that waiting cannot cure."""
        try:
            first = self._consumer.poll(timeout_s)
            messages = [] if first is None else [first, *self._consumer.consume(SOME, 0)]
        except KafkaException as error:
            raise translate(error, "read the news") from None
        records = []
        for message in messages:
            topic = self._names.logical(message.topic() or "")
            if (fault := message.error()) is None:
                records.append(clients.record(topic, message))
            elif fault.code() == KafkaError._PARTITION_EOF:
                self.reached[topic, message.partition() or 0] = message.offset() or 0
            elif fault.code() in OUT_OF_RANGE:
                raise UnreachableError(f"{message.topic()} does not contain the position any more: {fault.str()}")
            elif is_final(fault):
                raise translate(fault, f"read {message.topic()}")
        return records

    def close(self) -> None:
        self._consumer.close()
