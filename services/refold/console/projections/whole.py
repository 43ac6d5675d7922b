"""Reads whole runs from the run log, by the fold shared by all readers."""

from collections.abc import Collection, Mapping
from functools import cached_property, lru_cache
from itertools import accumulate, takewhile
from typing import cast

from refold.client.operations.runs import run_named
from refold.client.reading.history import Run, feed
from refold.console.projections.projector import Accepted, WholeRun
from refold.core.ids import EntryId, RunId, home, root_of
from refold.core.run.erased import Markers
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.engine.ports.log import LogReader, Record

# The hash takes as long as the rest of a record, and each run has several records.
_home = lru_cache(1 << 14)(home)


class LoggedRuns:
    """`WholeRuns` read by scans of the runs' home partitions."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    @cached_property
    def partitions(self) -> int:
        return self._reader.partitions(RUN_LOG)

    def home(self, run: RunId) -> int:
        return _home(root_of(run), self.partitions)

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
        for record in takewhile(
            lambda record: end is None or record.offset < end, self._reader.scan(RUN_LOG, partition)
        ):
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
