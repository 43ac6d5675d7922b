"""Changes of a run's spending by events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refold.core import events
from refold.core.events import Used
from refold.core.run.purse import NOTHING, Amount, Booked, BudgetAccount, call_digest
from refold.core.run.state import RunState


def account_of(state: RunState) -> BudgetAccount:
    """The purse of a run, an empty one if nothing was counted so far."""
    return state.purse or BudgetAccount(since_ms=state.requested_ms)


def reserved(state: RunState, event: events.CallReserved, seq: int, at_ms: int) -> None:
    """Applies a reservation, in place."""
    purse, most = account_of(state), Amount(event.tokens, event.nano_usd)
    purse = purse._replace(most=purse.most.set(event.step, (most, event.cheap)))
    if event.attempt:
        call = state.open[event.step].seq, event.attempt
        before = purse.booked.get(call, Booked(NOTHING, at_ms))
        booked = purse.booked.set(call, Booked(before.amount.plus(most), before.since_ms))
        purse = purse._replace(booked=booked, open=purse.open.plus(most), own=purse.own.plus(most))
    state.purse = purse


def billed(state: RunState, event: events.CallBilled, seq: int, at_ms: int) -> None:
    """Applies a bill, in place."""
    purse, call = account_of(state), (event.call, event.attempt)
    took = Amount(event.tokens, event.nano_usd)
    purse = purse._replace(spent=purse.spent.plus(took), own=purse.own.plus(took))
    if not event.twice:
        booked = purse.booked[call].amount
        left, open_, own = purse.booked.delete(call), purse.open.minus(booked), purse.own.minus(booked)
        purse = purse._replace(booked=left, open=open_, own=own)
    state.purse = purse


def child_billed(state: RunState, event: events.ChildBilled, seq: int, at_ms: int) -> None:
    """Applies what a run below has taken, in place."""
    add_child(state, event.run_id, event.used)


def add_child(state: RunState, child: str, used: Used) -> None:
    """Counts what a run below has taken, in place."""
    purse, lost = account_of(state), Amount(used.lost_tokens, used.lost_nano_usd)
    spent = Amount(used.tokens, used.nano_usd, used.calls).minus(lost)
    state.purse = purse._replace(
        spent=purse.spent.plus(spent), lost=purse.lost.plus(lost), heard=purse.heard | {str(child)}
    )


def reached(state: RunState, event: events.BudgetReached, seq: int, at_ms: int) -> None:
    """Notes that a soft threshold was reached, in place."""
    purse = account_of(state)
    state.purse = purse._replace(told=purse.told | {event.budget})


def let_on(state: RunState) -> None:
    """Notes that an operator lets a run go on beyond a soft threshold, in place."""
    state.purse = account_of(state)._replace(passed=True)


def called(state: RunState) -> None:
    """Counts a call that goes out, in place. Of a run that has a purse."""
    assert state.purse is not None, "nothing is counted of a run without a purse"
    purse, one = state.purse, Amount(calls=1)
    state.purse = purse._replace(spent=purse.spent.plus(one), own=purse.own.plus(one))


def proposed(state: RunState, event: events.CallProposed) -> None:
    """Counts a call that is asked for, in place. Of a run that has a purse."""
    assert state.purse is not None, "nothing is counted of a run without a purse"
    if state.purse.limits.same:
        name, asked = call_digest(event.tool, event.args), state.purse.asked
        state.purse = state.purse._replace(asked=asked.set(name, asked.get(name, 0) + 1))


def raised(state: RunState, event: events.RunRetried) -> None:
    """Gives a run that goes on the limits that an operator has given it, in place."""
    if state.purse is None or not (event.tokens or event.nano_usd or event.calls):
        return
    was = state.purse.limits
    limits = replace(
        was,
        tokens=event.tokens or was.tokens,
        nano_usd=event.nano_usd or was.nano_usd,
        calls=event.calls or was.calls,
    )
    state.purse = state.purse._replace(limits=limits, told=frozenset(), passed=False)


ACCOUNT_TRANSITIONS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    events.CallReserved: reserved,
    events.CallBilled: billed,
    events.ChildBilled: child_billed,
    events.BudgetReached: reached,
    events.CallRepeated: lambda state, event, seq, at_ms: None,
}
