"""Bugs of who believes a model: harm goes out because it was asked for, and a run goes on while there is an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.approval.authority import Authority
from refold.core.approval.policy import Judgement
from tests.sim.bugs.planting import Bug


def _never(*_: object, **__: object) -> None:
    return None


def _without(*_: object) -> bool:
    return False


def _as_wanted(self: Authority, *_: object, **__: object) -> Judgement:
    return Judgement("allow", "", self.catalog.current)


def _times_three(budget: Any, **more: Any) -> Any:
    """What stands in a run's way is only what one of its three phases has used."""
    if hasattr(budget, "history_bytes"):
        more |= {"steps": 3 * budget.steps, "history_bytes": 100 * budget.history_bytes}
    return replace(budget, **more)


TRUSTING: dict[str, Bug] = {
    "harm-as-wanted": Bug((), (("Authority.judge", _as_wanted), ("Gate.needs_decision", _without)), minds=60),
    "limits-unread": Bug((), (("planner.lane.replace", _times_three),), minds=60),
    "deadline-unseen": Bug((), (("decide.missed", _never), ("pausing.missed", _never)), minds=200),
}
