"""A log in memory as a source of views, and histories to put into it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from benchmarks.prefill import finished

from refold.console.projections.service import KeptProjection
from refold.core.ids import RunId, home, parse_log_key
from refold.core.messages import RunErased
from refold.core.run.erased import erased_key
from refold.core.topics import RUN_LOG, RUN_SIGNALLED, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.adapters.kafka.source import TOPICS
from refold.engine.ports.log import Place, Record

T0 = 1_790_000_000_000

attentive = partial(KeptProjection, refresh_s=0.0)
"""A projection that looks for generations of other processes in each turn."""


class ListedLog:
    """See `LogSource` and `LogReader`: lists of records by topic and partition."""

    def __init__(self, partitions: int = 2, name: str = "log-1") -> None:
        self.name, self.number = name, partitions
        self.lists: dict[Place, list[Record]] = {
            (topic, number): [] for topic in (*TOPICS, RUN_SIGNALLED) for number in range(partitions)
        }
        self.starts: dict[Place, int] = {}
        self.ends = dict.fromkeys(self.lists, 0)

    @property
    def reader(self) -> ListedLog:
        return self

    def append(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        place = topic, partition
        self.lists[place].append(Record(topic, partition, self.ends[place], key, value, list, T0))
        self.ends[place] += 1

    def write(self, key: bytes, value: bytes | None) -> None:
        """Appends a record of the run log to the home of its run."""
        parts = parse_log_key(key)
        assert parts is not None
        self.append(RUN_LOG, home(parts[0], self.number), key, value)

    def finish(self, *runs: str, each: int = 1_000) -> None:
        """Appends whole runs of ten calls, a record of each in turn."""
        histories = [list(finished(RunId(run), T0 + number * each)) for number, run in enumerate(runs)]
        for place in range(max(map(len, histories))):
            for history in histories:
                if place < len(history):
                    self.write(*history[place])

    def mark(self, run: str, *, marked: bool = True, file: str = "") -> None:
        """Appends a marker of a run that is being erased, or takes it back."""
        value = codec.encode(RunErased(RunId(run), file=file)) if marked else None
        self.append(RUN_SNAPSHOT, home(RunId(run), self.number), erased_key(RunId(run)), value)

    def bury(self, run: str) -> None:
        """Appends a tombstone for each record of a run."""
        for record in list(self.lists[RUN_LOG, home(RunId(run), self.number)]):
            parts = parse_log_key(record.key)
            if parts is not None and parts[0] == run and record.value is not None:
                self.write(record.key or b"", None)

    def clean(self) -> None:
        """Removes what has a tombstone, and the tombstones; offsets stay."""
        for place, records in self.lists.items():
            dead = {record.key for record in records if record.value is None}
            self.lists[place] = [record for record in records if record.key not in dead]

    def identity(self) -> str:
        return self.name

    def bounds(self) -> dict[Place, tuple[int, int]]:
        return {place: (self.starts.get(place, 0), end) for place, end in self.ends.items() if place[0] in TOPICS}

    def feed(self, positions: Mapping[Place, int]) -> ListedFeed:
        return ListedFeed(self, dict(positions))

    def partitions(self, topic: str) -> int:
        return self.number

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        places = [place for place in self.lists if place[0] == topic and partition in (None, place[1])]
        return iter([record for place in places for record in self.lists[place]])

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        raise NotImplementedError

    def tail_kinds(self, kinds: Collection[str], partition: int) -> Iterator[Record | None]:
        raise NotImplementedError


class ListedFeed:
    """See `LogFeed`. Gives `most` records at a time."""

    most = 7

    def __init__(self, log: ListedLog, positions: dict[Place, int]) -> None:
        self._log, self._positions = log, positions
        self.reached: dict[Place, int] = {}

    def take(self, timeout_s: float) -> list[Record]:
        found: list[Record] = []
        for place, at in self._positions.items():
            records = [record for record in self._log.lists[place] if record.offset >= at][: self.most]
            if records:
                self._positions[place] = records[-1].offset + 1
                found += records
            else:
                self.reached[place] = self._log.bounds()[place][1]
        return found

    def close(self) -> None:
        self._positions = {}
