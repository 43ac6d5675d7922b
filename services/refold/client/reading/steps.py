"""Steps of a run, folded from its events: calls with attempts and questions, waits, notes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from typing import Any, Literal

from pydantic import Field, FieldSerializationInfo, field_serializer

from refold.client.reading.model import ReadModel, json_text
from refold.core import events
from refold.core.events import DOUBT, Failure
from refold.core.ids import CallId, RunId, approval_id, call_id, child_id
from refold.core.run.pausing import PARENT

StepStatus = Literal[
    "proposed",
    "approval",
    "running",
    "backoff",
    "doubt",
    "held",
    "sleeping",
    "waiting",
    "completed",
    "failed",
    "expired",
    "noted",
    "given_up",
    "left",
]
"""`left`: a retry has repeated the step, or one before it."""


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
    of a call, or of a callback's answer by `actor`. `runs`: runs that the step starts or signals. `how`, `began_ms` and
    `took_ms`: see `CallCompleted`. `waits`: no executor serves the pool of the call.
    """

    step: int
    kind: Literal["call", "note", "sleep", "checkpoint", "wait", "callback", "run", "event", "signal"]
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
        """The open question about the step."""
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
    """The steps of a run, fed with its accepted entries in order.

    `unheard` are failed tasks that the agent did not await; `pauses` are in force.
    """

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

    def copy(self) -> Timeline:
        # Steps are replaced, never changed: copies of the lists are enough.
        other = copy(self)
        vars(other).update({name: copy(of) for name, of in vars(self).items() if isinstance(of, list | dict)})
        return other

    @property
    def pools(self) -> set[str]:
        return {step.pool for step in self.steps if step.kind == "call" and step.status == "running"}

    def marked(self, idle: Collection[str]) -> Timeline:
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
            if step := _begun(event, self.run_id, seq, at_ms):
                self.steps.append(step)
            elif change := _CHANGES.get(type(event)):
                with suppress(LookupError, ValueError):  # a false event must not stop readers of other runs
                    self._set(event.step, change(self.steps[event.step - 1], event, at_ms))  # type: ignore[union-attr]
            else:
                self._take(event, seq, at_ms)
        self._steps_before, self._at_ms = before, at_ms

    def _set(self, step: int, change: dict[str, Any]) -> None:
        self.steps[step - 1] = self.steps[step - 1].model_copy(update=change)

    def _take(self, event: events.Event, seq: int, at_ms: int) -> None:
        match event:
            case events.TaskFailed():
                self.unheard.append(event)
            case events.SignalReceived():
                self.kept[event.signal_id] = event
            case events.SignalDropped():
                self.dropped.append(event)
            case events.WaitEnded():
                self._in_wait[event.step] = signal = self.kept.pop(event.signal_id)
                answer = {"result": signal.data, "key": signal.signal_id, "actor": signal.actor, "failure": None}
                self._set(event.step, {"status": "completed", "ended_ms": at_ms, **answer})
            case events.RunRetried():
                self._retry(event)
            case events.RunForked():
                self._fork(event, at_ms)
            case events.CallRenewed():
                self._renew(event.step, call_id(self.run_id, seq))
            case events.RunPaused() | events.RunUnpaused():
                self.pauses = [pause for pause in self.pauses if (pause[1].role == PARENT) != (event.role == PARENT)]
                self.pauses += [(at_ms, event)] if isinstance(event, events.RunPaused) else []

    def _retry(self, event: events.RunRetried) -> None:
        """Mark the steps that a retry repeats as left, and renew the calls that it makes again."""
        for line in self.steps[event.from_step - 1 if event.from_step else self._steps_before :]:
            self._set(line.step, {"status": "left"})
            if signal := self._in_wait.pop(line.step, None):
                self.kept[signal.signal_id] = signal
        for step in event.again:
            self._renew(step, self.steps[step - 1].call_id)

    def _fork(self, event: events.RunForked, at_ms: int) -> None:
        """Restart open calls of a fork, which ran in another run, and extend open waits."""
        self.forked = event
        self.pauses = [pause for pause in self.pauses if pause[1].role != PARENT]
        for line in self.steps:
            if (key := event.keys.get(str(line.step))) is not None:
                fresh = {"started_ms": at_ms, "attempts": [], "approvals": [], "status": "proposed"}
                self._set(line.step, {"key": key} if line.ended_ms else {"key": key, **fresh})
            elif not line.ended_ms and line.until_ms:
                self._set(line.step, {"until_ms": line.until_ms + at_ms - self._at_ms})

    def _renew(self, step: int, call: str) -> None:
        """Propose a call again under another id; earlier attempts stay visible."""
        tries = [
            attempt.model_copy(
                update={"before": True} | ({"status": "unknown"} if attempt.status in ("running", "doubt") else {})
            )
            for attempt in self.steps[step - 1].attempts
        ]
        redriven = {"call_id": call, "status": "proposed", "failure": None, "ended_ms": 0, "resolved": None}
        self._set(step, {**redriven, "attempts": tries, "how": "", "began_ms": 0, "took_ms": 0})

    def in_status(self, status: StepStatus) -> list[RunStep]:
        return [step for step in self.steps if step.status == status]

    @property
    def in_doubt(self) -> list[RunStep]:
        return self.in_status("doubt")

    @property
    def asking(self) -> list[RunStep]:
        return [step for step in self.steps if step.asked]


def _begun(event: events.Event, run: RunId, seq: int, at_ms: int) -> RunStep | None:
    match event:
        case events.CallProposed():
            about = {
                "call_id": call_id(run, seq),
                "effect": event.effect,
                "key": event.key,
                "label": event.label,
                "pool": event.pool,
            }
            return _step(event, "call", event.tool, at_ms, "proposed", args=event.args, rule=event.rule, **about)
        case events.SignalSent():
            return _step(event, "signal", event.name, at_ms, result=event.data, runs=[event.run_id])
        case events.NoteRecorded():
            return _step(event, "note", event.kind, at_ms, result=event.data)
        case events.CheckpointReached():
            return _step(event, "checkpoint", event.name, at_ms)
        case events.SleepStarted():
            return _step(event, "sleep", "sleep", at_ms, "sleeping", until_ms=event.until_ms)
        case events.WaitStarted():
            return _step(event, "wait", event.name, at_ms, "waiting", args=event.match, until_ms=event.until_ms)
        case events.CallbackCreated():
            return _step(event, "callback", event.name, at_ms, "waiting", args=event.schema, until_ms=event.until_ms)
        case events.ChildStarted():
            runs = [child_id(run, event.step)]
            return _step(event, "run", event.agent, at_ms, "running", args=event.input, runs=runs)
        case events.EventPublished():
            runs = [child_id(run, event.step, number) for number, _ in enumerate(event.agents, start=1)]
            return _step(event, "event", event.name, at_ms, result=event.data, runs=runs)
    return None


def _step(event: Any, kind: Any, name: str, at_ms: int, status: StepStatus = "noted", **more: Any) -> RunStep:
    ended_ms = at_ms if status == "noted" else 0
    return RunStep(step=event.step, kind=kind, name=name, status=status, started_ms=at_ms, ended_ms=ended_ms, **more)


StepChange = Callable[[RunStep, Any, int], dict[str, Any]]


def _settled(status: StepStatus, *, attempt: str = "", result: str = "") -> StepChange:
    """Change that ends a step: its failure, and attempt and result if the event has them."""

    def change(step: RunStep, event: Any, at_ms: int) -> dict[str, Any]:
        failure = getattr(event, "failure", None)
        changes: dict[str, Any] = {"status": status, "ended_ms": at_ms, "failure": failure}
        if attempt:
            changes["attempts"] = _tried(step, event.attempt, at_ms, attempt, failure)
        if result:
            changes["result"] = getattr(event, result)
        return changes

    return change


def _completed(step: RunStep, event: events.CallCompleted, at_ms: int) -> dict[str, Any]:
    ended = _settled("completed", attempt="completed", result="result")(step, event, at_ms)
    return {**ended, "how": event.how, "began_ms": event.began_ms, "took_ms": event.took_ms}


def _stopped(status: StepStatus, tried: str) -> StepChange:
    return lambda step, event, at_ms: {
        "status": status,
        "attempts": _tried(step, event.attempt, at_ms, tried, event.failure),
        **({"failure": event.failure} if status == "held" else {}),
    }


def _answered(change: StepChange) -> StepChange:
    return lambda step, event, at_ms: {**change(step, event, at_ms), "key": event.key, "actor": event.actor}


def _tried(step: RunStep, number: int, at_ms: int, status: str, failure: Failure | None) -> list[CallAttempt]:
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
        return {"status": "running", "attempts": [*step.attempts[:-1], again]}
    return {"status": "running", "attempts": [*step.attempts, CallAttempt(number=event.attempt, started_ms=at_ms)]}


def _failed(step: RunStep, event: events.AttemptFailed, at_ms: int) -> dict[str, Any]:
    *before, last = _tried(step, event.attempt, at_ms, "unknown" if event.unknown else "failed", event.failure)
    return {"status": "backoff", "attempts": [*before, last.model_copy(update={"retry_ms": event.retry_ms})]}


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
    return {"status": "doubt" if event.about == DOUBT else "approval", "approvals": [*step.approvals, ask]}


def _question_changed(step: RunStep, **change: Any) -> dict[str, Any]:
    *before, ask = step.approvals
    return {"approvals": [*before, ask.model_copy(update=change)]}


def _escalated(step: RunStep, event: events.ApprovalEscalated, at_ms: int) -> dict[str, Any]:
    name, people = approval_id(CallId(step.call_id), event.question), list(event.approvers)
    return _question_changed(step, approvers=people, expires_ms=event.expires_ms, escalated=True, approval_id=name)


def _decided(step: RunStep, event: events.ApprovalDecided, at_ms: int) -> dict[str, Any]:
    change = {"verdict": event.verdict, "actors": list(event.actors), "said": event.message, "ended_ms": at_ms}
    return _question_changed(step, **change, args=event.args, grant=event.grant, use=event.use)


def _child_over(step: RunStep, event: events.ChildCompleted, at_ms: int) -> dict[str, Any]:
    done = event.status == "completed"
    over = {"status": "completed" if done else "failed", "ended_ms": at_ms, "failure": event.failure}
    return {**over, "result": event.result if done else ""}


def _time_is_over(status: StepStatus) -> StepChange:
    return lambda step, event, at_ms: {"status": status, "ended_ms": at_ms}


_CHANGES: dict[type, StepChange] = {
    events.CallDispatched: _dispatched,
    events.AttemptFailed: _failed,
    events.CallCompleted: _completed,
    events.CallFailed: _settled("failed", attempt="failed"),
    events.CallDoubted: _stopped("doubt", "doubt"),
    events.CallHeld: _stopped("held", "failed"),
    events.DoubtResolved: lambda step, event, at_ms: {"resolved": event},
    events.LateResultRecorded: lambda step, event, at_ms: {"late": [*step.late, event]},
    # People still settle the outcome of a call in doubt.
    events.StepGivenUp: lambda step, event, at_ms: (
        {} if step.status == "doubt" else {"status": "given_up", "ended_ms": at_ms}
    ),
    events.ChildCompleted: _child_over,
    events.SleepEnded: _time_is_over("completed"),
    events.WaitExpired: _time_is_over("expired"),
    events.MatchFailed: lambda step, event, at_ms: {"failure": Failure("match_failed", event.error)},
    events.CallbackCompleted: _answered(
        lambda step, event, at_ms: {"status": "completed", "ended_ms": at_ms, "result": event.result}
    ),
    events.CallbackFailed: _answered(_settled("failed")),
    events.ApprovalRequested: _question_opened,
    events.ApprovalEscalated: _escalated,
    events.ApprovalDecided: _decided,
}
