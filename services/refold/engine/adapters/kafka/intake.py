"""Reads partitions by position, without a group."""

import time
from collections.abc import Collection
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import Names
from refold.engine.adapters.kafka.errors import OUT_OF_RANGE
from refold.engine.adapters.kafka.trouble import ONE_ANSWER_S, Overdue, Trouble
from refold.engine.ports.log import Membership, Place, Reached, Shrunk, Taken
from refold.engine.runtime.settings import KafkaSettings

RARE_WAIT_MS = 250
"""Longest wait of a fetch of rare topics at the broker, which delays a new partition."""

LAZY = {"fetch.wait.max.ms": 250, "fetch.min.bytes": 1 << 20}
"""Fetch of topics whose records are handed over in this process: it fills gaps, and finds records of other writers."""


class Intake:
    """Consumers that read assigned partitions by position, beside the member of the group; for one thread."""

    def __init__(self, settings: KafkaSettings, membership: Membership, *, names: Names, trouble: Trouble) -> None:
        self._names, self._trouble, self._topics = names, trouble, membership.topics
        # Never a silent reset: a position that is not there any more is news.
        own: dict[str, Any] = {"client.id": f"{membership.member}-reader", "auto.offset.reset": "error"}
        self._consumer = clients.consumer(settings, membership.group, error_cb=trouble.on_error, **own)
        # A fetch names every partition of its consumer: rare topics have their own, so that busy fetches stay short.
        self._rare_topics, self._rare = membership.rare, self._consumer
        if membership.rare:
            rare = own | {"client.id": f"{membership.member}-rare", "fetch.wait.max.ms": RARE_WAIT_MS}
            self._rare = clients.consumer(settings, membership.group, error_cb=trouble.on_error, **rare)
        self._lazy_topics, self._lazy, self._lazy_places = membership.lazy, self._consumer, set[Place]()
        if membership.lazy:
            lazy = own | {"client.id": f"{membership.member}-lazy", **LAZY}
            self._lazy = clients.consumer(settings, membership.group, error_cb=trouble.on_error, **lazy)
        self._consumers = list(dict.fromkeys([self._consumer, self._rare, self._lazy]))
        self._positions: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._starting: dict[Place, int] = {}
        self._requested: set[Place] = set()
        self._begun: dict[Place, int] = {}
        self._ended: set[Place] = set()
        self._paused: set[Place] = set()
        self._read_through: dict[Place, int] = {}
        self._stuck: dict[Place, tuple[int, float]] = {}
        self.unstable: dict[Place, float] = {}
        self._waiting = Overdue("ask where a partition ends whose records are gone")

    def capture(self, numbers: set[int], absent: Collection[str] = ()) -> tuple[dict[Place, int], dict[Place, int]]:
        """Low and high watermarks of partitions, which `collect` reports once reached. **Raises** KafkaException."""
        every = [(topic, number) for topic in self._topics if topic not in absent for number in numbers]
        rare = [] if self._positions else [place for place in every if place[0] in self._rare_topics]
        # Of a fetching client, its answer would lie behind the fetch.
        offsets.query(self._rare, self._names, rare, give_up_s=ONE_ANSWER_S)
        # By this consumer: without a request it would notice only once a second that it lacks a topic's place.
        starts, ends = (self._offsets_at(every, which) for which in (offsets.EARLIEST, offsets.LATEST))
        self._ends.update(ends)
        return starts, ends

    # What is read

    def read(self, place: Place, offset: int) -> None:
        """Continue from an offset at the next `begin`, promptly up to the end."""
        self._requested.add(place)
        self._starting[place] = offset

    def begin(self) -> None:
        """Begin to read at all offsets noted by `read`, with one call to each consumer."""
        if not (self._starting or self._ended):
            return
        at_end = {place: self._positions[place] for place in self._ended & self._positions.keys()}
        starting, self._starting, self._ended = at_end | self._starting, {}, set()
        self._stop([place for place in starting if place in self._positions])
        began, self._requested = self._requested, set()
        self._lazy_places = (self._lazy_places - starting.keys()) | (at_end.keys() - began)
        self._begun |= {place: starting[place] for place in began}
        for consumer, places in self._by_consumer(starting):
            consumer.incremental_assign([self._names.at(place, starting[place]) for place in places])
        self._positions.update(starting)
        for place in starting:  # librdkafka's own pauses outlive the assignment that they were meant for
            self._steer(place)

    def drop(self, number: int) -> None:
        self._stop([place for place in self._positions if place[1] == number])
        for by_place in (self._ends, self._starting, self._read_through, self._begun):
            for place in [place for place in by_place if place[1] == number]:
                del by_place[place]
        for places in (self._paused, self._requested, self._ended, self._lazy_places):
            places -= {place for place in places if place[1] == number}

    def flow(self, place: Place, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(place)
        self.begin()
        if place in self._positions:
            self._steer(place)

    def _steer(self, place: Place) -> None:
        consumer = self._consumer_of(place)
        (consumer.pause if place in self._paused else consumer.resume)([self._names.at(place)])

    def _stop(self, places: list[Place]) -> None:
        for consumer, those in self._by_consumer(places):
            consumer.incremental_unassign(list(map(self._names.at, those)))
            for place in those:
                del self._positions[place]

    def _consumer_of(self, place: Place) -> Consumer:
        if place[0] in self._rare_topics:
            return self._rare
        return self._lazy if place in self._lazy_places else self._consumer

    def _by_consumer(self, places: Collection[Place]) -> list[tuple[Consumer, list[Place]]]:
        pairs = [(consumer, [p for p in places if self._consumer_of(p) is consumer]) for consumer in self._consumers]
        return [(consumer, those) for consumer, those in pairs if those]

    # What comes

    def poll(self, timeout_s: float) -> Message | None:
        for consumer in self._consumers[1:]:
            if (message := consumer.poll(0)) is not None:
                return message
        return self._consumer.poll(timeout_s)

    def rest(self, limit: int) -> list[Message]:
        """Further messages, without waiting."""
        if limit <= 0:
            return []
        messages: list[Message] = []
        for consumer in self._consumers[1:]:
            # Half of it: a take-over reads through a rare topic, and the work of other partitions goes on beside it.
            messages += consumer.consume(max(1, (limit - len(messages)) // 2), 0)
        left = limit - len(messages)
        return messages + (self._consumer.consume(left, 0) if left > 0 else [])

    def sort(self, message: Message, batch: Taken) -> None:
        """Add a message to `batch` as a record, or handle its event."""
        error, place = message.error(), (self._names.logical(message.topic() or ""), message.partition() or 0)
        if error is None:
            record = clients.record(place[0], message)
            batch.records.append(record)
            self._positions[place] = record.offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._read_through[place] = offset = message.offset() or 0
            if place[0] in self._lazy_topics and place not in self._lazy_places:
                self._ended.add(place)
            # A hole: the records before it are compacted away, or were control records.
            if offset > self._positions.get(place, offset):
                self._positions[place] = offset
                self._ends.pop(place, None)
                batch.reached.append(Reached(*place, offset))
        elif error.code() in OUT_OF_RANGE:
            self._out_of_range(place, batch)
        else:
            self._trouble.report("kafka.read_error", error, f"read {message.topic()}", topic=message.topic())

    def collect(self, batch: Taken) -> None:
        """Report captured ends that are reached, and where reading has begun."""
        batch.begun.update(self._begun)
        self._begun = {}
        for place, end in list(self._ends.items()):
            if (position := self._positions.get(place, -1)) >= end:
                del self._ends[place]
                batch.reached.append(Reached(*place, position))

    def look_for_transactions(self) -> None:
        """Note partitions whose readable end is below the high watermark: open transactions. It sends no request."""
        now, before, self._stuck = time.monotonic(), self._stuck, {}
        for place, position in self._positions.items():
            read_through, at = self._read_through.get(place) == position, self._names.at(place)
            if read_through and self._consumer_of(place).get_watermark_offsets(at, cached=True)[1] > position:
                last = before.get(place, (position, now))
                self._stuck[place] = last if last[0] == position else (position, now)
        self.unstable = {place: now - since for place, (_, since) in self._stuck.items()}

    @property
    def positions(self) -> dict[Place, int]:
        """Next offsets; thread-safe."""
        return dict(self._positions)

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()

    def _offsets_at(self, places: Collection[Place], which: int) -> dict[Place, int]:
        return offsets.query(self._consumer, self._names, places, which, give_up_s=ONE_ANSWER_S)

    def _out_of_range(self, place: Place, batch: Taken) -> None:
        """Handle a position outside the log: its records are deleted (a hole), or the log has shrunk."""
        if (position := self._positions.get(place)) is None:
            return
        try:
            start, end = (self._offsets_at([place], which)[place] for which in (offsets.EARLIEST, offsets.LATEST))
        except KafkaException as error:
            self._waiting.late(error)
            self._starting[place] = position  # and is out of range once more
            return
        self._waiting.over()
        if position < start:
            batch.reached.append(Reached(*place, start))
            self._starting[place] = start
        else:
            self._stop([place])
            batch.shrunk.append(Shrunk(*place, end))
