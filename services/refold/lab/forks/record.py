"""Recorded histories as lists of inputs: each entry was caused by one input, identified by its first event. `input_for`
rebuilds an input for the run of a fork, whose attempts may differ."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

from refold.core import events
from refold.core.approval.policy import Judgement
from refold.core.errors import MalformedError
from refold.core.events import DOUBT, Entry, Event
from refold.core.ids import EntryId, RunId, parent_of
from refold.core.messages import RunOperation, ToolResult
from refold.core.planning.redrive import LIMITS
from refold.core.planning.verdict import ChildEnded, Due, Input
from refold.core.run import chain
from refold.core.run.fold import apply
from refold.core.run.pausing import PARENT
from refold.core.run.state import SENT_BACK, OpenStep, RunState, Step
from refold.core.wire import canonical
from refold.core.wire.blobs import is_large, is_pointer, pointer_of

E = TypeVar("E")
# Equal steps have equal keys.
StepKey = tuple[str, ...]


class LogRow(NamedTuple):
    """Run-log record; `place` orders the records of all runs."""

    place: int
    key: bytes
    value: bytes


CueKind = Literal["result", "due", "decided", "reopened", "resolve", "child", "outside", "kin", "late", "verbatim"]
"""`due`: a time passed. `verbatim`: the event is copied, no input leads to it. Others name the sender."""


@dataclass(frozen=True, slots=True)
class Cue:
    """Input of a recorded run; `step` is 0 if it is about the run or a finished step. `stalled`: the code was not run
    then, without a pause. `judged`: calls judged again, by step."""

    kind: CueKind
    step: int
    place: int
    entry: Entry
    event: Event
    stalled: bool
    judged: Mapping[int, Judgement]

    @property
    def at_ms(self) -> int:
        return self.entry.at_ms

    @property
    def asks_nobody(self) -> bool:
        """True if a doubt went to operators, since the policy named no settlers."""
        doubted = self.kind == "reopened" or self.of(events.CallDoubted, events.DoubtResolved) is not None
        return doubted and not any(getattr(event, "about", "") == DOUBT for event in self.entry.events)

    def of(self, *kinds: type[E]) -> E | None:
        return next((event for event in self.entry.events if isinstance(event, kinds)), None)


class AskedStep(NamedTuple):
    """Requested step: its key, number of equal ones before it, time, and the call's first judgement."""

    key: StepKey
    nth: int
    at_ms: int
    judgement: Judgement | None


@dataclass(slots=True)
class RecordedRun:
    """Recorded run, folded and indexed. By step: `requests`, `phases` (after each entry), `cues` (inputs).
    `equals`: steps by key. `outside`: inputs of the run; `kin`: messages of its parent. `doubt`: policy and settlers of
    calls in doubt."""

    run_id: RunId
    state: RunState
    entries: list[tuple[int, Entry, EntryId]] = field(default_factory=list)
    requests: dict[int, AskedStep] = field(default_factory=dict)
    equals: dict[StepKey, list[int]] = field(default_factory=lambda: defaultdict(list))
    phases: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    cues: dict[int, list[Cue]] = field(default_factory=lambda: defaultdict(list))
    outside: list[Cue] = field(default_factory=list)
    kin: list[Cue] = field(default_factory=list)
    doubt: tuple[str, events.Requirement] | None = None

    @property
    def request(self) -> events.RunRequested:
        assert self.state.request is not None, "a history begins with the request"
        return self.state.request

    @staticmethod
    def empty(run: RunId) -> "RecordedRun":
        return RecordedRun(run, RunState(run))

    @staticmethod
    def of(rows: Iterable[LogRow]) -> "RecordedRun":
        """Read the records of one run, in order. **Raises** MalformedError for anything else."""
        run: RecordedRun | None = None
        for row in rows:
            record = chain.read(row.key, row.value)
            if not isinstance(record, chain.LogRecord):
                raise MalformedError(f"a record is none of a run log that can be read here: {record}")
            run = run or RecordedRun.empty(record.entry.run_id)
            # After a mirror the log may have another order than the history, in which records come here.
            place = max(row.place, run.entries[-1][0] + 1) if run.entries else row.place
            run.add(place, record.entry, record.id)
        if run is None:
            raise MalformedError("there is no record of a run", hint="name a run that has a history")
        return run

    def add(self, place: int, entry: Entry, name: EntryId) -> None:
        self.index(place, entry, apply(self.state, entry, name))

    def index(self, place: int, entry: Entry, state: RunState) -> None:
        """Index an entry by the steps that it requests and answers."""
        self.state = state
        self.entries.append((place, entry, self.state.head.id))
        judged = _judged(entry, self.state)
        for event in entry.events:
            if (opened := self.state.open.get(getattr(event, "step", 0))) is not None:
                self.phases[event.step].add(opened.phase)  # type: ignore[union-attr]
            if isinstance(event, Step):
                same = self.equals[key := step_key(event)]
                self.requests[event.step] = AskedStep(key, len(same), entry.at_ms, judged.pop(event.step, None))
                same.append(event.step)
            elif isinstance(event, events.ApprovalRequested) and event.about == DOUBT:
                self.doubt = event.policy, event.requirement
        stalled = entry.held and not self.state.paused
        if (cue := _cue_of(place, entry, stalled, judged)) is None:
            return
        (self.kin if cue.kind == "kin" else self.cues[cue.step] if cue.step else self.outside).append(cue)


def step_key(step: Step) -> StepKey:
    match step:
        case events.CallProposed():
            return "call", step.tool, step.args
        case events.WaitStarted():
            return "wait", step.name, step.match
        case events.CallbackCreated():
            return "callback", step.name
        case events.ChildStarted():
            return "child", step.agent, _digest_if_large(step.input)
        case events.EventPublished():
            return "event", step.name, _digest_if_large(step.data)
        case events.RunSubmitted():
            return "submit", step.run_id, step.agent, _digest_if_large(step.input)
    return (type(step).__name__,)


def _digest_if_large(text: str) -> str:
    # A large value may be text on one side and a pointer on the other: equal values must have equal keys.
    return pointer_of(text.encode("utf-8", "surrogatepass")) if is_large(text) and not is_pointer(text) else text


def judgement_in(event: Event, policy: str) -> Judgement | None:
    """Judgement of a call in an event, by `policy` if the event names none; None if it judges none."""
    match event:
        case events.CallProposed():
            return Judgement("allow", event.rule, policy)
        case events.CallJudged():
            return Judgement("allow", event.rule, event.policy)
        case events.ApprovalRequested() if event.about != DOUBT:  # a question about an outcome is no judgement
            return Judgement("require", event.rule, event.policy, requirement=event.requirement)
        case events.CallFailed() | events.CallDoubted() if event.failure.code == "denied":
            return Judgement("deny", event.failure.detail, policy, event.failure.message)
    return None


def _judged(entry: Entry, state: RunState) -> dict[int, Judgement]:
    policy, judgements = state.request.policy if state.request else "", dict[int, Judgement]()
    for event in entry.events:
        judged = judgement_in(event, policy if isinstance(event, events.CallProposed) else ANOTHER_POLICY)
        if judged is not None:
            judgements[event.step] = judged  # type: ignore[union-attr]
    return judgements


ANOTHER_POLICY = "another"
"""Digest of an unknown policy that denied a call: the log does not contain it."""

OUTCOMES_OF_CALLS = (
    events.CallCompleted,
    events.CallFailed,
    events.AttemptFailed,
    events.CallDoubted,
    events.CallHeld,
    events.LateResultRecorded,
)
_OF_BUDGET = (events.CallReserved, events.CallBilled, events.ChildBilled, events.BudgetReached, events.CallRepeated)
_OF_TIME = (
    events.CallDispatched,
    events.CallJudged,
    events.ApprovalRequested,
    events.ApprovalEscalated,
    events.SleepEnded,
    events.WaitExpired,
)

_KINDS: Mapping[type, CueKind] = {
    **dict.fromkeys(OUTCOMES_OF_CALLS, "result"),
    **dict.fromkeys(_OF_TIME, "due"),
    events.DoubtResolved: "resolve",
    events.ChildCompleted: "child",
    events.CallbackCompleted: "verbatim",
    events.CallbackFailed: "verbatim",
}


def _cue_of(place: int, entry: Entry, stalled: bool, judged: Mapping[int, Judgement]) -> Cue | None:
    """Input that an entry answers; None for the request of the run."""
    # Bookkeeping of budgets may come first, and does not identify the input.
    facts = [event for event in entry.events if not isinstance(event, _OF_BUDGET)]
    if not facts or isinstance(facts[0], events.RunRequested):
        return None
    first, step = facts[0], 0
    kind: CueKind = "kin" if _is_of_parent(first, entry.run_id) else "outside"
    if isinstance(first, events.ApprovalDecided):
        kind, step = _kind_of_ending(facts, first), first.step
    elif isinstance(first, events.LateResultRecorded) and not isinstance(_second(facts), events.CallCompleted):
        kind = "late"
    elif type(first) in _KINDS:
        kind, step = _KINDS[type(first)], getattr(first, "step", 0)
    return Cue(kind, step, place, entry, first, stalled, judged)


def _is_of_parent(event: Event, run: RunId) -> bool:
    if isinstance(event, events.RunPaused | events.RunUnpaused):
        return event.role == PARENT
    return isinstance(event, events.RunCancelled) and event.actor != "" and event.actor == parent_of(run)[0]


def _kind_of_ending(facts: Sequence[Event], first: events.ApprovalDecided) -> CueKind:
    """Ending of a question: by people, time, a late result or an invalid decision."""
    kind: CueKind = "decided"
    if first.verdict == "expire":
        after = _second(facts)
        denied = isinstance(after, events.CallFailed) and after.failure.code == "denied"
        ended = isinstance(after, OUTCOMES_OF_CALLS) and not denied
        # Only an expiry by time has no message.
        kind = "due" if not first.message else "result" if ended else "reopened"
    return kind


def _second(facts: Sequence[Event]) -> Event | None:
    return facts[1] if len(facts) > 1 else None


_ACTED = frozenset({"dispatched", "backoff", "doubt", "held"})


def may_answer(cue: Cue, opened: OpenStep) -> bool:
    """True if a recorded input fits the present phase of a step."""
    phase, by_vote = opened.phase, opened.question is not None
    match cue.kind:
        case "result":
            return isinstance(cue.event, events.ApprovalDecided) if by_vote and phase == "approval" else phase in _ACTED
        case "due":
            of_people = isinstance(cue.event, events.ApprovalEscalated | events.ApprovalDecided)
            return by_vote if of_people else phase in ("sleep", "wait", "callback", "backoff")
        case "decided" | "reopened":
            return by_vote
        case "resolve":
            return phase in ("doubt", "held")
        case "child" | "verbatim":
            return phase in ("child", "callback")
    return False


def input_for(state: RunState, step: int, cue: Cue) -> Input:
    """Input by which today's rules come to a recorded outcome of a step."""
    event, opened, done = cue.event, state.open[step], cue.of(events.CallCompleted)
    if isinstance(event, events.ChildCompleted):
        return ChildEnded(state.run_id, step, event.status, event.result, event.failure, event.used)
    if isinstance(event, events.DoubtResolved):
        body = {"step": step, "attempt": opened.attempt, "verdict": event.verdict, "comment": event.comment}
        body["result"] = canonical.parse(done.result) if done else None
        return _operation(state, "resolve", body, event.actor)
    if cue.kind == "due" or (opened.phase == "backoff" and done is None):
        return Due(state.run_id, step, opened.due_ms)
    return result_for(state, step, cue, at_most=opened.attempt)


def result_for(state: RunState, step: int, cue: Cue, *, at_most: int) -> ToolResult:
    """Result of an attempt that would cause this recorded entry."""
    event: Any = cue.of(*OUTCOMES_OF_CALLS)
    billed = cue.of(events.CallBilled)
    result = ToolResult(
        state.call_id(step),
        state.run_id,
        step,
        min(event.attempt, at_most),
        "unknown" if _is_unknown(state, step, billed) else "failed",
        failure=getattr(event, "failure", None),
        again=billed is not None and billed.twice,
    )
    match event:
        case events.CallCompleted():
            late, how = event.how == "late", event.how if event.how != "late" else ""
            done = replace(result, status="completed", result=event.result, how=how, late=late)
            return replace(done, began_ms=event.began_ms, took_ms=event.took_ms)
        case events.CallFailed():
            return replace(result, status="broken" if event.acted else result.status, retryable=False)
        case events.AttemptFailed():
            return _tried_again(result, event, max(0, event.retry_ms - cue.at_ms))
        case events.CallDoubted():
            return replace(result, status="doubt")
        case events.LateResultRecorded():
            return replace(result, status=event.status, result=event.result, late=True)
    return result


def _is_unknown(state: RunState, step: int, billed: events.CallBilled | None) -> bool:
    # An unknown outcome of a `pure` call is a failure, and billed otherwise.
    return state.call(step).effect == "pure" and state.account is not None and (billed is None or billed.twice)


def _tried_again(result: ToolResult, event: events.AttemptFailed, wait_ms: int) -> ToolResult:
    back = event.failure.code in SENT_BACK and not (event.unknown and wait_ms)  # which is judged at once
    again = result.again or (back and (result.status == "unknown" or event.unknown))
    status = "unauthorised" if back else "unknown" if event.unknown else result.status
    return replace(result, status=status, again=again, retry_after_ms=wait_ms)


def retry_for(state: RunState, event: events.RunRetried) -> RunOperation:
    body: dict[str, Any] = {name: getattr(event, {"bytes": "history_bytes"}.get(name, name)) for name in LIMITS}
    body |= {"seq": state.head.seq, "from": event.from_step, "reason": event.reason}
    body["edit"] = canonical.parse(event.edit) if event.edit else None
    return _operation(state, "retry", body, event.actor)


def _operation(state: RunState, kind: str, body: Mapping[str, Any], actor: str) -> RunOperation:
    return RunOperation(state.run_id, kind, kind, canonical.dumps(body), actor)
