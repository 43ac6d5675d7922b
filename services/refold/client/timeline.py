"""A run step by step: what was asked, tried, doubted and found, from the events of its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from refold.core.events import (
    ApprovalDecided,
    ApprovalEscalated,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    CallProposed,
    DoubtResolved,
    Entry,
    Failure,
    LateResultRecorded,
    NoteRecorded,
    SleepEnded,
    SleepStarted,
)
from refold.core.ids import RunId, call_id

StepStatus = Literal["proposed", "approval", "running", "backoff", "doubt", "sleeping", "completed", "failed", "noted"]


@dataclass(slots=True)
class AttemptLine:
    """One try of a call. `dispatches` counts how often it was handed to the executors; more than once is a takeover.

    **Units**: milliseconds since 1970; 0 stands for not (yet). `status`: running, completed, failed, unknown or doubt.
    """

    number: int
    started_ms: int
    dispatches: int = 1
    ended_ms: int = 0
    status: str = "running"
    failure: Failure | None = None
    retry_ms: int = 0


@dataclass(slots=True)
class Ask:
    """People who were asked about a call. `verdict` is empty while they have not decided, `expire` if they did not.

    **Units**: milliseconds since 1970; 0 stands for not (yet), or never.
    """

    approval_id: str
    rule: str
    approvers: list[str]
    quorum: int
    message: str
    asked_ms: int
    expires_ms: int = 0
    escalated: bool = False
    ended_ms: int = 0
    verdict: str = ""
    actors: list[str] = field(default_factory=list)
    said: str = ""
    args: str = ""
    grant: str = ""
    use: int = 0


@dataclass(slots=True)
class StepLine:
    """What a run asked for once, and all that came of it. `result` is JSON text, empty for none."""

    step: int
    kind: Literal["call", "note", "sleep"]
    name: str
    status: StepStatus
    call_id: str = ""
    effect: str = ""
    args: str = ""
    key: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    until_ms: int = 0
    rule: str = ""
    approvals: list[Ask] = field(default_factory=list)
    attempts: list[AttemptLine] = field(default_factory=list)
    result: str = ""
    failure: Failure | None = None
    resolved: DoubtResolved | None = None
    late: list[LateResultRecorded] = field(default_factory=list)


class Timeline:
    """The steps of a run, fed with its accepted entries in order."""

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.steps: list[StepLine] = []

    def feed(self, entry: Entry) -> None:
        """Takes an accepted entry."""
        for number, event in enumerate(entry.events, start=entry.seq):
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, number, entry.at_ms)

    @property
    def in_doubt(self) -> list[StepLine]:
        """The calls that wait for a human to say what became of them."""
        return [line for line in self.steps if line.status == "doubt"]

    @property
    def asking(self) -> list[StepLine]:
        """The calls that wait for people to decide."""
        return [line for line in self.steps if line.status == "approval"]

    def line(self, step: int) -> StepLine:
        """A step that was asked for."""
        return self.steps[step - 1]


def _noted(timeline: Timeline, event: NoteRecorded, seq: int, at_ms: int) -> None:
    line = StepLine(event.step, "note", event.kind, "noted", result=event.data, started_ms=at_ms, ended_ms=at_ms)
    timeline.steps.append(line)


def _slept(timeline: Timeline, event: SleepStarted, seq: int, at_ms: int) -> None:
    timeline.steps.append(StepLine(event.step, "sleep", "sleep", "sleeping", started_ms=at_ms, until_ms=event.until_ms))


def _proposed(timeline: Timeline, event: CallProposed, seq: int, at_ms: int) -> None:
    timeline.steps.append(
        StepLine(
            event.step,
            "call",
            event.tool,
            "proposed",
            call_id=call_id(timeline.run_id, seq),
            effect=event.effect,
            args=event.args,
            key=event.key,
            started_ms=at_ms,
            rule=event.rule,
        )
    )


def _asked(timeline: Timeline, event: ApprovalRequested, seq: int, at_ms: int) -> None:
    line, needed = timeline.line(event.step), event.requirement
    line.status = "approval"
    name = call_id(timeline.run_id, seq)
    ask = Ask(name, event.rule, list(needed.approvers), needed.quorum, needed.message, at_ms, event.expires_ms)
    line.approvals.append(ask)


def _escalated(timeline: Timeline, event: ApprovalEscalated, seq: int, at_ms: int) -> None:
    ask = timeline.line(event.step).approvals[-1]
    ask.approvers, ask.expires_ms, ask.escalated = list(event.approvers), event.expires_ms, True


def _decided(timeline: Timeline, event: ApprovalDecided, seq: int, at_ms: int) -> None:
    ask = timeline.line(event.step).approvals[-1]
    ask.verdict, ask.actors, ask.said, ask.ended_ms = event.verdict, list(event.actors), event.message, at_ms
    ask.args, ask.grant, ask.use = event.args, event.grant, event.use


def _dispatched(timeline: Timeline, event: CallDispatched, seq: int, at_ms: int) -> None:
    line = timeline.line(event.step)
    line.status = "running"
    if line.attempts and line.attempts[-1].number == event.attempt:
        line.attempts[-1].dispatches += 1
    else:
        line.attempts.append(AttemptLine(event.attempt, at_ms))


def _failed_attempt(timeline: Timeline, event: AttemptFailed, seq: int, at_ms: int) -> None:
    line = timeline.line(event.step)
    line.status = "backoff"
    _end(line, event.attempt, at_ms, "unknown" if event.unknown else "failed", event.failure)
    line.attempts[-1].retry_ms = event.retry_ms


def _completed(timeline: Timeline, event: CallCompleted, seq: int, at_ms: int) -> None:
    line = timeline.line(event.step)
    line.status, line.result, line.ended_ms = "completed", event.result, at_ms
    _end(line, event.attempt, at_ms, "completed", None)


def _failed(timeline: Timeline, event: CallFailed, seq: int, at_ms: int) -> None:
    line = timeline.line(event.step)
    line.status, line.failure, line.ended_ms = "failed", event.failure, at_ms
    _end(line, event.attempt, at_ms, "failed", event.failure)


def _doubted(timeline: Timeline, event: CallDoubted, seq: int, at_ms: int) -> None:
    line = timeline.line(event.step)
    line.status = "doubt"
    _end(line, event.attempt, at_ms, "doubt", event.failure)


def _resolved(timeline: Timeline, event: DoubtResolved, seq: int, at_ms: int) -> None:
    timeline.line(event.step).resolved = event


def _late(timeline: Timeline, event: LateResultRecorded, seq: int, at_ms: int) -> None:
    timeline.line(event.step).late.append(event)


def _woke(timeline: Timeline, event: SleepEnded, seq: int, at_ms: int) -> None:
    line = timeline.line(event.step)
    line.status, line.ended_ms = "completed", at_ms


def _end(line: StepLine, number: int, at_ms: int, status: str, failure: Failure | None) -> None:
    for attempt in line.attempts:
        if attempt.number == number and attempt.status in ("running", "doubt"):
            attempt.ended_ms, attempt.status, attempt.failure = at_ms, status, failure


_HANDLERS: dict[type, Callable[[Timeline, Any, int, int], None]] = {
    NoteRecorded: _noted,
    SleepStarted: _slept,
    SleepEnded: _woke,
    CallProposed: _proposed,
    ApprovalRequested: _asked,
    ApprovalEscalated: _escalated,
    ApprovalDecided: _decided,
    CallDispatched: _dispatched,
    AttemptFailed: _failed_attempt,
    CallCompleted: _completed,
    CallFailed: _failed,
    CallDoubted: _doubted,
    DoubtResolved: _resolved,
    LateResultRecorded: _late,
}
