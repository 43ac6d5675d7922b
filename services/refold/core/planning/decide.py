"""Pure validation of an input into events, or into `Ignore` (no effect), `Park` (too early) or `Refuse` (invalid)."""

from collections.abc import Mapping

from refold.core import events
from refold.core.approval import requester
from refold.core.approval.signature import PublicKey
from refold.core.errors import MalformedError, UsageError
from refold.core.ids import RunId, parse_call_id
from refold.core.messages import INCOMPLETE, RunOperation, RunRequest, RunSignal, ToolResult
from refold.core.planning import asking, copying, family, generations, pausing, redrive
from refold.core.planning.asking import ask_what_came, foreseen, judge_again, send, settled
from refold.core.planning.budgets import bills, deadline_of, missed, narrowed
from refold.core.planning.matrix import backoff_ms, course, is_last_word
from refold.core.planning.pausing import ANNOTATE, PAUSE, RESUME, RequestedAt
from refold.core.planning.verdict import (
    Again,
    ChildEnded,
    Decided,
    Due,
    Ignore,
    Input,
    Origin,
    ParentEnded,
    Park,
    PauseAbove,
    Refuse,
    Rules,
    Ruling,
    Start,
    Undeliverable,
    UnreadableResult,
)
from refold.core.planning.waiting import expire, take_answer, take_signal
from refold.core.planning.windows import binding
from refold.core.run.account import of_budget
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import SENT_BACK, OpenStep, RunState, Settled
from refold.core.wire import canonical

ENDED_MS = 1_000
"""Precision of a run's recorded end: an input sent within this second may have caused the end."""

LATE_RESULTS = 8
"""Late results recorded per call: the first of each attempt and status."""

MAX_RETRY_AFTER_MS = 366 * 86_400_000
"""Longest delay that a tool can request before its next attempt; a longer one is a mistake."""

NEVER_ORDERED = "an executor sent a result, and no attempt was ordered"
NOBODY_SETTLES = "only people whom a policy names under `doubt` can let a `once` call out again, and none is named"
ONLY_PEOPLE_ANSWER = "only people whom the policy names under `doubt` may say a result: try it again, or let it fail"

OPERATIONS = ("cancel", PAUSE, RESUME, ANNOTATE, "resolve", "retry", "fail", "repair", "migrate", copying.FORK)
"""Requests of operators on any run. Users may send the first four to their own runs."""

OF_USERS = (*OPERATIONS[:4], "signal", "callback")

_HOW = frozenset({"stored", "probed"})
_STATUSES = frozenset({"completed", "failed", "broken", "unknown", "doubt", "unauthorised", INCOMPLETE})


def decide(
    state: RunState | None,
    message: Input,
    now: int,
    rules: Rules,
    *,
    sent: RequestedAt | None = None,
    values: Values = NO_VALUES,
) -> Ruling:
    """Events of an input, or the reason for none; `values` contains its large values. **Units**: milliseconds since
    1970: `now`, and the append time in `sent` if the input is a record."""
    ruling = _decide(state, message, now, rules, sent)
    if state is None or not isinstance(ruling, list):
        return ruling
    if state.account is not None and isinstance(message, ToolResult):
        ruling = bills(state, message, rules, values) + ruling
    if state.paused and not copying.frees(state, ruling):
        ruling = pausing.keep_back(ruling)
    doubted = [event.step for event in ruling if isinstance(event, events.CallDoubted)]
    for step in doubted:
        ruling = ruling + ask_what_came(foreseen(state, ruling, now), step, now, rules)
    return ruling


def _decide(state: RunState | None, message: Input, now: int, rules: Rules, sent: RequestedAt | None) -> Ruling:
    sent_ms = sent.ms if sent else None
    if isinstance(message, Start):
        return _start(state, message, now, rules, sent_ms)
    if isinstance(message, (ChildEnded, ParentEnded)):
        return family.respond(state, message)
    if isinstance(message, PauseAbove):
        return pausing.follow_parent(state, message, now, rules)
    if state is None or state.over:
        return _missing_or_over(state, message, now, rules, sent_ms)
    if isinstance(message, ToolResult):
        return _report(state, message, now, rules)
    if isinstance(message, Due):
        return _timer_due(state, message, now, rules)
    return _to_living_run(state, message, now, rules, sent)


def _missing_or_over(state: RunState | None, message: Input, now: int, rules: Rules, sent_ms: int | None) -> Ruling:
    if isinstance(message, RunOperation) and message.kind == copying.FORK:
        return copying.fork(state, message, now, rules)
    if state is None:
        return Park("the run is not known")
    if isinstance(message, RunOperation) and message.kind == "retry":
        return redrive.retry(state, message, now, rules)
    return _to_finished_run(state, message, sent_ms)


def _to_living_run(
    state: RunState,
    order: RunSignal | RunOperation | Decided | Undeliverable | UnreadableResult,
    now: int,
    rules: Rules,
    sent: RequestedAt | None,
) -> Ruling:
    at_ms = (sent or RequestedAt(0)).append_ms(now)
    if isinstance(order, Decided):
        return asking.take_decision(state, order, now, rules, sent_ms=at_ms)
    if isinstance(order, Undeliverable):
        return _never_sent(state, order)
    if isinstance(order, UnreadableResult):
        return _unreadable_result(state, order)
    if order.kind in (PAUSE, RESUME):
        return pausing.take_word(state, order, now, rules, sent=sent or RequestedAt(0))
    if order.kind == ANNOTATE:
        return pausing.take_note(state, order, at_ms, rules)
    if isinstance(order, RunOperation):
        return _by_operator(state, order, now, rules, sent_ms=sent.ms if sent else None)
    return _by_user(state, order, at_ms, rules)


def _to_finished_run(state: RunState, message: Input, sent_ms: int | None) -> Ruling:
    """Ruling on an input to a finished run: ignored, or refused as late."""
    # A refusal is the sender's answer, but an input of the last second may itself have caused the end.
    late = sent_ms is not None and sent_ms >= state.at_ms + ENDED_MS
    if late and isinstance(message, RunSignal | RunOperation) and message.kind in ("signal", "callback", ANNOTATE):
        return Refuse("closed", f"run {state.run_id} is {state.status}: nothing waits for this any more")
    return Ignore("the run is over")


def _start(state: RunState | None, message: Start, now: int, rules: Rules, sent_ms: int | None) -> Ruling:
    if state is not None:
        return _start_again(state, message, rules)
    ask, origin = message.request, message.origin
    if why := _why_not_allowed(message, now, rules, sent_ms):
        return Refuse("unauthorised", why)
    policy = rules.authority.catalog.current if rules.authority else ""
    above = origin or Origin(RunId(""), 0, policy, outlives=False)
    budget = _budget_of(ask, above, now, rules)
    fresh: list[events.Event] = [
        events.RunRequested(
            agent=ask.agent,
            input=ask.input,
            request_digest=message.digest,
            seed=message.seed,
            requester=ask.requester,
            traceparent=message.traceparent,
            not_before_ms=ask.not_before_ms,
            labels=ask.labels,
            policy=above.policy,
            token=ask.token,
            sessions=ask.sessions,
            outlives=above.outlives,
            deadline_ms=deadline_of(budget, ask.deadline_ms, now),
            above=above.above,
            budget=budget,
            sent_ms=sent_ms or 0,
            continues=generations.link(message.before),
        ),
        *generations.first_events(message.before),
    ]
    if message.pause is not None:
        return [*fresh, message.pause]
    # Waiting inputs are handled between this entry and the start: a cancel precedes any cost.
    if ask.not_before_ms <= now and not message.waits:
        fresh.append(rules.app.start(ask.agent))
    return fresh


def _why_not_allowed(message: Start, now: int, rules: Rules, sent_ms: int | None) -> str:
    """Reason to refuse a request of a person; empty if it is allowed."""
    if message.origin is not None or message.before is not None:
        return ""
    ask = message.request
    at_ms, labels = now if sent_ms is None else sent_ms, {window.label for window in rules.app.windows}
    return requester.why_refused(ask, _request_keys(rules), at_ms, labels)


def _budget_of(ask: RunRequest, origin: Origin, now: int, rules: Rules) -> events.Spendable | None:
    budget = narrowed(rules.app.budgets.get(ask.agent), ask.budget, root=origin.counts_for)
    if budget is None and any(binding(rules.app.windows, ask.agent, ask.labels, ask.requester, now)):
        return events.Spendable()  # without limits of its own, and counted
    return budget


def _start_again(state: RunState, message: Start, rules: Rules) -> Ruling:
    """Ruling on a repeated request: harmless if its content is equal."""
    request, keys = state.request, _request_keys(rules)
    assert request is not None, "every run begins with its request"
    if message.before is not None:
        return Ignore("the generation was started before")
    if not family.is_of(message.request, message.digest, request.request_digest):
        return Refuse("conflict", f"{family.conflict(message.request, request)}; choose another run id")
    # Else an unsigned copy that arrives first would take the signature from the real sender's run.
    signed = requester.vouches(message.request.token, message.request.requester, keys)
    if signed and not requester.vouches(request.token, request.requester, keys):
        return Refuse("conflict", "the run was begun by an equal request that is not signed; choose another id")
    return Ignore("the run was started before")


def _request_keys(rules: Rules) -> Mapping[str, PublicKey]:
    """Keys of the catalog that verify signatures of run requests; empty without an authority."""
    return rules.authority.catalog.roles.askers if rules.authority else {}


def _timer_due(state: RunState, message: Due, now: int, rules: Rules) -> Ruling:
    if state.paused:
        return Ignore("time does nothing to a run that is paused")
    if message.step == 0:
        return _run_due(state, now, rules)
    opened = state.open.get(message.step)
    # A timer may be set for a deadline that was moved since: only the deadline in the log counts.
    if opened is None or not 0 < opened.due_ms <= now:
        return Ignore("nothing is due")
    if opened.phase == "sleep":
        return [events.SleepEnded(message.step)]
    if opened.phase in ("wait", "callback"):
        return expire(state, message.step)
    if opened.question is not None:
        return asking.due(state, message.step, now)
    return _call_due(state, message.step, now, rules)


def _run_due(state: RunState, now: int, rules: Rules) -> Ruling:
    if (end := missed(state, now)) is not None:
        return [end]
    if state.status == "pending" and state.request and state.request.not_before_ms <= now:
        return [rules.app.start(state.request.agent)]
    return Ignore("the run has started")


def _call_due(state: RunState, step: int, now: int, rules: Rules) -> Ruling:
    opened, call = state.open[step], state.call(step)
    # Past the window the receiver takes the key for a new call: an attempt that arrives then could double the effect.
    arrives_ms = now + call.timeout_ms
    if call.effect == "keyed" and call.key_window_ms and arrives_ms > opened.first_sent_ms + call.key_window_ms:
        failure = events.Failure("key_window", "the receiver has forgotten the idempotency key by now")
        return [events.CallDoubted(step, opened.attempt, failure)]
    if opened.phase == "backoff":
        return send(state, step, opened.attempt + 1, now, rules, may_have_happened=opened.may_have_happened)
    return Again(step)


def _never_sent(state: RunState, message: Undeliverable) -> Ruling:
    failure = events.Failure("too_large", "the log does not take it: a topic's `max.message.bytes` is too small")
    if message.approval:
        step = asking.opened_by(state, message.approval)
        if step is None:
            return Ignore("the question is closed")
        return asking.given_up(state, step, failure, why="the question could not be asked")
    step = state.step_of(message.seq)
    opened = state.open.get(step) if step else None
    if step is None or opened is None or opened.phase != "dispatched":
        return Ignore("the call is not under way")
    if (opened.seq, opened.attempt) != (message.seq, message.attempt):
        return Ignore("the attempt is not under way")
    if message.sent_before:
        return [_closed_without_result(state, step, opened, failure)]
    return [asking.closed(opened, step, failure, may_have_happened=opened.may_have_happened)]


def _unreadable_result(state: RunState, message: UnreadableResult) -> Ruling:
    step = state.step_of(message.seq)
    opened = state.open.get(step) if step else None
    if step is None or opened is None or opened.phase != "dispatched" or opened.seq != message.seq:
        return Ignore("the call is not under way")
    # The effect happened: a retry would return the same unreadable bytes from the ledger.
    return [_closed_without_result(state, step, opened, message.failure)]


def _closed_without_result(state: RunState, step: int, opened: OpenStep, failure: events.Failure) -> events.Event:
    last = course(state.call(step).effect, "unknown", sent_before=opened.may_have_happened).last
    return asking.closed(opened, step, failure, may_have_happened=last == "doubt")


def _by_operator(state: RunState, operation: RunOperation, now: int, rules: Rules, *, sent_ms: int | None) -> Ruling:
    data = pausing.command_content(operation)
    if isinstance(data, Refuse):
        return data
    if operation.kind == copying.FORK:
        return copying.fork(state, operation, now, rules)
    if operation.kind == "cancel":
        return [*copying.cut_short(state, operation.actor, rules), _cancelled(operation, data)]
    if operation.kind == "resolve":
        return resolve(state, operation.actor, data, now, rules, sent_ms=sent_ms)
    if operation.kind == "retry":
        return Ignore("the run goes on")
    return Refuse("malformed", f"{operation.kind!r} is nothing that operators say; that is {', '.join(OPERATIONS)}")


def _by_user(state: RunState, signal: RunSignal, at_ms: int, rules: Rules) -> Ruling:
    if signal.kind == "signal":
        return take_signal(state, signal, at_ms, rules)
    if signal.kind == "callback":
        return take_answer(state, signal, at_ms)
    data = pausing.command_content(signal)
    if isinstance(data, Refuse):
        return data
    if signal.kind == "cancel":
        why = pausing.not_own(state, signal, at_ms, rules)
        return Refuse(pausing.OPERATORS_ONLY, why) if why else [_cancelled(signal, data)]
    if signal.kind in OPERATIONS:
        reason = f"{signal.kind!r} is for operators, who have a topic of their own to say it in"
        return Refuse(pausing.OPERATORS_ONLY, reason)
    return Refuse("malformed", f"{signal.kind!r} is nothing that users say; that is {', '.join(OF_USERS)}")


def _cancelled(request: RunSignal | RunOperation, data: dict[str, object]) -> events.RunCancelled:
    return events.RunCancelled(str(data.get("reason", "")), request.actor)


def _report(state: RunState, result: ToolResult, now: int, rules: Rules) -> Ruling:
    try:
        step = state.step_of(parse_call_id(result.call_id)[1])
    except MalformedError as error:
        return Refuse("malformed", str(error))
    # The step differs if the log has lost the call that had this number.
    if step is None or step != result.step or not isinstance(state.steps[step - 1], events.CallProposed):
        return Refuse("unknown_call", f"run {state.run_id} proposed no call {result.call_id} as step {result.step}")
    if result.status not in _STATUSES:
        return Refuse("malformed", f"{result.status[:80]!r} is not a status; known are {', '.join(sorted(_STATUSES))}")
    if result.status != "completed" and result.call_id != state.call_id(step):
        return Ignore("the call was asked for anew")  # this result is of the superseded call
    opened = state.open.get(step)
    # A result counts from any attempt, however late: the effect has happened, and another attempt could double it.
    if opened is not None and result.status == "completed":
        return _report_with_result(state, step, opened, result)
    return _report_without_result(state, step, result, now, rules)


def _report_without_result(state: RunState, step: int, result: ToolResult, now: int, rules: Rules) -> Ruling:
    """Ruling on a report that ends no call by a result: of a failure, or of a call that is over."""
    opened = state.open.get(step)
    if result.status == INCOMPLETE:
        waits = opened is not None and (opened.phase, opened.attempt) == ("dispatched", result.attempt)
        return Again(step, whole=True) if waits else Ignore("the attempt is not under way")
    if opened is None:
        return _report_of_closed_call(state, step, result)
    # A human has overruled this: that the effect happened all the same is recorded, and ends nothing.
    if result.status == "broken" and _person_decided_since(state, step, result):
        return _record_late_result(state, step, result)
    return _report_of_failure(state, step, result, now, rules)


def _report_of_failure(state: RunState, step: int, result: ToolResult, now: int, rules: Rules) -> Ruling:
    opened = state.open[step]
    if outdated := _outdated(state, step, result):
        return Ignore(outdated)
    if result.status == "unauthorised" and rules.authority and reason_of(result).code in SENT_BACK:
        return _judge_refused_again(state, step, result, now, rules)
    ruling = unsuccessful(state, step, result, now)
    if isinstance(ruling, list) and opened.question is not None:
        return [asking.unanswered(step, opened.question, "its executor has said what came of it"), *ruling]
    return ruling


def _outdated(state: RunState, step: int, result: ToolResult) -> str:
    """Reason why the report of an attempt no longer counts; empty if it does."""
    opened = state.open[step]
    # The executor that claimed a call in doubt may still report that it did not happen, or how it failed.
    expected = "doubt" if result.late and result.status in ("failed", "broken") else "dispatched"
    if result.attempt != opened.attempt or opened.phase not in ("dispatched", expected):
        return "another attempt is under way"
    late = result.late and opened.phase == "dispatched"
    return "somebody else acts on it" if late and not is_last_word(state.call(step).effect, result.status) else ""


def _report_with_result(state: RunState, step: int, opened: OpenStep, result: ToolResult) -> Ruling:
    if state.reworded(step, result.call_id):  # of the call before its edit; the edited call may still end
        return _record_late_result(state, step, result)
    fresh: list[events.Event] = [_completion(step, result)]
    if _person_decided_since(state, step, result):
        fresh.insert(0, events.LateResultRecorded(step, result.attempt, result.status, result.result, contradicts=True))
    if opened.question is not None:
        why = "an earlier attempt had its result" if opened.first_sent_ms else NEVER_ORDERED
        fresh.insert(0, asking.unanswered(step, opened.question, why))
    return fresh


def _completion(step: int, result: ToolResult) -> events.CallCompleted:
    """End of a call from its executor's report, without an unknown `how` and impossible times."""
    how = result.how if result.how in _HOW else "late" if result.late else ""
    began_ms, took_ms = result.began_ms, result.took_ms
    if not (0 <= began_ms <= events.LAST_MS and 0 <= took_ms <= events.LAST_MS):
        began_ms = took_ms = 0
    return events.CallCompleted(step, result.attempt, result.result, how, began_ms, took_ms)


def _report_of_closed_call(state: RunState, step: int, result: ToolResult) -> Ruling:
    if (was := state.given_up.get(step)) is not None and step not in state.outcomes:
        # The outcome of an attempt is recorded once: an attempt that was over by then has reported it.
        if not _had_effect(result) and (was.phase, was.attempt) != ("dispatched", result.attempt):
            return Ignore("the call was given up")
        return _record_late_result(state, step, result, contradicts=False)
    if not state.retried.counts(step):  # its outcome no longer counts
        return Ignore("a retry has left the call behind")
    if not _had_effect(result) or not _person_decided_since(state, step, result):
        return Ignore("the call is settled")
    if _is_same_result(state.outcomes.get(step, (0, None))[1], result):
        return Ignore("the call is settled")
    return _record_late_result(state, step, result)


def _had_effect(result: ToolResult) -> bool:
    return result.status in ("completed", "broken")


def _is_same_result(outcome: Settled | None, result: ToolResult) -> bool:
    """True if the call completed by this attempt: with this result, or with any if the attempt is `broken`."""
    # Equal results of two attempts are not the same: it happened twice.
    if not isinstance(outcome, events.CallCompleted) or outcome.attempt != result.attempt:
        return False
    return result.status == "broken" or outcome.result == result.result


def _person_decided_since(state: RunState, step: int, result: ToolResult) -> bool:
    resolved = state.resolved.get(step)
    return resolved is not None and resolved.attempt >= result.attempt


def _record_late_result(state: RunState, step: int, result: ToolResult, *, contradicts: bool = True) -> Ruling:
    # An effect that contradicts the verdict of people is never dropped.
    late = events.LateResultRecorded(step, result.attempt, result.status, result.result, contradicts=contradicts)
    past = state.late.get(step, ())
    # Reports of executors are not trusted, and all of them would stay in the history.
    if len(past) >= LATE_RESULTS or any((old.attempt, old.status) == (late.attempt, late.status) for old in past):
        return Ignore("a late result of the attempt is recorded")
    return [late]


def _judge_refused_again(state: RunState, step: int, result: ToolResult, now: int, rules: Rules) -> Ruling:
    assert rules.authority is not None, "only an authority judges"
    opened, failure = state.open[step], reason_of(result)
    # The claim chain rules out another executor for `probed` and `once`; a `keyed` call that went out twice may be in
    # progress at another one, to which the decision was still valid.
    unknown = state.call(step).effect == "keyed" and result.again
    if failure.code == "policy_changed" and not rules.authority.changed(opened.policy):
        # The executor has read more of the catalog than this planner: an immediate judgement would be the same.
        return [events.AttemptFailed(step, result.attempt, failure, unknown, now + rules.refused_ms)]
    maybe = opened.may_have_happened or unknown
    failed: list[events.Event] = [events.AttemptFailed(step, result.attempt, failure, unknown, now)]
    after = foreseen(state, failed, now)
    return failed + judge_again(after, step, result.attempt + 1, now, rules, may_have_happened=maybe)


def unsuccessful(state: RunState, step: int, result: ToolResult, now: int) -> Ruling:
    """Events of an attempt without a result: a retry, hold, failure or doubt."""
    opened, call, failure = state.open[step], state.call(step), reason_of(result)
    again, last = course(call.effect, result.status, sent_before=_sent_before(opened, result, call.effect))
    unknown = last == "doubt"
    # "Not retryable" counts only from a tool that knows its outcome; an unknown outcome is retried all the same.
    meant = unknown or _is_retryable(call.retry, result, failure.code)
    if again == "retry" and meant and step not in state.given_up:
        if result.attempt < call.retry.attempts + opened.uncounted:
            wait_ms = _retry_delay_ms(call.retry, result, opened.uncounted, f"{state.run_id}/{step}")
            return [events.AttemptFailed(step, result.attempt, failure, unknown, now + wait_ms)]
        if (last, call.retry.then) == ("fail", "hold"):
            return [events.CallHeld(step, result.attempt, failure)]
    if last == "fail":
        return [events.CallFailed(step, result.attempt, failure, acted=result.status == "broken")]
    if opened.phase == "doubt":
        return Ignore("the call is in doubt")
    return [events.CallDoubted(step, result.attempt, failure)]


def _sent_before(opened: OpenStep, result: ToolResult, effect: str) -> bool:
    """True if an earlier attempt, or a second executor of this one, may have had the effect of the call."""
    # A `pure` call that was sent twice has no effect to look for.
    return opened.may_have_happened or (result.again and effect != "pure")


def _retry_delay_ms(policy: events.RetryPolicy, result: ToolResult, uncounted: int, salt: str) -> int:
    wait_ms = min(result.retry_after_ms, MAX_RETRY_AFTER_MS)
    return wait_ms if wait_ms > 0 else backoff_ms(policy, result.attempt - uncounted, salt)


def _is_retryable(policy: events.RetryPolicy, result: ToolResult, code: str) -> bool:
    return result.retryable and (not policy.retry_if or code in policy.retry_if)


def reason_of(result: ToolResult) -> events.Failure:
    code = "unauthorised" if result.status == "unauthorised" else "unknown"
    return result.failure or events.Failure(code, "the executor gave no reason")


def resolve(
    state: RunState, actor: str, data: dict[str, object], now: int, rules: Rules, *, sent_ms: int | None
) -> Ruling:
    """Events of an operator's verdict on a call in doubt or held."""
    resolved = _parsed_verdict(actor, data)
    if resolved is None:
        return Refuse("malformed", "resolve needs step, attempt and verdict (happened, did_not_happen or give_up)")
    step, attempt, verdict = resolved.step, resolved.attempt, resolved.verdict
    if (ruling := _not_open(state, resolved, sent_ms) or _for_people(state, resolved, now, rules)) is not None:
        return ruling
    opened, call, result = state.open[step], state.call(step), canonical.dumps(data.get("result"))
    if verdict == "happened" and (why := _impossible_result(rules, call.tool, result)):
        return Refuse("malformed", why)
    failure = opened.failure if (opened.phase, verdict) == ("held", "give_up") else None
    # The failure of a call held by its budget says nothing about its earlier attempts, which may have had their effect.
    if failure and not (attempt and of_budget(failure)):
        return [resolved, events.CallFailed(step, attempt, failure)]
    return settled(state, resolved, result, now, rules)


def _parsed_verdict(actor: str, data: dict[str, object]) -> events.DoubtResolved | None:
    step, attempt, verdict = data.get("step"), data.get("attempt"), data.get("verdict")
    if type(step) is not int or type(attempt) is not int or verdict not in ("happened", "did_not_happen", "give_up"):
        return None
    return events.DoubtResolved(step, attempt, str(verdict), actor, str(data.get("comment", "")))


def _impossible_result(rules: Rules, tool: str, result: str) -> str:
    """Reason why a tool cannot have had this result; empty if it can."""
    try:
        if rules.app.takes:
            rules.app.takes(tool, result)
    except UsageError as error:
        return f"{tool} cannot have had this result: {error}"
    return ""


def _not_open(state: RunState, resolved: events.DoubtResolved, sent_ms: int | None) -> Ruling | None:
    """Ruling on a verdict on a call that is not (or no longer) in doubt or held; None if it is."""
    step, attempt = resolved.step, resolved.attempt
    opened, before = state.open.get(step), state.resolved.get(step)
    if before and before.attempt >= attempt:
        same = before.attempt > attempt or before.verdict == resolved.verdict
        conflict = Refuse("conflict", f"step {step} was resolved as {before.verdict}")
        return Ignore("resolved before") if same else conflict
    if opened is None or opened.phase not in ("doubt", "held") or opened.attempt != attempt:
        return Refuse("conflict", f"attempt {attempt} of step {step} is neither in doubt nor held")
    # It was refused before, and is read again because positions were lost: its sender cannot have seen this doubt.
    if sent_ms is not None and sent_ms < opened.doubted_ms:
        return Refuse("conflict", f"attempt {attempt} of step {step} was neither in doubt nor held when this was said")
    return None


def _for_people(state: RunState, resolved: events.DoubtResolved, now: int, rules: Rules) -> Ruling | None:
    """Ruling on a verdict reserved to people named by a policy; None if an operator may give it."""
    step, opened = resolved.step, state.open[resolved.step]
    named = rules.authority.settlers(opened.policy) if rules.authority else None
    if (open_question := opened.question) is not None:
        if named != (open_question.event.policy, open_question.event.requirement):
            return asking.reopened(state, step, now, rules, why="others are named by now")
        return Refuse("conflict", f"people are asked what came of step {step}, and their votes say it")
    if opened.phase == "held":
        return Refuse("unauthorised", ONLY_PEOPLE_ANSWER) if resolved.verdict == "happened" and named else None
    if question := ask_what_came(state, step, now, rules):  # no policy named people at that time
        return question
    if resolved.verdict == "did_not_happen" and state.call(step).effect == "once":  # its executor requires signed votes
        return Refuse("unauthorised", NOBODY_SETTLES)
    return None
