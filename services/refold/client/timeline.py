"""A run step by step: what was asked, tried, doubted and found, from the events of its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from refold.core import events
from refold.core.events import DOUBT
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
"""`left`: an operator has left it behind, with what came of it, and had the run go on from before."""


@dataclass(slots=True)
class AttemptLine:
    """One try of a call. `dispatches` counts how often it was handed to the executors; more than once is a takeover.
    `before`: the run has failed since, and the call was asked for anew.

    **Units**: milliseconds since 1970; 0 stands for not (yet). `status`: running, completed, failed, unknown or doubt.
    """

    number: int
    started_ms: int
    dispatches: int = 1
    ended_ms: int = 0
    status: str = "running"
    failure: events.Failure | None = None
    retry_ms: int = 0
    before: bool = False


@dataclass(slots=True)
class Ask:
    """People who were asked about a call. `verdict` is empty while they have not decided, `expire` if they did not.

    `about` is `doubt` where they say what came of it.
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
    about: str = ""


@dataclass(slots=True)
class StepLine:
    """What a run asked for once, and all that came of it. `result` is JSON text, empty for none.

    `label` is what the agent calls it: its word alone, and no name of what runs. Of a wait `args` is its match, of a
    callback the schema of its result; `key` and `actor` are of who answered. `runs` are those that it starts.
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
    approvals: list[Ask] = field(default_factory=list)
    attempts: list[AttemptLine] = field(default_factory=list)
    result: str = ""
    failure: events.Failure | None = None
    resolved: events.DoubtResolved | None = None
    late: list[events.LateResultRecorded] = field(default_factory=list)
    label: str = ""
    actor: str = ""
    runs: list[str] = field(default_factory=list)

    @property
    def asked(self) -> Ask | None:
        """What people are asked about it now."""
        waits = self.approvals and not self.approvals[-1].verdict and self.status in ("approval", "doubt")
        return self.approvals[-1] if waits else None


@dataclass(frozen=True, slots=True)
class Successor:
    """A planner that has gone on where another one was: its first entry is `seq`, before step `step`.

    One that has written nothing yet is not known.
    """

    actor: str
    seq: int
    step: int
    at_ms: int


class Timeline:
    """The steps of a run, fed with its accepted entries in order.

    `unheard` are tasks that failed and that the agent did not await. `pauses` are those that hold it, and since when.
    """

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id
        self.steps: list[StepLine] = []
        self._known = 0
        self.successors: list[Successor] = []
        self.unheard: list[events.TaskFailed] = []
        self._actor = ""
        self.kept: dict[str, events.SignalReceived] = {}
        self._taken: dict[int, events.SignalReceived] = {}
        self.dropped: list[events.SignalDropped] = []
        self.pauses: list[tuple[int, events.RunPaused]] = []

    def feed(self, entry: events.Entry) -> None:
        """Takes an accepted entry."""
        if self._actor not in ("", entry.actor):
            self.successors.append(Successor(entry.actor, entry.seq, len(self.steps) + 1, entry.at_ms))
        self._actor = entry.actor
        known = len(self.steps)
        for seq, event in enumerate(entry.events, start=entry.seq):
            line = _asked_for(event, call_id(self.run_id, seq), entry.at_ms) or _told(event, self.run_id, entry.at_ms)
            if line is not None:
                self.steps.append(line)
            elif isinstance(event, events.TaskFailed):
                self.unheard.append(event)
            elif isinstance(event, _OfPeople):
                _consult(self.steps[event.step - 1], event, entry.at_ms)
            elif isinstance(event, events.SignalReceived):
                self.kept[event.signal_id] = event
            elif isinstance(event, events.SignalDropped):
                self.dropped.append(event)
            elif isinstance(event, events.WaitEnded):
                self._taken[event.step] = self.kept.pop(event.signal_id)
                _deliver(self.steps[event.step - 1], self._taken[event.step], entry.at_ms)
            elif isinstance(event, events.RunRetried):
                self._retry(event)
            elif isinstance(event, events.CallRenewed):
                _renew(self.steps[event.step - 1], call_id(self.run_id, seq))
            elif isinstance(event, events.RunPaused | events.RunUnpaused):
                self.pauses = [each for each in self.pauses if (each[1].role == PARENT) != (event.role == PARENT)]
                self.pauses += [(entry.at_ms, event)] if isinstance(event, events.RunPaused) else []
            elif not isinstance(event, _OfTheRun):
                _go_on(self.steps[event.step - 1], event, entry.at_ms)
        self._known = known

    def _retry(self, event: events.RunRetried) -> None:
        """Steps of a failed run are left behind, and failures count no more."""
        for line in self.steps[event.from_step - 1 if event.from_step else self._known :]:
            line.status = "left"
            if signal := self._taken.pop(line.step, None):
                self.kept[signal.signal_id] = signal
        for step in event.again:
            _renew(self.steps[step - 1], self.steps[step - 1].call_id)

    @property
    def in_doubt(self) -> list[StepLine]:
        """The calls that wait for a human to say what became of them."""
        return [line for line in self.steps if line.status == "doubt"]

    @property
    def held(self) -> list[StepLine]:
        """The calls that wait for an operator to say what is to become of them."""
        return [line for line in self.steps if line.status == "held"]

    @property
    def waiting(self) -> list[StepLine]:
        """The waits and callbacks that nobody has answered so far."""
        return [line for line in self.steps if line.status == "waiting"]

    @property
    def asking(self) -> list[StepLine]:
        """The calls about which people are asked something."""
        return [line for line in self.steps if line.asked]


_OfPeople = events.ApprovalRequested | events.ApprovalEscalated | events.ApprovalDecided
_OfTheRun = (
    events.RunRequested
    | events.RunStarted
    | events.RunSuspended
    | events.RunResumed
    | events.StatusSet
    | events.RunMigrated
    | events.WaitsPostponed
    | events.PatchTaken
    | events.RunCompleted
    | events.RunFailed
    | events.RunCancelled
    | events.OfBudget
)


def _renew(line: StepLine, call: str) -> None:
    """The call is asked for anew, under another id; what came of it before stays to be seen."""
    line.call_id, line.status, line.failure, line.ended_ms = call, "proposed", None, 0
    line.resolved = None
    for attempt in line.attempts:
        attempt.status = "unknown" if attempt.status in ("running", "doubt") else attempt.status
        attempt.before = True


def _asked_for(event: events.Event, call: CallId, at_ms: int) -> StepLine | None:
    """The line of a new step, if the event is one."""
    match event:
        case events.SignalSent():
            line = StepLine(event.step, "signal", event.name, "noted", result=event.data, started_ms=at_ms)
            line.ended_ms, line.runs = at_ms, [event.run_id]
            return line
        case events.NoteRecorded():
            return StepLine(
                event.step, "note", event.kind, "noted", result=event.data, started_ms=at_ms, ended_ms=at_ms
            )
        case events.CheckpointReached():
            return StepLine(event.step, "checkpoint", event.name, "noted", started_ms=at_ms, ended_ms=at_ms)
        case events.SleepStarted():
            return StepLine(event.step, "sleep", "sleep", "sleeping", started_ms=at_ms, until_ms=event.until_ms)
        case events.WaitStarted():
            return _waiting(event, "wait", event.match, at_ms)
        case events.CallbackCreated():
            return _waiting(event, "callback", event.schema, at_ms)
        case events.CallProposed():
            return StepLine(
                event.step,
                "call",
                event.tool,
                "proposed",
                call_id=call,
                effect=event.effect,
                args=event.args,
                key=event.key,
                started_ms=at_ms,
                rule=event.rule,
                label=event.label,
            )
    return None


def _waiting(
    event: events.WaitStarted | events.CallbackCreated, kind: Literal["wait", "callback"], args: str, at_ms: int
) -> StepLine:
    return StepLine(event.step, kind, event.name, "waiting", args=args, started_ms=at_ms, until_ms=event.until_ms)


def _deliver(line: StepLine, signal: events.SignalReceived, at_ms: int) -> None:
    """A wait has the signal that it waited for."""
    line.status, line.ended_ms, line.result = "completed", at_ms, signal.data
    line.key, line.actor, line.failure = signal.signal_id, signal.actor, None


def _told(event: events.Event, run: RunId, at_ms: int) -> StepLine | None:
    """The line of a step that starts other runs."""
    match event:
        case events.ChildStarted():
            child = str(child_id(run, event.step))
            return StepLine(event.step, "run", event.agent, "running", args=event.input, started_ms=at_ms, runs=[child])
        case events.EventPublished():
            runs = [str(child_id(run, event.step, number)) for number, _ in enumerate(event.agents, start=1)]
            line = StepLine(event.step, "event", event.name, "noted", result=event.data, started_ms=at_ms, runs=runs)
            line.ended_ms = at_ms
            return line
    return None


def _consult(
    line: StepLine,
    event: events.ApprovalRequested | events.ApprovalEscalated | events.ApprovalDecided,
    at_ms: int,
) -> None:
    """What people were asked about a call, and what they said."""
    match event:
        case events.ApprovalRequested(requirement=needed):
            line.status = "doubt" if event.about == DOUBT else "approval"
            people, approval = list(needed.approvers), approval_id(line.call_id, event.question)
            ask = Ask(approval, event.rule, people, needed.quorum, needed.message, at_ms, event.expires_ms)
            ask.about = event.about
            line.approvals.append(ask)
        case events.ApprovalEscalated():
            ask = line.approvals[-1]
            ask.approvers, ask.expires_ms, ask.escalated = list(event.approvers), event.expires_ms, True
            ask.approval_id = approval_id(line.call_id, event.question)
        case events.ApprovalDecided():
            ask = line.approvals[-1]
            ask.verdict, ask.actors, ask.said, ask.ended_ms = event.verdict, list(event.actors), event.message, at_ms
            ask.args, ask.grant, ask.use = event.args, event.grant, event.use


def _go_on(line: StepLine, event: events.Event, at_ms: int) -> None:
    """What became of a step by one more event."""
    match event:
        case events.CallDispatched():
            line.status = "running"
            if line.attempts and (line.attempts[-1].number, line.attempts[-1].before) == (event.attempt, False):
                line.attempts[-1].dispatches += 1
            else:
                line.attempts.append(AttemptLine(event.attempt, at_ms))
        case events.AttemptFailed():
            line.status = "backoff"
            _end(line, event.attempt, at_ms, "unknown" if event.unknown else "failed", event.failure)
            line.attempts[-1].retry_ms = event.retry_ms
        case events.CallCompleted():
            line.status, line.result, line.ended_ms, line.failure = "completed", event.result, at_ms, None
            _end(line, event.attempt, at_ms, "completed", None)
        case events.CallFailed():
            line.status, line.failure, line.ended_ms = "failed", event.failure, at_ms
            _end(line, event.attempt, at_ms, "failed", event.failure)
        case events.CallDoubted():
            line.status = "doubt"
            _end(line, event.attempt, at_ms, "doubt", event.failure)
        case events.CallHeld():
            line.status, line.failure = "held", event.failure
            _end(line, event.attempt, at_ms, "failed", event.failure)
        case events.DoubtResolved():
            line.resolved = event
        case events.LateResultRecorded():
            line.late.append(event)
        case events.StepGivenUp():
            if line.status != "doubt":  # what came of it, people still say
                line.status, line.ended_ms = "given_up", at_ms
        case events.ChildCompleted():
            done = event.status == "completed"
            line.status, line.ended_ms, line.failure = "completed" if done else "failed", at_ms, event.failure
            line.result = event.result if done else ""
        case events.SleepEnded():
            line.status, line.ended_ms = "completed", at_ms
        case events.MatchFailed():
            line.failure = events.Failure("match_failed", event.error)
        case events.WaitExpired():
            line.status, line.ended_ms = "expired", at_ms
        case events.CallbackCompleted():
            line.status, line.ended_ms, line.result = "completed", at_ms, event.result
            line.key, line.actor = event.key, event.actor
        case events.CallbackFailed():
            line.status, line.ended_ms, line.failure = "failed", at_ms, event.failure
            line.key, line.actor = event.key, event.actor


def _end(line: StepLine, number: int, at_ms: int, status: str, failure: events.Failure | None) -> None:
    for attempt in line.attempts:
        if attempt.number == number and not attempt.before and attempt.status in ("running", "doubt"):
            attempt.ended_ms, attempt.status, attempt.failure = at_ms, status, failure
