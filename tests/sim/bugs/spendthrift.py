"""Bugs of budgets: something goes out that is not booked, or what was booked is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.events import CallBilled, CallReserved, Event
from refold.core.messages import ToolResult
from refold.core.planning import asking, decide, family
from refold.core.planning.outgoing import dispatch
from refold.core.planning.verdict import ChildOver, Rules
from refold.core.run.state import RunState
from refold.planner.purses import Purses
from tests.sim.bugs.planting import Bug

_bills, _above, _respond, _let_out = decide.bills, Purses.above, family.respond, asking.let_out


def _released(state: RunState, result: ToolResult, rules: Rules) -> list[Event]:
    """Takes what nobody knows for what did not happen."""
    known = replace(result, status="failed", again=False) if result.status == "unknown" else result
    return _bills(state, known, rules)


def _unreserved(state: RunState, call: Any, attempt: int, now: int, rules: Rules) -> list[Event]:
    """Reserves for the first attempt alone."""
    out = _let_out(state, call, attempt, now, rules)
    reserved = [event for event in out if isinstance(event, CallReserved)]
    return [dispatch(call, attempt, now, rules)] if reserved else out


def _once(state: RunState, result: ToolResult, rules: Rules) -> list[Event]:
    """Forgets that somebody else may have made the attempt as well."""
    return [replace(e, twice=False) if isinstance(e, CallBilled) else e for e in _bills(state, result, rules)]


def _unbilled(state: RunState | None, what: Any) -> Any:
    """Hears of the end of a child, and not of what that took."""
    return _respond(state, replace(what, used=None) if isinstance(what, ChildOver) else what)


SPENDTHRIFT: dict[str, Bug] = {
    "bill-lost": Bug(("budget-within",), ((decide, "bills", lambda *_: []),)),
    "lost-answer-released": Bug(("budget-lost",), ((decide, "bills", _released),)),
    "retry-unreserved": Bug(("budget-lost",), ((asking, "let_out", _unreserved),)),
    "paid-twice-booked-once": Bug(("budget-crawls", "budget-slow"), ((decide, "bills", _once),)),
    "family-not-counted": Bug(("budget-family",), ((Purses, "above", lambda self, state: _above(self, state)[:1]),)),
    "child-unbilled": Bug(("budget-family",), ((family, "respond", _unbilled),)),
}
"""By name."""
