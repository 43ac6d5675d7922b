"""Bugs of a retry: what is done is done again, what is asked for anew is asked for as before, or nobody says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.core import events
from refold.core.planning import redrive
from refold.core.planning.decide import unsuccessful
from refold.core.run.state import RunState
from tests.sim.bugs.planting import Bug


def _all_again(state: RunState) -> list[int]:
    """Every call that has an outcome, whatever that is."""
    return [step for step in state.outcomes if isinstance(state.steps[step - 1], events.CallProposed)]


def _as_before(original: Callable[..., list[events.Event]]) -> Callable[..., list[events.Event]]:
    """The call goes out under the id that a tombstone has closed."""

    def anew(*args: Any) -> list[events.Event]:
        return [event for event in original(*args) if not isinstance(event, events.CallRenewed)]

    return anew


def _goes_on(original: Callable[..., Any]) -> Callable[..., Any]:
    """The call is tried on and on."""

    def unsuccessful(state: RunState, step: int, result: Any, now: int) -> Any:
        found = original(state, step, result, now)
        if isinstance(found, list) and isinstance(held := found[0], events.CallHeld):
            return [events.AttemptFailed(step, held.attempt, held.failure, False, now + 100)]
        return found

    return unsuccessful


REDONE: dict[str, Bug] = {
    "held-goes-out-by-itself": Bug(("held", "held-shared"), (("decide.unsuccessful", _goes_on(unsuccessful)),)),
    "done-again": Bug(("retried",), (("redrive._failed", _all_again),)),
    "retried-under-a-closed-id": Bug(("retried",), (("redrive.renewed", _as_before(redrive.renewed)),)),
}
"""By name."""
