"""Dispatch of an attempt, after its reservation in the budgets that it counts for."""

from refold.core import events
from refold.core.planning import budgets
from refold.core.planning.verdict import Rules
from refold.core.run.state import RunState


def dispatch(call: events.CallProposed, attempt: int, now: int, rules: Rules) -> events.CallDispatched:
    return events.CallDispatched(call.step, attempt, now + answer_ms(call, 0, rules))


def answer_ms(call: events.CallProposed, times: int, rules: Rules) -> int:
    """Milliseconds until an unanswered request, already sent again `times` times, is sent once more."""
    return call.timeout_ms + min(rules.redispatch_cap_ms, rules.redispatch_ms << min(times, 20))


def let_out(state: RunState, call: events.CallProposed, attempt: int, now: int, rules: Rules) -> list[events.Event]:
    """Events that dispatch an attempt, or that a refusing budget causes."""
    out = dispatch(call, attempt, now, rules)
    if state.account is None or state.paused:  # a paused call is reserved at its later dispatch
        return [out]
    most, cheap = state.account.most.get(call.step, (None, False))
    order = budgets.Attempted(call, attempt, most, cheap)
    judgement = budgets.judged(state, order, now, rules)
    if judgement.failure is None:
        return [*judgement.said, out]
    opened = state.open[call.step]
    if judgement.outcome == "stop" and opened.may_have_happened:  # a run does not end over an effect
        return [events.CallDoubted(call.step, opened.attempt, judgement.failure)]
    return budgets.turned_away(order, judgement)
