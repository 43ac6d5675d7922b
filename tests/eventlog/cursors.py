"""The rules of `EventLog` about positions, in memory and without a group.

The simulator, whose groups are its own, reads with them too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from refold.engine.ports.log import Assigned, Membership, Place, Reached, Revoked, Shrunk, Taken
from tests.eventlog.broker import MemoryBroker, Partition

Fetch = Callable[[int, int], int]


@dataclass(slots=True, eq=False)
class Cursor:
    """Where a partition is read. `end` is one to be told of.

    `cuts` is how often the log was truncated when a record was read last, as the record's leader epoch says on Kafka;
    before the first nobody can say.
    """

    topic: str
    partition: int
    log: Partition
    position: int
    end: int | None = None
    paused: bool = False
    cuts: int = sys.maxsize

    @property
    def lost(self) -> bool:
        """Whether the log has lost what was read, or ends before it, though it may have grown again since."""
        log, position = self.log, self.position
        return position > log.end or (self.cuts < len(log.cuts) and min(log.cuts[self.cuts :]) < position)

    def read(self, upto: int, taken: Taken) -> None:
        """Goes on to an offset. Where no record says how far that is, or the end is there, it is told."""
        records = self.log.read(self.position, upto)
        taken.records += records
        self.position = upto
        if records:
            self.cuts = len(self.log.cuts)
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
        self._paused: set[Place] = set()
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
            elif cursor.lost or (cursor.end is not None and cursor.position >= cursor.end):
                return True
        return False

    def find(self, topic: str, partition: int) -> Cursor | None:
        """Where it reads in a partition of a topic, if it does."""
        return next((each for each in self._cursors if (each.topic, each.partition) == (topic, partition)), None)

    def awaits(self, topic: str, partition: int) -> bool:
        """Whether it has not read so far what was there when it got the partition."""
        cursor = self.find(topic, partition)
        return (topic, partition) in self._ends or (cursor is not None and cursor.end is not None)

    def flow(self, topic: str, partition: int, *, paused: bool) -> None:
        """Reads no more in a partition of a topic, or goes on."""
        (self._paused.add if paused else self._paused.discard)((topic, partition))
        if cursor := self.find(topic, partition):
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
        self._paused = {place for place in self._paused if place[1] != number}
        if isinstance(change, Assigned):
            self.partitions.append(number)
            self._ends |= {(topic, number): end for topic, end in change.ends.items()}

    def start(self, topic: str, partition: int, offset: int) -> None:
        """Reads a partition that is the member's from an offset on."""
        if partition not in self.partitions:
            return
        place, log = (topic, partition), self._broker.log(topic, partition)
        self._cursors = [cursor for cursor in self._cursors if (cursor.topic, cursor.partition) != place]
        self._cursors.append(Cursor(topic, partition, log, offset, self._ends.pop(place, None), place in self._paused))

    def read(self, taken: Taken, limit: int = sys.maxsize, *, first: int = 0) -> None:
        """Takes what is there, up to `limit` records; `first` rotates the order, which Kafka leaves open."""
        cursors = self._cursors
        if first and cursors:
            turn = first % len(cursors)
            cursors = cursors[turn:] + cursors[:turn]
        for cursor in cursors:
            log, position = cursor.log, cursor.position
            if cursor.lost:
                self._cursors = [each for each in self._cursors if each is not cursor]
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
