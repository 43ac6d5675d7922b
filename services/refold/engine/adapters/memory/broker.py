"""Cluster in memory: partitions and groups. Nothing is random and nothing waits. Faults are calls of its owner: a
partition is compacted or truncated, a member's session expires while the member goes on as a zombie."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Self

from refold.core.errors import UsageError
from refold.engine.ports.log import NEVER, Delivery, Outgoing, Place, Record


@dataclass(slots=True)
class Partition:
    """Records by offset between two watermarks, with holes of compaction and transactions. `cuts`: ends after each
    truncation, in order."""

    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0
    cuts: list[int] = field(default_factory=list)

    def read(self, position: int, upto: int) -> list[Record]:
        """Records from a position on, below `upto`."""
        return self.records[self._index(position) : self._index(upto)]

    def beyond(self, position: int, count: int) -> int:
        """Position after `count` records from a position on."""
        last = self._index(position) + count - 1
        return self.records[last].offset + 1 if last + 1 < len(self.records) else self.end

    def append(self, record: Record) -> None:
        self.records.append(record)
        self.end = record.offset + 1

    def skip(self, count: int) -> None:
        self.end += count

    def keep(self, records: list[Record]) -> int:
        """Keep these records alone; return the number of removed ones."""
        gone, self.records = len(self.records) - len(records), records
        return gone

    def delete(self, below: int) -> None:
        self.start = min(below, self.end)
        self.records = self.read(self.start, self.end)

    def truncate(self, end: int) -> None:
        self.records, self.end = self.read(self.start, end), end
        self.cuts.append(end)

    def _index(self, offset: int) -> int:
        dense = len(self.records) == self.end
        return offset if dense else bisect_left(self.records, offset, key=lambda record: record.offset)


@dataclass(slots=True)
class Group:
    """Members of a group and its committed offsets. A session differs between a process and its successor of the same
    name."""

    generation: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)

    def join(self, member: str, session: int) -> None:
        self.generation += member not in self.sessions
        self.sessions[member] = session

    def expire(self, member: str) -> None:
        self.generation += self.sessions.pop(member, None) is not None


class MemoryBroker:
    """Topics with equal partition counts, and groups. `max_bytes` limits key and value of a record together, as
    `max.message.bytes` does; `clock_ms` is the broker's clock. `changed` is the lock of all content, and its notice of
    changes."""

    def __init__(
        self,
        topics: Iterable[str],
        partitions: int = 1,
        *,
        max_bytes: int = 8 << 20,
        clock_ms: Callable[[], int] = lambda: 1,
    ) -> None:
        self.changed = threading.Condition()
        self.partitions = partitions
        self.topics = tuple(topics)
        self.groups: dict[str, Group] = {}
        self._max_bytes, self._clock_ms = max_bytes, clock_ms
        self._logs = {(topic, number): Partition() for topic in self.topics for number in range(partitions)}
        self._next = 0

    def copied(self) -> Self:
        """Independent copy of the cluster; it shares the records, which are immutable."""
        twin = copy(self)
        twin._part()
        return twin

    def _part(self) -> None:
        self.groups, logs = deepcopy(self.groups), self._logs.items()
        self._logs = {place: replace(log, records=[*log.records], cuts=[*log.cuts]) for place, log in logs}

    def log(self, topic: str, partition: int) -> Partition:
        """A partition. **Raises** UsageError if it is missing."""
        try:
            return self._logs[topic, partition]
        except KeyError:
            hint = "create the topics with `refold topics apply`"
            raise UsageError(f"there is no partition {partition} of {topic}", hint=hint) from None

    def clock_ms(self, topic: str) -> int:
        """Time of the broker that leads a topic."""
        return self._clock_ms()

    def write(self, record: Outgoing) -> Delivery:
        """Append a record, unless it is too large."""
        if not self.fits(record):
            return Delivery(record.token, NEVER)
        return self._store(record, self.clock_ms(record.topic))

    def fits(self, record: Outgoing) -> bool:
        return len(record.key) + len(record.value or b"") <= self._max_bytes

    def _store(self, record: Outgoing, at_ms: int) -> Delivery:
        topic, number, key, value, headers, token, _ = record
        log = self.log(topic, number)
        offset = log.end
        log.append(Record(topic, number, offset, key, value, lambda: list(headers), at_ms))
        return Delivery(token, offset, at_ms)

    def skip(self, topic: str, partition: int, count: int = 1) -> None:
        """Use up offsets without a record, as markers of a transaction do."""
        self.log(topic, partition).skip(count)

    def compact(self, topic: str, partition: int, *, below: int | None = None, tombstones: bool = False) -> int:
        """Keep the last record per key, at its offset; return the number of removed ones. Records from `below` on stay,
        as by a topic's compaction lag, and still replace earlier ones; `tombstones` are removed too."""
        log = self.log(topic, partition)
        clean = log.end if below is None else below
        last = {record.key: record.offset for record in log.records}
        left = [
            record
            for record in log.records
            if record.offset >= clean
            or (last[record.key] == record.offset and not (tombstones and record.value is None))
        ]
        return log.keep(left)

    def delete(self, topic: str, partition: int, *, below: int) -> None:
        """Delete records below an offset, as retention does; no log starts beyond its end."""
        self.log(topic, partition).delete(below)

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Lose acknowledged records from an offset on, as an unclean election does."""
        self.log(topic, partition).truncate(end)

    # Groups

    def join(self, name: str, member: str, topics: tuple[str, ...]) -> int:
        """Add a process to a group; return its session. A process of the same name is replaced, and keeps its place."""
        for topic in topics:
            self.log(topic, 0)
        self._next += 1
        self.groups.setdefault(name, Group()).join(member, self._next)
        return self._next

    def expire(self, name: str, member: str) -> None:
        """End a member's session: its partitions go to the others, maybe unnoticed by the member."""
        self.groups[name].expire(member)

    def owned(self, name: str, member: str) -> list[int]:
        """Partition numbers of a member: blocks by sorted name, as by Kafka's range assignor."""
        members = sorted(self.groups[name].sessions)
        if member not in members:
            return []
        share, more = divmod(self.partitions, len(members))
        place = members.index(member)
        start = place * share + min(place, more)
        return list(range(start, start + share + (place < more)))

    def commit(self, name: str, member: str, *, session: int, generation: int, at: Mapping[Place, int]) -> bool:
        """Set positions of a group; False, without effect, for a process that lost its place in the group."""
        group = self.groups[name]
        if group.sessions.get(member) != session or group.generation != generation:
            return False
        group.committed.update(at)
        return True
