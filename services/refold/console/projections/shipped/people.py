"""Rows of operators' actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from refold.console.projections.shipped.tables import OPERATOR_ACTIONS
from refold.console.projections.shipped.turn import Turn, cut
from refold.core import events
from refold.core.ids import parent_of
from refold.core.run.pausing import PARENT
from refold.core.tables import Scalar


def _from_step(step: int) -> str:
    return f"from step {step}" if step else ""


ACTIONS: Mapping[type, tuple[str, Callable[[Any], tuple[str, str]]]] = {
    events.RunPaused: ("paused", lambda event: (event.role, event.reason)),
    events.RunUnpaused: ("unpaused", lambda event: (event.role, "")),
    events.DoubtResolved: ("resolved", lambda event: (event.verdict, event.comment)),
    events.RunMigrated: ("migrated", lambda event: (event.version, "")),
    events.RunAnnotated: ("annotated", lambda event: (event.role, event.note)),
    events.RunRetried: (
        "retried",
        lambda event: (f"from step {event.from_step}" * (event.from_step > 0), event.reason),
    ),
    events.RunForked: ("forked", lambda event: (f"from {event.source.run_id}/{event.source.seq}", event.reason)),
    events.RunCancelled: ("cancelled", lambda event: ("", event.reason)),
}
"""Name, detail and reason of the action that an event records."""


def record_action(turn: Turn, event: Any, seq: int) -> None:
    run, at_ms = turn.entry.run_id, turn.entry.at_ms
    if not _is_by_operator(event, parent_of(run)[0]):
        return
    action, words = ACTIONS[type(event)]
    step = getattr(event, "step", 0) or getattr(event, "from_step", 0)
    detail, reason = map(cut, words(event))
    row: list[Scalar] = [run, seq, at_ms, event.actor, action, detail, step, reason]
    turn.batch.write(OPERATOR_ACTIONS, (run, seq), row)


def _is_by_operator(event: Any, parent: str) -> bool:
    """False for actions that a run takes over from its parent, and for migrations by its planner."""
    match event:
        case events.RunPaused() | events.RunUnpaused():
            return bool(event.role != PARENT)
        case events.RunMigrated():
            return bool(event.actor)
        case events.RunCancelled():
            return bool(event.actor != parent)
    return True
