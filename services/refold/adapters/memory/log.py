"""The event log in memory: partitions, groups and readers in one process, a full peer of Kafka.

`MemoryBroker` is the cluster, `MemoryEventLog` one member's view of it, `MemoryLogReader` a reader without a group.
Nothing here is random and nothing waits. Whoever holds the broker makes its faults: a record is held back and released
after its successor, a partition is compacted, a member's session expires while the member goes on as a zombie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.ports.log import NEVER, Assigned, Delivery, Membership, Outgoing, Reached, Record, Revoked, Taken

Place = tuple[str, int]


@dataclass(slots=True)
class Partition:
    """Records by offset, with holes where compaction or a transaction left them; `end` is the high watermark."""

    records: list[Record] = field(default_factory=list)
    end: int = 0

    def read(self, position: int, limit: int) -> list[Record]:
        """The records from a position on."""
        dense = len(self.records) == self.end
        start = position if dense else bisect_left(self.records, position, key=lambda record: record.offset)
        return self.records[start : start + limit]


@dataclass(slots=True)
class Group:
    """Who is in it and what it has committed. `sessions` tells a process from its successor of the same name."""

    subscribe: str
    generation: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)


class MemoryBroker:
    """Topics with equal partition counts, and groups.

    `max_bytes` is what a record's key and value may take together, as `max.message.bytes` of a topic.
    """

    def __init__(self, topics: Iterable[str], partitions: int = 1, *, max_bytes: int = 8 << 20) -> None:
        self.partitions = partitions
        self.topics = tuple(topics)
        self.groups: dict[str, Group] = {}
        self._max_bytes = max_bytes
        self._logs = {(topic, number): Partition() for topic in self.topics for number in range(partitions)}
        self._held: dict[int, Outgoing] = {}
        self._next = 0

    def log(self, topic: str, partition: int) -> Partition:
        """A partition. **Raises** UsageError when there is none."""
        try:
            return self._logs[topic, partition]
        except KeyError:
            hint = "create the topics with `refold topics apply`"
            raise UsageError(f"there is no partition {partition} of {topic}", hint=hint) from None

    def write(self, record: Outgoing) -> int:
        """Appends a record; returns its offset, or NEVER when it is too large."""
        topic, number, key, value, headers, _ = record
        log = self.log(topic, number)
        if len(key) + len(value or b"") > self._max_bytes:
            return NEVER
        offset = log.end
        log.records.append(Record(topic, number, offset, key, value, lambda: list(headers)))
        log.end = offset + 1
        return offset

    def hold(self, record: Outgoing) -> int:
        """Keeps a record in flight; returns a ticket for `release` or `lose`."""
        self._next += 1
        self._held[self._next] = record
        return self._next

    def release(self, ticket: int) -> int:
        """Appends a held record, after whatever came meanwhile; returns its offset."""
        return self.write(self._held.pop(ticket))

    def lose(self, ticket: int) -> None:
        """Drops a held record."""
        del self._held[ticket]

    def skip(self, topic: str, partition: int, count: int = 1) -> None:
        """Uses offsets up without a record, as the markers of a transaction do."""
        self.log(topic, partition).end += count

    def compact(self, topic: str, partition: int, *, below: int | None = None, tombstones: bool = False) -> int:
        """Keeps the last record per key, at its offset; returns how many are gone.

        `below` spares the records from there on, as a topic's compaction lag does, but what they say counts;
        `tombstones` drops those too.
        """
        log = self.log(topic, partition)
        clean = log.end if below is None else below
        last = {record.key: record.offset for record in log.records}
        kept = [
            record
            for record in log.records
            if record.offset >= clean
            or (last[record.key] == record.offset and not (tombstones and record.value is None))
        ]
        gone, log.records = len(log.records) - len(kept), kept
        return gone

    # Groups

    def join(self, name: str, member: str, subscribe: str) -> int:
        """Lets a process in; returns its session. One under a known name replaces that process, and nothing moves."""
        self.log(subscribe, 0)
        group = self.groups.setdefault(name, Group(subscribe))
        if member not in group.sessions:
            group.generation += 1
        self._next += 1
        group.sessions[member] = self._next
        return self._next

    def expire(self, name: str, member: str) -> None:
        """Ends a member's session: its partitions go to the others, it may not notice."""
        group = self.groups[name]
        if group.sessions.pop(member, None) is not None:
            group.generation += 1

    def owned(self, name: str, member: str) -> list[int]:
        """The partition numbers of a member: blocks by sorted name, as Kafka's range assignor gives them."""
        members = sorted(self.groups[name].sessions)
        if member not in members:
            return []
        each, more = divmod(self.partitions, len(members))
        place = members.index(member)
        start = place * each + min(place, more)
        return list(range(start, start + each + (place < more)))

    def commit(self, name: str, member: str, *, session: int, generation: int, at: Mapping[Place, int]) -> bool:
        """Keeps a group's positions; false, and nothing kept, for a process that has lost its place in the group."""
        group = self.groups[name]
        if group.sessions.get(member) != session or group.generation != generation:
            return False
        group.committed.update(at)
        return True


class MemoryEventLog:
    """See `EventLog`. It is a member from the first `take` on, and learns of rebalances with later ones.

    `deaf`: it does not learn of them, as a process that was stopped for longer than its session. `first` rotates the
    order in which partitions and topics are read, which Kafka leaves open.
    """

    def __init__(self, broker: MemoryBroker, membership: Membership) -> None:
        self._broker, self._membership = broker, membership
        self.deaf = False
        self.first = 0
        self._session = self._generation = 0
        self._positions: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._owned: list[int] = []
        self._paused: set[Place] = set()
        self._reported: deque[Delivery] = deque()

    def take(self, limit: int, timeout_s: float) -> Taken:
        """See `EventLog`. Never waits. **Raises** ConflictError when another process has this member's name."""
        taken = Taken()
        if not self.deaf:
            self._rebalance(taken)
        places = list(self._positions)
        turn = self.first % len(places) if places else 0
        for place in places[turn:] + places[:turn]:
            if place not in self._paused and len(taken.records) < limit:
                self._read(place, limit - len(taken.records), taken)
        while self._reported:
            taken.deliveries.append(self._reported.popleft())
        return taken

    def _read(self, place: Place, limit: int, taken: Taken) -> None:
        log = self._broker.log(*place)
        records = log.read(self._positions[place], limit)
        taken.records += records
        position = records[-1].offset + 1 if records else self._positions[place]
        reading_on = records and records[-1] is not log.records[-1]
        hole = not reading_on and position < log.end
        self._positions[place] = position = log.end if hole else position
        if place[0] in self._membership.replay:
            end = self._ends.get(place)
            if end is not None and position >= end:
                del self._ends[place]
                taken.reached.append(Reached(*place, position))
            elif hole:
                taken.reached.append(Reached(*place, position))

    def _rebalance(self, taken: Taken) -> None:
        own, broker = self._membership, self._broker
        if not self._session:
            self._session = broker.join(own.group, own.member, own.subscribe)
        group = broker.groups[own.group]
        session = group.sessions.get(own.member)
        if session is None:  # expired, and back
            self._session = session = broker.join(own.group, own.member, own.subscribe)
        if session != self._session:
            hint = "give every process its own member name"
            raise ConflictError(f"another process runs as {own.member} in {own.group}", hint=hint)
        if self._generation == group.generation:
            return
        taken.rebalances += [Revoked(number) for number in self._owned]
        self._generation, self._owned = group.generation, broker.owned(own.group, own.member)
        self._positions, self._ends = {}, {}
        self._paused.clear()
        for number in self._owned:
            self._assign(number, group, taken)

    def _assign(self, number: int, group: Group, taken: Taken) -> None:
        from_start = self._membership.replay
        going_on = [each for each in (self._membership.subscribe, *self._membership.resume) if each not in from_start]
        committed = {
            name: group.committed[name, number]
            for name in (*going_on, *from_start)
            if (name, number) in group.committed
        }
        ends = {name: self._broker.log(name, number).end for name in from_start}
        for name in going_on:
            self._positions[name, number] = committed.get(name, 0)
        for name, end in ends.items():
            self._positions[name, number] = 0
            self._ends[name, number] = end
        taken.rebalances.append(Assigned(number, committed, ends))

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """See `EventLog`."""
        return [Delivery(record.token, self._broker.write(record)) for record in records]

    def publish(self, records: Sequence[Outgoing]) -> None:
        """See `EventLog`."""
        self._reported.extend(self.append(records))

    def end(self, topic: str, partition: int) -> int:
        """See `EventLog`."""
        return self._broker.log(topic, partition).end

    def commit(self, positions: Mapping[Place, int]) -> None:
        """See `EventLog`."""
        own = {place: position for place, position in positions.items() if place[1] in self._owned}
        if own:
            name, member = self._membership.group, self._membership.member
            self._broker.commit(name, member, session=self._session, generation=self._generation, at=own)

    def pause(self, topic: str, partition: int) -> None:
        """See `EventLog`."""
        if partition in self._owned:
            self._paused.add((topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        """See `EventLog`."""
        self._paused.discard((topic, partition))

    def close(self) -> None:
        """See `EventLog`. The group keeps the partitions for this member until its session expires."""


class MemoryLogReader:
    """See `LogReader`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def partitions(self, topic: str) -> int:
        """See `LogReader`."""
        if topic not in self._broker.topics:
            raise NotFoundError(f"there is no topic {topic}", hint="create the topics with `refold topics apply`")
        return self._broker.partitions

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """See `LogReader`."""
        logs = [self._broker.log(topic, number) for number in self._numbers(topic, partition)]
        return iter([record for log in logs for record in log.records])

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        """See `LogReader`."""
        numbers = self._numbers(topic, partition)
        return self._tail({number: self._broker.log(topic, number) for number in numbers})

    def _tail(self, logs: Mapping[int, Partition]) -> Iterator[Record | None]:
        positions = dict.fromkeys(logs, 0)
        while True:
            found = [record for number, log in logs.items() for record in log.read(positions[number], log.end)]
            for record in found:
                positions[record.partition] = record.offset + 1
                yield record
            if not found:
                yield None

    def _numbers(self, topic: str, partition: int | None) -> Iterable[int]:
        count = self.partitions(topic)
        return range(count) if partition is None else [partition]
