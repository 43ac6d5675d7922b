"""The cluster in memory: partitions and groups.

Nothing here is random and nothing waits. Whoever holds the broker makes its faults: a partition is compacted or
truncated, a member's session expires while the member goes on as a zombie.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace

from refold.core.errors import UsageError
from refold.engine.ports.log import NEVER, Delivery, Outgoing, Place, Record


@dataclass(slots=True)
class Partition:
    """Records by offset, with holes where compaction or a transaction left them, between the two watermarks.

    `cuts` are the ends that it was truncated to, one after the other.
    """

    records: list[Record] = field(default_factory=list)
    start: int = 0
    end: int = 0
    cuts: list[int] = field(default_factory=list)

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
        clock_ms: Callable[[], int] = lambda: 1,
    ) -> None:
        self.partitions = partitions
        self.topics = tuple(topics)
        self.groups: dict[str, Group] = {}
        self._max_bytes, self._clock_ms = max_bytes, clock_ms
        self._logs = {(topic, number): Partition() for topic in self.topics for number in range(partitions)}
        self._next = 0

    def copied(self) -> MemoryBroker:
        """A cluster of its own with the same records, which nobody changes, and groups."""
        found = copy(self)
        found.groups = deepcopy(self.groups)
        found._logs = {
            place: replace(log, records=[*log.records], cuts=[*log.cuts]) for place, log in self._logs.items()
        }
        return found

    def log(self, topic: str, partition: int) -> Partition:
        """A partition. **Raises** UsageError when there is none."""
        try:
            return self._logs[topic, partition]
        except KeyError:
            hint = "create the topics with `refold topics apply`"
            raise UsageError(f"there is no partition {partition} of {topic}", hint=hint) from None

    def clock_ms(self, topic: str) -> int:
        """The time where a topic lies."""
        return self._clock_ms()

    def write(self, record: Outgoing) -> Delivery:
        """Appends a record, unless it is too large."""
        topic, number, key, value, headers, token, _ = record
        log = self.log(topic, number)
        if len(key) + len(value or b"") > self._max_bytes:
            return Delivery(token, NEVER)
        offset, at_ms = log.end, self.clock_ms(topic)
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
        """Deletes the records below an offset, as retention does; no log starts beyond its end."""
        log = self.log(topic, partition)
        below = min(below, log.end)
        log.records, log.start = log.read(below, log.end), below

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Loses the records from an offset on, though they were acknowledged, as an unclean election does."""
        log = self.log(topic, partition)
        log.records, log.end = log.read(log.start, end), end
        log.cuts.append(end)

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
