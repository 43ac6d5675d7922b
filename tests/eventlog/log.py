"""The event log in memory, a full peer of Kafka: one member's view of a `MemoryBroker`, and a reader without group."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from refold.core.errors import ConflictError, NotFoundError
from refold.core.topics import kind_of
from refold.engine.ports.log import Delivery, Depth, Membership, Outgoing, Place, Record, Revoked, Taken
from tests.eventlog.broker import MemoryBroker
from tests.eventlog.cursors import Cursors


class MemoryEventLog:
    """See `EventLog`. It is a member from the first `take` on, and learns of rebalances with later ones.

    `deaf`: it does not learn of them, as a process that was stopped for longer than its session. `first` rotates the
    order in which partitions and topics are read. `keep_place`: a close does not leave the group.
    """

    def __init__(self, broker: MemoryBroker, membership: Membership, *, keep_place: bool = False) -> None:
        self._broker, self._membership, self._keep_place = broker, membership, keep_place
        self.deaf = self._left = False
        self.first = 0
        self.cursors = Cursors(broker, membership)
        self._session = self._generation = 0
        self._wanted: dict[Place, int] = {}
        self._anew: set[int] = set()
        self._assignments: dict[int, int] = {}
        self._given = 0
        self._reported: deque[Delivery] = deque()

    def take(self, limit: int, timeout_s: float) -> Taken:
        """See `EventLog`. Never waits. **Raises** ConflictError when another process has this member's name."""
        taken = Taken()
        if not self.deaf:
            self._rebalance(taken)
            self._commit()
        self.cursors.read(taken, limit, first=self.first)
        while self._reported:
            taken.deliveries.append(self._reported.popleft())
        return taken

    def _rebalance(self, taken: Taken) -> None:
        before = self.cursors.partitions
        if self._left or not self._keep_session():
            taken.rebalances += [Revoked(number) for number in before]
            before = []
        if not self._left:
            self._assign(taken, before)
        for change in taken.rebalances:
            self.cursors.apply(change)

    def _keep_session(self) -> bool:
        """Joins the group, if need be; False when its session had expired, and it is back with a new one."""
        own, broker = self._membership, self._broker
        if not self._session:
            self._session = broker.join(own.group, own.member, own.topics)
        session = broker.groups[own.group].sessions.get(own.member)
        if session is None:
            self._session = broker.join(own.group, own.member, own.topics)
        elif session != self._session:
            hint = "give every process its own member name"
            raise ConflictError(f"another process runs as {own.member} in {own.group}", hint=hint)
        return session is not None

    def _assign(self, taken: Taken, before: list[int]) -> None:
        """Gives up, of the partitions `before`, and takes what the group's generation says, and what is read anew."""
        own, group = self._membership, self._broker.groups[self._membership.group]
        if self._generation == group.generation and not self._anew:
            return
        owned = self._broker.owned(own.group, own.member)
        kept = [number for number in before if number in owned and number not in self._anew]
        taken.rebalances += [Revoked(number) for number in self.cursors.partitions if number in self._anew]
        taken.rebalances += [Revoked(number) for number in before if number not in self._anew and number not in owned]
        self._anew.clear()
        self._generation = group.generation
        for number in [number for number in owned if number not in kept]:
            self._given += 1
            self._assignments[number] = self._given
            taken.rebalances.append(replace(self.cursors.capture(number, group.committed), assignment=self._given))

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        return [self._broker.write(record) for record in records]

    def push(self) -> None:
        """See `EventLog`. Nothing lingers here."""

    def publish(self, records: Sequence[Outgoing]) -> None:
        self._reported.extend(self.append(records))

    def end(self, topic: str, partition: int) -> int:
        return self._broker.log(topic, partition).end

    def committed(self, group: str, topic: str) -> dict[int, int]:
        places = self._broker.groups[group].committed if group in self._broker.groups else {}
        return {number: position for (name, number), position in places.items() if name == topic}

    def commit(self, positions: Mapping[Place, int]) -> None:
        self._wanted.update(positions)
        self._commit()

    def _commit(self) -> None:
        """Says what the group has not taken yet, because it was rebalancing, until it has or the partition is gone."""
        # A copy, for another thread may commit meanwhile.
        owned, name, member = self.cursors.partitions, self._membership.group, self._membership.member
        self._wanted = own = {place: position for place, position in dict(self._wanted).items() if place[1] in owned}
        if own and self._broker.commit(name, member, session=self._session, generation=self._generation, at=own):
            self._wanted = {}

    def reopen(self, partition: int) -> None:
        self._anew.add(partition)

    def read(self, topic: str, partition: int, offset: int, *, under: int | None = None) -> None:
        if self._holds(partition, under):
            self.cursors.start(topic, partition, offset)

    def pause(self, topic: str, partition: int, *, under: int | None = None) -> None:
        if self._holds(partition, under):
            self.cursors.flow(topic, partition, paused=True)

    def resume(self, topic: str, partition: int, *, under: int | None = None) -> None:
        if self._holds(partition, under):
            self.cursors.flow(topic, partition, paused=False)

    def _holds(self, partition: int, under: int | None) -> bool:
        return under in (None, self._assignments.get(partition))

    def leave(self) -> None:
        """See `EventLog`."""
        if not self._keep_place:
            self._expire()
            self._left = True

    def depth(self) -> Depth:
        """See `EventLog`."""
        return Depth({}, len(self._reported), placed=True)

    def close(self) -> None:
        """See `EventLog`."""
        if not self._keep_place and not self._left:
            self._expire()

    def _expire(self) -> None:
        own = self._membership
        group = self._broker.groups.get(own.group)
        if group and group.sessions.get(own.member) == self._session:
            self._broker.expire(own.group, own.member)


class MemoryLogReader:
    """See `LogReader`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def partitions(self, topic: str) -> int:
        if topic not in self._broker.topics:
            raise NotFoundError(f"there is no topic {topic}", hint="create the topics with `refold topics apply`")
        return self._broker.partitions

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        logs = [self._broker.log(topic, number) for number in self._numbers(topic, partition)]
        return iter([record for log in logs for record in log.records])

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        return self._tail([(topic, number) for number in self._numbers(topic, partition)])

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        return self._tail([(topic, partition) for topic in self._broker.topics if kind_of(topic) in kinds])

    def _tail(self, places: Sequence[tuple[str, int]]) -> Iterator[Record | None]:
        positions = dict.fromkeys(places, 0)
        while True:
            logs = [(self._broker.log(*place), start) for place, start in positions.items()]
            found = [record for log, start in logs for record in log.read(start, log.end)]
            for record in found:
                positions[record.topic, record.partition] = record.offset + 1
                yield record
            if not found:
                yield None

    def _numbers(self, topic: str, partition: int | None) -> Iterable[int]:
        count = self.partitions(topic)
        return range(count) if partition is None else [partition]
