"""What a test reads of a run, and the words for where something of it is killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from refold.core.events import CallDispatched, CallProposed, Event, Failure
from refold.core.run.state import RunState
from refold.core.wire import canonical


@dataclass(frozen=True, slots=True)
class CallMade:
    """A call of a run: what was asked, how often it was tried, and its result (as plain JSON) or failure, if any."""

    step: int
    tool: str
    args: dict[str, Any]
    key: str
    attempts: int
    result: Any = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where something dies: the planner after entry `number` of the history, or an executor `before` the tool that is
    run as `number`, or `after` it and before anybody has heard of it."""

    dies: Literal["planner", "before", "after"]
    number: int


def call_made(state: RunState, events: Sequence[Event], call: CallProposed) -> CallMade:
    """A call as a test reads it."""
    outcome = state.outcomes.get(call.step, (0, None))[1]
    sent = {event.attempt for event in events if isinstance(event, CallDispatched) and event.step == call.step}
    result = getattr(outcome, "result", None)
    return CallMade(
        call.step,
        call.tool,
        canonical.parse(state.call(call.step).args),
        call.key,
        len(sent),
        None if result is None else canonical.parse(result),
        getattr(outcome, "failure", None),
    )
