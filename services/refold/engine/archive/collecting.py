"""Finished runs of the run log with their end times, and all records of chosen runs."""

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import RunId, parents_of, parse_log_key, root_of
from refold.core.messages import EndedRuns
from refold.core.run.finished import ends_of, run_digest, times_of
from refold.core.run.log import LogFold
from refold.core.run.snapshot import OVER_PREFIX
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG, RUN_SNAPSHOT
from refold.core.wire import codec
from refold.engine.archive.container import ArchivedRecord, ArchivedRun, digest_of
from refold.engine.ports.log import LogReader, Record

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ArchivableRun:
    """A finished run: `size` in bytes of records, `pools` of its calls, `seq` of its last event; `above` are its
    ancestors in the log, `below` its unfinished children."""

    run_id: RunId
    agent: str
    status: str
    partition: int
    ended_ms: int
    head: str
    size: int
    pools: tuple[str, ...]
    above: tuple[RunId, ...] = ()
    below: tuple[RunId, ...] = ()
    seq: int = 0


class RunsOfLog(NamedTuple):
    """Runs of a partition: `ended` in order of their ends, without those of unknown state (unreadable, ambiguous, no
    beginning). `begun` has the entry ids of wanted runs with a whole history that may go on; `present` are wanted runs
    with any record but tombstones, `every` all runs with any record."""

    ended: dict[RunId, ArchivableRun]
    begun: dict[RunId, set[str]]
    present: set[RunId]
    every: Collection[RunId]


def runs_of_log(reader: LogReader, partition: int, selected: Container[RunId] = ()) -> RunsOfLog:
    """Fold a partition of the run log; `selected` are the wanted runs of the result."""
    fold, sizes, runs = LogFold(), dict[RunId, int](), dict[RunId, ArchivableRun]()
    left: dict[bytes | None, RunId] = {}
    for record in reader.scan(RUN_LOG, partition):
        judged = fold.feed(record.key, record.value, offset=record.offset, at_ms=record.at_ms)
        size = len(record.key or b"") + len(record.value or b"")
        sizes[judged.run_id] = sizes.get(judged.run_id, 0) + size
        if judged.run_id in selected:
            left[record.key] = RunId("") if record.value is None else judged.run_id
        state = fold.states.get(judged.run_id)
        if judged.void or state is None:
            continue
        if not state.over:
            runs.pop(judged.run_id, None)  # it had failed, and goes on
            continue
        runs[state.run_id] = _ended(state, record)
        # The fold keeps enough to judge later records without the state, whose results would fill the memory. Only a
        # failed run needs its state, to judge a retry.
        if state.status != "failed":
            del fold.states[state.run_id]
    fold.settle()
    ended = _families(runs, fold, sizes)
    present = set(left.values()) - {RunId("")}
    begun = filter(fold.has_all, fold.states.keys() & present)
    heads = {run: {head.id.hex() for head in fold.states[run].heads} for run in begun}
    return RunsOfLog(ended, heads, present, sizes.keys())


def _ended(state: RunState, last: Record) -> ArchivableRun:
    run, agent = state.run_id, state.request.agent if state.request else ""
    pools, head = state.called_pools(), state.head.id.hex()
    return ArchivableRun(run, agent, state.status, last.partition, last.at_ms, head, 0, pools, seq=state.head.seq)


def _families(
    runs: dict[RunId, ArchivableRun], fold: LogFold, sizes: Mapping[RunId, int]
) -> dict[RunId, ArchivableRun]:
    """Finished runs with their sizes and relatives, earliest end first, without frozen ones."""
    present = {*runs, *fold.states, *fold.frozen}
    below: dict[RunId, list[RunId]] = {}
    for run in present - runs.keys():
        for parent in parents_of(run):
            below.setdefault(parent, []).append(run)
    return {
        run: replace(
            candidate,
            size=sizes[run],
            above=tuple(name for name in parents_of(run) if name in present),
            below=tuple(sorted(below.get(run, ()))),
        )
        for run, candidate in sorted(runs.items(), key=lambda item: item[1].ended_ms)
        if run not in fold.frozen
    }


def kept_rows(reader: LogReader, partition: int, runs: Collection[ArchivableRun]) -> set[RunId]:
    """Runs of a partition whose row a planner has written: their ids stay known without their log."""
    digests = {(run_digest(run.run_id), bytes.fromhex(run.head)): run.run_id for run in runs}
    return {digests[end] for ends in _rows(reader, partition, ends_of) for end in ends if end in digests}


def oldest_ends(reader: LogReader, partition: int, runs: Collection[RunId]) -> list[int]:
    """Earliest end of these runs, in each record of planners' rows."""
    digests = {run_digest(run) for run in runs}
    found_times = [[times[run] for run in times.keys() & digests] for times in _rows(reader, partition, times_of)]
    return [min(ends) for ends in found_times if ends]


def _rows(reader: LogReader, partition: int, read: Callable[[bytes], _Read]) -> Iterator[_Read]:
    for record in reader.scan(RUN_SNAPSHOT, partition):
        if record.value and (record.key or b"").startswith(OVER_PREFIX):
            with suppress(MalformedError, FoldError):
                yield read(codec.decode(EndedRuns, record.value).rows)


def whole_runs(reader: LogReader, partition: int, selected: Mapping[RunId, ArchivableRun]) -> list[ArchivedRun]:
    """All records of these runs, void ones too."""
    records: dict[RunId, list[ArchivedRecord]] = {run: [] for run in selected}
    for record in reader.scan(RUN_LOG, partition):
        parts = parse_log_key(record.key)
        if parts is not None and parts[0] in records and record.key is not None and record.value is not None:
            records[parts[0]].append(ArchivedRecord(record.offset, record.at_ms, record.key, record.value))
    return [
        ArchivedRun(
            run, row.agent, row.status, partition, row.ended_ms, row.head, digest_of(records[run]), tuple(records[run])
        )
        for run, row in selected.items()
    ]


def batches(runs: Collection[ArchivableRun], most_bytes: int) -> list[list[ArchivableRun]]:
    """Runs in groups of at most `most_bytes`; a family is never split, and may be larger."""
    families: dict[str, list[ArchivableRun]] = {}
    for run in runs:
        families.setdefault(root_of(run.run_id), []).append(run)
    result: list[list[ArchivableRun]] = []
    room = 0
    for family in families.values():
        size = sum(run.size for run in family)
        if size > room or not result:
            result.append([])
            room = most_bytes
        result[-1] += family
        room -= size
    return result
