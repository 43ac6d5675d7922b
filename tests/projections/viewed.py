"""A log in memory, a projection of it, and its runs as every other reader has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from refold.client.reading.history import Run, feed
from refold.console.projections.following import LoggedRuns
from refold.console.projections.projector import HEADS, Projector
from refold.console.projections.shipped.projection import Shipped
from refold.core.ids import RunId, parse_log_key
from refold.core.run.erased import Markers
from refold.core.run.log import LogFold
from refold.core.tables import ViewRow, ViewTable
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.engine.adapters.kafka.source import TOPICS
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.ports.log import Place, Record
from refold.engine.ports.tables import rows_digest
from refold.sdk.projection import Projection
from tests.projections.memory_views import MemoryViewStore


class Log(list[Record]):
    """Records of topics with so many partitions."""

    def __init__(self, records: Iterable[Record], partitions: int = 1) -> None:
        super().__init__(records)
        self.number = partitions

    def partitions(self, topic: str) -> int:
        """See `LogReader`, which this is."""
        return self.number

    def scan(self, topic: str, partition: int | None = None) -> Iterator[Record]:
        """See `LogReader`."""
        return (each for each in list(self) if each.topic == topic and partition in (None, each.partition))

    def tail(self, topic: str, partition: int | None = None) -> Iterator[Record | None]:
        """See `LogReader`. It ends."""
        yield from self.scan(topic, partition)

    def tail_kinds(self, kinds: Any, partition: int) -> Iterator[Record | None]:
        """See `LogReader`. It ends."""
        yield from self.scan(RUN_LOG, partition)


def of_broker(broker: MemoryBroker) -> Log:
    """The records of a broker that views consume."""
    there = [topic for topic in TOPICS if topic in broker.topics]
    places = [(topic, number) for topic in there for number in range(broker.partitions)]
    return Log((record for place in places for record in broker.log(*place).records), broker.partitions)


def of_pairs(pairs: Iterable[tuple[str, str]]) -> Log:
    """Keys and values in hex, as records of a partition."""
    return Log(
        Record(RUN_LOG, 0, offset, bytes.fromhex(key), bytes.fromhex(value), list)
        for offset, (key, value) in enumerate(pairs)
    )


@dataclass
class Viewed:
    """A projection of a log in memory."""

    log: Log
    projection: Projection = field(default_factory=Shipped)
    store: MemoryViewStore = field(default_factory=MemoryViewStore)

    def __post_init__(self) -> None:
        self.projector = Projector(self.projection, self.store, LoggedRuns(self.log))

    @classmethod
    def of(cls, log: Log, size: int = 5_000, **more: Any) -> Viewed:
        """A log that is projected to its end, in batches of this size, in the order in which it is given."""
        made = cls(Log(log, log.number), **more)
        made.apply(made.log, size)
        return made

    def apply(self, records: Sequence[Record], size: int = 5_000) -> None:
        """Apply records, which may be anywhere in the log."""
        for start in range(0, len(records), size):
            batch = records[start : start + size]
            before = self.store.positions()
            moves: dict[Place, tuple[int, int]] = {}
            for record in batch:
                place = record.topic, record.partition
                moves[place] = before.get(place, 0), record.offset + 1
            self.projector.apply(batch, moves)

    def add(self, record: Record) -> None:
        """Append a record to the log, and apply it."""
        self.log.append(record)
        self.apply([record])

    def rows(self, table: ViewTable) -> list[dict[str, Any]]:
        """The rows of a table."""
        return [dict(zip(table.names, row, strict=True)) for row in self.store.scan(table)]

    def row(self, table: ViewTable, *key: Any) -> dict[str, Any]:
        """A row."""
        return dict(zip(table.names, self.store.rows(table, [key])[key], strict=True))

    @property
    def tables(self) -> list[ViewTable]:
        """All tables but that of the heads, which is the projector's own."""
        return [table for table in Projector.tables_of(self.projector.projection) if table != HEADS]

    def digests(self) -> dict[str, int]:
        """A digest of each table."""
        return {table.name: rows_digest(table, self.store.scan(table)) for table in self.tables}

    def everything(self) -> list[ViewRow]:
        """All rows of all tables."""
        return [row for table in self.tables for row in self.store.scan(table)]


def folded(log: Log) -> dict[RunId, Run]:
    """The runs of a log as every reader has them, but for erased ones."""
    runs: dict[RunId, Run] = {}
    markers = Markers((record.key, record.value) for record in log if record.topic == RUN_SNAPSHOT)
    for partition in sorted({record.partition for record in log}):
        fold = LogFold()
        for record in log:
            parts = parse_log_key(record.key)
            if record.topic == RUN_LOG and record.partition == partition and parts:
                runs.setdefault(parts[0], Run.empty(parts[0])).take(feed(fold, record), fold)
    return {name: run for name, run in runs.items() if run.records and name not in markers.runs}
