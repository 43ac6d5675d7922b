"""Operator's retry of a failed run. A call that was open at the failure, or caused it, is repeated under its own key,
so an earlier effect is found. A step repeated on purpose is a new step with a new key."""

from __future__ import annotations

from dataclasses import dataclass

from refold.core import events
from refold.core.approval.question import in_context
from refold.core.errors import MalformedError, UsageError
from refold.core.messages import RunOperation
from refold.core.planning import asking, family, pausing
from refold.core.planning.outgoing import let_out
from refold.core.planning.verdict import Ignore, Refuse, Rules, Ruling
from refold.core.run.fold import advance
from refold.core.run.redrive import staying
from refold.core.run.state import RunState
from refold.core.wire import canonical

BY_HUMANS = frozenset({"given_up"})
"""Failures decided by a human: the call may have had its effect, and is not repeated automatically."""

HAPPENED = frozenset({"bad_result", "too_large"})
"""Failures of calls that had their effect. A receiver that forgets keys would have it twice."""


LIMITS = ("steps", "bytes", "children", "deadline_ms", "tokens", "nano_usd", "calls")


@dataclass(frozen=True, slots=True)
class RetryAsked:
    from_step: int
    edit: str
    steps: int
    history_bytes: int
    deadline_ms: int
    children: int
    tokens: int
    nano_usd: int
    calls: int
    reason: str


def failure_named(operation: RunOperation) -> int:
    """Seq of the failure that a retry is about; 0 if it has none, or is unreadable."""
    try:
        seq = canonical.parse(operation.data)["seq"]
    except (MalformedError, TypeError, KeyError):
        return 0
    return seq if type(seq) is int else 0


def child_refusal(state: RunState) -> tuple[str, str] | None:
    """Reason why a failed child is not retried, and the commands to use instead; None for any other run."""
    origin = family.origin_of(state)
    if origin is None or origin.outlives or state.request is None:
        return None
    again = f"refold run start {state.request.agent} --input JSON"
    way = f"`refold run retry {origin.parent} --from {origin.step}`, or where that run goes on or ended well `{again}`"
    return f"run {origin.parent}, which has started {state.run_id}, has its failure", way


def retry(state: RunState, operation: RunOperation, now: int, rules: Rules) -> Ruling:
    """Events of a retry of a finished run, up to the point where its code runs."""
    # It contains the failure's seq, so a repeated request applies to that failure alone.
    if not (seq := failure_named(operation)):
        return Ignore("the run is over")
    if (state.status, state.head.seq) != ("failed", seq):
        return Refuse("conflict", f"run {state.run_id} has not failed at {seq}: it is {state.status}")
    if state.request is None:
        return Refuse("conflict", f"run {state.run_id} has failed before its request was in the log: start another")
    if (refused := child_refusal(state)) is not None:
        return Refuse("conflict", ": ".join(refused))
    options = _options(state, operation, rules)
    if isinstance(options, Refuse):
        return options
    fresh: list[events.Event] = [
        events.RunRetried(
            operation.actor,
            options.reason,
            options.from_step,
            [] if options.from_step else _failed(state),
            edit=options.edit,
            steps=options.steps,
            history_bytes=options.history_bytes,
            deadline_ms=options.deadline_ms,
            children=options.children,
            tokens=options.tokens,
            nano_usd=options.nano_usd,
            calls=options.calls,
        )
    ]
    after = asking.foreseen(state, fresh, now)
    if child := next((step for step in sorted(after.open) if after.open[step].phase == "child"), 0):
        why = "has started a run that was cancelled with this one, or whose end nobody has heard"
        return Refuse("conflict", f"step {child} {why}: retry from step {child} or before, which starts another")
    return fresh + renewed(state, fresh, now, rules)


def _options(state: RunState, operation: RunOperation, rules: Rules) -> RetryAsked | Refuse:
    try:
        data = canonical.parse(operation.data) or {}
        numbers = {name: data.get(name, 0) for name in ("from", *LIMITS)}
    except (MalformedError, AttributeError):
        return Refuse(
            "malformed",
            f"a retry says `seq`, and maybe `from`, `edit`, `reason`, {', '.join(f'`{name}`' for name in LIMITS)}",
        )
    least = {"deadline_ms": -1}  # -1: no deadline
    if wrong := [name for name, number in numbers.items() if type(number) is not int or number < least.get(name, 0)]:
        return Refuse("malformed", f"{wrong[0]!r} is no number, or a negative one")
    step, reason = numbers["from"], data.get("reason", "")
    if step and not (0 < step <= len(state.steps) and state.retried.counts(step)):
        return Refuse("conflict", f"run {state.run_id} has no step {step} that counts: `refold run show` lists them")
    edit = _edit(state, step, data["edit"], rules) if data.get("edit") is not None else ""
    if isinstance(edit, Refuse):
        return edit
    return RetryAsked(
        step,
        edit,
        numbers["steps"],
        numbers["bytes"],
        deadline_ms=numbers["deadline_ms"],
        children=numbers["children"],
        tokens=numbers["tokens"],
        nano_usd=numbers["nano_usd"],
        calls=numbers["calls"],
        reason=reason if isinstance(reason, str) else "",
    )


def _edit(state: RunState, step: int, edit: object, rules: Rules) -> str | Refuse:
    call = state.steps[step - 1] if step else None
    if not isinstance(call, events.CallProposed):
        return Refuse("malformed", "an edit is for a call: name its step in `from`")
    if not isinstance(edit, dict):
        return Refuse("malformed", "an edit has all arguments of the call, as an object")
    try:
        text = canonical.dumps(edit)
        in_context(text, call.args)
        return rules.app.fits(call.tool, text) if rules.app.fits else text
    except (UsageError, MalformedError) as error:
        return Refuse("malformed", f"{call.tool} does not take these arguments: {error}")


def _failed(state: RunState) -> list[int]:
    """Failed calls that may have caused the run's failure: settled after the last step (or note) that stays."""
    stays = staying(state)
    last = state.retried.step_before(stays.first - 1)
    since = state.seqs[last - 1] if last else 0
    settled = [entry for entry in [*state.outcomes.items()][stays.loose :] if entry[1][2] > since]
    return [
        step
        for step, (_, outcome, _) in settled
        if step < stays.first and isinstance(outcome, events.CallFailed) and _may_go_out(state.call(step), outcome)
    ]


def _may_go_out(call: events.CallProposed, failed: events.CallFailed) -> bool:
    return failed.failure.code not in (BY_HUMANS | HAPPENED if call.key_window_ms else BY_HUMANS)


def renewed(state: RunState, fresh: list[events.Event], now: int, rules: Rules) -> list[events.Event]:
    """Consequences of a retry or fork: the start of a run that never started, and every open call again."""
    after, seq, at_ms = state.copy(), state.head.seq + 1, max(now, state.at_ms)
    advance(after, fresh, seq=seq, at_ms=at_ms)
    added: list[events.Event] = []

    def add(*more: events.Event) -> None:
        advance(after, more, seq=seq + 1 + len(added), at_ms=at_ms)
        added.extend(more)

    if after.status == "pending" and not after.paused and after.request and after.request.not_before_ms <= now:
        add(rules.app.start(after.request.agent))
    for step in sorted(after.open):
        if after.is_call(step) and not after.over:
            add(events.CallRenewed(step))
            out = _out(after, step, now, rules)
            add(*(pausing.keep_back(out) if after.paused else out))  # at once: questions contain the seq of events
    return added


def _out(state: RunState, step: int, now: int, rules: Rules) -> list[events.Event]:
    """Events of a new judgement of a repeated call."""
    if rules.authority is None:
        return let_out(state, state.call(step), 1, now, rules)
    maybe = state.open[step].may_have_happened
    return asking.judge_again(state, step, 1, now, rules, may_have_happened=maybe)
