"""`EventLog` of services: one member of a group on Kafka, with its producer. One consumer is the group member and never
fetches (`membership`), one reads by position (`intake`). `take` belongs to one thread, other methods to any: a Consumer
is locked while it polls, so `read`, `commit`, `pause` and `resume` leave notes for `take`, and `end` has its own
consumer (0.3 ms, against 100 ms behind a fetch)."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from refold.core.errors import UnreachableError
from refold.core.topics import pool_of
from refold.engine.adapters.kafka import clients, offsets
from refold.engine.adapters.kafka.clients import REQUEST_TIMEOUT_S, Names
from refold.engine.adapters.kafka.errors import REFUSED, UNKNOWN_TOPIC, kafka_error, meaning, translate
from refold.engine.adapters.kafka.intake import Intake
from refold.engine.adapters.kafka.membership import GroupMembership
from refold.engine.adapters.kafka.trouble import ONE_ANSWER_S, Overdue, Trouble
from refold.engine.ports.log import NEVER, Assigned, Delivery, Depth, Membership, Outgoing, Place, Revoked, Taken
from refold.engine.runtime.outages import OUTAGES
from refold.engine.runtime.settings import KafkaSettings

_SLICE_S = 0.002
"""Longest poll while awaited delivery reports are due, which takes a millisecond or two per turn."""

_DELIVERIES_S = 0.02
"""Longest delay of delivery reports without a waiting caller."""

_COMPANY = 8
"""Records in a turn from which on it waits for more: their writes share requests."""

_COMPANY_S = 0.003
_PUSH_S = 0.001
_ACKNOWLEDGED_S = 0.02
"""Longest wait of a turn for acknowledgements on which readers in this process wait; then another thread polls."""


_IDLE_SLICE_S = 0.02
"""Longest delay of notes from other threads: 50 wake-ups a second, under 0.1 % of a core."""

_LOOK_S = 1.0
"""Interval of checks for unknown topics and transactions, which take some milliseconds."""

_ASK_AGAIN_S = 1.0
"""Pause after an unanswered request, in which the present partitions are served."""


OnStored = Callable[[Outgoing, int, int], None]


class KafkaEventLog:
    """Member of a group; joins with the first `take`. `stored` gets each acknowledged record with its offset and time,
    in the thread that polls the producer."""

    def __init__(self, settings: KafkaSettings, membership: Membership, *, stored: OnStored | None = None) -> None:
        self.member, self._stored = membership.member, stored
        self._settings, self._membership = settings, membership
        self._names = names = Names(settings.prefix)
        self._trouble = trouble = Trouble()
        self._closing = False
        self._producer = clients.producer(settings, membership.member, error_cb=trouble.on_error)
        self._group = GroupMembership(settings, membership, names=names, trouble=trouble)
        self._intake = Intake(settings, membership, names=names, trouble=trouble)
        self._askers: dict[str, Consumer] = {}
        self._notes: deque[Callable[[], None]] = deque()
        # Each counter has one writing thread, or an update would be lost now and then.
        self._published = self._collected = 0
        self._awaited = self._answers = self._lingering = 0
        self._rest_s = 0.0
        self._assignments: dict[int, int] = {}
        self._absent: frozenset[str] = frozenset()
        self._number = count(1)
        self._reported: deque[Delivery] = deque()
        self._awaited_reports: deque[Delivery] = deque()
        self._coming: list[int] = []
        self._apart, self._ask_s, self._look_s = False, 0.0, 0.0
        self._flushing = False
        self._opening, self._ending = Overdue("begin with partitions"), dict[Place, Overdue]()

    # What comes in

    def take(self, limit: int, timeout_s: float) -> Taken:
        """Read a batch. **Raises** UsageError (unknown topic, ACL, login), ConflictError (another process has this
        member's name), RefoldError (broken client), after which the process ends and its supervisor starts it again."""
        batch = Taken()
        if (rest := min(self._rest_s - time.monotonic(), timeout_s)) > 0:
            time.sleep(rest)
        try:
            first = self._wait(batch, time.monotonic() + timeout_s)
            if first is not None:
                self._intake.sort(first, batch)
                for message in self._intake.rest(limit - 1):
                    self._intake.sort(message, batch)
        except KafkaException as error:
            self._trouble.end_with(error, f"read as {self.member}")
        self._collect(batch)
        self._trouble.check()
        busy = _COMPANY <= len(batch.records) < limit  # as many as it may take wait already: a log is read through
        self._rest_s = time.monotonic() + _COMPANY_S if busy else 0.0
        return batch

    def _wait(self, batch: Taken, deadline: float) -> Message | None:
        """Serve the group, notes and reports until a message comes, or the deadline."""
        reported = False
        while True:
            self._look(batch)
            self._run_notes()
            waiting = self._awaited > self._answers
            if self._published > self._collected:
                self._producer.poll(0)
            if self._reported and not reported:
                reported, deadline = True, min(deadline, time.monotonic() + _DELIVERIES_S)
            self._intake.collect(batch)
            self._trouble.check()
            left = deadline - time.monotonic()
            if self._awaited_reports or batch.rebalances or batch.reached or batch.shrunk:
                left = 0
            message = self._poll(max(0.0, min(left, _SLICE_S if waiting else _IDLE_SLICE_S)))
            if message is not None:
                if message.error() is None:
                    return message
                self._intake.sort(message, batch)
            elif left <= 0:
                return None

    def _poll(self, timeout_s: float) -> Message | None:
        if self._stored and len(self._producer) and not self._flushing:
            # Readers in this process wait for the acknowledgement, and hardly for a fetch.
            self._producer.poll(min(timeout_s, _SLICE_S))
            timeout_s = 0.0
        return self._intake.poll(timeout_s)

    def _look(self, batch: Taken) -> None:
        gone, came = self._group.look()
        for number in sorted(gone - set(self._coming)):
            self._intake.drop(number)
            self._assignments.pop(number, None)
            batch.rebalances.append(Revoked(number))
        if gone:  # their news of this take would follow their next assignment
            batch.reached = [end for end in batch.reached if end.partition not in gone]
            batch.shrunk = [end for end in batch.shrunk if end.partition not in gone]
        self._coming = [number for number in self._coming if number not in gone | came] + sorted(came)
        if (now := time.monotonic()) >= self._look_s:
            self._look_s = now + _LOOK_S
            self._look_for_topics(now)
            self._intake.look_for_transactions()
        while self._coming and time.monotonic() >= self._ask_s:
            self._open(batch)

    def _open(self, batch: Taken) -> None:
        """Report new partition numbers once the cluster returned their bounds."""
        came = self._coming[:1] if self._apart else self._coming
        left = self._coming[len(came) :]
        try:
            if self._membership.optional:
                self._absent = self._topics()[1]
            committed = self._group.committed(set(came))
            starts, ends = self._intake.capture(set(came), self._absent)
        except KafkaException as error:
            self._opening.late(error)
            # One partition without a leader fails the request of all: request them one by one.
            self._coming, self._apart = left + came, True
            self._ask_s = time.monotonic() + _ASK_AGAIN_S
            return
        self._coming, self._apart = left, bool(left)
        if not left:
            self._opening.over()
        for number in came:
            first, last = (
                {topic: at for (topic, where), at in bounds.items() if where == number} for bounds in (starts, ends)
            )
            self._assignments[number] = assignment = next(self._number)
            batch.rebalances.append(Assigned(number, committed[number], first, last, assignment, self._absent))

    def _topics(self) -> tuple[Collection[str], frozenset[str]]:
        """All topics by a fresh answer, and the missing optional ones. **Raises** KafkaException."""
        topics = self._producer.list_topics(timeout=ONE_ANSWER_S).topics
        names, optional = set(map(self._names.logical, topics)), self._membership.optional.items()
        return topics, frozenset(own for own, beside in optional if not {own, beside} <= names)

    def _look_for_topics(self, now: float) -> None:
        """Restart lanes if an optional topic appears or disappears; end the process if a topic stays unknown."""
        if not ((unknown := self._trouble.unknown) or self._absent):
            return
        try:
            present, absent = self._topics()
        except KafkaException:
            unknown.update(dict.fromkeys(unknown, now))  # a broker that is away, or has just started, proves nothing
            return
        if absent != self._absent:
            for number in self._group.owned:
                self._group.reopen(number)
        for name, since in list(unknown.items()):
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{name} is gone")
            if name in present or pool_of(self._names.logical(name)):
                del unknown[name]
            elif now - since >= meaning(error).later_s:
                self._trouble.end_with(error)

    def _collect(self, batch: Taken) -> None:
        self._intake.collect(batch)
        self._producer.poll(0)
        while self._awaited_reports:
            batch.deliveries.append(self._awaited_reports.popleft())
            self._answers += 1
            self._collected += 1
        while self._reported:
            batch.deliveries.append(self._reported.popleft())
            self._collected += 1

    # What goes out

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """Write and wait for delivery. **Raises** UsageError for a missing or forbidden topic."""
        answers: list[Delivery] = []
        for record in records:
            self._produce(record, answers.append)
        while len(answers) < len(records):
            # A flush sends lingering records at once. In slices, because earlier records may take longer.
            clients.flush(self._producer, 0.05)
            self._trouble.check()
        self._trouble.check()
        self._lingering = 0
        return answers

    def publish(self, records: Sequence[Outgoing]) -> None:
        for record in records:
            self._published += 1
            self._awaited += record.awaited
            self._produce(record, (self._awaited_reports if record.awaited else self._reported).append)
        self._lingering += len(records)
        self._producer.poll(0)

    def push(self) -> None:
        lingering, self._lingering = self._lingering, 0
        if self._stored and lingering:
            # Readers in this process have little to do before the acknowledgement.
            self._flushing = True
            clients.flush(self._producer, _ACKNOWLEDGED_S)
            self._flushing = False
        # Many records leave in full batches anyway.
        elif 0 < lingering < _COMPANY and self._settings.linger_ms:
            clients.flush(self._producer, _PUSH_S)

    def _produce(self, record: Outgoing, report: Callable[[Delivery], None]) -> None:
        name, reported = self._names[record.topic], partial(self._delivered, record, report)
        try:
            clients.produce(self._producer, name, record, reported, check=self._trouble.check)
        except KafkaException as error:
            code = kafka_error(error).code()
            if code in UNKNOWN_TOPIC:  # senders retry until `take` knows better
                self._trouble.unknown.setdefault(name, time.monotonic())
            elif code not in REFUSED:
                raise translate(error, f"write to {name}") from None
            report(Delivery(record.token, NEVER if code in REFUSED else None))

    def _delivered(
        self, record: Outgoing, report: Callable[[Delivery], None], error: KafkaError | None, message: Message
    ) -> None:
        delivery = clients.delivery(record.token, error, message)
        report(delivery)
        if self._stored and delivery.offset not in (None, NEVER):
            self._stored(record, delivery.offset, delivery.at_ms)
        if error is not None:
            if error.code() in UNKNOWN_TOPIC and (message.partition() or 0) >= self._settings.partitions:
                self._trouble.end_with(error, f"write to {message.topic()}")  # such a partition never comes
            else:
                self._trouble.report("kafka.write_error", error, f"write to {message.topic()}", topic=message.topic())

    def end(self, topic: str, partition: int) -> int:
        name, place, asker = self._names[topic], (topic, partition), self._asker(self._membership.group)
        try:
            end = offsets.query(asker, self._names, [place], give_up_s=ONE_ANSWER_S)[place]
        except KafkaException as error:
            cause = kafka_error(error)
            if unknown := cause.code() in UNKNOWN_TOPIC:
                self._trouble.unknown.setdefault(name, time.monotonic())
            if not (unknown and pool_of(topic)):
                self._ending.setdefault(place, Overdue(f"ask where {name} ends in {partition}")).late(error)
            raise UnreachableError(f"the broker does not report where {name} ends", kafka=cause.name()) from None
        if answered := self._ending.pop(place, None):
            answered.over()
        return end

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Committed offsets by partition; empty, with a warning, without an answer or the right to see the group."""
        places = [(topic, number) for number in range(self._settings.partitions)]
        try:
            answers = offsets.committed(self._asker(group), self._names, places, ONE_ANSWER_S)
        except KafkaException as error:
            OUTAGES.failed("kafka.committed_unknown", "committed", group=group, error=str(error))
            return {}
        return {number: offset for (_, number), offset in answers.items()}

    def _asker(self, group: str) -> Consumer:
        # A consumer that never joins: an AdminClient would keep to a coordinator that moved.
        if group not in self._askers:
            self._askers[group] = clients.consumer(self._settings, group, **{"client.id": f"{self.member}-asker"})
        return self._askers[group]

    # Notes that `take` carries out

    def read(self, topic: str, partition: int, offset: int, *, under: int | None = None) -> None:
        self._steer(partition, under, partial(self._intake.read, (topic, partition), offset))

    def reopen(self, partition: int) -> None:
        self._notes.append(partial(self._group.reopen, partition))

    def commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Commit positions; those of partitions that moved to another member are dropped."""
        self._notes.append(partial(self._group.commit, dict(positions)))

    def pause(self, topic: str, partition: int, *, under: int | None = None) -> None:
        self._steer(partition, under, partial(self._intake.flow, (topic, partition), paused=True))

    def resume(self, topic: str, partition: int, *, under: int | None = None) -> None:
        self._steer(partition, under, partial(self._intake.flow, (topic, partition), paused=False))

    def depth(self) -> Depth:
        return Depth(self._intake.positions, len(self._producer), self._group.placed, self._intake.unstable)

    def leave(self) -> None:
        if not self._settings.keep_place:
            self._notes.append(self._group.leave)

    def close(self) -> None:
        """Flush and leave; with `keep_place` the group keeps the partitions for this name."""
        if self._closing:
            return
        self._closing = True
        clients.flush(self._producer, REQUEST_TIMEOUT_S)
        self._run_notes()
        self._group.close(leave=not self._settings.keep_place)
        self._intake.close()
        for asker in self._askers.values():
            asker.close()

    def _run_notes(self) -> None:
        while self._notes:
            self._notes.popleft()()
        self._intake.begin()

    def _steer(self, partition: int, under: int | None, order: Callable[[], None]) -> None:
        """Leave a note that is void once the partition is gone, or is here `under` another assignment."""

        def note() -> None:
            assignment = self._assignments.get(partition)
            if assignment is not None and under in (None, assignment):
                order()

        self._notes.append(note)
