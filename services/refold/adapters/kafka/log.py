"""One member of a group on Kafka, with its producer: the `EventLog` that services run on.

`take` belongs to one thread, everything else may be called from another: a confluent Consumer lets one thread in at a
time and keeps the door locked while it polls, so `commit`, `pause` and `resume` only leave a note that `take` carries
out, and `end` has a consumer of its own. (That also spares `end` the wait behind a fetch that lies at the broker on
the same connection: 0.3 ms against 100 ms.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from refold.adapters.kafka import clients
from refold.adapters.kafka.clients import REQUEST_TIMEOUT_S, Names, Throttle
from refold.adapters.kafka.errors import REFUSED, UNKNOWN_TOPIC, is_final, of, translate
from refold.core.errors import RefoldError
from refold.ports.log import NEVER, Assigned, Delivery, Membership, Outgoing, Reached, Revoked, Taken
from refold.runtime.settings import KafkaSettings

_SLICE_S = 0.002
"""How long a poll may sit out a delivery report: only while some are due, which is a millisecond or two a turn."""

_IDLE_SLICE_S = 0.02
"""How long a note of another thread may lie. Costs 50 wake-ups a second, under 0.1 % of a core."""

_UNKNOWN_S = 3.0
"""How long a partition may be unknown: a broker that is just back answers before it has its partitions again."""

_SETTLE_S = 1.0
"""How long a close waits for a rebalance that is under way; 0.3 s is usual for a join."""

COMMITTED_S = 2.0
"""How long a service may wait to hear what another group has committed. It can do without, and asks again."""

_LATEST, _EARLIEST = -1, -2
_log = structlog.get_logger()


class KafkaEventLog:
    """See `EventLog`. Joins the group with the first `take`."""

    def __init__(self, settings: KafkaSettings, membership: Membership) -> None:
        self.member = membership.member
        self._settings, self._membership = settings, membership
        self._admin: AdminClient | None = None
        self._names = Names(settings.prefix)
        every = {membership.subscribe, *membership.resume, *membership.replay}
        self._logical = {self._names[name]: name for name in every}
        self._fatal: RefoldError | None = None
        self._closing = self._settled = False
        self._throttle = Throttle()
        self._producer = clients.producer(settings, membership.member, error_cb=self._on_error)
        self._consumer = clients.member(settings, membership, error_cb=self._on_error)
        self._asker = clients.consumer(settings, membership.group, **{"client.id": f"{membership.member}-asker"})
        self._owned: set[int] = set()
        self._ends: dict[tuple[str, int], int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._notes: deque[Callable[[], None]] = deque()
        # Each counter has one writing thread, or an update would be lost now and then.
        self._published = self._collected = 0
        self._reported: deque[Delivery] = deque()
        self._taken = Taken()
        self._consumer.subscribe(
            [self._names[membership.subscribe]], on_assign=self._on_assign, on_revoke=self._on_revoke
        )

    # What comes in

    def take(self, limit: int, timeout_s: float) -> Taken:
        """See `EventLog`.

        **Raises** UsageError (unknown topic, ACL, login), ConflictError (another process has this member's name),
        RefoldError (the client is broken): the process ends and its supervisor starts it anew.
        """
        self._taken = taken = Taken()
        try:
            self._read(limit, time.monotonic() + timeout_s)
        except KafkaException as error:
            self._fatal = translate(error, f"read {self._membership.subscribe} as {self._membership.member}")
        self._collect()
        self._check()
        return taken

    def _read(self, limit: int, deadline: float) -> None:
        taken = self._taken
        first = self._wait(deadline)
        if first is not None:
            before = len(taken.rebalances)
            rest = self._consumer.consume(limit - 1, 0) if limit > 1 else []
            stale = {change.partition for change in taken.rebalances[before:]}
            # A record that was polled before its partition went away and came back is read again from the commit.
            if first.partition() not in stale:
                self._sort(first)
            for message in rest:
                self._sort(message)

    def _wait(self, deadline: float) -> Message | None:
        """The first record, or nothing as soon as there is other news or the time is over."""
        while True:
            self._run_notes()
            waiting = self._published > self._collected
            if waiting:
                self._producer.poll(0)
            self._check()
            left = deadline - time.monotonic()
            if self._reported or self._taken.rebalances or self._taken.reached:
                left = 0
            longest = _SLICE_S if waiting else _IDLE_SLICE_S
            message = self._consumer.poll(max(0.0, min(left, longest)))
            if message is not None:
                if message.error() is None:
                    return message
                self._sort(message)
            elif left <= 0:
                return None

    def _sort(self, message: Message) -> None:
        error = message.error()
        if error is None:
            record = clients.record(self._logical[message.topic() or ""], message)
            self._taken.records.append(record)
            self._positions[record.topic, record.partition] = record.offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._at_end(self._logical[message.topic() or ""], message.partition() or 0, message.offset() or 0)
        elif is_final(error):
            self._fatal = translate(error, f"read {message.topic() or 'the topics'}")
        else:
            _log.warning("kafka.read_error", topic=message.topic(), error=str(error))

    def _at_end(self, topic: str, number: int, offset: int) -> None:
        """Passes a hole at the end: the records before `offset` are compacted away, or were no records of anybody."""
        if topic in self._membership.replay and offset > self._positions.get((topic, number), 0):
            self._positions[topic, number] = offset
            self._ends.pop((topic, number), None)
            self._taken.reached.append(Reached(topic, number, offset))

    def _collect(self) -> None:
        taken = self._taken
        for key, end in list(self._ends.items()):
            if (position := self._positions.get(key, 0)) >= end:
                del self._ends[key]
                taken.reached.append(Reached(*key, position))
        self._producer.poll(0)
        while self._reported:
            taken.deliveries.append(self._reported.popleft())
            self._collected += 1

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Called inside a poll; an error is kept for `take`, because librdkafka's callbacks garble what they raise."""
        self._settled = True
        if self._closing:
            return
        try:
            self._assign(consumer, partitions)
        except RefoldError as error:
            self._fatal = error
        except KafkaException as error:
            self._fatal = translate(error, "take partitions over")

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = sorted(each.partition for each in partitions)
        from_start = self._membership.replay
        going_on = [each for each in (self._membership.subscribe, *self._membership.resume) if each not in from_start]
        every = [TopicPartition(self._names[name], n) for name in (*going_on, *from_start) for n in numbers]
        answers = consumer.committed(every, timeout=REQUEST_TIMEOUT_S) if every else []
        committed = {(self._logical[a.topic], a.partition): a.offset for a in answers if a.offset >= 0}
        ends = latest(self._asker, [TopicPartition(self._names[name], n) for name in from_start for n in numbers])
        for number in numbers:
            ours = {name: offset for (name, n), offset in committed.items() if n == number}
            captured = {name: ends[self._names[name], number] for name in from_start}
            self._taken.rebalances.append(Assigned(number, ours, captured))
            self._ends.update({(name, number): end for name, end in captured.items()})
        self._owned = set(numbers)
        # As numbers: a logical "beginning" is looked up by the consumer itself, and costs it half a second. And asked
        # by the consumer, which otherwise notices only once a second that it does not know where a topic is.
        first = latest(consumer, every, which=_EARLIEST)
        for start in every:
            name = self._logical[start.topic]
            known = committed.get((name, start.partition)) if name in going_on else None
            start.offset = first[start.topic, start.partition] if known is None else known
        consumer.assign(every)
        if every:
            consumer.resume(every)  # a pause would outlive the assignment that it was meant for

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._settled = False
        for number in sorted(each.partition for each in partitions):
            self._taken.rebalances.append(Revoked(number))
            self._owned.discard(number)
            for known in (self._ends, self._positions):
                for key in [key for key in known if key[1] == number]:
                    del known[key]

    # What goes out

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """See `EventLog`. **Raises** UsageError for a topic that does not exist or may not be written."""
        answers: list[Delivery] = []
        for record in records:
            self._produce(record, answers.append)
        while len(answers) < len(records):
            # A flush sends at once whatever lingers. In slices, because what was published before may take longer.
            self._producer.flush(0.05)
            self._check()
        self._check()
        return answers

    def publish(self, records: Sequence[Outgoing]) -> None:
        """See `EventLog`. **Raises** as `append`."""
        for record in records:
            self._published += 1
            self._produce(record, self._reported.append)
        self._producer.poll(0)

    def _produce(self, record: Outgoing, report: Callable[[Delivery], None]) -> None:
        topic, partition, key, value, headers, token = record
        while True:
            try:
                self._producer.produce(
                    self._names[topic],
                    value=value,
                    key=key,
                    partition=partition,
                    headers=list(headers),
                    on_delivery=partial(self._delivered, token, report),
                )
                return
            except BufferError:
                self._producer.poll(0.1)
                self._check()
            except KafkaException as error:
                if of(error).code() not in REFUSED:
                    raise translate(error, f"write to {self._names[topic]}") from None
                report(Delivery(token, NEVER))
                return

    def _delivered(
        self, token: int, report: Callable[[Delivery], None], error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            offset = message.offset()
            # Negative: the broker knew the record from a try whose answer was lost, and does not tell where it lies.
            known = offset is not None and offset >= 0
            report(Delivery(token, offset, message.timestamp()[1]) if known else Delivery(token, None))
            return
        report(Delivery(token, NEVER if error.code() in REFUSED else None))
        if is_final(error):
            self._fatal = self._fatal or translate(error, f"write to {message.topic()}")
        elif self._throttle.lets(f"write {error.name()}"):
            _log.warning("kafka.write_error", topic=message.topic(), error=str(error))

    def end(self, topic: str, partition: int) -> int:
        """See `EventLog`. **Raises** UnreachableError."""
        name = self._names[topic]
        return latest(self._asker, [TopicPartition(name, partition)])[name, partition]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """See `EventLog`. Nothing, with a warning, when there is no answer or this principal may not see the group."""
        self._admin = self._admin or clients.admin(self._settings)
        request = ConsumerGroupTopicPartitions(self._names[group])
        try:
            (future,) = self._admin.list_consumer_group_offsets([request], request_timeout=COMMITTED_S).values()
            answers = future.result(COMMITTED_S).topic_partitions or []
        except (KafkaException, TimeoutError) as error:
            if self._throttle.lets("committed"):
                _log.warning("kafka.committed_unknown", group=group, error=str(error))
            return {}
        name = self._names[topic]
        return {each.partition: each.offset for each in answers if each.topic == name and each.offset >= 0}

    # Notes that `take` carries out

    def commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        """See `EventLog`. What is said of partitions that are another member's by then is dropped."""
        self._notes.append(partial(self._commit, dict(positions)))

    def pause(self, topic: str, partition: int) -> None:
        self._notes.append(partial(self._flow, "pause", topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        self._notes.append(partial(self._flow, "resume", topic, partition))

    def close(self) -> None:
        """See `EventLog`. The group keeps the partitions for this member until the session ends."""
        if self._closing:
            return
        self._closing = True
        self._producer.flush(REQUEST_TIMEOUT_S)
        self._run_notes()
        self._settle()
        self._consumer.close()
        self._asker.close()

    def _settle(self) -> None:
        """Waits for an assignment that is under way: closed before it is taken note of, librdkafka 2.16 may hang."""
        deadline = time.monotonic() + _SETTLE_S
        with suppress(KafkaException):
            while not self._settled and time.monotonic() < deadline:
                self._consumer.poll(0.01)
            if not self._settled:
                self._consumer.unsubscribe()

    def _run_notes(self) -> None:
        while self._notes:
            self._notes.popleft()()

    def _commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        offsets = [
            TopicPartition(self._names[topic], number, offset)
            for (topic, number), offset in positions.items()
            if number in self._owned
        ]
        if offsets:
            self._try("kafka.commit_lost", partial(self._consumer.commit, offsets=offsets, asynchronous=True))

    def _flow(self, action: str, topic: str, partition: int) -> None:
        if partition in self._owned:
            where = [TopicPartition(self._names[topic], partition)]
            self._try("kafka.flow_lost", partial(getattr(self._consumer, action), where))

    def _try(self, event: str, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaException as error:
            _log.warning(event, error=str(error))

    def _on_error(self, error: KafkaError) -> None:
        if is_final(error):
            self._fatal = self._fatal or translate(error, "go on")
        elif self._throttle.lets(error.name()):
            _log.warning("kafka.error", error=str(error))

    def _check(self) -> None:
        if self._fatal:
            raise self._fatal


def latest(asker: Consumer, partitions: list[TopicPartition], which: int = _LATEST) -> dict[tuple[str, int], int]:
    """The high watermarks now (or the first offsets), by topic and partition, in one request per broker.

    **Raises** UsageError for a topic that is not there, UnreachableError when there is no answer.
    """
    begun = time.monotonic()
    asked = [TopicPartition(each.topic, each.partition, which) for each in partitions]
    while asked:
        try:
            answers = asker.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
            if not (errors := [each.error for each in answers if each.error]):
                return {(each.topic, each.partition): each.offset for each in answers}
            error = errors[0]
        except KafkaException as raised:
            error = of(raised)
        # Asked too early (fresh topic, election) the broker sends us on; librdkafka learns where to only by the answer.
        waited = time.monotonic() - begun
        patience = _UNKNOWN_S if error.code() in UNKNOWN_TOPIC else 0.0 if is_final(error) else REQUEST_TIMEOUT_S
        if waited >= patience:
            raise translate(error, f"ask for the end of {asked[0].topic}")
        time.sleep(0.02)
    return {}
