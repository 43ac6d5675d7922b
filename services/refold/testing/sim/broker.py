"""The simulated broker: partitions that keep order, group offsets, compaction. Its faults are made by `process`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from refold.ports.log import Headers, Record

Place = tuple[str, int]
Written = Callable[[Record], None]


class Broker:
    """Topics by name and partition. An offset is an index; a record that compaction removed is None.

    `written` is told of every record, so that a checker sees what compaction later removes.
    """

    def __init__(self, written: Written) -> None:
        self._written = written
        self.logs: dict[Place, list[Record | None]] = {}
        self.committed: dict[str, dict[Place, int]] = {}

    def log(self, topic: str, partition: int) -> list[Record | None]:
        """The records of a partition by offset."""
        place = (topic, partition)
        found = self.logs.get(place)
        if found is None:
            found = self.logs[place] = []
        return found

    def write(self, place: Place, key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """Appends a record and returns its offset."""
        log = self.log(*place)
        record = Record(*place, len(log), key, value, lambda: headers)
        log.append(record)
        self._written(record)
        return record.offset

    def records(self, topic: str) -> Iterator[Record]:
        """What is left of a topic, partition by partition, in order."""
        for (name, _), log in sorted(self.logs.items(), key=lambda item: item[0]):
            if name == topic:
                yield from (record for record in log if record is not None)

    def compact(self, topic: str, partition: int, below: int) -> int:
        """Keeps the last record of a key among those below an offset; returns how many are gone."""
        log = self.log(topic, partition)
        last: dict[bytes | None, int] = {}
        gone = 0
        for offset in range(min(below, len(log)) - 1, -1, -1):
            record = log[offset]
            if record is None:
                continue
            if record.key in last:
                log[offset] = None
                gone += 1
            else:
                last[record.key] = offset
        return gone
