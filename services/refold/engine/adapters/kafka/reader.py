"""Readers without a group: of topics up to their present ends, of records from now on, of single records."""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError

from refold.core.errors import NotFoundError, UnreachableError
from refold.core.topics import kind_of
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S, Names
from refold.engine.adapters.kafka.errors import UNKNOWN_TOPIC, translate, translated
from refold.engine.ports.log import Membership, Place, Reached, Record
from refold.engine.runtime.settings import KafkaSettings

BATCH = 5_000
"""Records per call: its cost per record vanishes, and they take a few MiB at most."""

_MOMENT_S = 0.2
_STALL_S = 30.0
"""Longest wait of a scan for the next record; a broker's restart takes 3-11 s."""

SOME = 1_000
"""Most messages per call: each costs a kilobyte besides its bytes."""

_AHEAD = {
    # Records are fetched once the earlier ones are taken: a reader that rests gets what has come in one answer. An
    # answer for each would cost a broker more than the record did; to have it wait for many delays the first by 50 ms.
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 8 << 20,
    # The fetch of a part of the partitions, if the queue was emptied amid the choice of them, delays those of the rest.
    "fetch.wait.max.ms": 50,
    # Never a silent reset: the owner of a position has to see that it is gone.
    "auto.offset.reset": "error",
}
"""Options of readers of whole topics."""

_RESTED_S, _AGAIN_S = 0.02, 0.02
"""Seconds after which a reader has rested, and longest wait for the answer to the fetch that it then allows."""

_ANSWER_S = 10.0
"""Timeout of a broker's answer: a restart takes 3-11 s, and the caller retries."""


class KafkaLogReader:
    """Reader of topics, with the group id `group`."""

    def __init__(self, settings: KafkaSettings, group: str = "reader") -> None:
        # librdkafka looks up the group's coordinator, which a service may do only for its own.
        self._settings, self._group, self._names = settings, group, Names(settings.prefix)

    def partitions(self, topic: str) -> int:
        with closing(self._consumer()) as consumer:
            return self._count(consumer, topic)

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """Records up to the present end. **Raises** UnreachableError after 30 s without any."""
        return self._open([topic], partition).to_the_end()

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        return self._open([topic], partition).for_ever()

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        return self._open(self.names(kinds), partition).for_ever()

    def names(self, kinds: Collection[str]) -> list[str]:
        """Topics of some kinds, of all pools. **Raises** UnreachableError."""
        with closing(self._consumer()) as consumer, translated("look which topics there are"):
            topics = consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        names = sorted(self._names.logical(name) for name in topics if name.startswith(self._names.prefix))
        return [name for name in names if kind_of(name) in kinds]

    def since(self, topic: str, starts: Mapping[int, int]) -> "OnePass":
        """Partitions of a topic from offsets on. **Raises** as `scan`."""
        return self._open([topic], starts)

    def appended_ms(self, topic: str, places: Mapping[int, int], now_ms: int) -> int:
        """Append time of the oldest of these offsets, to the second, within nine days. **Raises** UnreachableError."""
        # Bisection by time needs only the right to describe the topic, not to read it.
        low, high, name = now_ms - 9 * 86_400_000, now_ms, self._names[topic]
        with closing(self._consumer()) as consumer:
            while high - low > 1_000:
                middle = (low + high) // 2
                probes = [self._names.at((topic, number), middle) for number in places]
                with translated(f"ask when {name} was written"):
                    answers = consumer.offsets_for_times(probes, timeout=REQUEST_TIMEOUT_S)
                # The first record from then on lies behind one of the places: that is older.
                older = any(not 0 <= answer.offset <= places[answer.partition] for answer in answers)
                low, high = (low, middle) if older else (middle, high)
        return high

    def _open(self, topics: list[str], starts: int | Mapping[int, int] | None) -> "OnePass":
        """Begin a pass over topics: all partitions (None) or one from the beginning, or some from their offsets on."""
        consumer = self._consumer()
        try:
            if not isinstance(starts, Mapping):
                numbers = range(self._count(consumer, topics[0])) if starts is None else (starts,)
                starts = dict.fromkeys(numbers, OFFSET_BEGINNING)
            places = {(topic, number): start for topic in topics for number, start in starts.items()}
            ends = offsets.bounds(consumer, self._names, places)
            consumer.assign([self._names.at(place, start) for place, start in places.items()])
        except BaseException:
            consumer.close()
            raise
        return OnePass(consumer, self._names, ends)

    def _count(self, consumer: Consumer, topic: str) -> int:
        name = self._names[topic]
        with translated(f"read {name}"):
            metadata = consumer.list_topics(name, REQUEST_TIMEOUT_S).topics[name]
        if metadata.error is None:
            return len(metadata.partitions)
        if metadata.error.code() in UNKNOWN_TOPIC:
            raise NotFoundError(f"there is no topic {name}", hint="create the topics with `refold topics apply`")
        raise translate(metadata.error, f"read {name}")

    def _consumer(self) -> Consumer:
        return clients.consumer(self._settings, self._group, **{"queued.max.messages.kbytes": 32_768})


class OnePass:
    """Records of topics up to the `ends` captured at its start, or beyond them for ever."""

    def __init__(self, consumer: Consumer, names: Names, ends: Mapping[Place, int]) -> None:
        self._consumer, self._names, self._ends = consumer, names, ends
        self._listed = ", ".join(dict.fromkeys(topic for topic, _ in ends))
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
                batch = self._take()
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
                for count, record in enumerate(self._sorted(self._take()), 1):  # noqa: B007
                    yield record
                if not count and not self._open:
                    yield None

    def _take(self) -> list[Record | Reached]:
        action = f"read {self._listed}"
        return clients.arrivals(self._consumer, self._names, limit=BATCH, timeout_s=_MOMENT_S, action=action)

    def _sorted(self, arrivals: list[Record | Reached]) -> Iterator[Record]:
        for item in arrivals:
            position = item.offset
            if isinstance(item, Record):
                yield item
                position += 1
            if self._open and position >= self._ends[item.topic, item.partition]:
                self._open.discard((item.topic, item.partition))


class KafkaNews:
    """Records of whole topics, from their ends at construction or from `starts`. Waits out a broker's restart; for one
    thread. `away`: since then, no broker could be reached once. **Raises** UsageError, UnreachableError."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[str],
        partitions: int,
        *,
        starts: Mapping[Place, int] | None = None,
    ) -> None:
        self._names = Names(settings.prefix)
        self.reached: dict[Place, int] = {}
        self.away, self._taken_s = False, math.inf
        self._is_ahead = starts is not None
        ahead = _AHEAD if self._is_ahead else {}
        self._consumer: Consumer = clients.consumer(settings, "reader", error_cb=self._on_error, **ahead)
        places = [(topic, number) for topic in topics for number in range(partitions)]
        try:
            starts = offsets.bounds(self._consumer, self._names, places) if starts is None else starts
            self._consumer.assign([self._names.at(place, start) for place, start in starts.items()])
        except BaseException:
            self._consumer.close()
            raise

    def take(self, timeout_s: float) -> list[Record]:
        """New records, in order per partition; waits for the first. **Raises** errors that waiting cannot cure."""
        action = "read the news"
        has_rested = time.monotonic() - self._taken_s > _RESTED_S
        items = clients.arrivals(self._consumer, self._names, limit=SOME, timeout_s=timeout_s, action=action)
        if items and has_rested:  # they are from the beginning of the rest: what came later lies at the broker
            items += clients.arrivals(self._consumer, self._names, limit=SOME, timeout_s=_AGAIN_S, action=action)
        self._taken_s = time.monotonic() if self._is_ahead else math.inf
        self.reached |= {(item.topic, item.partition): item.offset for item in items if isinstance(item, Reached)}
        return [item for item in items if isinstance(item, Record)]

    def close(self) -> None:
        self._consumer.close()

    def _on_error(self, error: KafkaError) -> None:
        self.away = self.away or error.code() == KafkaError._ALL_BROKERS_DOWN


class KafkaLookup:
    """Reads single records with the rights of a member; for one thread at a time."""

    def __init__(self, settings: KafkaSettings, membership: Membership) -> None:
        self._settings, self._membership, self._names = settings, membership, Names(settings.prefix)
        self._consumer: Consumer | None = None

    def __call__(self, topic: str, partition: int, offset: int) -> Record | None:
        """Record at an offset, None if it is gone. **Raises** UnreachableError; UsageError without the right."""
        if self._consumer is None:
            # A fetch beyond the record would wait at the broker, and the next look behind it: 100 ms each.
            own = {"client.id": f"{self._membership.member}-lookup", "fetch.wait.max.ms": 0}
            self._consumer = clients.consumer(self._settings, self._membership.group, **own)
        consumer, action, deadline = self._consumer, f"read {self._names[topic]}", time.monotonic() + _ANSWER_S
        try:
            with translated(action):
                consumer.assign([self._names.at((topic, partition), offset)])
            while (left := deadline - time.monotonic()) > 0:
                # Where the record is gone, the client goes on at the next one, or at the start of the partition.
                for item in clients.arrivals(consumer, self._names, limit=1, timeout_s=left, action=action):
                    return item if isinstance(item, Record) and item.offset == offset else None
        finally:
            consumer.unassign()
        text = f"the broker does not return the record at {topic}/{offset}"
        raise UnreachableError(text, hint="`refold doctor` checks the broker")
