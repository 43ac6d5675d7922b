"""Hand-over of acknowledged records from the writers of a process to its own readers, in place of a fetch (ADR 39). A
record is in its topic, with its offset, before a reader gets it, and each partition is read in order of offset."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from typing import Any

from refold.engine.ports.log import Outgoing, Place, Record, Shrunk, Taken

AHEAD = 500
"""Records of a partition that wait behind a gap; earlier ones come with the fetch that fills it."""

UNCONFIRMED = 10_000
"""Records of a partition that were handed over and not fetched since: several times 250 ms of the highest rate."""


class Handover:
    """Readers of a process by topic, and the `queue` of their hosts; `stored` is for any thread."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self._readers: dict[str, Callable[[Record], None]] = {}

    def connect(self, topics: Iterable[str], put: Callable[[Record], None]) -> None:
        """Register the one reader of some topics."""
        self._readers.update(dict.fromkeys(topics, put))

    def stored(self, sent: Outgoing, offset: int, at_ms: int) -> None:
        """Offer an acknowledged record to the reader of its topic, if it has one."""
        if put := self._readers.get(sent.topic):
            headers = sent.headers or None
            put(Record(sent.topic, sent.partition, offset, sent.key, sent.value, lambda: headers, at_ms))


class HandedRecords:
    """Records of some topics that are handed over to one reader, merged with those that it fetches."""

    def __init__(self, topics: frozenset[str]) -> None:
        self._topics = topics
        self._places: dict[Place, _Reading] = {}
        self._paused: set[Place] = set()

    def take(self, record: Record) -> list[Record]:
        """Records to read now that one is handed over: none before a gap is filled."""
        place = record.topic, record.partition
        reading = None if place in self._paused else self._places.get(place)
        return reading.take(record) if reading else []

    def merge(self, batch: Taken) -> list[Record]:
        """Records to read now that a batch is fetched: those not handed over, and later ones that waited for them."""
        self._follow_assignment(batch)
        records = [further for record in batch.records for further in self._fetched(record, batch)]
        for end in batch.reached:
            if reading := self._places.get((end.topic, end.partition)):
                records += reading.skip(end.offset)
        return records

    def _follow_assignment(self, batch: Taken) -> None:
        self._places |= {place: _Reading(at) for place, at in batch.begun.items() if place[0] in self._topics}
        for change in batch.rebalances:
            self._places = {place: at for place, at in self._places.items() if place[1] != change.partition}
            self._paused = {place for place in self._paused if place[1] != change.partition}
        for lost in batch.shrunk:
            self._places.pop((lost.topic, lost.partition), None)

    def _fetched(self, record: Record, batch: Taken) -> list[Record]:
        if record.topic not in self._topics:
            return [record]
        place = record.topic, record.partition
        if (reading := self._places.get(place)) is None:
            return []
        if reading.contradicts(record):
            # The log has lost the acknowledged record that was there.
            batch.shrunk.append(Shrunk(*place, record.offset))
            del self._places[place]
            return []
        return [record, *reading.skip(record.offset + 1)] if record.offset >= reading.next else []

    def flow(self, place: Place, *, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(place)

    @property
    def positions(self) -> Mapping[Place, int]:
        return {place: reading.next for place, reading in self._places.items()}


class _Reading:
    """One partition: the offset to read `next`, records handed over and not fetched yet, and those behind a gap."""

    def __init__(self, offset: int) -> None:
        self.next = offset
        self._unread: dict[int, Record] = {}
        self._ahead: deque[Record] = deque(maxlen=AHEAD)

    def take(self, record: Record) -> list[Record]:
        if record.offset < self.next:
            return []  # fetched before its writer knew of it
        if self._ahead and self._ahead[-1].offset + 1 != record.offset:
            self._ahead.clear()  # only records without a further gap can follow at once
        self._ahead.append(record)
        return self._follow() if len(self._unread) < UNCONFIRMED else []

    def skip(self, offset: int) -> list[Record]:
        """Go on at an offset, if it is ahead: everything below was fetched, or is gone."""
        if offset <= self.next:
            return []
        self.next = offset
        self._unread.clear()
        return self._follow()

    def contradicts(self, record: Record) -> bool:
        """Confirm a record by its fetch; return True if another one was handed over."""
        handed = self._unread.pop(record.offset, None)
        return handed is not None and (handed.key, handed.value) != (record.key, record.value)

    def _follow(self) -> list[Record]:
        following: list[Record] = []
        while self._ahead and self._ahead[0].offset <= self.next:
            record = self._ahead.popleft()
            if record.offset == self.next:
                self._unread[record.offset] = record
                self.next += 1
                following.append(record)
        return following
