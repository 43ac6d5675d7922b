"""Rows of steps: the changes of `client.reading.changes` in columns, and the sums that an event adds to."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from refold.client.reading.changes import STEP_CHANGES, STEP_KINDS, step_change
from refold.console.projections.shipped.beside import count_votes
from refold.console.projections.shipped.tables import (
    APPROVALS,
    BUCKETS,
    NO_STEP,
    REPEATED_CALLS,
    STEPS,
    DayAt,
    RunAt,
    StepAt,
)
from refold.console.projections.shipped.turn import Turn, cut, failed, standing
from refold.core import events
from refold.core.ids import CallId, approval_id, call_id
from refold.core.run.account import tokens_of, usage_of

MOST = 1 << 48
"""Tokens and billionths of a dollar of a call at most: sums have 64 bits."""

AVOIDED = frozenset({"stored", "probed"})
"""Reasons for which a call was completed without a second effect."""

Apply = Callable[[Turn, Any, int], None]


def summable(amount: int) -> int:
    return max(0, min(MOST, amount))


def change_step(turn: Turn, event: Any, seq: int) -> None:
    """Apply an event to the row of its step; a history that contradicts itself has no such row."""
    kind = type(event)
    row = _new_step_row(turn, event, seq, *STEP_KINDS[kind]) if kind in STEP_KINDS else turn.step(event.step)
    if row is None:
        return
    before, question = standing(row), row[StepAt.approval_id]
    # Details come first: durations depend on the status before the event.
    if (details := _DETAILS.get(kind)) is not None:
        details(turn, row, event, seq)
    if (change := step_change(event, row[StepAt.status])) is not None:
        row[StepAt.status], row[StepAt.phase] = change.status, change.phase
        row[StepAt.ended_ms] = 0 if change.phase else turn.entry.at_ms
        if change.fails:
            failed(row, change.failure)
    turn.update_counts(row, before, question)


def _new_step_row(turn: Turn, event: Any, seq: int, kind: str, name_of: Callable[[Any], str]) -> list[Any]:
    name = name_of(event) if kind in ("call", "run") else cut(name_of(event))
    row = [turn.entry.run_id, event.step, kind, name, *NO_STEP[4:]]
    row[StepAt.seq], row[StepAt.started_ms] = seq, turn.entry.at_ms
    turn.batch.write(STEPS, (turn.entry.run_id, event.step), row)
    turn.run[RunAt.steps] += 1
    return row


def _proposed(turn: Turn, row: list[Any], event: events.CallProposed, seq: int) -> None:
    run = turn.entry.run_id
    row[StepAt.label], row[StepAt.effect], row[StepAt.rule] = cut(event.label), event.effect, event.rule
    row[StepAt.call_id], row[StepAt.args_digest] = call_id(run, seq), digest_of_args(event)
    turn.sums(event.tool)[DayAt.calls] += 1
    key = (run, row[StepAt.args_digest])
    if (equal := turn.batch.edit(REPEATED_CALLS, key)) is None:
        turn.batch.write(REPEATED_CALLS, key, [*key, event.tool, 1, event.step, event.step])
    else:
        equal[3], equal[5] = equal[3] + 1, event.step


def digest_of_args(event: events.CallProposed) -> str:
    return blake2b(f"{len(event.tool)}:{event.tool}{event.args}".encode(), digest_size=8).hexdigest()


def _dispatched(turn: Turn, row: list[Any], event: events.CallDispatched, seq: int) -> None:
    row[StepAt.dispatches] += 1
    row[StepAt.sent_ms] = turn.entry.at_ms
    if row[StepAt.attempt] != event.attempt:
        row[StepAt.attempt] = event.attempt
        row[StepAt.attempts] += 1
        sums = turn.sums(row[StepAt.name])
        sums[DayAt.attempts] += 1
        if event.attempt > 1:
            sums[DayAt.retries] += 1
            turn.run[RunAt.retries] += 1


def _completed(turn: Turn, row: list[Any], event: events.CallCompleted, seq: int) -> None:
    usage = usage_of(event.result)
    model = _model_of(usage)
    sums = turn.sums(row[StepAt.name], model)
    sums[DayAt.completed] += 1
    if event.how in AVOIDED:
        sums[DayAt.effects_avoided] += 1
    _count_duration(turn, row, sums, event.took_ms)
    if usage is not None and not row[StepAt.metered]:
        nano_usd = turn.price(usage, turn.entry.at_ms) if turn.price else 0
        _add_spending(turn, row, model, tokens_of(usage) or 0, nano_usd)
        turn.run[RunAt.price_table] = turn.price_table


def _model_of(usage: Any) -> str:
    model = usage.get("model", "") if usage else ""
    # Databases refuse surrogates, which JSON can contain.
    return cut(model.encode(errors="replace").decode()) if isinstance(model, str) else ""


def _call_failed(turn: Turn, row: list[Any], event: events.CallFailed, seq: int) -> None:
    sums = turn.sums(row[StepAt.name])
    sums[DayAt.failed] += 1
    _count_duration(turn, row, sums)
    turn.count_failure(row[StepAt.name], event.failure)


def _count_duration(turn: Turn, row: list[Any], sums: list[int], took_ms: int = 0) -> None:
    # A person's answer about a call in doubt has no duration.
    if row[StepAt.status] == "running":
        took_ms = took_ms or max(0, turn.entry.at_ms - row[StepAt.sent_ms])
        sums[DayAt.b0 + min(BUCKETS - 1, took_ms.bit_length())] += 1


def _doubted(turn: Turn, row: list[Any], event: events.CallDoubted, seq: int) -> None:
    row[StepAt.doubts] += 1
    turn.sums(row[StepAt.name])[DayAt.doubts] += 1


def _renewed(turn: Turn, row: list[Any], event: events.CallRenewed, seq: int) -> None:
    # The question was about the call before: an open one is closed by the difference.
    row[StepAt.approval_id] = ""
    row[StepAt.call_id], row[StepAt.attempt] = call_id(turn.entry.run_id, seq), 0


def _reserved(turn: Turn, row: list[Any], event: events.CallReserved, seq: int) -> None:
    # The bill of the call has its usage: read from the result too, it would count twice.
    row[StepAt.metered] = 1


def _billed(turn: Turn, row: list[Any], event: events.CallBilled, seq: int) -> None:
    results = (done for done in turn.entry.events if isinstance(done, events.CallCompleted))
    model = next((_model_of(usage_of(done.result)) for done in results if done.step == event.step), "")
    _add_spending(turn, row, model, event.tokens, event.nano_usd)


def _question_opened(turn: Turn, row: list[Any], event: events.ApprovalRequested, seq: int) -> None:
    needed, entry, name = event.requirement, turn.entry, _question_id(row, event)
    people = (", ".join(needed.approvers), needed.quorum)
    about = (entry.run_id, event.step, row[StepAt.name], event.rule, *people, entry.at_ms, event.expires_ms)
    turn.batch.write(APPROVALS, (name,), [name, *about, 0, "", "", cut(event.about), 0, 0])
    row[StepAt.approval_id] = name
    row[StepAt.approvals] += 1


def _escalated(turn: Turn, row: list[Any], event: events.ApprovalEscalated, seq: int) -> None:
    if (before := turn.batch.row(APPROVALS, (row[StepAt.approval_id],))) is not None:
        turn.batch.write(APPROVALS, (row[StepAt.approval_id],), None)
        row[StepAt.approval_id] = name = _question_id(row, event)
        turn.batch.write(APPROVALS, (name,), [name, *before[1:]])
        turn.question(name, approvers=", ".join(event.approvers), expires_ms=event.expires_ms, escalated=1)


def _question_id(row: list[Any], event: events.ApprovalRequested | events.ApprovalEscalated) -> str:
    return approval_id(CallId(row[StepAt.call_id]), event.question)


def _decided(turn: Turn, row: list[Any], event: events.ApprovalDecided, seq: int) -> None:
    actors, question = ", ".join(event.actors), row[StepAt.approval_id]
    turn.question(question, verdict=event.verdict, ended_ms=turn.entry.at_ms, actors=actors)
    row[StepAt.approval_id] = ""
    if event.token:
        count_votes(turn.batch, event)
    if event.verdict == "reject":
        turn.sums(row[StepAt.name])[DayAt.rejections] += 1


def _add_spending(turn: Turn, row: list[Any], model: str, tokens: int, nano_usd: int) -> None:
    run, sums = turn.run, turn.sums(row[StepAt.name], model)
    tokens, nano_usd = summable(tokens), summable(nano_usd)
    for columns, at in ((row, StepAt.tokens), (run, RunAt.tokens), (sums, DayAt.tokens)):
        columns[at] += tokens
        columns[at + 1] += nano_usd


_DETAILS: dict[type, Callable[[Turn, list[Any], Any, int], None]] = {
    events.CallProposed: _proposed,
    events.CallDispatched: _dispatched,
    events.CallCompleted: _completed,
    events.CallFailed: _call_failed,
    events.CallDoubted: _doubted,
    events.CallRenewed: _renewed,
    events.CallReserved: _reserved,
    events.CallBilled: _billed,
    events.ApprovalRequested: _question_opened,
    events.ApprovalEscalated: _escalated,
    events.ApprovalDecided: _decided,
}
"""Columns and sums besides the change of the step."""

STEP_EVENTS: dict[type, Apply] = dict.fromkeys((*STEP_CHANGES, *_DETAILS), change_step)
