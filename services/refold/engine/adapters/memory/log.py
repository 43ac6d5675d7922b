"""Event log in memory, a full peer of Kafka: a member's view of a `MemoryBroker`, and a reader without a group."""

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from refold.core.errors import ConflictError, NotFoundError
from refold.core.topics import kind_of
from refold.engine.adapters.memory.broker import MemoryBroker, Partition
from refold.engine.adapters.memory.lasting import LastingBroker
from refold.engine.ports.log import (
    Assigned,
    Delivery,
    Depth,
    Membership,
    Outgoing,
    Place,
    Reached,
    Record,
    Revoked,
    Shrunk,
    Taken,
)

Fetch = Callable[[int, int], int]


@dataclass(slots=True, eq=False)
class PartitionCursor:
    """Reading position in a partition. `end`: offset to report once reached. `cuts`: truncations of the log before the
    last read, as by the leader epoch of Kafka's records; unknown before the first record."""

    topic: str
    partition: int
    log: Partition
    position: int
    end: int | None = None
    paused: bool = False
    cuts: int = sys.maxsize

    @property
    def lost(self) -> bool:
        """True if records that were read are lost, though the log may have grown again since."""
        log, position = self.log, self.position
        return position > log.end or (self.cuts < len(log.cuts) and min(log.cuts[self.cuts :]) < position)

    def flow(self, *, paused: bool) -> None:
        self.paused = paused

    def nearer(self, upto: int, left: int) -> int:
        """An offset, or the one that follows so many records."""
        return upto if upto - self.position <= left else min(upto, self.log.beyond(self.position, left))

    def read(self, upto: int, taken: Taken) -> None:
        """Read up to an offset, and report it at the end or where no record shows it."""
        records = self.log.read(self.position, upto)
        taken.records.extend(records)
        self.position = upto
        if records:
            self.cuts = len(self.log.cuts)
        ended = self.end is not None and upto >= self.end
        if ended or not records or records[-1].offset + 1 < upto:
            taken.reached.append(Reached(self.topic, self.partition, upto))
        if ended:
            self.end = None


class Cursors:
    """Reading positions of a member. `fetch` returns the offset to which a poll reads, between a position and an end:
    simulators read less than all. `partitions`: assigned numbers, as last reported to the member."""

    def __init__(self, broker: MemoryBroker, membership: Membership, fetch: Fetch = lambda position, end: end) -> None:
        self.fetch = fetch
        self._broker, self._membership = broker, membership
        self._cursors: list[PartitionCursor] = []
        self._ends: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self.partitions: list[int] = []

    @property
    def at_end(self) -> bool:
        """True if there is nothing to read."""
        return all(cursor.position >= cursor.log.end for cursor in self._cursors)

    def waiting(self) -> bool:
        """True if `read` would return something; far cheaper than a read that returns nothing."""
        for cursor in self._cursors:
            if cursor.position < cursor.log.end:
                if not cursor.paused:
                    return True
            elif cursor.lost or (cursor.end is not None and cursor.position >= cursor.end):
                return True
        return False

    def find(self, topic: str, partition: int) -> PartitionCursor | None:
        """PartitionCursor of a place, if it is read."""
        return next((own for own in self._cursors if (own.topic, own.partition) == (topic, partition)), None)

    def awaits(self, topic: str, partition: int) -> bool:
        """True if records from before the assignment are unread."""
        cursor = self.find(topic, partition)
        return (topic, partition) in self._ends or (cursor is not None and cursor.end is not None)

    def flow(self, topic: str, partition: int, *, paused: bool) -> None:
        """Pause or resume reading of a place."""
        (self._paused.add if paused else self._paused.discard)((topic, partition))
        if cursor := self.find(topic, partition):
            cursor.flow(paused=paused)

    def capture(self, partition: int, committed: Mapping[Place, int]) -> Assigned:
        """Assignment of a partition number, by the present state."""
        logs = {name: self._broker.log(name, partition) for name in self._membership.topics}
        known = {name: committed[name, partition] for name in logs if (name, partition) in committed}
        starts, ends = ({name: getattr(log, edge) for name, log in logs.items()} for edge in ("start", "end"))
        return Assigned(partition, known, starts, ends)

    def apply(self, change: Assigned | Revoked) -> None:
        """Begin or end the right to read a partition number."""
        number = change.partition
        self._cursors = [cursor for cursor in self._cursors if cursor.partition != number]
        self.partitions = [own for own in self.partitions if own != number]
        self._paused = {place for place in self._paused if place[1] != number}
        if isinstance(change, Assigned):
            self.partitions.append(number)
            self._ends |= {(topic, number): end for topic, end in change.ends.items()}

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Read an assigned partition from an offset on."""
        if partition not in self.partitions:
            return
        place, log = (topic, partition), self._broker.log(topic, partition)
        self._cursors = [cursor for cursor in self._cursors if (cursor.topic, cursor.partition) != place]
        self._cursors.append(
            PartitionCursor(topic, partition, log, offset, self._ends.pop(place, None), place in self._paused)
        )

    def read(self, taken: Taken, limit: int = sys.maxsize, *, first: int = 0) -> None:
        """Read what is there, up to `limit` records; `first` rotates the order of places, which is open on Kafka."""
        cursors = self._cursors
        if first and cursors:
            turn = first % len(cursors)
            cursors = cursors[turn:] + cursors[:turn]
        for cursor in cursors:
            self._read_at(cursor, taken, limit - len(taken.records))

    def _read_at(self, cursor: PartitionCursor, taken: Taken, left: int) -> None:
        log, position = cursor.log, cursor.position
        if cursor.lost:
            self._cursors = [own for own in self._cursors if own is not cursor]
            taken.shrunk.append(Shrunk(cursor.topic, cursor.partition, log.end))
        elif position < log.start:
            cursor.read(log.start, taken)
        elif position < log.end:
            if left > 0 and not cursor.paused:
                cursor.read(cursor.nearer(self.fetch(position, log.end), left), taken)
        elif cursor.end is not None and position >= cursor.end:
            cursor.read(position, taken)


class MemoryEventLog:
    """See `EventLog`; a member from the first `take` on. `deaf`: rebalances go unnoticed, as by a process that was
    stopped for longer than its session. `first` rotates the order in which places are read. `keep_place`: a close does
    not leave the group."""

    def __init__(self, broker: MemoryBroker, membership: Membership, *, keep_place: bool = False) -> None:
        self._broker, self._membership, self._keep_place = broker, membership, keep_place
        self.deaf = self._left = False
        self.first = 0
        self.cursors = Cursors(broker, membership)
        self._session = self._generation = 0
        self._wanted: dict[Place, int] = {}
        self._reopened: set[int] = set()
        self._assignments: dict[int, int] = {}
        self._numbered = 0
        self._reported: deque[Delivery] = deque()

    def take(self, limit: int, timeout_s: float) -> Taken:
        """See `EventLog`. Never waits. **Raises** ConflictError when another process has this member's name."""
        taken = Taken()
        with self._broker.changed:
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
            taken.rebalances.extend([Revoked(number) for number in before])
            before = []
        if not self._left:
            self._assign(taken, before)
        for change in taken.rebalances:
            self.cursors.apply(change)

    def _keep_session(self) -> bool:
        """Join the group, if need be; False if the session had expired, and a new one began."""
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
        """Revoke and assign partitions by the group's generation, and those to be reopened. `before`: present ones."""
        own, group = self._membership, self._broker.groups[self._membership.group]
        if self._generation == group.generation and not self._reopened:
            return
        owned = self._broker.owned(own.group, own.member)
        staying = [number for number in before if number in owned and number not in self._reopened]
        taken.rebalances.extend(map(Revoked, self._leaving(before, owned)))
        self._reopened.clear()
        self._generation = group.generation
        for number in [number for number in owned if number not in staying]:
            self._numbered += 1
            self._assignments[number] = self._numbered
            taken.rebalances.append(replace(self.cursors.capture(number, group.committed), assignment=self._numbered))

    def _leaving(self, before: list[int], owned: list[int]) -> list[int]:
        again = [number for number in self.cursors.partitions if number in self._reopened]
        return again + [number for number in before if number not in self._reopened and number not in owned]

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        return [self._broker.write(record) for record in records]

    def push(self) -> None:
        """See `EventLog`. Nothing lingers here."""

    def publish(self, records: Sequence[Outgoing]) -> None:
        self._reported.extend(self.append(records))

    def end(self, topic: str, partition: int) -> int:
        return self._broker.log(topic, partition).end

    def committed(self, group: str, topic: str) -> dict[int, int]:
        with self._broker.changed:
            places = self._broker.groups[group].committed if group in self._broker.groups else {}
            return {number: position for (name, number), position in places.items() if name == topic}

    def commit(self, positions: Mapping[Place, int]) -> None:
        with self._broker.changed:
            self._wanted.update(positions)
            self._commit()

    def _commit(self) -> None:
        """Repeat commits that the group refused during a rebalance, until it accepts them or the partition is gone."""
        owned, name, member = self.cursors.partitions, self._membership.group, self._membership.member
        self._wanted = own = {place: position for place, position in self._wanted.items() if place[1] in owned}
        if own and self._broker.commit(name, member, session=self._session, generation=self._generation, at=own):
            self._wanted = {}

    def reopen(self, partition: int) -> None:
        with self._broker.changed:
            self._reopened.add(partition)
            self._broker.changed.notify_all()

    def read(self, topic: str, partition: int, offset: int, *, under: int | None = None) -> None:
        with self._broker.changed:
            if self._holds(partition, under):
                self.cursors.start(topic, partition, offset)
                self._broker.changed.notify_all()

    def pause(self, topic: str, partition: int, *, under: int | None = None) -> None:
        self._flow(topic, partition, under, paused=True)

    def resume(self, topic: str, partition: int, *, under: int | None = None) -> None:
        self._flow(topic, partition, under, paused=False)

    def _flow(self, topic: str, partition: int, under: int | None, *, paused: bool) -> None:
        with self._broker.changed:
            if self._holds(partition, under):
                self.cursors.flow(topic, partition, paused=paused)
                self._broker.changed.notify_all()

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
        with self._broker.changed:
            group = self._broker.groups.get(own.group)
            if group and group.sessions.get(own.member) == self._session:
                self._broker.expire(own.group, own.member)
                self._broker.changed.notify_all()


class LastingEventLog(MemoryEventLog):
    """Member of a lasting broker, for two threads as on Kafka. Published records leave together, with `push`."""

    def __init__(self, broker: LastingBroker, membership: Membership, *, keep_place: bool = False) -> None:
        super().__init__(broker, membership, keep_place=keep_place)
        self._lasting, self._lingering = broker, list[Outgoing]()

    def take(self, limit: int, timeout_s: float) -> Taken:
        """See `EventLog`; waits for any change of the broker."""
        changed = self._broker.changed
        with changed:
            taken = super().take(limit, 0)
            if taken == Taken() and timeout_s > 0:
                self.push()  # of a writer that takes no turns
                taken = super().take(limit, 0)
            if taken == Taken() and timeout_s > 0:
                changed.wait(timeout_s)
                taken = super().take(limit, 0)
            return taken

    def append(self, records: Sequence[Outgoing]) -> list[Delivery]:
        self.push()
        return self._lasting.write_all(records)

    def publish(self, records: Sequence[Outgoing]) -> None:
        with self._broker.changed:
            self._lingering += records

    def push(self) -> None:
        with self._broker.changed:
            if self._lingering:
                lingering, self._lingering = self._lingering, []
                self._reported.extend(self._lasting.write_all(lingering))


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
            records = [record for log, start in logs for record in log.read(start, log.end)]
            for record in records:
                positions[record.topic, record.partition] = record.offset + 1
                yield record
            if not records:
                yield None

    def _numbers(self, topic: str, partition: int | None) -> Iterable[int]:
        count = self.partitions(topic)
        return range(count) if partition is None else [partition]
