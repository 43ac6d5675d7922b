"""The log is folded once more when a case is over: whole, in pieces, twice, and by what its events say."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.events import Entry
from refold.core.ids import EntryId, RunId
from refold.core.run.fold import fold
from refold.core.run.log import LogFold
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Record
from tests.simulator.reading.history import History
from tests.simulator.world.world import World


def folded_again(world: World) -> Iterator[str]:
    """The fold is a function of what counts: whole, in pieces, with duplicates and after compaction it is the same."""
    for partition in range(world.settings.partitions):
        there = world.broker.log(RUN_LOG, partition).records
        records = [record for record in there if not _erased(world, record)]
        whole = _fold(records)
        half = len(records) // 2
        if _fold([*records[:half], *records[:half], *records[half:], *records[half:]]) != whole:
            yield "fold: duplicated records change the state"
        again = History()
        last = {record.key: index for index, record in enumerate(records)}
        for index, record in enumerate(records):
            if last[record.key] == index:
                again.follow(record)
        lost = world.witness.history.forked if world.counts["mirrored.forked"] else set[str]()
        for name, run in again.runs.items():
            if name in lost:
                continue  # which of two came first the log says no more: people have said it, or an earlier snapshot
            if run != world.witness.history.runs[name]:
                yield f"fold: compaction changes run {name}"
            if whole.get(name, ("", 0))[1] != run.seq:
                yield f"fold: core and checker disagree on run {name}"
        if len(again.runs) != len(whole):
            yield "fold: core and checker know different runs"


def statuses(world: World) -> Iterator[str]:
    """What an entry tells of the status of its run, and the status to which the run folds by then, are one."""
    for partition in range(world.settings.partitions):
        log, told = LogFold(), History()
        for record in world.broker.log(RUN_LOG, partition).records:
            if _erased(world, record):
                continue
            told.follow(record)
            judged = log.feed(record.key, record.value)
            state, said = (judged, *judged.linked)[-1].state, told.runs.get(judged.run_id)
            if state and said and said.seq == state.head.seq and said.status != state.status:
                place = f"run {said.id} at seq {said.seq}"
                yield f"status: {place} is {state.status}, and by what its events say {said.status}"


def _erased(world: World, record: Record) -> bool:
    """True if a record is what is left of an erased run."""
    return (record.key or b"").partition(b"/")[0].decode() in world.erasures.ever


def _fold(records: list[Record]) -> dict[str, tuple[str, int]]:
    """What the product makes of a partition: record by record, and of each run in one piece."""
    log, pieces = LogFold(), dict[RunId, list[tuple[EntryId, Entry]]]()
    for record in records:
        judged = log.feed(record.key, record.value, shared=True)
        for each in (judged, *judged.linked):
            if each.entry and not each.void:
                pieces.setdefault(each.run_id, []).append((each.id, each.entry))
    digests: dict[str, tuple[str, int]] = {}
    for run, entries in pieces.items():
        digest, state = fold(entries, run).digest(), log.states[run]
        same = digest == state.digest()
        digests[run] = (digest if same else "the fold in one piece differs", state.head.seq)
    return digests
