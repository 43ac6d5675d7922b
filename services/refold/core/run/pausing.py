"""Transitions of a run's pauses."""

from collections.abc import Callable
from typing import Any, Final

from refold.core import events
from refold.core.run.state import LastCommand, RunState

OPERATOR: Final = "operator"
REQUESTER: Final = "requester"
PARENT: Final = "parent"
"""Role of a pause that a run inherits from its parent."""


def own(state: RunState) -> events.RunPaused | None:
    return next((pause for pause in state.paused if pause.role != PARENT), None)


def inherited(state: RunState) -> events.RunPaused | None:
    return next((pause for pause in state.paused if pause.role == PARENT), None)


def _paused(state: RunState, event: events.RunPaused, seq: int, at_ms: int) -> None:
    state.paused = tuple(sorted((*_others(state, event), event), key=lambda pause: pause.role == PARENT))
    _commanded(state, event)


def _unpaused(state: RunState, event: events.RunUnpaused, seq: int, at_ms: int) -> None:
    left = _others(state, event)
    if len(left) == len(state.paused):
        raise KeyError(event.role)
    state.paused = left
    _commanded(state, event)


def _others(state: RunState, event: events.RunPaused | events.RunUnpaused) -> tuple[events.RunPaused, ...]:
    """Pauses of the other kind (own or inherited)."""
    return tuple(pause for pause in state.paused if (pause.role == PARENT) != (event.role == PARENT))


def _commanded(state: RunState, event: events.RunPaused | events.RunUnpaused) -> None:
    last = state.pause_said.get(event.role, LastCommand())
    place = event.seq if event.role == PARENT else event.offset
    newest = LastCommand(event.said_ms, place, max(last.signed_ms, event.signed_ms))
    state.pause_said = state.pause_said.set(event.role, newest)


PAUSE_TRANSITIONS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    events.RunPaused: _paused,
    events.RunUnpaused: _unpaused,
}
