"""Calls that build on others: what goes out with one, so that its arguments need not hold what was said before."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refold.core.events import CallCompleted, CallProposed
from refold.core.messages import EarlierCall
from refold.core.run.intents import Call
from refold.core.run.state import RunState


def earlier(steps: Iterable[int], made: Callable[[int], tuple[CallProposed | Call, str] | None]) -> list[EarlierCall]:
    """The calls of these steps and those on which they build, in order.

    `made` has the call of a step and its result; None: it has no result, and is none of them.
    """
    found: dict[int, EarlierCall] = {}
    ahead = list(steps)
    while ahead:
        step = ahead.pop()
        if step not in found and (known := made(step)) is not None:
            call, result = known
            found[step] = EarlierCall(step, call.args, result)
            ahead += call.builds_on
    return [found[step] for step in sorted(found)]


def calls_before(state: RunState, call: CallProposed) -> list[EarlierCall]:
    """The calls of a run on which one of its calls builds, in order."""

    def made(step: int) -> tuple[CallProposed, str] | None:
        settled = state.outcomes.get(step)
        if settled is None or not isinstance(settled[1], CallCompleted):
            return None
        return state.call(step), settled[1].result

    return earlier(call.builds_on, made) if call.builds_on else []
