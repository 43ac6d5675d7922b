"""Rows of questions and of operators' actions, by event."""

from __future__ import annotations

from refold.console.projections.shipped.beside import count_votes
from refold.console.projections.shipped.steps import Apply
from refold.console.projections.shipped.tables import APPROVALS, OPERATOR_ACTIONS, DayAt, RunAt, StepAt
from refold.console.projections.shipped.turn import Turn, cut, is_question
from refold.core import events
from refold.core.events import DOUBT
from refold.core.ids import CallId, approval_id, parent_of
from refold.core.run.pausing import PARENT
from refold.core.tables import Scalar


def paused_by(role: str) -> int:
    """Return a pause's bit: 1 for the run's own, 2 for its parent's."""
    return 2 if role == PARENT else 1


def _question_opened(turn: Turn, event: events.ApprovalRequested, seq: int) -> None:
    if (row := turn.step(event.step)) is None:
        return
    about_doubt = event.about == DOUBT
    turn.question(row, open=0)  # an undecided one
    _now_about(turn, row, name := approval_id(CallId(row[StepAt.call_id]), event.question))
    row[StepAt.approvals] += 1
    needed, entry = event.requirement, turn.entry
    turn.batch.write(
        APPROVALS,
        (name,),
        [
            *(name, entry.run_id, event.step, row[StepAt.name], event.rule, ", ".join(needed.approvers), needed.quorum),
            *(entry.at_ms, event.expires_ms, 0, "", "", cut(event.about), 0, 0),
        ],
    )
    turn.move(row, "doubt" if about_doubt else "approval", row[StepAt.phase] if about_doubt else "approval")
    turn.question(row, open=int(is_question(row)))


def _escalated(turn: Turn, event: events.ApprovalEscalated, seq: int) -> None:
    row = turn.step(event.step)
    if row is None or (before := turn.batch.row(APPROVALS, (row[StepAt.approval_id],))) is None:
        return
    turn.batch.write(APPROVALS, (row[StepAt.approval_id],), None)
    _now_about(turn, row, name := approval_id(CallId(row[StepAt.call_id]), event.question))
    turn.batch.write(APPROVALS, (name,), [name, *before[1:]])
    turn.question(row, approvers=", ".join(event.approvers), expires_ms=event.expires_ms, escalated=1)


def _decided(turn: Turn, event: events.ApprovalDecided, seq: int) -> None:
    if (row := turn.step(event.step)) is None:
        return
    ended = turn.batch.row(APPROVALS, (row[StepAt.approval_id],))
    actors = ", ".join(event.actors)
    turn.question(row, verdict=event.verdict, ended_ms=turn.entry.at_ms, actors=actors, open=0)
    _now_about(turn, row, "")
    if event.token:
        count_votes(turn.batch, event)
    if ended is None or ended[APPROVALS.places["about"]] != DOUBT:
        turn.move(row, row[StepAt.status], "proposed")
    if event.verdict == "reject":
        turn.sums(row[StepAt.name])[DayAt.rejections] += 1


def _now_about(turn: Turn, row: list[object], question: str) -> None:
    turn.count(row, -1)
    row[StepAt.approval_id] = question
    turn.count(row, 1)


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


QUESTION_EVENTS: dict[type, Apply] = {
    events.ApprovalRequested: _question_opened,
    events.ApprovalEscalated: _escalated,
    events.ApprovalDecided: _decided,
}

OPERATOR_EVENTS: dict[type, Apply] = {
    events.RunPaused: _paused,
    events.RunUnpaused: _unpaused,
    events.DoubtResolved: _resolved,
    events.RunMigrated: _migrated,
    events.RunAnnotated: _annotated,
}
