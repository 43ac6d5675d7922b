"""Steps of a run, folded from its events: calls with attempts and questions, waits, notes."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Self

from pydantic import Field, FieldSerializationInfo, field_serializer

from refold.client.reading.changes import STEP_CHANGES, STEP_KINDS, StepKind, StepStatus, step_change
from refold.client.reading.model import ReadModel, json_text
from refold.core import events
from refold.core.events import Failure
from refold.core.ids import CallId, RunId, approval_id, call_id, child_id
from refold.core.run.pausing import PARENT


class CallAttempt(ReadModel):
    """One try of a call. `dispatches` counts how often it was sent to the executors; more than once is a take-over.
    `before`: the run has failed since, and the call was requested again.

    **Units**: milliseconds since 1970; 0 means not (yet). `status`: running, completed, failed, unknown or doubt.
    """

    number: int
    started_ms: int
    dispatches: int = 1
    ended_ms: int = 0
    status: str = "running"
    failure: Failure | None = None
    retry_ms: int = 0
    before: bool = False


class Ask(ReadModel):
    """A question to people about a call. `verdict` is empty while it is open, `expire` if no decision came in time.

    `about` is `doubt` if the question is the outcome of the call.
    **Units**: milliseconds since 1970; 0 means not (yet), or never.
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
    actors: list[str] = Field(default_factory=list)
    said: str = ""
    args: str = ""
    grant: str = ""
    use: int = 0
    about: str = ""


class RunStep(ReadModel):
    """A step of a run: a request of its agent, and the outcome. `args` and `result` are JSON texts, empty for none.

    `label`: display name. `args`: of a wait its match, of a callback the schema of its result. `key`: idempotency key
    of a call, or of a callback's answer by `actor`; id of an answered signal. `runs`: runs that the step starts or
    signals. `how`, `began_ms` and `took_ms`: see `CallCompleted`. `waits`: no executor serves the pool of the call.
    """

    step: int
    kind: StepKind
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
    approvals: list[Ask] = Field(default_factory=list)
    attempts: list[CallAttempt] = Field(default_factory=list)
    result: str = ""
    failure: Failure | None = None
    resolved: events.DoubtResolved | None = None
    late: list[events.LateResultRecorded] = Field(default_factory=list)
    label: str = ""
    actor: str = ""
    runs: list[str] = Field(default_factory=list)
    how: str = ""
    began_ms: int = 0
    took_ms: int = 0
    waits: str = ""
    pool: str = Field("", exclude=True)

    @field_serializer("args", "result")
    def _as_data(self, text: str, info: FieldSerializationInfo) -> Any:
        return text if self.kind == "wait" and info.field_name == "args" else json_text(text)

    @property
    def asked(self) -> Ask | None:
        """The open question to approvers about the step."""
        waits = self.approvals and not self.approvals[-1].verdict and self.status in ("approval", "doubt")
        return self.approvals[-1] if waits else None

    @property
    def ways_out(self) -> list[str]:
        """Commands that settle a call in doubt or on hold."""
        if self.status == "held":
            return [f"refold run resolve {self.call_id} {flag}" for flag in ("--retry", "--answer '{...}'", "--fail")]
        return resolve_commands(self.asked.approval_id if self.asked else self.call_id)


def resolve_commands(name: str) -> list[str]:
    start = f"refold run resolve {name}"
    return [f"{start} --happened '{{...}}'", f"{start} --did-not-happen", f"{start} --give-up"]


class Successor(ReadModel):
    """A planner that took over the run from another. Its first entry is `seq`, before step `step`.

    A planner that has not written an entry yet is not listed.
    """

    actor: str
    seq: int
    step: int
    at_ms: int


class Timeline:
    """The steps of a run, fed with its accepted entries in order. `unheard` are failed tasks that the agent did not
    await; `pauses` are in force."""

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.steps: list[RunStep] = []
        self.successors: list[Successor] = []
        self.unheard: list[events.TaskFailed] = []
        self.kept: dict[str, events.SignalReceived] = {}
        self.dropped: list[events.SignalDropped] = []
        self.pauses: list[tuple[int, events.RunPaused]] = []
        self._in_wait: dict[int, events.SignalReceived] = {}
        self.forked: events.RunForked | None = None
        self._steps_before = self._at_ms = 0
        self._actor = ""

    def copy(self) -> Self:
        # Steps are replaced, never changed: copies of the lists are enough.
        other = copy(self)
        vars(other).update({name: copy(of) for name, of in vars(self).items() if isinstance(of, list | dict)})
        return other

    @property
    def pools(self) -> set[str]:
        return {step.pool for step in self.steps if step.kind == "call" and step.status == "running"}

    def marked(self, idle: Collection[str]) -> Self:
        """A copy in which running calls of these pools wait for an executor."""
        other = self.copy()
        for step in other.steps:
            if step.pool in idle and step.status == "running":
                waits = f"waits for an executor of pool {step.pool}: none is there"
                other.steps[step.step - 1] = step.model_copy(update={"waits": waits})
        return other

    def feed(self, entry: events.Entry) -> None:
        before, at_ms = len(self.steps), entry.at_ms
        if self._actor not in ("", entry.actor):
            self.successors.append(Successor(actor=entry.actor, seq=entry.seq, step=before + 1, at_ms=at_ms))
        self._actor = entry.actor
        for seq, event in enumerate(entry.events, start=entry.seq):
            if type(event) in STEP_KINDS:
                self.steps.append(_new_step(event, self.run_id, seq, at_ms))
            elif type(event) in _CHANGES:
                with suppress(LookupError, ValueError):  # a false event must not stop readers of other runs
                    self._apply_to_step(event, at_ms)
            else:
                self._apply_to_run(event, seq, at_ms)
        self._steps_before, self._at_ms = before, at_ms

    def _apply_to_step(self, event: Any, at_ms: int) -> None:
        step, kind, changes = self.steps[event.step - 1], type(event), dict[str, Any]()
        if (change := step_change(event, step.status)) is not None:
            changes |= {"status": change.status, "ended_ms": 0 if change.phase else at_ms}
            changes |= {"failure": change.failure} if change.fails else {}
        if (ended := _ATTEMPT_ENDS.get(kind)) is not None:
            changes["attempts"] = _end_attempt(step, event.attempt, at_ms, ended, getattr(event, "failure", None))
        changes |= {name: getattr(event, name) for name in _COPIED.get(kind, ())}
        if (details := _DETAILS.get(kind)) is not None:
            changes |= details(step, event, at_ms)
        self._update_step(event.step, changes)

    def _update_step(self, step: int, change: dict[str, Any]) -> None:
        self.steps[step - 1] = self.steps[step - 1].model_copy(update=change)

    def _apply_to_run(self, event: events.Event, seq: int, at_ms: int) -> None:
        match event:
            case events.TaskFailed():
                self.unheard.append(event)
            case events.SignalReceived():
                self.kept[event.signal_id] = event
            case events.SignalDropped():
                self.dropped.append(event)
            case events.WaitEnded():
                self._in_wait[event.step] = signal = self.kept.pop(event.signal_id)
                self._update_step(event.step, {"result": signal.data, "key": signal.signal_id, "actor": signal.actor})
                self._apply_to_step(event, at_ms)
            case events.RunRetried():
                self._retry(event)
            case events.RunForked():
                self._fork(event, at_ms)
            case events.CallRenewed():
                self._propose_again(event.step, call_id(self.run_id, seq))
            case events.RunPaused() | events.RunUnpaused():
                self._pause(event, at_ms)

    def _pause(self, event: events.RunPaused | events.RunUnpaused, at_ms: int) -> None:
        self.pauses = [pause for pause in self.pauses if (pause[1].role == PARENT) != (event.role == PARENT)]
        self.pauses += [(at_ms, event)] if isinstance(event, events.RunPaused) else []

    def _retry(self, event: events.RunRetried) -> None:
        """Mark the steps that a retry repeats as left, and renew the calls that it makes again."""
        for line in self.steps[event.from_step - 1 if event.from_step else self._steps_before :]:
            self._update_step(line.step, {"status": "left"})
            if signal := self._in_wait.pop(line.step, None):
                self.kept[signal.signal_id] = signal
        for step in event.again:
            self._propose_again(step, self.steps[step - 1].call_id)

    def _fork(self, event: events.RunForked, at_ms: int) -> None:
        """Apply a fork to the copied steps: calls get new keys, open ones start again here, open waits are extended."""
        self.forked = event
        self.pauses = [pause for pause in self.pauses if pause[1].role != PARENT]
        for line in self.steps:
            if (key := event.keys.get(str(line.step))) is not None:
                fresh = {"started_ms": at_ms, "attempts": [], "approvals": [], "status": "proposed"}
                self._update_step(line.step, {"key": key} if line.ended_ms else {"key": key, **fresh})
            elif not line.ended_ms and line.until_ms:
                self._update_step(line.step, {"until_ms": line.until_ms + at_ms - self._at_ms})

    def _propose_again(self, step: int, call: str) -> None:
        """Propose a call again under another id; earlier attempts stay visible."""
        tries = [
            attempt.model_copy(
                update={"before": True} | ({"status": "unknown"} if attempt.status in ("running", "doubt") else {})
            )
            for attempt in self.steps[step - 1].attempts
        ]
        redriven = {"call_id": call, "status": "proposed", "failure": None, "ended_ms": 0, "resolved": None}
        self._update_step(step, {**redriven, "attempts": tries, "how": "", "began_ms": 0, "took_ms": 0})

    def in_status(self, status: StepStatus) -> list[RunStep]:
        return [step for step in self.steps if step.status == status]

    @property
    def in_doubt(self) -> list[RunStep]:
        return self.in_status("doubt")

    @property
    def asking(self) -> list[RunStep]:
        return [step for step in self.steps if step.asked]


def _new_step(event: Any, run: RunId, seq: int, at_ms: int) -> RunStep:
    kind, name = STEP_KINDS[type(event)]
    change = step_change(event, "proposed")
    assert change is not None, "each event that begins a step has a status"
    times = {"started_ms": at_ms, "ended_ms": 0 if change.phase else at_ms}
    request = _REQUESTED[type(event)](event, run, seq)
    return RunStep(step=event.step, kind=kind, name=name(event), status=change.status, **times, **request)


_REQUESTED: Mapping[type, Callable[[Any, RunId, int], dict[str, Any]]] = {
    events.CallProposed: lambda event, run, seq: {
        "call_id": call_id(run, seq),
        **{name: getattr(event, name) for name in ("effect", "args", "key", "rule", "label", "pool")},
    },
    events.SignalSent: lambda event, run, seq: {"result": event.data, "runs": [event.run_id]},
    events.SignalAnswered: lambda event, run, seq: {
        "key": event.signal_id,
        **({"failure": event.failure} if event.failure else {"result": event.result}),
    },
    events.RunSubmitted: lambda event, run, seq: {"args": event.input, "runs": [event.run_id]},
    events.NoteRecorded: lambda event, run, seq: {"result": event.data},
    events.CheckpointReached: lambda event, run, seq: {},
    events.SleepStarted: lambda event, run, seq: {"until_ms": event.until_ms},
    events.WaitStarted: lambda event, run, seq: {"args": event.match, "until_ms": event.until_ms},
    events.CallbackCreated: lambda event, run, seq: {"args": event.schema, "until_ms": event.until_ms},
    events.ChildStarted: lambda event, run, seq: {"args": event.input, "runs": [child_id(run, event.step)]},
    events.EventPublished: lambda event, run, seq: {
        "result": event.data,
        "runs": [child_id(run, event.step, number) for number, _ in enumerate(event.agents, start=1)],
    },
}
"""Contents of the request of a step."""


def _end_attempt(step: RunStep, number: int, at_ms: int, status: str, failure: Failure | None) -> list[CallAttempt]:
    over = {"ended_ms": at_ms, "status": status, "failure": failure}
    return [
        attempt.model_copy(update=over)
        if attempt.number == number and not attempt.before and attempt.status in ("running", "doubt")
        else attempt
        for attempt in step.attempts
    ]


def _dispatched(step: RunStep, event: events.CallDispatched, at_ms: int) -> dict[str, Any]:
    last = step.attempts[-1] if step.attempts else None
    if last is not None and (last.number, last.before) == (event.attempt, False):
        again = last.model_copy(update={"dispatches": last.dispatches + 1})
        return {"attempts": [*step.attempts[:-1], again]}
    return {"attempts": [*step.attempts, CallAttempt(number=event.attempt, started_ms=at_ms)]}


def _failed(step: RunStep, event: events.AttemptFailed, at_ms: int) -> dict[str, Any]:
    *before, last = _end_attempt(step, event.attempt, at_ms, "unknown" if event.unknown else "failed", event.failure)
    return {"attempts": [*before, last.model_copy(update={"retry_ms": event.retry_ms})]}


def _question_opened(step: RunStep, event: events.ApprovalRequested, at_ms: int) -> dict[str, Any]:
    needed = event.requirement
    ask = Ask(
        approval_id=approval_id(CallId(step.call_id), event.question),
        rule=event.rule,
        approvers=list(needed.approvers),
        quorum=needed.quorum,
        message=needed.message,
        asked_ms=at_ms,
        expires_ms=event.expires_ms,
        about=event.about,
    )
    return {"approvals": [*step.approvals, ask]}


def _change_question(step: RunStep, **change: Any) -> dict[str, Any]:
    *before, ask = step.approvals
    return {"approvals": [*before, ask.model_copy(update=change)]}


def _escalated(step: RunStep, event: events.ApprovalEscalated, at_ms: int) -> dict[str, Any]:
    name, people = approval_id(CallId(step.call_id), event.question), list(event.approvers)
    return _change_question(step, approvers=people, expires_ms=event.expires_ms, escalated=True, approval_id=name)


def _decided(step: RunStep, event: events.ApprovalDecided, at_ms: int) -> dict[str, Any]:
    change = {"verdict": event.verdict, "actors": list(event.actors), "said": event.message, "ended_ms": at_ms}
    return _change_question(step, **change, args=event.args, grant=event.grant, use=event.use)


_ATTEMPT_ENDS: Mapping[type, str] = {
    events.CallCompleted: "completed",
    events.CallFailed: "failed",
    events.CallDoubted: "doubt",
    events.CallHeld: "failed",
}
"""Status of the attempt that an event ends."""

_COPIED: Mapping[type, tuple[str, ...]] = {
    events.CallCompleted: ("result", "how", "began_ms", "took_ms"),
    events.CallbackCompleted: ("result", "key", "actor"),
    events.CallbackFailed: ("key", "actor"),
}
"""Fields of a step that an event has under the same name."""

_DETAILS: Mapping[type, Callable[[RunStep, Any, int], dict[str, Any]]] = {
    events.CallDispatched: _dispatched,
    events.AttemptFailed: _failed,
    events.DoubtResolved: lambda step, event, at_ms: {"resolved": event},
    events.LateResultRecorded: lambda step, event, at_ms: {"late": [*step.late, event]},
    events.ChildCompleted: lambda step, event, at_ms: {"result": event.result if event.status == "completed" else ""},
    events.ApprovalRequested: _question_opened,
    events.ApprovalEscalated: _escalated,
    events.ApprovalDecided: _decided,
}

_CHANGES = frozenset({*STEP_CHANGES, *_DETAILS}) - {events.WaitEnded, events.CallRenewed}
"""Events that change the one step that they name, and nothing else."""
