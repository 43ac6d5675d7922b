"""Transitions of a run's budget account."""

from dataclasses import replace

from refold.core import events
from refold.core.events import Used
from refold.core.run.account import NOTHING, Amount, Booked, BudgetAccount, call_digest
from refold.core.run.state import RunState


def account_of(state: RunState) -> BudgetAccount:
    """Budget account of a run; an empty one if nothing was counted so far."""
    return state.account or BudgetAccount(since_ms=state.requested_ms)


def reserved(state: RunState, event: events.CallReserved, seq: int, at_ms: int) -> None:
    account, most = account_of(state), Amount(event.tokens, event.nano_usd)
    account = account._replace(most=account.most.set(event.step, (most, event.cheap)))
    if event.attempt:
        call = state.open[event.step].seq, event.attempt
        before = account.booked.get(call, Booked(NOTHING, at_ms))
        booked = account.booked.set(call, Booked(before.amount.plus(most), before.since_ms))
        account = account._replace(booked=booked, open=account.open.plus(most), own=account.own.plus(most))
    state.account = account


def billed(state: RunState, event: events.CallBilled, seq: int, at_ms: int) -> None:
    account, call = account_of(state), (event.call, event.attempt)
    usage = Amount(event.tokens, event.nano_usd)
    account = account._replace(spent=account.spent.plus(usage), own=account.own.plus(usage))
    if not event.twice:
        booked = account.booked[call].amount
        left, open_, own = account.booked.delete(call), account.open.minus(booked), account.own.minus(booked)
        account = account._replace(booked=left, open=open_, own=own)
    state.account = account


def add_child(state: RunState, child: str, used: Used) -> None:
    account, lost = account_of(state), Amount(used.lost_tokens, used.lost_nano_usd)
    spent = Amount(used.tokens, used.nano_usd, used.calls).minus(lost)
    billed = account.billed | {str(child)}
    state.account = account._replace(spent=account.spent.plus(spent), lost=account.lost.plus(lost), billed=billed)


def reached(state: RunState, event: events.BudgetReached, seq: int, at_ms: int) -> None:
    account = account_of(state)
    state.account = account._replace(reached=account.reached | {event.budget})


def let_on(state: RunState) -> None:
    """Let a run exceed its soft thresholds from now on, as an operator decided."""
    state.account = account_of(state)._replace(passed=True)


def called(state: RunState) -> None:
    """Count one dispatch of a call towards the limit on calls."""
    assert state.account is not None, "nothing is counted of a run without an account"
    account, one = state.account, Amount(calls=1)
    state.account = account._replace(spent=account.spent.plus(one), own=account.own.plus(one))


def count_equal(state: RunState, event: events.CallProposed) -> None:
    assert state.account is not None, "nothing is counted of a run without an account"
    if state.account.limits.same:
        name, counts = call_digest(event.tool, event.args), state.account.repeats
        state.account = state.account._replace(repeats=counts.set(name, counts.get(name, 0) + 1))


def raise_limits(state: RunState, event: events.RunRetried) -> None:
    if state.account is None or not (event.tokens or event.nano_usd or event.calls):
        return
    was = state.account.limits
    limits = replace(
        was, tokens=event.tokens or was.tokens, nano_usd=event.nano_usd or was.nano_usd, calls=event.calls or was.calls
    )
    state.account = state.account._replace(limits=limits, reached=frozenset(), passed=False)
