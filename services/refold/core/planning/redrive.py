"""Operator's retry of a failed run. A call that was open at the failure, or caused it, is repeated under its own key,
so an earlier effect is found. A step repeated on purpose is a new step with a new key."""

from refold.core import events
from refold.core.approval.question import in_context
from refold.core.errors import MalformedError, UsageError
from refold.core.messages import RunOperation
from refold.core.planning import asking, family, pausing
from refold.core.planning.budgets import let_out
from refold.core.planning.verdict import Ignore, Refuse, Rules, Ruling
from refold.core.run.redrive import staying
from refold.core.run.state import RunState
from refold.core.wire import canonical

BY_HUMANS = frozenset({"given_up"})
"""Failures decided by a human: the call may have had its effect, and is not repeated automatically."""

HAPPENED = frozenset({"bad_result", "too_large"})
"""Failures of calls that had their effect. A receiver that forgets keys would have it twice."""

LIMITS = ("steps", "bytes", "children", "deadline_ms", "tokens", "nano_usd", "calls")


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
    # It contains the failure's seq, so a repeated request applies to that failure alone.
    if not (seq := failure_named(operation)):
        return Ignore("the run is over")
    if (state.status, state.head.seq) != ("failed", seq):
        return Refuse("conflict", f"run {state.run_id} has not failed at {seq}: it is {state.status}")
    if state.request is None:
        return Refuse("conflict", f"run {state.run_id} has failed before its request was in the log: start another")
    if (refused := child_refusal(state)) is not None:
        return Refuse("conflict", ": ".join(refused))
    retried = _retry_event(state, operation, rules)
    if isinstance(retried, Refuse):
        return retried
    fresh: list[events.Event] = [retried]
    after = asking.foreseen(state, fresh, now)
    if child := next((step for step in sorted(after.open) if after.open[step].phase == "child"), 0):
        why = "has started a run that was cancelled with this one, or whose end nobody has heard"
        return Refuse("conflict", f"step {child} {why}: retry from step {child} or before, which starts another")
    return fresh + renewed(state, fresh, now, rules)


def _retry_event(state: RunState, operation: RunOperation, rules: Rules) -> events.RunRetried | Refuse:
    try:
        data = canonical.parse(operation.data) or {}
        numbers = {name: data.get(name, 0) for name in ("from", *LIMITS)}
    except (MalformedError, AttributeError):
        return Refuse("malformed", f"a retry says `seq`, and maybe `from`, `edit`, `reason`, `{'`, `'.join(LIMITS)}`")
    if wrong := next((name for name, number in numbers.items() if not _is_limit(name, number)), ""):
        return Refuse("malformed", f"{wrong!r} is no number, or a negative one")
    step, reason = numbers.pop("from"), data.get("reason", "")
    if step > len(state.steps) or not state.retried.counts(step):
        return Refuse("conflict", f"run {state.run_id} has no step {step} that counts: `refold run show` lists them")
    edit = _edited_args(state, step, data.get("edit"), rules)
    if isinstance(edit, Refuse):
        return edit
    again, numbers["history_bytes"] = [] if step else _failed(state), numbers.pop("bytes")
    reason = reason if isinstance(reason, str) else ""
    return events.RunRetried(operation.actor, reason, step, again, edit, **numbers)


def _is_limit(name: str, number: object) -> bool:
    return type(number) is int and number >= (-1 if name == "deadline_ms" else 0)  # -1: no deadline


def _edited_args(state: RunState, step: int, edit: object, rules: Rules) -> str | Refuse:
    if edit is None:
        return ""
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
        if step < stays.first and isinstance(outcome, events.CallFailed) and _may_repeat(state.call(step), outcome)
    ]


def _may_repeat(call: events.CallProposed, failed: events.CallFailed) -> bool:
    return failed.failure.code not in (BY_HUMANS | HAPPENED if call.key_window_ms else BY_HUMANS)


def renewed(state: RunState, fresh: list[events.Event], now: int, rules: Rules) -> list[events.Event]:
    """Consequences of a retry or fork: the start of a run that never started, and every open call again."""
    draft = asking.Draft(state, now)
    draft.add(fresh)
    draft.start(now, rules)
    for step in sorted(draft.after.open):
        if draft.after.is_call(step) and not draft.after.over:
            draft.add([events.CallRenewed(step)])
            if rules.authority is None:
                out = let_out(draft.after, draft.after.call(step), 1, now, rules)
            else:
                maybe = draft.after.open[step].may_have_happened
                out = asking.judge_again(draft.after, step, 1, now, rules, may_have_happened=maybe)
            draft.add(pausing.keep_back(out) if draft.after.paused else out)
    return draft.events[len(fresh) :]
