"""Rows of steps by event, with the statuses of `client.reading.steps.Timeline`."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from refold.console.projections.shipped.tables import BUCKETS, REPEATED_CALLS, STEPS, DayAt, RunAt, StepAt
from refold.console.projections.shipped.turn import Turn, cut, failed
from refold.core import events
from refold.core.ids import call_id
from refold.core.run.metering import tokens_of, usage_of

MOST = 1 << 48
"""Tokens and billionths of a dollar of a call at most: sums have 64 bits."""

AVOIDED = frozenset({"stored", "probed"})
"""Reasons for which a call was completed without a second effect."""

Apply = Callable[[Turn, Any, int], None]


def summable(amount: int) -> int:
    """Clamp an amount to the range of sums."""
    return max(0, min(MOST, amount))


def _begins(kind: str, name: Callable[[Any], str], status: str = "noted", phase: str = "") -> Apply:

    def begin(turn: Turn, event: Any, seq: int) -> None:
        turn.move(_begin(turn, event.step, seq, kind, name(event), noted=status == "noted"), status, phase)

    return begin


def _begin(turn: Turn, step: int, seq: int, kind: str, name: str, *, noted: bool) -> list[Any]:
    at_ms = turn.entry.at_ms
    ended_ms = at_ms if noted else 0
    row: list[Any] = [
        turn.entry.run_id, step, kind, name, "", "", "", "", "", "", seq, at_ms, 0, ended_ms,
        0, 0, 0, 0, "", "", "", 0, 0, 0, 0, "",
    ]  # fmt: skip
    turn.batch.write(STEPS, (turn.entry.run_id, step), row)
    turn.run[RunAt.steps] += 1
    return row


def _proposed(turn: Turn, event: events.CallProposed, seq: int) -> None:
    run = turn.entry.run_id
    row = _begin(turn, event.step, seq, "call", event.tool, noted=False)
    turn.move(row, "proposed", "proposed")
    row[StepAt.label], row[StepAt.effect], row[StepAt.rule] = cut(event.label), event.effect, event.rule
    row[StepAt.call_id], row[StepAt.args_digest] = call_id(run, seq), digest_of_args(event)
    turn.sums(event.tool)[DayAt.calls] += 1
    key = (run, row[StepAt.args_digest])
    if (equal := turn.batch.edit(REPEATED_CALLS, key)) is None:
        turn.batch.write(REPEATED_CALLS, key, [*key, event.tool, 1, event.step, event.step])
    else:
        equal[3], equal[5] = equal[3] + 1, event.step


def digest_of_args(event: events.CallProposed) -> str:
    """Return a digest of a call's tool and arguments."""
    return blake2b(f"{len(event.tool)}:{event.tool}{event.args}".encode(), digest_size=8).hexdigest()


def _dispatched(turn: Turn, event: events.CallDispatched, seq: int) -> None:
    if (row := turn.step(event.step)) is None:
        return
    turn.move(row, "running", "dispatched")
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


def _attempt_failed(turn: Turn, event: events.AttemptFailed, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        turn.move(row, "backoff", "backoff")


def call_completed(turn: Turn, event: events.CallCompleted, seq: int) -> None:
    if (row := turn.step(event.step)) is None:
        return
    usage = usage_of(event.result)
    model = _model_of(usage)
    sums = turn.sums(row[StepAt.name], model)
    sums[DayAt.completed] += 1
    if getattr(event, "how", "") in AVOIDED:
        sums[DayAt.effects_avoided] += 1
    _over(turn, row, event, "completed", sums)
    row[StepAt.failure_code] = row[StepAt.failure_message] = ""
    if usage is not None and not row[StepAt.metered]:
        nano_usd = turn.price(usage, turn.entry.at_ms) if turn.price else 0
        _spend(turn, row, model, tokens_of(usage) or 0, nano_usd)
        turn.run[RunAt.price_table] = turn.price_table


def _model_of(usage: Any) -> str:
    model = usage.get("model", "") if usage else ""
    return cut(model.encode(errors="replace").decode()) if isinstance(model, str) else ""  # databases refuse surrogates


def call_failed(turn: Turn, event: events.CallFailed, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        sums = turn.sums(row[StepAt.name])
        sums[DayAt.failed] += 1
        _over(turn, row, event, "failed", sums)
        failed(row, event.failure)


def _over(turn: Turn, row: list[Any], event: Any, status: str, sums: list[int]) -> None:
    at_ms = turn.entry.at_ms
    if row[StepAt.status] == "running":  # a person's answer about a call in doubt has no duration
        took_ms = getattr(event, "took_ms", 0) or max(0, at_ms - row[StepAt.sent_ms])
        sums[DayAt.first_bucket + min(BUCKETS - 1, took_ms.bit_length())] += 1
    turn.move(row, status, "")
    row[StepAt.ended_ms] = at_ms


def _doubted(turn: Turn, event: events.CallDoubted, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        turn.move(row, "doubt", "doubt")
        row[StepAt.doubts] += 1
        turn.sums(row[StepAt.name])[DayAt.doubts] += 1


def _call_held(turn: Turn, event: events.CallHeld, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        turn.move(row, "held", "held")
        failed(row, event.failure)


def _renewed(turn: Turn, event: events.CallRenewed, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        turn.move(row, "proposed", "proposed")
        row[StepAt.approval_id] = ""  # the question was about the call before
        row[StepAt.call_id], row[StepAt.attempt], row[StepAt.ended_ms] = call_id(turn.entry.run_id, seq), 0, 0
        failed(row, None)


def _given_up(turn: Turn, event: events.StepGivenUp, seq: int) -> None:
    row = turn.step(event.step)
    if row is not None and row[StepAt.status] != "doubt":  # people still settle a doubt
        turn.move(row, "given_up", "")
        row[StepAt.ended_ms] = turn.entry.at_ms


def _settled(status: str, *, clears: bool = False) -> Apply:
    """Return the function that closes a step; `clears` removes an earlier failure."""

    def settle(turn: Turn, event: Any, seq: int) -> None:
        if (row := turn.step(event.step)) is not None:
            turn.move(row, status, "")
            row[StepAt.ended_ms] = turn.entry.at_ms
            failure = getattr(event, "failure", None)
            if failure is not None or clears:
                failed(row, failure)

    return settle


def _child_over(turn: Turn, event: events.ChildCompleted, seq: int) -> None:
    _settled("completed" if event.status == "completed" else "failed", clears=True)(turn, event, seq)


def _match_failed(turn: Turn, event: events.MatchFailed, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        failed(row, events.Failure("match_failed", event.error))


def _reserved(turn: Turn, event: events.CallReserved, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        row[StepAt.metered] = 1  # its bill has the usage, so its result is not read for it


def _billed(turn: Turn, event: events.CallBilled, seq: int) -> None:
    if (row := turn.step(event.step)) is not None:
        results = (done for done in turn.entry.events if isinstance(done, events.CallCompleted))
        model = next((_model_of(usage_of(done.result)) for done in results if done.step == event.step), "")
        _spend(turn, row, model, event.tokens, event.nano_usd)


def _spend(turn: Turn, row: list[Any], model: str, tokens: int, nano_usd: int) -> None:
    run, sums = turn.run, turn.sums(row[StepAt.name], model)
    tokens, nano_usd = summable(tokens), summable(nano_usd)
    for columns, at in ((row, StepAt.tokens), (run, RunAt.tokens), (sums, DayAt.tokens)):
        columns[at] += tokens
        columns[at + 1] += nano_usd


STEP_EVENTS: dict[type, Apply] = {
    events.NoteRecorded: _begins("note", lambda event: cut(event.kind)),
    events.CheckpointReached: _begins("checkpoint", lambda event: cut(event.name)),
    events.SignalSent: _begins("signal", lambda event: cut(event.name)),
    events.EventPublished: _begins("event", lambda event: cut(event.name)),
    events.SleepStarted: _begins("sleep", lambda event: "sleep", "sleeping", "sleep"),
    events.WaitStarted: _begins("wait", lambda event: cut(event.name), "waiting", "wait"),
    events.CallbackCreated: _begins("callback", lambda event: cut(event.name), "waiting", "callback"),
    events.ChildStarted: _begins("run", lambda event: event.agent, "running", "child"),
    events.CallProposed: _proposed,
    events.CallDispatched: _dispatched,
    events.AttemptFailed: _attempt_failed,
    events.CallFailed: call_failed,
    events.CallDoubted: _doubted,
    events.CallHeld: _call_held,
    events.CallRenewed: _renewed,
    events.StepGivenUp: _given_up,
    events.SleepEnded: _settled("completed"),
    events.WaitEnded: _settled("completed", clears=True),
    events.WaitExpired: _settled("expired"),
    events.CallbackCompleted: _settled("completed"),
    events.CallbackFailed: _settled("failed", clears=True),
    events.ChildCompleted: _child_over,
    events.MatchFailed: _match_failed,
    events.CallReserved: _reserved,
    events.CallBilled: _billed,
}
