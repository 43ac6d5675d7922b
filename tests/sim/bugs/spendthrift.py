"""Bugs of budgets: something goes out that is not booked, or what was booked is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.events import CallBilled, CallReserved, Event
from refold.core.messages import ToolResult
from refold.core.planning import asking, decide, family
from refold.core.planning.budgets import dispatch
from refold.core.planning.verdict import ChildEnded, Rules
from refold.core.run.state import RunState
from refold.engine.planner.log.windows import BudgetAccounts, Windows
from refold.engine.ports.log import Record
from tests.sim.bugs.planting import Bug

_bills, _above, _respond, _let_out = decide.bills, BudgetAccounts.above, family.respond, asking.let_out  # type: ignore[attr-defined]
_load, _follow = Windows.load, Windows.follow


def _released(state: RunState, result: ToolResult, *more: Any) -> list[Event]:
    """Takes what nobody knows for what did not happen."""
    known = replace(result, status="failed", again=False) if result.status == "unknown" else result
    return _bills(state, known, *more)


def _unreserved(state: RunState, call: Any, attempt: int, now: int, rules: Rules) -> list[Event]:
    """Reserves for the first attempt alone."""
    out = _let_out(state, call, attempt, now, rules)
    reserved = [event for event in out if isinstance(event, CallReserved)]
    return [dispatch(call, attempt, now, rules)] if reserved else out


def _once(state: RunState, result: ToolResult, *more: Any) -> list[Event]:
    """Forgets that somebody else may have made the attempt as well."""
    return [replace(e, twice=False) if isinstance(e, CallBilled) else e for e in _bills(state, result, *more)]


def _unbilled(state: RunState | None, what: Any) -> Any:
    """Hears of the end of a child, and not of what that took."""
    return _respond(state, replace(what, used=None) if isinstance(what, ChildEnded) else what)


def _forgetful(self: Windows) -> None:
    """Begins a take-over with no sums."""
    self._spent.clear()
    _load(self)


def _twice(self: Windows) -> None:
    """Begins a take-over with the sums that were told, and adds all that it reads to them."""
    _load(self)
    self._base.clear()


def _alone(self: Windows, record: Record) -> None:
    """Hears of nobody once it decides."""
    if not self._loaded:
        _follow(self, record)


def _self_alone(self: Windows) -> None:
    """Begins a take-over with its own sums, and forgets what other lanes told before."""
    first = not self._loaded
    _load(self)
    for lanes in self._spent.values() if first else ():
        for lane in [lane for lane in lanes if lane != self._partition]:
            del lanes[lane]


SPENDTHRIFT: dict[str, Bug] = {
    "bill-lost": Bug(("budget-within",), (("decide.bills", lambda *_: []),)),
    "lost-answer-released": Bug(("budget-lost",), (("decide.bills", _released),)),
    "retry-unreserved": Bug(("budget-lost",), (("asking.let_out", _unreserved),)),
    "paid-twice-booked-once": Bug(("budget-crawls", "budget-slow"), (("decide.bills", _once),)),
    "family-not-counted": Bug(
        ("budget-family",), (("BudgetAccounts.above", lambda self, state, now: _above(self, state, now)[:1]),)
    ),
    "made-up-values-gain": Bug(("limit-singly",), (("Windows._counted", lambda windows, key: key),)),
    "tenants-share-a-limit": Bug(
        ("limit-many",),
        (("windows.value_of", lambda *_: "any"), ("planner.windows.value_of", lambda *_: "any")),
    ),
    "limit-forgotten": Bug(("limit-alone", "limit"), (("Windows.load", _forgetful),)),
    "limit-counted-twice": Bug(("limit-alone", "limit"), (("Windows.load", _twice),)),
    "limit-of-others-forgotten": Bug(
        ("limit", "limit-shared"), (("Windows.load", _self_alone),), ("die", "power", "truncate-log")
    ),
    "limit-unheard": Bug(("limit",), (("Windows.follow", _alone),)),
    "limit-kept-before-told": Bug(("limit-alone", "limit"), (("Windows.low_water", lambda self, position: position),)),
    "child-unbilled": Bug(("budget-family",), (("planning.family.respond", _unbilled),)),
}
"""By name."""
