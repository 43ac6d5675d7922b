"""Bugs of agents that think within budgets: a limit that is none, an answer paid for twice or booked as nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from refold.core.approval import authority
from refold.core.events import BudgetReached, CallBilled, Event
from refold.core.messages import ToolRequest, ToolResult
from refold.core.planning import budgets, decide, family
from refold.core.planning.verdict import ChildEnded, Scope
from refold.core.run import account
from refold.core.run.account import NANO, NOTHING
from refold.core.run.state import RunState
from refold.engine.executor import outcome
from refold.engine.executor.attempt import Attempt
from refold.engine.planner.agents import agent_host
from refold.engine.planner.log.windows import BudgetAccounts
from refold.engine.ports.effects import ToolEnded
from tests.sim.bugs.planting import Bug

_beyond, _above, _judged, _respond = budgets._first_beyond, BudgetAccounts.above, budgets.judged, family.respond
_delegated, _variables, _outcome_of = agent_host.delegated, authority.variables, outcome.outcome_of
_bills = decide.bills  # type: ignore[attr-defined]


def _tokens_apart(percent: int, measures: Any) -> Any:
    """What is bounded is money and calls."""
    return _beyond(percent, [each for each in measures if each.unit != "tokens"])


def _only_warns(then: str) -> Any:
    def above(self: BudgetAccounts, state: RunState, now: int) -> list[Scope]:
        """What should follow of a soft threshold is a warning."""
        scopes = _above(self, state, now)
        return [s._replace(limits=replace(s.limits, then="warn")) if s.limits.then == then else s for s in scopes]

    return above


def _untold(*given: Any, **more: Any) -> Any:
    """Nobody hears of a soft threshold."""
    found = _judged(*given, **more)
    return found._replace(recorded=[event for event in found.recorded if not isinstance(event, BudgetReached)])


def _unbounded(*given: Any, budget: Any, **more: Any) -> Any:
    """Starts as many as are wanted, and as deep."""
    return _delegated(*given, budget=replace(budget, children=1_000, depth=9), **more)


def _without_what_is_open(state: RunState, *given: Any, **more: Any) -> Mapping[str, Any]:
    """A policy sees what was billed."""
    known = _variables(state, *given, **more)
    return known | {"run.cost": state.account.spent.nano_usd / NANO} if state.account and "run.cost" in known else known


def _all_well(state: RunState | None, what: Any) -> Any:
    """A child that has used up its budget has done what it could."""
    if isinstance(what, ChildEnded) and what.failure and what.failure.code.startswith("budget_"):
        what = replace(what, status="completed", result="null", failure=None)
    return _respond(state, what)


def _once_more(self: Attempt, ended: ToolEnded) -> None:
    """Has what changes nothing done twice, to be sure."""
    first = self.started_ms - self.right_ms < 7  # less than any tool takes
    if first and self.phase == "running" and self.effect == "pure" and ended.status == "completed":
        self._start(probe=False)
    else:
        _ended(self, ended)


_ended = Attempt.ended


def _alone(request: ToolRequest, ended: ToolEnded, run: outcome.ToolRun) -> ToolResult:
    """Says of its own try that nothing came of it, and forgets that there was another."""
    told = _outcome_of(request, ended, run)
    return told if ended.status == "completed" else replace(told, again=request.again)


def _free(usage: Mapping[str, Any]) -> int | None:
    """Nothing is said, so nothing was taken."""
    counts = [usage.get(name, 0) for name in account.COUNTED]
    return sum(counts) if all(type(count) is int and count >= 0 for count in counts) else None


def _once(state: RunState, result: ToolResult, *more: Any) -> list[Event]:
    """Of two that are lost one is booked."""
    billed = _bills(state, result, *more)
    if result.status == "completed":
        return billed
    return [event for event in billed if not isinstance(event, CallBilled) or not event.twice]


PRODIGAL: dict[str, Bug] = {
    "tokens-unbounded": Bug((), (("budgets._first_beyond", _tokens_apart),), minds=100),
    "calls-uncounted": Bug((), (("fold.called", lambda state: None),), minds=100),
    "goes-on-unasked": Bug((), (("BudgetAccounts.above", _only_warns("ask")),), minds=100),
    "never-cheaper": Bug((), (("BudgetAccounts.above", _only_warns("degrade")),), minds=100),
    "threshold-untold": Bug((), (("budgets.judged", _untold),), minds=100),
    "repeats-as-wanted": Bug((), (("planner.metering._repeated", lambda *_: []),), minds=100),
    "starts-as-many-as-wanted": Bug((), (("agent_host.delegated", _unbounded),), minds=200),
    "cost-of-bills-alone": Bug((), (("authority.variables", _without_what_is_open),), minds=200, start=150),
    "spent-child-succeeds": Bug((), (("planning.family.respond", _all_well),), minds=100),
    "asks-once-more": Bug((), (("Attempt.ended", _once_more),), minds=100),
    "usage-of-nothing-is-free": Bug(
        (), tuple((f"{place}.tokens_of", _free) for place in ("run.metering", "budgets")), minds=100
    ),
    "other-try-forgotten": Bug((), (("outcome.outcome_of", _alone),), minds=200, start=5_001_000),
    "ended-child-uncounted": Bug((), (("BudgetAccounts._unheard", lambda *_: NOTHING),), minds=300, start=1_300_460),
    "two-lost-booked-once": Bug(("budget-two-lost",), (("decide.bills", _once),), ("die",)),
}
"""By name."""
