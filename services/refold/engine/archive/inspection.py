"""Verification that a copy of a run is complete, by its bytes alone, without Kafka."""

from collections.abc import Sequence

from refold.core.ids import RunId
from refold.core.run.log import LogFold
from refold.core.run.state import RunState
from refold.engine.archive.container import ArchivedRecord, ArchivedRun, digest_of


def fold_of(run: RunId, records: Sequence[ArchivedRecord]) -> tuple[RunState | None, list[str]]:
    """State that records fold to, and problems of the records."""
    fold, problems = LogFold(), []
    for record in records:
        judged = fold.feed(record.key, record.value)
        if judged.run_id != run:
            problems.append(f"the record at offset {record.offset} is of run {judged.run_id or 'nobody'}")
        elif judged.void in ("key", "hash", "body", "time"):
            problems.append(f"the record at offset {record.offset} is not the entry that its key names")
    problems += [f"an entry cannot be read by this version: {reason}" for reason in fold.frozen.values()]
    return fold.states.get(run), problems


def flaws(run: ArchivedRun) -> list[str]:
    """Faults of a copy, in words; empty if it is the run, from its first entry to its end."""
    state, problems = fold_of(run.run_id, run.records)
    if digest_of(run.records) != run.digest:
        problems.append("its records have another digest than was noted")
    if state is None:
        return [*problems, "none of its records counts"]
    if not state.over:
        problems.append(f"its history does not reach its end, it is {state.status}")
    if (state.head.id.hex(), state.status) != (run.head, run.status):
        problems.append(f"its history ends with {state.head.id.hex()} {state.status}, not {run.head} {run.status}")
    return problems
