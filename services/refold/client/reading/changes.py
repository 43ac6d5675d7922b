"""Reading fold of steps: the change of a step by each event, for readers and for rows in views."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from refold.core import events
from refold.core.events import DOUBT, Failure
from refold.core.run.state import StepPhase

StepKind = Literal[
    "call", "note", "sleep", "checkpoint", "wait", "callback", "run", "event", "signal", "answer", "submit"
]
StepStatus = Literal[
    "proposed", "approval", "running", "backoff", "doubt", "held", "sleeping", "waiting",
    "completed", "failed", "expired", "noted", "given_up", "left",
]  # fmt: skip
"""`left`: a retry has repeated the step, or one before it."""


class StepChange(NamedTuple):
    """Step after an event. `phase` is that of `OpenStep`, empty once the step is over. `failure` replaces the earlier
    one if `fails` is set; None clears it."""

    status: StepStatus
    phase: StepPhase | Literal[""] = ""
    fails: bool = False
    failure: Failure | None = None


STEP_KINDS: Mapping[type, tuple[StepKind, Callable[[Any], str]]] = {
    events.CallProposed: ("call", attrgetter("tool")),
    events.NoteRecorded: ("note", attrgetter("kind")),
    events.CheckpointReached: ("checkpoint", attrgetter("name")),
    events.SignalSent: ("signal", attrgetter("name")),
    events.SignalAnswered: ("answer", attrgetter("signal_id")),
    events.RunSubmitted: ("submit", attrgetter("agent")),
    events.EventPublished: ("event", attrgetter("name")),
    events.SleepStarted: ("sleep", lambda event: "sleep"),
    events.WaitStarted: ("wait", attrgetter("name")),
    events.CallbackCreated: ("callback", attrgetter("name")),
    events.ChildStarted: ("run", attrgetter("agent")),
}
"""Kind and name of the step that an event begins."""


def step_change(event: events.Event, status: StepStatus) -> StepChange | None:
    """Change of a step that has this status; None for an event that changes no status or failure."""
    change = STEP_CHANGES.get(type(event))
    return change if change is None or isinstance(change, StepChange) else change(event, status)


def _fails(status: StepStatus, phase: StepPhase | Literal[""] = "") -> Callable[[Any, StepStatus], StepChange]:
    return lambda event, before: StepChange(status, phase, fails=True, failure=event.failure)


def _given_up(event: events.StepGivenUp, status: StepStatus) -> StepChange:
    # People still settle the outcome of a call in doubt.
    return StepChange("doubt", "doubt") if status == "doubt" else StepChange("given_up")


def _signal_answered(event: events.SignalAnswered, status: StepStatus) -> StepChange:
    return StepChange("failed" if event.failure else "noted", fails=True, failure=event.failure)


def _child_over(event: events.ChildCompleted, status: StepStatus) -> StepChange:
    return StepChange("completed" if event.status == "completed" else "failed", fails=True, failure=event.failure)


def _match_failed(event: events.MatchFailed, status: StepStatus) -> StepChange:
    return StepChange(status, "wait", fails=True, failure=Failure("match_failed", event.error))


def _question_opened(event: events.ApprovalRequested, status: StepStatus) -> StepChange:
    return StepChange("doubt", "doubt") if event.about == DOUBT else StepChange("approval", "approval")


def _decided(event: events.ApprovalDecided, status: StepStatus) -> StepChange:
    # The verdict's consequences follow in events of their own: until the call is dispatched, its status stays.
    return StepChange(status, "doubt" if status == "doubt" else "proposed")


STEP_CHANGES: Mapping[type, StepChange | Callable[[Any, StepStatus], StepChange]] = {
    **dict.fromkeys(STEP_KINDS, StepChange("noted")),
    events.SignalAnswered: _signal_answered,
    events.SleepStarted: StepChange("sleeping", "sleep"),
    events.WaitStarted: StepChange("waiting", "wait"),
    events.CallbackCreated: StepChange("waiting", "callback"),
    events.ChildStarted: StepChange("running", "child"),
    events.CallProposed: StepChange("proposed", "proposed"),
    events.CallDispatched: StepChange("running", "dispatched"),
    events.AttemptFailed: StepChange("backoff", "backoff"),
    events.CallCompleted: StepChange("completed", fails=True),
    events.CallFailed: _fails("failed"),
    events.CallDoubted: StepChange("doubt", "doubt"),
    events.CallHeld: _fails("held", "held"),
    events.CallRenewed: StepChange("proposed", "proposed", fails=True),
    events.StepGivenUp: _given_up,
    events.ChildCompleted: _child_over,
    events.SleepEnded: StepChange("completed"),
    events.WaitEnded: StepChange("completed", fails=True),
    events.WaitExpired: StepChange("expired"),
    events.MatchFailed: _match_failed,
    events.CallbackCompleted: StepChange("completed"),
    events.CallbackFailed: _fails("failed"),
    events.ApprovalRequested: _question_opened,
    events.ApprovalDecided: _decided,
}
