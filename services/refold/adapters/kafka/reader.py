"""Reads topics without a group: to the end captured at the start, whatever compaction has left of it."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.adapters.kafka import config
from refold.core.errors import NotFoundError
from refold.ports.log import Record
from refold.runtime.settings import KafkaSettings

ASK_S = 10.0
BATCH = 5_000


class KafkaLogReader:
    """`LogReader` on Kafka."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def partitions(self, topic: str) -> int:
        """See `LogReader`."""
        name = self._settings.prefix + topic
        with _opened(self._settings) as consumer:
            try:
                found = consumer.list_topics(name, ASK_S).topics[name]
            except KafkaException as error:
                raise config.translate(error, self._settings.bootstrap) from None
        if found.error or not found.partitions:
            raise NotFoundError(f"there is no topic {name}", hint="create them with `refold topics apply`")
        return len(found.partitions)

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """See `LogReader`."""
        for item in self._follow(topic, partition, for_ever=False):
            assert item is not None, "a scan does not wait"
            yield item

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        """See `LogReader`."""
        return self._follow(topic, partition, for_ever=True)

    def _follow(self, topic: str, partition: int | None, *, for_ever: bool) -> Iterator[Record | None]:
        numbers = range(self.partitions(topic)) if partition is None else [partition]
        places = [TopicPartition(self._settings.prefix + topic, number, OFFSET_BEGINNING) for number in numbers]
        with _opened(self._settings) as consumer:
            ends = {place.partition: consumer.get_watermark_offsets(place, ASK_S)[1] for place in places}
            open_ones = {number for number, end in ends.items() if end > 0}
            consumer.assign(places if for_ever else [place for place in places if place.partition in open_ones])
            while open_ones or for_ever:
                messages = consumer.consume(BATCH, 0.1) if not for_ever else _first_then_all(consumer)
                for message in messages:
                    number, offset = message.partition(), message.offset()
                    if _is_end(message, self._settings.bootstrap):
                        open_ones -= {number} if offset >= ends[number] else set()
                        continue
                    if for_ever or offset < ends[number]:
                        yield Record(topic, number, offset, message.key(), message.value(), message.headers)
                    if offset + 1 >= ends[number]:
                        open_ones.discard(number)
                if for_ever and not messages:
                    yield None


def reached_end(settings: KafkaSettings, start: TopicPartition, end: int) -> bool:
    """Whether nothing is left between a position and an offset: the records there are gone."""
    with _opened(settings) as consumer:
        consumer.assign([start])
        message = consumer.poll(ASK_S)
        return message is not None and _is_end(message, settings.bootstrap) and message.offset() >= end


def _first_then_all(consumer: Consumer) -> list[Message]:
    first = consumer.poll(0.1)
    return [] if first is None else [first, *consumer.consume(BATCH, 0)]


def _is_end(message: Message, bootstrap: str) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise config.translate(error, bootstrap)


class _opened:
    """A consumer that is closed at the end of the block."""

    def __init__(self, settings: KafkaSettings) -> None:
        options = {**config.consumer(settings, "refold-reader"), "enable.partition.eof": True}
        self._consumer = Consumer(options)

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
