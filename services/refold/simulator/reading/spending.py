"""A second reading of what families spend: within the budget of the first, but for what is on its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.simulator.reading.logged import LoggedRun


def family_of(runs: Mapping[str, LoggedRun], run: LoggedRun) -> list[LoggedRun]:
    """All runs that count for the budget of the first."""
    first = run.id.partition(".")[0]
    return [each for name, each in runs.items() if name.partition(".")[0] == first]


def follow_spending(runs: Mapping[str, LoggedRun], run: LoggedRun, name: str, event: dict[str, Any]) -> list[str]:
    """Takes an event of `OF_BUDGETS`; what is wrong with it.

    A family stays within its budget, but for what is on its way: two planners at once do not know what the other lets
    out.
    """
    call = run.calls.get(event.get("step", 0))
    run.purse.follow(name, event, call.id if call else "")
    if name != "CallReserved":
        return []
    family = family_of(runs, run)
    first = runs.get(run.id.partition(".")[0], run)
    if not first.purse.limit:
        return []
    taken = sum(each.purse.taken for each in family)
    flying = sum(each.purse.reserved[place] for each in family for place in each.purse.open if _flies(each, *place))
    first.purse.excess = max(first.purse.excess, taken - first.purse.limit)
    if taken > first.purse.limit + flying:
        return [f"overspent: {taken} of {first.purse.limit} is taken by the family of run {first.id}"]
    return []


def _flies(run: LoggedRun, name: str, attempt: int) -> bool:
    call = run.call(name)
    return call is not None and not call.settled and attempt == max(call.attempts, default=attempt)
