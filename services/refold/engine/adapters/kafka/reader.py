"""Reads topics without a group, to the ends captured at the start, even if compaction removed records before them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from refold.core.errors import NotFoundError, UnreachableError
from refold.core.topics import kind_of
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S
from refold.engine.adapters.kafka.errors import UNKNOWN_TOPIC, is_final, translate
from refold.engine.ports.log import Record
from refold.engine.runtime.settings import KafkaSettings

BATCH = 5_000
"""Records per call: its cost per record vanishes, and they take a few MiB at most."""

_MOMENT_S = 0.2
_STALL_S = 30.0
"""Longest wait of a scan for the next record; a broker's restart takes 3-11 s."""


class KafkaLogReader:
    """Reader of topics, with the group id `group`."""

    def __init__(self, settings: KafkaSettings, group: str = "reader") -> None:
        # librdkafka looks up the group's coordinator, which a service may do only for its own.
        self._settings, self._group = settings, group

    def partitions(self, topic: str) -> int:
        with closing(self._consumer()) as consumer:
            return self._count(consumer, topic)

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """Records up to the present end. **Raises** UnreachableError after 30 s without any."""
        return self._open(topic, partition).to_the_end()

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        return self._open(topic, partition).for_ever()

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        return self._assigned(self.names(kinds), {partition: OFFSET_BEGINNING}).for_ever()

    def names(self, kinds: Collection[str]) -> list[str]:
        """Topics of some kinds, of all pools. **Raises** UnreachableError."""
        with closing(self._consumer()) as consumer:
            try:
                topics = consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            except KafkaException as error:
                raise translate(error, "look which topics there are") from None
        prefix = self._settings.prefix
        names = sorted(name.removeprefix(prefix) for name in topics if name.startswith(prefix))
        return [name for name in names if kind_of(name) in kinds]

    def since(self, topic: str, starts: Mapping[int, int]) -> OnePass:
        """Partitions of a topic from offsets on. **Raises** as `scan`."""
        return self._open(topic, starts)

    def appended_ms(self, topic: str, places: Mapping[int, int], now_ms: int) -> int:
        """Append time of the oldest of these offsets, to the second, within nine days. **Raises** UnreachableError."""
        # Bisection by time needs only the right to describe the topic, not to read it.
        low, high, name = now_ms - 9 * 86_400_000, now_ms, self._settings.prefix + topic
        with closing(self._consumer()) as consumer:
            while high - low > 1_000:
                middle = (low + high) // 2
                probes = [TopicPartition(name, number, middle) for number in places]
                try:
                    answers = consumer.offsets_for_times(probes, timeout=REQUEST_TIMEOUT_S)
                except KafkaException as error:
                    raise translate(error, f"ask when {name} was written") from None
                # The first record from then on lies behind one of the places: that is older.
                older = any(not 0 <= answer.offset <= places[answer.partition] for answer in answers)
                low, high = (low, middle) if older else (middle, high)
        return high

    def _open(self, topic: str, first: int | Mapping[int, int] | None) -> OnePass:
        starts = {first: OFFSET_BEGINNING} if isinstance(first, int) else first
        return self._assigned([topic], starts)

    def _assigned(self, topics: list[str], starts: Mapping[int, int] | None) -> OnePass:
        consumer = self._consumer()
        try:
            if starts is None:
                starts = dict.fromkeys(range(self._count(consumer, topics[0])), OFFSET_BEGINNING)
            names = {self._settings.prefix + topic: topic for topic in topics}
            places = [TopicPartition(name, *start) for name in names for start in starts.items()]
            ends = offsets.latest(consumer, places)
            consumer.assign(places)
        except BaseException:
            consumer.close()
            raise
        return OnePass(consumer, names, ends)

    def _count(self, consumer: Consumer, topic: str) -> int:
        name = self._settings.prefix + topic
        try:
            metadata = consumer.list_topics(name, REQUEST_TIMEOUT_S).topics[name]
        except KafkaException as error:
            raise translate(error, f"read {name}") from None
        if metadata.error is None:
            return len(metadata.partitions)
        if metadata.error.code() in UNKNOWN_TOPIC:
            raise NotFoundError(f"there is no topic {name}", hint="create the topics with `refold topics apply`")
        raise translate(metadata.error, f"read {name}")

    def _consumer(self) -> Consumer:
        return clients.consumer(self._settings, self._group, **{"queued.max.messages.kbytes": 32_768})


class OnePass:
    """Pass over topics (`names` are with their prefix), with `ends` captured at the start."""

    def __init__(self, consumer: Consumer, names: Mapping[str, str], ends: Mapping[tuple[str, int], int]) -> None:
        self._consumer, self._names, self._ends = consumer, names, ends
        self._listed = ", ".join(names.values())
        # The partitions that have not been read to there.
        self._open = {place for place, end in ends.items() if end > 0}

    @property
    def ends(self) -> dict[int, int]:
        """Captured ends of a single topic, by partition."""
        return {number: end for (_, number), end in self._ends.items()}

    def to_the_end(self) -> Iterator[Record]:
        with closing(self._consumer):
            answered, ends = time.monotonic(), self.ends
            while self._open:
                batch = self._take(_MOMENT_S)
                now = time.monotonic()
                if batch:
                    answered = now
                elif now - answered > _STALL_S:
                    hint = "`refold doctor` checks the broker; then run it again"
                    raise UnreachableError(f"no more records of {self._listed} in {_STALL_S:.0f} s", hint=hint)
                for record in self._sorted(batch):
                    if record.offset < ends[record.partition]:
                        yield record

    def for_ever(self) -> Iterator[Record | None]:
        """Yield records endlessly, and None whenever nothing is new."""
        with closing(self._consumer):
            while True:
                count = 0
                for count, record in enumerate(self._sorted(self._take(_MOMENT_S)), 1):  # noqa: B007
                    yield record
                if not count and not self._open:
                    yield None

    def _take(self, timeout_s: float) -> list[Message]:
        try:
            first = self._consumer.poll(timeout_s)
            return [] if first is None else [first, *self._consumer.consume(BATCH, 0)]
        except KafkaException as error:
            raise translate(error, f"read {self._listed}") from None

    def _sorted(self, messages: list[Message]) -> Iterator[Record]:
        ends, names = self._ends, self._names
        for message in messages:
            error, name = message.error(), message.topic() or ""
            if error is None:
                record = clients.record(names[name], message)
                yield record
                position = record.offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                position = message.offset() or 0
            elif is_final(error):
                raise translate(error, f"read {self._listed}")
            else:
                continue
            place = (name, message.partition() or 0)
            if self._open and position >= ends[place]:
                self._open.discard(place)
