"""Feeds a generation of a projection from the log: batch by batch, and whole runs by the fold of all readers."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import accumulate, takewhile
from typing import cast

from refold.client.operations.runs import run_named
from refold.client.reading.history import Run, feed
from refold.console.projections.projector import Accepted, Projector, WholeRun
from refold.console.projections.publishing import RunRows
from refold.core.errors import ConflictError, UsageError
from refold.core.ids import EntryId, RunId, home, root_of
from refold.core.run.erased import Markers
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.engine.ports.log import LogFeed, LogReader, LogSource, Place, Record
from refold.engine.ports.tables import ViewStore
from refold.sdk.projection import Projection

MOST_RECORDS = 2_000
"""Records of a batch at most: with 5,000 a rebuild took as long, and 25 MiB more."""
FED_BYTES = 16 << 20
OLDEST_S = 0.2
"""Longest wait of a batch for more records; the delay for readers."""
_LAST = "last "
"""Prefix of the note with the last record read of a partition."""


class Follower:
    """A generation that follows the log; `store` contains its rows. Not thread-safe."""

    def __init__(
        self,
        projection: Projection,
        store: ViewStore,
        source: LogSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        rows: RunRows | None = None,
    ) -> None:
        self.projection, self.store, self.rows = projection, store, rows
        self.projector = Projector(projection, store, LoggedRuns(source.reader), notes_replaced=rows is not None)
        notes, positions = store.notes(), store.positions()
        # After the positions: another process may move them until it is known to have ended.
        bounds = source.bounds()
        self.positions = dict.fromkeys(bounds, 0) | positions
        self._last = _last_records(notes)
        self._source, self._clock = source, clock
        self._feed: LogFeed | None = None
        self._until: Mapping[Place, int] | None = None
        if reason := misplaced(notes, self.positions, source.identity(), bounds):
            raise self._lost(reason)

    def _lost(self, reason: str) -> UsageError:
        name = self.projection.name
        ways_out = f"`refold projection rebuild {name}` reads this log from its start; or name another database"
        return UsageError(f"the views of {name} stand still: {reason}", hint=ways_out)

    def advance(self, timeout_s: float, until: Mapping[Place, int] | None = None) -> int:
        """Apply the next batch, up to the positions `until`, and return its number of records."""
        if until != self._until:
            # The feed has dropped records behind the earlier bound: another one begins at the positions.
            self.close()
            self._until = until
        feed = self._feed = self._feed or self._source.feed(self._places())
        batch = [record for record in self._take_batch(feed, timeout_s) if self._is_new(record)]
        if steps := self._moves(feed, batch):
            self._apply(batch, steps)
        if self._marking and not self._behind_in(RUN_SNAPSHOT):
            self.close()
        return len(batch)

    def _apply(self, batch: list[Record], steps: Mapping[Place, tuple[int, int]]) -> None:
        newest = {(record.topic, record.partition): record for record in batch}
        last = {place: _record_mark(record) for place, record in newest.items()}
        # A marker is written before the tombstones that follow it, so markers of a batch come first.
        batch.sort(key=lambda record: record.topic != RUN_SNAPSHOT)
        notes = {f"{_LAST}{topic}/{n}": at for (topic, n), at in last.items()}
        changes = self.projector.apply(batch, steps, notes)
        self._last |= last
        self.positions.update({place: after for place, (_, after) in steps.items()})
        if self.rows is not None:
            self.rows.publish(changes)

    def _is_new(self, record: Record) -> bool:
        """True if a record is to be applied. **Raises** UsageError if the log has another record at the position."""
        place = record.topic, record.partition
        # A log that was cut may have grown beyond the position since: offsets alone do not show it.
        if record.offset < self.positions[place]:
            if place in self._last and self._last[place] != _record_mark(record):
                raise self._lost(f"the log has lost its end: {place[0]}/{place[1]} has another record {record.offset}")
            return False
        return self._until is None or record.offset < self._until.get(place, 0)

    def _up_to_bound(self, ends: Mapping[Place, int]) -> dict[Place, int]:
        until = self._until
        return {place: end if until is None else min(end, until.get(place, 0)) for place, end in ends.items()}

    def _moves(self, feed: LogFeed, records: Iterable[Record]) -> dict[Place, tuple[int, int]]:
        reached = self._up_to_bound(feed.reached)
        reached |= {(record.topic, record.partition): record.offset + 1 for record in records}
        positions = self.positions
        return {place: (positions[place], after) for place, after in reached.items() if after > positions[place]}

    def reach(self, until: Mapping[Place, int], timeout_s: float = 60.0) -> None:
        """Advance to exactly these positions. **Raises** ConflictError if their records do not arrive."""
        advanced = self._clock()
        while any(self.positions[place] < end for place, end in until.items()):
            if self.advance(0.1, until):
                advanced = self._clock()
            elif self._clock() - advanced > timeout_s:
                raise ConflictError(f"the log is at {self.positions}, and does not come to {dict(until)}")

    def close(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _places(self) -> dict[Place, int]:
        """Return the offsets to read from, by place; the last record of each is read again."""
        bounds = self._source.bounds()
        # Beyond `until` nothing is applied: markers that came since must not keep the other topics from being read.
        self._ends = self._up_to_bound({place: end for place, (_, end) in bounds.items()})
        # Markers first: a tombstone without a marker costs a look at its run.
        self._marking = self._behind_in(RUN_SNAPSHOT)
        places = [place for place in self.positions if not self._marking or place[0] == RUN_SNAPSHOT]
        return {place: max(self._offset_to_read(place), bounds[place][0]) for place in places}

    def _offset_to_read(self, place: Place) -> int:
        return int(self._last[place].partition(" ")[0]) if place in self._last else self.positions[place]

    def _behind_in(self, topic: str) -> bool:
        return any(self.positions[place] < end for place, end in self._ends.items() if place[0] == topic)

    def _take_batch(self, feed: LogFeed, timeout_s: float) -> list[Record]:
        records = feed.take(timeout_s)
        begun, size = self._clock(), sum(len(record.value or b"") for record in records)
        while records and len(records) < MOST_RECORDS and size < FED_BYTES and self._clock() - begun < OLDEST_S:
            more = feed.take(0)
            if not more:
                break
            size += sum(len(record.value or b"") for record in more)
            records += more
        return records


def _record_mark(record: Record) -> str:
    # Keys repeat in other topics, so their digest includes the time.
    own = record.key or b"" if record.topic == RUN_LOG else f"{record.key!r} {record.at_ms}".encode()
    return f"{record.offset} {blake2b(own, digest_size=8).hexdigest()}"


def _last_records(notes: Mapping[str, str]) -> dict[Place, str]:
    names = {name: name.removeprefix(_LAST).rpartition("/") for name in notes if name.startswith(_LAST)}
    return {(topic, int(number)): notes[name] for name, (topic, _, number) in names.items()}


def misplaced(
    notes: Mapping[str, str], positions: Mapping[Place, int], log: str, bounds: Mapping[Place, tuple[int, int]]
) -> str:
    """Return the reason why positions do not fit a log (another log, lost records), or empty."""
    if (of := notes.get("log", "")) != log:
        return f"they are of the log {of}, and this one is {log}"
    for place, (start, end) in bounds.items():
        at = positions.get(place, 0)
        cut = f"{place[0]}/{place[1]} has the records {start} to {end}, and they go on at {at}"
        if at > end:
            return f"the log has lost its end: {cut}"
        if at and place[0] == RUN_LOG and start > at:  # other topics lose superseded and old records
            return f"the log has lost its beginning: {cut}"
    return ""


def lags(positions: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
    """Return each position's distance from the high watermark, in offsets."""
    return {place: max(0, end - positions.get(place, 0)) for place, (_, end) in bounds.items()}


# The hash takes as long as the rest of a record, and each run has several records.
_home = lru_cache(1 << 14)(home)


class LoggedRuns:
    """`WholeRuns` read by scans of the runs' home partitions. `recorded_home`: that of an archived run."""

    def __init__(self, reader: LogReader, recorded_home: int | None = None) -> None:
        self._reader, self._recorded_home = reader, recorded_home

    @cached_property
    def partitions(self) -> int:
        return self._reader.partitions(RUN_LOG)

    def home(self, run: RunId) -> int:
        return _home(root_of(run), self.partitions) if self._recorded_home is None else self._recorded_home

    def read(self, runs: Collection[RunId], ends: Mapping[int, int]) -> Mapping[RunId, WholeRun]:
        homes: dict[int, set[RunId]] = {}
        for run in runs:
            homes.setdefault(self.home(run), set()).add(run)
        runs_read: dict[RunId, WholeRun] = {}
        for partition, missing in homes.items():
            runs_read |= self._read(partition, missing, ends.get(partition))
        return runs_read

    def _read(self, partition: int, missing: Collection[RunId], end: int | None) -> dict[RunId, WholeRun]:
        names, fold = {run.encode(): run for run in missing}, LogFold()
        read = {run: Run.empty(run) for run in missing}
        since: dict[RunId, dict[EntryId, int]] = {run: {} for run in missing}
        scanned = self._reader.scan(RUN_LOG, partition)
        for record in takewhile(lambda record: end is None or record.offset < end, scanned):
            if run := names.get(run_named(record)):
                read[run].take(judged := feed(fold, record), fold)
                records = read[run].records
                for part in records if judged.linked or judged.mended else records[-1:]:
                    since[run].setdefault(part.id, record.offset)
        fold.settle()
        markers = Markers((record.key, record.value) for record in self._reader.scan(RUN_SNAPSHOT, partition))
        return {
            run: WholeRun(marked=True) if run in markers.runs else _history(part, fold.frozen.get(run, ""), since[run])
            for run, part in read.items()
        }


def _history(run: Run, reason: str, since: Mapping[EntryId, int]) -> WholeRun:
    # An entry counts once those before it do, however their records lie in the log.
    latest = accumulate((since[judged.id] for judged in run.records), max)
    entries = [
        Accepted(judged.id, judged.entry, cast(Record, judged.record), offset)
        for judged, offset in zip(run.records, latest, strict=True)
        if judged.entry is not None
    ]
    orphans = any(judged.entry and judged.entry.seq > run.state.head.seq for judged in run.void)
    return WholeRun(entries, reason, orphans=orphans)
