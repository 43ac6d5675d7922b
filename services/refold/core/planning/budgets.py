"""Budgets: reserved before every attempt, billed by its outcome. A call must fit into the budget of its run and of
every run that waits for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from refold.core import events
from refold.core.errors import MalformedError
from refold.core.events import Failure, Spendable
from refold.core.ids import parse_call_id
from refold.core.messages import ToolResult
from refold.core.planning.verdict import Rules, Scope
from refold.core.run.account import (
    BUDGET_CODES,
    COUNTED_MOST,
    LIMIT_CODES,
    NOTHING,
    Amount,
    Booked,
    BudgetAccount,
    Reserve,
    in_usd,
    nano_usd,
    tokens_of,
    usage_of,
)
from refold.core.run.counting import account_of
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import RunState

DEGRADE = "degrade"
"""Failure code of a call that should be repeated in a cheaper way."""

REPEATED = "repeated"
"""Failure code of a call repeated too often with the same arguments."""

LOOKED_INTO = 4 << 20
"""Longest result parsed for its usage, in characters; parsing blocks all other runs for some milliseconds."""


class Attempted(NamedTuple):
    """Attempt to dispatch. `most` is its largest cost, None if unknown; for `cheap` see `Reserve`."""

    call: events.CallProposed
    attempt: int
    most: Amount | None
    cheap: bool


@dataclass(slots=True)
class Reservation:
    """Reservations of an entry that is not folded into the state yet."""

    amount: Amount = NOTHING
    reached: set[str] = field(default_factory=set)
    repeats: dict[bytes, int] = field(default_factory=dict)


class BudgetJudgement(NamedTuple):
    """Judgement of budgets on an attempt: its `failure`, or events to write before its dispatch."""

    outcome: Literal["go", "ask", "degrade", "stop"]
    recorded: list[events.Event]
    failure: Failure | None = None


class _Measure(NamedTuple):
    unit: str
    usage: int
    limit: int


def judged(
    state: RunState, order: Attempted, now: int, rules: Rules, reservation: Reservation | None = None
) -> BudgetJudgement:
    """Judge an attempt by the budgets of its run; `reservation` is the total of the dispatches before it."""
    account, reservation = account_of(state), reservation or Reservation()
    added = reservation.amount.plus(order.most or NOTHING)._replace(calls=reservation.amount.calls + 1)
    recorded: list[events.Event] = []
    judgement = BudgetJudgement("go", recorded)
    for scope in _scopes(state, account, now, rules):
        usage = scope.taken.plus(account.own if scope.window else account.total).plus(added)
        limits, ms = scope.limits, max(0, now - scope.since_ms)
        measures = [_Measure("usd", usage.nano_usd, limits.nano_usd), _Measure("tokens", usage.tokens, limits.tokens)]
        measures += [_Measure("calls", usage.calls, limits.calls), _Measure("seconds", ms, limits.ms)]
        if over := _first_beyond(100, measures):
            return BudgetJudgement("stop", recorded, _exhausted(state, scope, over))
        if (near := _first_beyond(limits.soft_percent, measures)) is None:
            continue
        if scope.run not in {*account.reached, *reservation.reached}:
            recorded.append(events.BudgetReached(scope.run, near.unit, near.usage, near.limit, limits.then))
        judgement = _soften(judgement, scope, near, order, account)
    if judgement.failure is None and order.most is not None:
        recorded.append(_reserve(order, order.attempt))
    return judgement


def _soften(
    judgement: BudgetJudgement, scope: Scope, near: _Measure, order: Attempted, account: BudgetAccount
) -> BudgetJudgement:
    """Judgement with the reaction of one more budget above its soft threshold: to ask outranks to degrade."""
    if scope.limits.then == "ask" and not account.passed:
        return judgement._replace(outcome="ask", failure=_close_to_limit(scope, near))
    if judgement.outcome == "go" and _may_degrade(order, near, scope.limits.then):
        return judgement._replace(outcome="degrade", failure=replace(_close_to_limit(scope, near), code=DEGRADE))
    return judgement


def _first_beyond(percent: int, measures: list[_Measure]) -> _Measure | None:
    return next((one for one in measures if one.limit > 0 and one.usage * 100 > one.limit * percent), None)


def turned_away(order: Attempted, judgement: BudgetJudgement) -> list[events.Event]:
    """Events of an attempt that a budget refuses."""
    failure, step = judgement.failure, order.call.step
    assert failure is not None, "what is refused has a reason"
    # Recorded, because the attempt may be dispatched later.
    most = [] if order.most is None else [_reserve(order)]
    if judgement.outcome == "ask":
        return [*most, *judgement.recorded, events.CallHeld(step, order.attempt - 1, failure)]
    if judgement.outcome == DEGRADE:
        return [*judgement.recorded, events.CallFailed(step, order.attempt - 1, failure)]
    return [events.RunFailed(failure)]


def _reserve(order: Attempted, attempt: int = 0) -> events.CallReserved:
    assert order.most is not None, "only of a call that is metered"
    return events.CallReserved(order.call.step, attempt, order.most.tokens, order.most.nano_usd, order.cheap)


def kept_in(order: Attempted, blocked: events.Event) -> list[events.Event]:
    """Events of a call that is blocked or denied, with its largest cost for a later dispatch."""
    return [blocked] if order.most is None or isinstance(blocked, events.CallFailed) else [_reserve(order), blocked]


def bills(state: RunState, result: ToolResult, rules: Rules, values: Values = NO_VALUES) -> list[events.Event]:
    """Bill an attempt by the usage in its result. If the outcome is unknown, the reservation stays. `values` contains
    large results; above `LOOKED_INTO` characters the reservation is billed."""
    account = state.account
    assert account is not None, "only of a run that something is counted of"
    try:
        call = parse_call_id(result.call_id)[1]
    except MalformedError:
        return []
    if (booked := account.booked.get((call, result.attempt))) is None:
        return []
    amount = _amount_taken(state, result, booked.amount, rules, values)
    return [] if amount is None else [_bill_of(result, call, booked, amount, rules)]


def _amount_taken(state: RunState, result: ToolResult, booked: Amount, rules: Rules, values: Values) -> Amount | None:
    """Amount that an attempt took by its outcome; None if that is unknown."""
    if result.status == "completed":
        text = values.get((result.run_id, result.result), result.result)
        return _usage_amount(text if isinstance(text, str) and len(text) <= LOOKED_INTO else "", booked, rules)
    # "It did not happen" covers one order: where there were two, the other may have been made.
    if result.status in ("failed", "unauthorised") and not result.again:
        return NOTHING
    pure = state.call(result.step).effect == "pure"
    # Made twice, both outcomes unknown.
    return booked if pure and result.again and result.status in ("unknown", "broken") else None


def _bill_of(result: ToolResult, call: int, booked: Booked, amount: Amount, rules: Rules) -> events.CallBilled:
    billed = events.CallBilled(result.step, call, result.attempt, amount.tokens, amount.nano_usd, twice=result.again)
    if not rules.app.windows:
        return billed
    for_ = booked.amount
    return replace(billed, for_tokens=for_.tokens, for_nano_usd=for_.nano_usd, since_ms=booked.since_ms)


def _usage_amount(result: str, booked: Amount, rules: Rules) -> Amount:
    # Only calls that reserve tokens report usage; the result of a tool with a price may be any text.
    usage = usage_of(result) if booked.tokens else None
    if usage is None:
        return booked
    price = rules.app.price(usage) if rules.app.price else None
    tokens = tokens_of(usage)
    assert tokens is not None, "a usage has numbers of tokens"
    return NOTHING.plus(Amount(tokens, booked.nano_usd if price is None else price))


def amount_of(reserve: Reserve, rules: Rules) -> Amount | None:
    """Amount of a reservation; None if the price of its model is unknown."""
    if reserve.usd is not None:
        return NOTHING.plus(Amount(reserve.tokens, nano_usd(reserve.usd)))
    price = rules.app.price(reserve.usage) if rules.app.price and reserve.model else None
    return None if price is None else NOTHING.plus(Amount(reserve.tokens, price))


def bounds_money(state: RunState, now: int, rules: Rules) -> bool:
    return state.account is not None and any(tier.limits.nano_usd for tier in _scopes(state, state.account, now, rules))


def narrowed(own: Spendable | None, requested: Spendable | None, *, root: str = "") -> Spendable | None:
    """Smaller of an agent's and a request's budget, per limit; `root` is the run that it counts for."""
    if own is None or requested is None:
        limits = own or requested or (Spendable() if root else None)
    else:
        less = [_lower(getattr(own, name), getattr(requested, name)) for name in ("tokens", "nano_usd", "calls", "ms")]
        limits = replace(own, tokens=less[0], nano_usd=less[1], calls=less[2], ms=less[3])
    return replace(limits, root=root) if limits else None


def _lower(one: int, other: int) -> int:
    # A request may contain a negative limit: it counts as none.
    return min(one, other) if one > 0 and other > 0 else max(one, other, 0)


def deadline_of(limits: Spendable | None, requested_ms: int, now: int) -> int:
    """Deadline of a run by its request and its budget; 0: none."""
    return _lower(requested_ms, min(COUNTED_MOST, now + limits.ms) if limits and limits.ms else 0)


def missed(state: RunState, now: int) -> events.RunFailed | None:
    """Failure of a run past its deadline, else None."""
    if not 0 < state.deadline_ms <= now:
        return None
    by = datetime.fromtimestamp(state.deadline_ms / 1000, UTC).isoformat(timespec="seconds")
    why = f"it was to be over by {by}; `refold run retry --deadline` gives it more time"
    limit_ms = state.account.limits.ms if state.account else 0
    of_budget = limit_ms and state.deadline_ms == state.requested_ms + limit_ms
    return events.RunFailed(Failure(BUDGET_CODES["seconds"] if of_budget else "deadline", why))


def _scopes(state: RunState, account: BudgetAccount, now: int, rules: Rules) -> Sequence[Scope]:
    return rules.above(state, now) if rules.above else [Scope(state.run_id, account.limits, account.since_ms, NOTHING)]


def _may_degrade(order: Attempted, near: _Measure, then: str) -> bool:
    if then != "degrade" or near.unit not in ("tokens", "usd"):
        return False
    nothing_happened = order.attempt == 1 or order.call.effect == "pure"
    return order.most is not None and not order.cheap and nothing_happened


def _exhausted(state: RunState, scope: Scope, over: _Measure) -> Failure:
    usage, limit = _amount_text(over.unit, over.usage), _amount_text(over.unit, over.limit)
    if scope.window:
        message = f"with this call all runs of {scope.run} take {usage} of their limit, {limit}"
        again = "`refold run retry` goes on in another window, or with a higher limit"
        return Failure(LIMIT_CODES[over.unit], f"{message}; {again}", scope.run)
    budget = "its budget" if scope.run == state.run_id else f"the budget of run {scope.run}"
    message = f"with this call it takes {usage} of {budget}, {limit}"
    how = "deadline" if over.unit == "seconds" else over.unit
    return Failure(BUDGET_CODES[over.unit], f"{message}; `refold run retry --{how}` gives that more", scope.run)


def _close_to_limit(scope: Scope, near: _Measure) -> Failure:
    usage, limit = _amount_text(near.unit, near.usage), _amount_text(near.unit, near.limit)
    template = "it takes {} of the budget of run {}" if not scope.window else "{} are taken of the limit of {}"
    message = f"{template.format(usage, scope.run)}, {limit}: over {scope.limits.soft_percent} %"
    return Failure((LIMIT_CODES if scope.window else BUDGET_CODES)[near.unit], message, scope.run)


def _amount_text(unit: str, number: int) -> str:
    if unit == "usd":
        return in_usd(number)
    return f"{number / 1000:g} s" if unit == "seconds" else f"{number:,} {unit}"


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
    order = Attempted(call, attempt, most, cheap)
    judgement = judged(state, order, now, rules)
    if judgement.failure is None:
        return [*judgement.recorded, out]
    opened = state.open[call.step]
    if judgement.outcome == "stop" and opened.may_have_happened:  # a run does not end over an effect
        return [events.CallDoubted(call.step, opened.attempt, judgement.failure)]
    return turned_away(order, judgement)
