"""The event log in memory: partitions, groups and readers in one process, a full peer of Kafka.

`MemoryBroker` is the cluster, `MemoryEventLog` one member's view of it, `MemoryLogReader` a reader without a group.
`Cursors` are the rules of a member's positions; the simulator, whose groups are its own, reads with them too.
Nothing here is random and nothing waits. Whoever holds the broker makes its faults: a partition is compacted, a
member's session expires while the member goes on as a zombie, a poll reads less than there is.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.ports.log import NEVER, Assigned, Delivery, Membership, Outgoing, Reached, Record, Revoked, Shrunk, Taken

Place = tuple[str, int]
Fetch = Callable[[int, int], int]


@dataclass(slots=True)
class Partition:
    """Records by offset, with holes where compaction or a transaction left them, between the two watermarks."""

    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def read(self, position: int, upto: int) -> list[Record]:
        """The records from a position on and below another."""
        return self.records[self._index(position) : self._index(upto)]

    def beyond(self, position: int, count: int) -> int:
        """How far somebody has come who reads so many records from a position on."""
        last = self._index(position) + count - 1
        return self.records[last].offset + 1 if last + 1 < len(self.records) else self.end

    def _index(self, offset: int) -> int:
        dense = len(self.records) == self.end
        return offset if dense else bisect_left(self.records, offset, key=lambda record: record.offset)


@dataclass(slots=True)
class Group:
    """Who is in it and what it has committed. `sessions` tells a process from its successor of the same name."""

    topics: tuple[str, ...]
    generation: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)


class MemoryBroker:
    """Topics with equal partition counts, and groups.

    `max_bytes` is what a record's key and value may take together, as `max.message.bytes` of a topic; `clock_ms` is the
    broker's clock.
    """

    def __init__(
        self,
        topics: Iterable[str],
        partitions: int = 1,
        *,
        max_bytes: int = 8 << 20,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.partitions = partitions
        self.topics = tuple(topics)
        self.groups: dict[str, Group] = {}
        self._max_bytes, self._clock_ms = max_bytes, clock_ms
        self._logs = {(topic, number): Partition() for topic in self.topics for number in range(partitions)}
        self._next = 0

    def log(self, topic: str, partition: int) -> Partition:
        """A partition. **Raises** UsageError when there is none."""
        try:
            return self._logs[topic, partition]
        except KeyError:
            hint = "create the topics with `refold topics apply`"
            raise UsageError(f"there is no partition {partition} of {topic}", hint=hint) from None

    def write(self, record: Outgoing) -> Delivery:
        """Appends a record, unless it is too large."""
        topic, number, key, value, headers, token = record
        log = self.log(topic, number)
        if len(key) + len(value or b"") > self._max_bytes:
            return Delivery(token, NEVER)
        offset, at_ms = log.end, self._clock_ms()
        log.records.append(Record(topic, number, offset, key, value, lambda: list(headers), at_ms))
        log.end = offset + 1
        return Delivery(token, offset, at_ms)

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

    def delete(self, topic: str, partition: int, *, below: int) -> None:
        """Deletes the records below an offset, as retention does."""
        log = self.log(topic, partition)
        log.records, log.start = log.read(below, log.end), below

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Loses the records from an offset on, though they were acknowledged, as an unclean election does."""
        log = self.log(topic, partition)
        log.records, log.end = log.read(log.start, end), end

    # Groups

    def join(self, name: str, member: str, topics: tuple[str, ...]) -> int:
        """Lets a process in; returns its session. One under a known name replaces that process, and nothing moves."""
        for topic in topics:
            self.log(topic, 0)
        group = self.groups.setdefault(name, Group(topics))
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


@dataclass(slots=True, eq=False)
class Cursor:
    """Where a partition is read. `end` is one to be told of."""

    topic: str
    partition: int
    log: Partition
    position: int
    end: int | None = None
    paused: bool = False

    def read(self, upto: int, taken: Taken) -> None:
        """Goes on to an offset. Where no record says how far that is, or the end is there, it is told."""
        records = self.log.read(self.position, upto)
        taken.records += records
        self.position = upto
        ended = self.end is not None and upto >= self.end
        if ended or not records or records[-1].offset + 1 < upto:
            taken.reached.append(Reached(self.topic, self.partition, upto))
        if ended:
            self.end = None


class Cursors:
    """Where one member reads, and what it is told of it: the rules of `EventLog` about positions, without a group.

    `fetch` says how far a poll reads that may read from a position to an end: whoever has it poll makes it stingy.
    `partitions` are the numbers that are the member's as far as it knows.
    """

    def __init__(self, broker: MemoryBroker, membership: Membership, fetch: Fetch = lambda position, end: end) -> None:
        self.fetch = fetch
        self._broker, self._membership = broker, membership
        self._cursors: list[Cursor] = []
        self._ends: dict[Place, int] = {}
        self.partitions: list[int] = []

    @property
    def at_end(self) -> bool:
        """Whether there is nothing to read."""
        return all(cursor.position >= cursor.log.end for cursor in self._cursors)

    def waiting(self) -> bool:
        """Whether `read` has anything to give; far cheaper than to try, for who asks often and mostly in vain."""
        for cursor in self._cursors:
            if cursor.position < cursor.log.end:
                if not cursor.paused:
                    return True
            elif cursor.position > cursor.log.end or (cursor.end is not None and cursor.position >= cursor.end):
                return True
        return False

    def find(self, topic: str, partition: int) -> Cursor | None:
        """Where it reads in a partition of a topic, if it does."""
        return next((each for each in self._cursors if (each.topic, each.partition) == (topic, partition)), None)

    def flow(self, topic: str, partition: int, *, paused: bool) -> None:
        """Reads no more in a partition of a topic, or goes on."""
        cursor = self.find(topic, partition)
        if cursor:
            cursor.paused = paused

    def capture(self, partition: int, committed: Mapping[Place, int]) -> Assigned:
        """A partition number as it is given to a member now."""
        logs = {name: self._broker.log(name, partition) for name in self._membership.topics}
        known = {name: committed[name, partition] for name in logs if (name, partition) in committed}
        starts, ends = ({name: getattr(log, edge) for name, log in logs.items()} for edge in ("start", "end"))
        return Assigned(partition, known, starts, ends)

    def apply(self, change: Assigned | Revoked) -> None:
        """May read a partition number from now on, or reads it no more."""
        number = change.partition
        self._cursors = [cursor for cursor in self._cursors if cursor.partition != number]
        self.partitions = [each for each in self.partitions if each != number]
        if isinstance(change, Assigned):
            self.partitions.append(number)
            self._ends |= {(topic, number): end for topic, end in change.ends.items()}

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Reads a partition that is the member's from an offset on."""
        if partition not in self.partitions:
            return
        place, log = (topic, partition), self._broker.log(topic, partition)
        self._cursors = [cursor for cursor in self._cursors if (cursor.topic, cursor.partition) != place]
        self._cursors.append(Cursor(topic, partition, log, offset, self._ends.pop(place, None)))

    def read(self, taken: Taken, limit: int = sys.maxsize, *, first: int = 0) -> None:
        """Takes what is there, up to `limit` records; `first` rotates the order, which Kafka leaves open."""
        cursors = self._cursors
        if first and cursors:
            turn = first % len(cursors)
            cursors = cursors[turn:] + cursors[:turn]
        for cursor in cursors:
            log, position = cursor.log, cursor.position
            if position > log.end:
                self._cursors.remove(cursor)
                taken.shrunk.append(Shrunk(cursor.topic, cursor.partition, log.end))
            elif position < log.start:
                cursor.read(log.start, taken)
            elif position < log.end:
                left = limit - len(taken.records)
                if left > 0 and not cursor.paused:
                    upto = self.fetch(position, log.end)
                    cursor.read(upto if upto - position <= left else min(upto, log.beyond(position, left)), taken)
            elif cursor.end is not None and position >= cursor.end:
                cursor.read(position, taken)


class MemoryEventLog:
    """See `EventLog`. It is a member from the first `take` on, and learns of rebalances with later ones.

    `deaf`: it does not learn of them, as a process that was stopped for longer than its session. `first` rotates the
    order in which partitions and topics are read. `keep_place`: a close does not leave the group.
    """

    def __init__(self, broker: MemoryBroker, membership: Membership, *, keep_place: bool = False) -> None:
        self._broker, self._membership, self._keep_place = broker, membership, keep_place
        self.deaf = False
        self.first = 0
        self.cursors = Cursors(broker, membership)
        self._session = self._generation = 0
        self._wanted: dict[Place, int] = {}
        self._anew: set[int] = set()
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
        own, broker = self._membership, self._broker
        if not self._session:
            self._session = broker.join(own.group, own.member, own.topics)
        group = broker.groups[own.group]
        session, before = group.sessions.get(own.member), self.cursors.partitions
        if session is None:  # expired, and back
            self._session = session = broker.join(own.group, own.member, own.topics)
            taken.rebalances += [Revoked(number) for number in before]
            before = []
        if session != self._session:
            hint = "give every process its own member name"
            raise ConflictError(f"another process runs as {own.member} in {own.group}", hint=hint)
        if self._generation == group.generation and not self._anew:
            return
        before = [number for number in before if number not in self._anew]
        taken.rebalances += [Revoked(number) for number in self.cursors.partitions if number in self._anew]
        self._anew.clear()
        self._generation, owned = group.generation, broker.owned(own.group, own.member)
        taken.rebalances += [Revoked(number) for number in before if number not in owned]
        taken.rebalances += [self.cursors.capture(number, group.committed) for number in owned if number not in before]
        for change in taken.rebalances:
            self.cursors.apply(change)

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        return [self._broker.write(record) for record in records]

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
        owned, name, member = self.cursors.partitions, self._membership.group, self._membership.member
        self._wanted = own = {place: position for place, position in self._wanted.items() if place[1] in owned}
        if own and self._broker.commit(name, member, session=self._session, generation=self._generation, at=own):
            self._wanted = {}

    def renew(self, partition: int) -> None:
        self._anew.add(partition)

    def read(self, topic: str, partition: int, offset: int) -> None:
        self.cursors.start(topic, partition, offset)

    def pause(self, topic: str, partition: int) -> None:
        self.cursors.flow(topic, partition, paused=True)

    def resume(self, topic: str, partition: int) -> None:
        self.cursors.flow(topic, partition, paused=False)

    def close(self) -> None:
        """See `EventLog`."""
        own = self._membership
        group = self._broker.groups.get(own.group)
        if group and group.sessions.get(own.member) == self._session and not self._keep_place:
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
