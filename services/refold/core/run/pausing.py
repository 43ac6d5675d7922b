"""Pauses of a run, and events of its suspension and resumption for readers that do not fold. An entry records a change
of status at its end, where the agent's reaction is known."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

from refold.core import events
from refold.core.ids import call_id, child_id
from refold.core.run.state import END_STATUSES, LastCommand, OpenStep, RunState, Status, StepPhase

OPERATOR: Final = "operator"
REQUESTER: Final = "requester"
PARENT: Final = "parent"
"""Role of a pause that a run inherits from its parent."""

_STATUSES: Final[dict[type, Status]] = {
    events.RunStarted: "running",
    events.RunRetried: "running",
    events.RunSuspended: "suspended",
    events.RunResumed: "running",
    **END_STATUSES,
}

REASONS: Final[tuple[StepPhase, ...]] = ("approval", "doubt", "held", "callback", "wait", "child", "backoff", "sleep")
"""Reasons for a suspension, in order of precedence: work of others before the passing of time."""

PAUSED: Final = "paused"

CODE: Final = "code"
"""Cause of a resumption when held code is run: its inputs are in the log already."""

_LOOKED_AT = 64
"""Most open steps examined. A parent of 10,000 children suspends 10,000 times."""


def own(state: RunState) -> events.RunPaused | None:
    return next((pause for pause in state.paused if pause.role != PARENT), None)


def inherited(state: RunState) -> events.RunPaused | None:
    return next((pause for pause in state.paused if pause.role == PARENT), None)


def paused(state: RunState, event: events.RunPaused, seq: int, at_ms: int) -> None:
    state.paused = tuple(sorted((*_others(state, event), event), key=lambda pause: pause.role == PARENT))
    _commanded(state, event)


def unpaused(state: RunState, event: events.RunUnpaused, seq: int, at_ms: int) -> None:
    left = _others(state, event)
    if len(left) == len(state.paused):
        raise KeyError(event.role)
    state.paused = left
    _commanded(state, event)


def _others(state: RunState, event: events.RunPaused | events.RunUnpaused) -> tuple[events.RunPaused, ...]:
    """Pauses that an event does not touch: the inherited one if it is about the own one, else the own one."""
    return tuple(pause for pause in state.paused if (pause.role == PARENT) != (event.role == PARENT))


def _commanded(state: RunState, event: events.RunPaused | events.RunUnpaused) -> None:
    """Note the newest request of a role to pause or resume, so that `planning.pausing` ignores older ones."""
    last = state.pause_orders.get(event.role, LastCommand())
    place = event.seq if event.role == PARENT else event.offset
    newest = LastCommand(event.said_ms, place, max(last.signed_ms, event.signed_ms))
    state.pause_orders = state.pause_orders.set(event.role, newest)


class Block(NamedTuple):
    reason: str
    blocked_by: str


def status_change(before: RunState | None, after: RunState, fresh: Iterable[events.Event]) -> list[events.Event]:
    """Status event of an entry with `fresh` events, which turn `before` into `after`; empty if nothing changed."""
    was = before.status if before else "pending"
    if after.status == "suspended" != was:
        return [events.RunSuspended(*blocked(after))]
    if before and was == "suspended" and after.status == "running":
        return [events.RunResumed(_woken(before, fresh))]
    return []


def status_after(status: Status, fresh: Iterable[events.Event]) -> Status:
    """Status of a run by its events alone, for readers that do not fold them."""
    for event in fresh:
        status = _STATUSES.get(type(event), status)
    return status


def blocked(state: RunState) -> Block:
    """Reason of a suspension: a pause, or an open step by precedence."""
    if state.paused:
        return Block(PAUSED, state.paused[0].actor)
    steps = islice(state.open.items(), _LOOKED_AT)
    step, opened = min(steps, key=lambda entry: (REASONS.index(entry[1].phase), _by_time(entry[1]), entry[0]))
    return Block(opened.phase, _blocker(state, step, opened))


def _by_time(opened: OpenStep) -> int:
    return opened.due_ms if opened.phase in ("backoff", "sleep") else 0


def _woken(before: RunState, fresh: Iterable[events.Event]) -> str:
    """Cause of a resumption: the actor of an unpause, or the first open step among the events."""
    for event in fresh:
        if isinstance(event, events.RunUnpaused):
            return event.actor
        step = getattr(event, "step", 0)
        if step in before.open:
            return _blocker(before, step, before.open[step])
    return CODE


def _blocker(state: RunState, step: int, opened: OpenStep) -> str:
    if opened.phase == "sleep":
        return _utc_text(opened.due_ms)
    if isinstance(request := state.steps[step - 1], events.WaitStarted | events.CallbackCreated):
        return request.name
    if opened.phase == "child":
        return child_id(state.run_id, step)
    return state.waits_for(step) or call_id(state.run_id, opened.seq)


def _utc_text(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
