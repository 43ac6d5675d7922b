"""Dispatch of an attempt: its place in the budgets that it counts for, then its order."""

from __future__ import annotations

from refold.core import events
from refold.core.planning import budgets
from refold.core.planning.verdict import Rules
from refold.core.run.state import RunState


def dispatch(call: events.CallProposed, attempt: int, now: int, rules: Rules) -> events.CallDispatched:
    """Dispatch an attempt, with the deadline of its answer."""
    return events.CallDispatched(call.step, attempt, now + answer_ms(call, 0, rules))


def answer_ms(call: events.CallProposed, times: int, rules: Rules) -> int:
    """Milliseconds until an unanswered request, sent again `times` times so far, is sent once more."""
    return call.timeout_ms + min(rules.redispatch_cap_ms, rules.redispatch_ms << min(times, 20))


def let_out(state: RunState, call: events.CallProposed, attempt: int, now: int, rules: Rules) -> list[events.Event]:
    """The events that dispatch an attempt, or that a budget causes by refusing it."""
    out = dispatch(call, attempt, now, rules)
    if state.account is None or state.paused:  # a paused call is reserved at its later dispatch
        return [out]
    most, cheap = state.account.most.get(call.step, (None, False))
    asked = budgets.Attempted(call, attempt, most, cheap)
    found = budgets.judged(state, asked, now, rules)
    if found.failure is None:
        return [*found.said, out]
    opened = state.open[call.step]
    if found.outcome == "stop" and opened.may_have_happened:  # a run does not end over an effect
        return [events.CallDoubted(call.step, opened.attempt, found.failure)]
    return budgets.turned_away(asked, found)
