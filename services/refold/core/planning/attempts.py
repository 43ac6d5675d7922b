"""What becomes of a call after an attempt without a result: another one, a doubt, an operator, or its failure."""

from __future__ import annotations

from refold.core import events
from refold.core.messages import ToolResult
from refold.core.planning.matrix import course
from refold.core.planning.verdict import Ignore, Ruling
from refold.core.run.retry import backoff_ms
from refold.core.run.state import RunState

MAX_RETRY_AFTER_MS = 366 * 86_400_000
"""The longest wait that a tool can ask for before its next attempt; what is longer is a mistake."""


def unsuccessful(state: RunState, step: int, result: ToolResult, now: int) -> Ruling:
    """What follows of an executor's word that an attempt has no result."""
    opened, call, failure = state.open[step], state.call(step), reason_of(result)
    # A `pure` call that was sent twice has left nothing behind.
    sent_before = opened.may_have_happened or (result.again and call.effect != "pure")
    again, last = course(call.effect, result.status, sent_before=sent_before)
    unknown = last == "doubt"
    # A tool that says "not retryable" knows what it did, and here nobody does: that one is tried again all the same.
    meant = unknown or (result.retryable and (not call.retry.retry_if or failure.code in call.retry.retry_if))
    if again == "retry" and meant and step not in state.given_up:
        if result.attempt < call.retry.attempts + opened.uncounted:
            wait = min(result.retry_after_ms, MAX_RETRY_AFTER_MS)
            if wait <= 0:
                wait = backoff_ms(call.retry, result.attempt - opened.uncounted, f"{state.run_id}/{step}")
            return [events.AttemptFailed(step, result.attempt, failure, unknown, now + wait)]
        if last == "fail" and call.retry.then == "hold":
            return [events.CallHeld(step, result.attempt, failure)]
    if last == "fail":
        return [events.CallFailed(step, result.attempt, failure, acted=result.status == "broken")]
    if opened.phase == "doubt":
        return Ignore("the call is in doubt")
    return [events.CallDoubted(step, result.attempt, failure)]


def reason_of(result: ToolResult) -> events.Failure:
    """Why an attempt has no result."""
    code = "unauthorised" if result.status == "unauthorised" else "unknown"
    return result.failure or events.Failure(code, "the executor gave no reason")
