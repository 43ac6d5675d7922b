"""Rows of operators' actions, by event."""

from __future__ import annotations

from refold.console.projections.shipped.steps import Apply
from refold.console.projections.shipped.tables import OPERATOR_ACTIONS, RunAt
from refold.console.projections.shipped.turn import Turn, cut
from refold.core import events
from refold.core.ids import parent_of
from refold.core.run.pausing import PARENT
from refold.core.tables import Scalar


def paused_by(role: str) -> int:
    """Return a pause's bit: 1 for the run's own, 2 for its parent's."""
    return 2 if role == PARENT else 1


def _paused(turn: Turn, event: events.RunPaused, seq: int) -> None:
    turn.run[RunAt.paused] |= paused_by(event.role)
    if event.role != PARENT:
        _acted(turn, seq, event.actor, "paused", event.role, event.reason)


def _unpaused(turn: Turn, event: events.RunUnpaused, seq: int) -> None:
    turn.run[RunAt.paused] &= ~paused_by(event.role)
    if event.role != PARENT:
        _acted(turn, seq, event.actor, "unpaused", event.role)


def _resolved(turn: Turn, event: events.DoubtResolved, seq: int) -> None:
    _acted(turn, seq, event.actor, "resolved", event.verdict, event.comment, step=event.step)


def _migrated(turn: Turn, event: events.RunMigrated, seq: int) -> None:
    turn.run[RunAt.version] = event.version
    if event.actor:
        _acted(turn, seq, event.actor, "migrated", event.version)


def _annotated(turn: Turn, event: events.RunAnnotated, seq: int) -> None:
    _acted(turn, seq, event.actor, "annotated", event.role, event.note)


def retried_by(turn: Turn, event: events.RunRetried, seq: int) -> None:
    detail = f"from step {event.from_step}" if event.from_step else ""
    _acted(turn, seq, event.actor, "retried", detail, event.reason, step=event.from_step)


def forked_by(turn: Turn, event: events.RunForked, seq: int) -> None:
    detail = f"from {event.source.run_id}/{event.source.seq}"
    _acted(turn, seq, event.actor, "forked", detail, event.reason)


def cancelled(turn: Turn, event: events.RunCancelled, seq: int) -> None:
    if event.actor != parent_of(turn.entry.run_id)[0]:
        _acted(turn, seq, event.actor, "cancelled", "", event.reason)


def _acted(turn: Turn, seq: int, actor: str, action: str, *more: str, step: int = 0) -> None:
    """Write an operator's action; `more` are its detail and reason."""
    run, at_ms = turn.entry.run_id, turn.entry.at_ms
    detail, reason = (*map(cut, more), "", "")[:2]
    row: list[Scalar] = [run, seq, at_ms, actor, action, detail, step, reason]
    turn.batch.write(OPERATOR_ACTIONS, (run, seq), row)


OPERATOR_EVENTS: dict[type, Apply] = {
    events.RunPaused: _paused,
    events.RunUnpaused: _unpaused,
    events.DoubtResolved: _resolved,
    events.RunMigrated: _migrated,
    events.RunAnnotated: _annotated,
}
