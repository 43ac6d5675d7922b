"""The shipped projection: rows of entries and runs, and the sums of families."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from refold.client.reading.changes import STEP_KINDS
from refold.client.reading.history import fold_to
from refold.console.projections.batch import Batch
from refold.console.projections.projector import Accepted
from refold.console.projections.runs import entry_of
from refold.console.projections.shipped import tables
from refold.console.projections.shipped.beside import rows_beside, take_beside, write_beside
from refold.console.projections.shipped.steps import STEP_EVENTS, Apply, digest_of_args
from refold.console.projections.shipped.tables import DayAt, RunAt, StepAt
from refold.console.projections.shipped.turn import COUNTS, UNCOUNTED, PriceOf, Turn, cut, failed, standing
from refold.core import events
from refold.core.ids import RunId, parent_of, root_of
from refold.core.run.pausing import PARENT
from refold.core.run.state import END_STATUSES, ENDED, RunState
from refold.core.tables import Scalar
from refold.engine.ports.log import Record
from refold.sdk.projection import Projection


class Shipped(Projection):
    """Projection of runs, steps, questions and sums. `prices` apply to usage without a bill."""

    name = "refold"
    version = 4
    entries = tables.ENTRIES
    runs = tables.RUNS
    run_labels = tables.RUN_LABELS
    run_sessions = tables.RUN_SESSIONS
    run_values = tables.RUN_VALUES
    steps = tables.STEPS
    approvals = tables.APPROVALS
    votes = tables.VOTES
    dead_letters = tables.DEAD_LETTER_ROWS
    holds = tables.HOLDS
    limits = tables.LIMIT_ROWS
    operator_actions = tables.OPERATOR_ACTIONS
    repeated_calls = tables.REPEATED_CALLS
    families = tables.FAMILIES
    daily = tables.DAILY
    daily_failures = tables.DAILY_FAILURES

    def __init__(self, prices: PriceOf | None = None, price_table: str = "") -> None:
        self._prices, self._price_table = prices, price_table if prices else ""
        self.inputs = self._price_table  # other prices need a rebuild

    def expect(self, batch: Batch, entries: Sequence[events.Entry]) -> None:
        """Read the rows that entries will change, with one query for each table."""
        older = [entry for entry in entries if entry.run_id not in batch.new]
        batch.fetch(tables.RUNS, ((entry.run_id,) for entry in older if entry.seq > 1))
        pairs: list[tuple[RunId, Any]] = [(entry.run_id, event) for entry in older for event in entry.events]
        batch.fetch(tables.STEPS, ((run, event.step) for run, event in pairs if type(event) in _ON_STEPS))
        calls = ((run, event) for run, event in pairs if isinstance(event, events.CallProposed))
        batch.fetch(tables.REPEATED_CALLS, ((run, digest_of_args(call)) for run, call in calls))

    def beside(self, batch: Batch, record: Record, partitions: int) -> None:
        """Apply a record of a topic other than the run log; `partitions` is the platform's number of them."""
        take_beside(batch, record, partitions)

    def forget(self, batch: Batch) -> None:
        """Remove the run's rows that follow from the run log; the others stay."""
        rows = rows_beside(batch)
        batch.forget(batch.run, erased=False)
        write_beside(batch, rows, root_of(batch.run))

    def take(self, batch: Batch, accepted: Accepted) -> None:
        entry = accepted.entry
        _write_entry(batch, accepted)
        row = batch.edit(tables.RUNS, (entry.run_id,)) if entry.seq > 1 else None
        if row is None:
            row = _new_row(batch, accepted)
            before: list[Any] = []
        else:
            before = row[RunAt.status :]
        turn = Turn(batch, entry, row, self._prices, self._price_table)
        for seq, event in enumerate(entry.events, start=entry.seq):
            if (apply := _EVENTS.get(type(event))) is not None:
                apply(turn, event, seq)
            if type(event) in _OPERATED:
                _write_operator_action(turn, event, seq)
        _set_status(turn, accepted)
        if (after := row[RunAt.status :]) != before:
            _count_in_family(turn, before, after)


def _write_entry(batch: Batch, accepted: Accepted) -> None:
    name, entry, record, since = accepted
    cause = entry.cause
    topic, partition, offset = (cause.topic, cause.partition, cause.offset) if cause else ("", 0, 0)
    batch.write(
        tables.ENTRIES,
        (entry.run_id, entry.seq),
        [
            entry.run_id, entry.seq, entry.last_seq, entry.at_ms, record.at_ms, record.partition, record.offset,
            since, entry.actor, topic, partition, offset, bytes(name), record.value or b"",
        ],
    )  # fmt: skip


def _new_row(batch: Batch, accepted: Accepted) -> list[Any]:
    entry, record = accepted.entry, accepted.record
    run = entry.run_id
    row = [run, *tables.NO_RUN[1:]]
    row[RunAt.root], row[RunAt.parent] = root_of(run), str(parent_of(run)[0])
    row[RunAt.partition], row[RunAt.status] = record.partition, "pending"
    batch.write(tables.RUNS, (run,), row)
    return row


def _requested(turn: Turn, event: events.RunRequested, seq: int) -> None:
    run, row = turn.entry.run_id, turn.run
    row[RunAt.agent], row[RunAt.requester], row[RunAt.policy] = event.agent, event.requester, event.policy
    row[RunAt.requested_ms] = event.asked_ms(turn.entry.at_ms)
    if event.forked:
        row[RunAt.forked_from], row[RunAt.forked_at] = event.forked.run_id, event.forked.seq
    for name, value in event.labels.items():
        turn.batch.write(tables.RUN_LABELS, (run, name), [run, name, cut(value)])
    for number, session in enumerate(dict.fromkeys(event.sessions), start=1):
        turn.batch.write(tables.RUN_SESSIONS, (run, session), [run, session, number, turn.entry.at_ms])
    turn.sums()[DayAt.runs_requested] += 1


def _started(turn: Turn, event: events.RunStarted, seq: int) -> None:
    row = turn.run
    row[RunAt.status], row[RunAt.version], row[RunAt.app] = "running", event.version, event.app
    row[RunAt.started_ms] = turn.entry.at_ms


_SET: Mapping[type, tuple[int, Callable[[Any, Any], Any]]] = {
    events.RunMigrated: (RunAt.version, lambda event, before: event.version),
    events.RunPaused: (RunAt.paused, lambda event, before: before | _paused_by(event.role)),
    events.RunUnpaused: (RunAt.paused, lambda event, before: before & ~_paused_by(event.role)),
}
"""Events that set one column of their run, with its new value."""


def _set_column(turn: Turn, event: Any, seq: int) -> None:
    column, value = _SET[type(event)]
    turn.run[column] = value(event, turn.run[column])


def _exposed(turn: Turn, event: events.StatusSet, seq: int) -> None:
    key = (turn.entry.run_id, event.name)
    turn.batch.write(tables.RUN_VALUES, key, [*key, event.text, seq, turn.entry.at_ms] if event.text else None)
    if not event.name:
        turn.run[RunAt.says] = cut(event.text)


def _paused_by(role: str) -> int:
    """Return a pause's bit: 1 for the run's own, 2 for its parent's."""
    return 2 if role == PARENT else 1


def _ended(turn: Turn, event: Any, seq: int) -> None:
    status = END_STATUSES[type(event)]
    turn.run[RunAt.status], turn.run[RunAt.ended_ms] = status, turn.entry.at_ms
    if (ends := getattr(DayAt, f"runs_{status}", None)) is not None:  # the next generation goes on
        turn.sums()[ends] += 1
    if isinstance(event, events.RunFailed):
        failed(turn.run, event.failure, RunAt.failure_code)
        turn.count_failure("", event.failure)
    elif isinstance(event, events.RunCancelled):
        failed(turn.run, events.Failure("cancelled", event.reason or "it was cancelled"), RunAt.failure_code)


def _retried(turn: Turn, event: events.RunRetried, seq: int) -> None:
    _refold(turn, event, seq)
    for step in filter(None, map(turn.step, event.again)):
        step[StepAt.attempt] = 0


def _forked(turn: Turn, event: events.RunForked, seq: int) -> None:
    """Set the rows of a live fork from its copied history; its times and the counts of unfinished steps begin anew."""
    # Other events of this kind are copies, of earlier forks.
    if event.source.run_id == turn.run[RunAt.forked_from]:
        turn.run[RunAt.forked_at] = seq - 1
    turn.run[RunAt.requested_ms] = turn.entry.at_ms
    turn.sums()[DayAt.runs_requested] += 1
    _refold(turn, event, seq)
    for row in turn.batch.rows_of(tables.RUN_SESSIONS):
        turn.batch.write(tables.RUN_SESSIONS, tuple(row[:2]), [*row[:3], turn.entry.at_ms])
    for step in filter(None, map(turn.step, map(int, event.keys))):
        if not step[StepAt.ended_ms]:
            step[StepAt.started_ms] = turn.entry.at_ms
            step[StepAt.attempt] = step[StepAt.attempts] = step[StepAt.dispatches] = step[StepAt.approvals] = 0


def _refold(turn: Turn, event: events.RunRetried | events.RunForked, seq: int) -> None:
    """Set a run and its steps from a fold of its history."""
    # Only the fold decides which steps a retry or fork discards, and which wait again.
    history = map(entry_of, map(tuple, turn.batch.rows_of(tables.ENTRIES)))
    run = fold_to(turn.entry.run_id, history, [seq])[0]
    _set_run(turn.run, run.state)
    for line in run.timeline.steps:
        if (row := turn.step(line.step)) is not None:
            before, opened = standing(row), run.state.open.get(line.step)
            turn.count(UNCOUNTED, before)
            row[StepAt.status], row[StepAt.phase] = line.status, opened.phase if opened else ""
            row[StepAt.ended_ms] = line.ended_ms
            failed(row, line.failure)
            turn.update_counts(row, before, row[StepAt.approval_id])


def _set_run(row: list[Any], state: RunState) -> None:
    """Set a run's columns from its fold; those that its steps sum begin at 0."""
    row[RunAt.status], row[RunAt.says], row[RunAt.started_ms] = state.status, cut(state.says), state.started_ms
    row[RunAt.paused] = sum(_paused_by(pause.role) for pause in state.paused)
    row[RunAt.ended_ms], row[RunAt.failure_code], row[RunAt.failure_message] = 0, "", ""
    for column in COUNTS:
        row[column] = 0


def _set_status(turn: Turn, accepted: Accepted) -> None:
    """Set a run's status at the end of an entry, as `fold.advance` does."""
    row, entry = turn.run, turn.entry
    row[RunAt.at_ms], row[RunAt.seq], row[RunAt.head] = entry.at_ms, entry.last_seq, accepted.id.hex()
    status = row[RunAt.status]
    if status in ENDED:
        row[RunAt.says], row[RunAt.on_hold], row[RunAt.waiting], row[RunAt.paused] = "", 0, 0, 0
    elif status != "pending":
        works = (row[RunAt.busy] or not row[RunAt.open]) and not row[RunAt.paused]
        row[RunAt.status] = "running" if works else "suspended"


def _count_in_family(turn: Turn, before: list[Any], after: list[Any]) -> None:
    sums = turn.batch.totals_of(tables.FAMILIES, (turn.run[RunAt.root],))
    amounts = _family_amounts(before) if before else (0,) * 10
    for place, (now, was) in enumerate(zip(_family_amounts(after), amounts, strict=True)):
        sums[place] += now - was


def _family_amounts(row: list[Any]) -> tuple[int, ...]:
    status, question, doubt, on_hold, tokens, nano_usd, *_ = row
    live = status not in ENDED
    ended = status == "completed", status == "failed", status == "cancelled"
    return live, live and question > 0, doubt > 0, on_hold > 0, 0, *ended, tokens, nano_usd


_OPERATED: Mapping[type, tuple[str, Callable[[Any], tuple[str, str]]]] = {
    events.RunPaused: ("paused", lambda event: (event.role, event.reason)),
    events.RunUnpaused: ("unpaused", lambda event: (event.role, "")),
    events.DoubtResolved: ("resolved", lambda event: (event.verdict, event.comment)),
    events.RunMigrated: ("migrated", lambda event: (event.version, "")),
    events.RunAnnotated: ("annotated", lambda event: (event.role, event.note)),
    events.RunRetried: (
        "retried",
        lambda event: (f"from step {event.from_step}" * (event.from_step > 0), event.reason),
    ),
    events.RunForked: ("forked", lambda event: (f"from {event.source.run_id}/{event.source.seq}", event.reason)),
    events.RunCancelled: ("cancelled", lambda event: ("", event.reason)),
}
"""Name, detail and reason of the action that an event records."""


def _write_operator_action(turn: Turn, event: Any, seq: int) -> None:
    run, at_ms = turn.entry.run_id, turn.entry.at_ms
    if not _is_by_operator(event, parent_of(run)[0]):
        return
    action, words = _OPERATED[type(event)]
    step = getattr(event, "step", 0) or getattr(event, "from_step", 0)
    detail, reason = map(cut, words(event))
    row: list[Scalar] = [run, seq, at_ms, event.actor, action, detail, step, reason]
    turn.batch.write(tables.OPERATOR_ACTIONS, (run, seq), row)


def _is_by_operator(event: Any, parent: str) -> bool:
    """False for actions that a run takes over from its parent, and for migrations by its planner."""
    match event:
        case events.RunPaused() | events.RunUnpaused():
            return bool(event.role != PARENT)
        case events.RunMigrated():
            return bool(event.actor)
        case events.RunCancelled():
            return bool(event.actor != parent)
    return True


_ON_STEPS = frozenset(STEP_EVENTS) - STEP_KINDS.keys()
"""Events that change an existing step."""

_EVENTS: dict[type, Apply] = {
    **STEP_EVENTS,
    events.RunRequested: _requested,
    events.RunStarted: _started,
    **dict.fromkeys(_SET, _set_column),
    events.StatusSet: _exposed,
    **dict.fromkeys(END_STATUSES, _ended),
    events.RunRetried: _retried,
    events.RunForked: _forked,
}
