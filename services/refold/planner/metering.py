"""How a call of the agent's code becomes events where something is counted: its place in budgets comes before it."""

from __future__ import annotations

from dataclasses import dataclass

from refold.core import events
from refold.core.errors import RefoldError
from refold.core.planning import budgets
from refold.core.planning.budgets import REPEATED, Attempted, Tally
from refold.core.planning.outgoing import dispatch
from refold.core.planning.verdict import Rules
from refold.core.run.metering import Reserve
from refold.core.run.purse import COUNTED_MOST, Amount, call_digest
from refold.core.run.state import RunState


@dataclass(slots=True)
class Metered:
    """A call that is asked for, what it may take as its maker says, and what a policy has to say before it goes out."""

    call: events.CallProposed
    reserve: Reserve | None
    held: events.CallFailed | events.ApprovalRequested | None


def propose_metered(state: RunState, new: Metered, tally: Tally, now: int, rules: Rules) -> list[events.Event]:
    """The events of a call. **Raises** RefoldError where a budget is used up, or nobody knows what the call costs."""
    call = new.call
    if (repeated := _repeated(state, call, tally)) and not isinstance(new.held, events.CallFailed):
        return [call, *repeated]
    asked = Attempted(call, 1, _most(state, new, now, rules), new.reserve is not None and new.reserve.cheap)
    if new.held is not None:
        return [call, *budgets.kept_in(asked, new.held)]
    found = budgets.judged(state, asked, now, rules, tally)
    tally.told.update(event.budget for event in found.said if isinstance(event, events.BudgetReached))
    if found.outcome == "stop":
        assert found.failure is not None, "what is refused has a reason"
        raise RefoldError(found.failure.message, code=found.failure.code)
    if found.failure is not None:
        return [call, *budgets.turned_away(asked, found)]
    tally.amount = tally.amount.plus((asked.most or Amount())._replace(calls=1))
    return [call, *found.said, dispatch(call, 1, now, rules)]


def _repeated(state: RunState, call: events.CallProposed, tally: Tally) -> list[events.Event]:
    if state.purse is None or not (most := state.purse.limits.same):
        return []
    name = call_digest(call.tool, call.args)
    tally.asked[name] = before = tally.asked.get(name, state.purse.asked.get(name, 0)) + 1
    if before <= most:
        return []
    message = f"{call.tool} was called {most} times with these arguments: do something else, or ask somebody"
    return [
        events.CallRepeated(call.step, before),
        events.CallFailed(call.step, 0, events.Failure(REPEATED, message)),
    ]


def _most(state: RunState, new: Metered, now: int, rules: Rules) -> Amount | None:
    call, reserve = new.call, new.reserve
    if reserve is None:
        return None
    if (most := budgets.amount_of(reserve, rules)) is not None:
        return most
    if budgets.bounds_money(state, now, rules):
        message = f"nobody knows what a call of {reserve.model or call.tool} costs, and a budget of money counts it"
        raise RefoldError(message, code="no_price", hint="give App(prices=...) its price, or the call Reserve(usd=...)")
    return Amount(min(COUNTED_MOST, reserve.tokens))
