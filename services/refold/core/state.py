"""The fold: a run's state is what its events make of it, and nothing else.

`fold` works in place on a state of its own (take-over, replay: 100,000s of events a second), `evolve` leaves its
argument alone (speculation in the planner). Both apply the same transitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from refold.core.chain import Head
from refold.core.errors import FoldError
from refold.core.events import (
    ApprovalDecided,
    ApprovalEscalated,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    CallJudged,
    CallProposed,
    Cause,
    DoubtResolved,
    Entry,
    Event,
    Failure,
    LateResultRecorded,
    NoteRecorded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunStarted,
    SleepEnded,
    SleepStarted,
)
from refold.core.ids import EntryId

Status = Literal["pending", "running", "suspended", "completed", "failed", "cancelled"]
Step = CallProposed | NoteRecorded | SleepStarted
Outcome = CallCompleted | CallFailed | SleepEnded
TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


REFUSED = frozenset({"decision_expired", "decision_revoked", "policy_changed", "tool_changed"})
"""Why an executor refuses a call that was allowed once: it goes back to be judged, and the attempt costs no retry."""


class Asked(NamedTuple):
    """An approval that is waited for. `seq` is that of the event which asked, `due_ms` when something is to happen."""

    seq: int
    event: ApprovalRequested
    approvers: tuple[str, ...]
    asked_ms: int
    expires_ms: int
    escalated: bool

    @property
    def due_ms(self) -> int:
        """When more people are asked or it expires; 0: never."""
        wait = 0 if self.escalated else self.event.requirement.escalate_ms
        due = [at for at in (self.asked_ms + wait if wait else 0, self.expires_ms) if at]
        return min(due, default=0)


@dataclass(slots=True)
class Open:
    """A step that has no outcome yet.

    `phase`: `proposed`, `approval` (people decide, see `asked`), `dispatched` (with the executors), `backoff` (next
    attempt at `due_ms`), `doubt` (a human decides, nothing is due) or `sleep`. `first_ms` is when the first attempt
    went out, `dispatches` how often this attempt did, `seq` the seq of the proposal. `maybe`: an earlier try may have
    had its effect. `policy` judged the call last, `permit` is the decision that allows it, or how it was refused.
    `refused` counts attempts that an executor sent back.
    """

    phase: Literal["proposed", "approval", "dispatched", "backoff", "doubt", "sleep"]
    seq: int
    due_ms: int = 0
    attempt: int = 0
    dispatches: int = 0
    first_ms: int = 0
    maybe: bool = False
    failure: Failure | None = None
    policy: str = ""
    asked: Asked | None = None
    permit: ApprovalDecided | None = None
    refused: int = 0


@dataclass(slots=True)
class RunState:
    """What a run is after its events so far.

    **Shape**: `steps[i]` is step i+1 as the agent asked for it; `outcomes` holds the settled ones in the order in
    which they settled, with the time; `open` the others. `resolved` holds what a human said of a step in doubt last,
    `late` the result that came for a step after it was settled. `edited` has the arguments and the key that people gave
    a call, `uses` which use of which grant was for which step. `pools` is of a slim state alone: where its calls went.
    """

    run_id: str
    head: Head = field(default_factory=Head)
    status: Status = "pending"
    request: RunRequested | None = None
    position: Cause | None = None
    version: str = ""
    requested_ms: int = 0
    started_ms: int = 0
    at_ms: int = 0
    steps: list[Step] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    open: dict[int, Open] = field(default_factory=dict)
    outcomes: dict[int, tuple[int, Outcome]] = field(default_factory=dict)
    resolved: dict[int, DoubtResolved] = field(default_factory=dict)
    late: dict[int, LateResultRecorded] = field(default_factory=dict)
    edited: dict[int, tuple[str, str]] = field(default_factory=dict)
    uses: dict[tuple[str, int], int] = field(default_factory=dict)
    end: RunCompleted | RunFailed | RunCancelled | None = None
    pools: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether a terminal event was folded."""
        return self.end is not None

    def step_of(self, seq: int) -> int | None:
        """The step that was proposed as event `seq`, or None."""
        for step, opened in self.open.items():
            if opened.seq == seq:
                return step
        try:
            return self.seqs.index(seq) + 1
        except ValueError:
            return None

    def call(self, step: int) -> CallProposed:
        """The call of a step as it would go out now: as proposed, or as people have edited it."""
        call = self.steps[step - 1]
        assert isinstance(call, CallProposed), "only calls go out"
        if edit := self.edited.get(step):
            return dataclasses.replace(call, args=edit[0], key=edit[1])
        return call

    def copy(self) -> RunState:
        """An independent state with equal content; the events in it are shared, they never change."""
        other = RunState(self.run_id)
        other.head, other.status, other.request, other.position = self.head, self.status, self.request, self.position
        other.version, other.requested_ms, other.started_ms = self.version, self.requested_ms, self.started_ms
        other.at_ms, other.end = self.at_ms, self.end
        other.steps, other.seqs, other.outcomes = self.steps[:], self.seqs[:], self.outcomes.copy()
        other.open = {step: _copy_open(opened) for step, opened in self.open.items()}
        other.resolved, other.late = self.resolved.copy(), self.late.copy()
        other.edited, other.uses = self.edited.copy(), self.uses.copy()
        return other

    def slim(self) -> RunState:
        """What has to be remembered of a run that is over: enough to judge every record that may still come."""
        other = RunState(self.run_id, self.head, self.status, end=self.end, at_ms=self.at_ms, position=self.position)
        other.request = dataclasses.replace(self.request, input="", labels={}) if self.request else None
        other.pools = _shared(frozenset(step.pool for step in self.steps if isinstance(step, CallProposed)))
        return other

    def digest(self) -> str:
        """A name for the content: equal states have equal digests, wherever and in how many pieces they were folded."""
        return blake2b(repr(self).encode(), digest_size=16).hexdigest()


@cache
def _shared(pools: frozenset[str]) -> tuple[str, ...]:
    """One tuple for all runs with the same pools: a planner remembers every run that it has seen."""
    return tuple(sorted(pools))


def evolve(state: RunState | None, entry: Entry, name: EntryId) -> RunState:
    """The state after an entry that extends `state`, which stays as it was."""
    return apply(state.copy() if state else RunState(entry.run_id), entry, name)


def fold(entries: Iterable[tuple[EntryId, Entry]], run_id: str) -> RunState:
    """The state of a whole history, given in order."""
    state = RunState(run_id)
    for name, entry in entries:
        apply(state, entry, name)
    return state


def apply(state: RunState, entry: Entry, name: EntryId) -> RunState:
    """Applies an entry to a state that nobody else holds, and returns it. **Raises** FoldError on an unknown event."""
    if entry.seq == 1:
        state.position = entry.cause
    advance(state, entry.events, seq=entry.seq, at_ms=entry.at_ms)
    state.head = Head(name, entry.last_seq)
    return state


def advance(state: RunState, events: Iterable[Event], *, seq: int, at_ms: int) -> None:
    """Applies events in place, the first of them with this seq; the head stays, for the entry has no name yet."""
    if state.end is not None:
        raise FoldError(f"run {state.run_id} has an entry after its end", hint="`refold run verify` shows the record")
    for event in events:
        transition = _TRANSITIONS.get(type(event))
        if transition is None:
            raise FoldError(f"{type(event).__name__} is not an event of a run", hint="upgrade this service")
        try:
            transition(state, event, seq, at_ms)
        except (KeyError, IndexError):
            raise FoldError(f"event {seq} of run {state.run_id} contradicts its history") from None
        seq += 1
    state.at_ms = at_ms
    if state.end is None and state.status != "pending":
        state.status = _status(state.open)


_WAITING = frozenset({"sleep", "doubt", "backoff", "approval"})


def _status(steps: dict[int, Open]) -> Status:
    """Suspended is a run that has open steps and waits in all of them."""
    for opened in steps.values():
        if opened.phase not in _WAITING:
            return "running"
    return "suspended" if steps else "running"


def _copy_open(opened: Open) -> Open:
    return Open(
        opened.phase,
        opened.seq,
        opened.due_ms,
        opened.attempt,
        opened.dispatches,
        opened.first_ms,
        opened.maybe,
        opened.failure,
        opened.policy,
        opened.asked,
        opened.permit,
        opened.refused,
    )


def _requested(state: RunState, event: RunRequested, seq: int, at_ms: int) -> None:
    state.request, state.requested_ms = event, at_ms


def _started(state: RunState, event: RunStarted, seq: int, at_ms: int) -> None:
    state.status, state.version, state.started_ms = "running", event.version, at_ms


def _step(state: RunState, event: Step, seq: int) -> int:
    state.steps.append(event)
    state.seqs.append(seq)
    if event.step != len(state.steps):
        raise FoldError(f"run {state.run_id} numbers a step {event.step} as its {len(state.steps)}th")
    return event.step


def _noted(state: RunState, event: NoteRecorded, seq: int, at_ms: int) -> None:
    _step(state, event, seq)


def _proposed(state: RunState, event: CallProposed, seq: int, at_ms: int) -> None:
    opened = state.open[_step(state, event, seq)] = Open("proposed", seq)
    if state.request is not None:
        opened.policy = state.request.policy


def _judged(state: RunState, event: CallJudged, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.policy, opened.permit = event.policy, None


def _asked(state: RunState, event: ApprovalRequested, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    approvers = tuple(event.requirement.approvers)
    opened.asked = Asked(seq, event, approvers, at_ms, event.expires_ms, escalated=False)
    opened.phase, opened.due_ms, opened.policy = "approval", opened.asked.due_ms, event.policy
    opened.permit = None


def _escalated(state: RunState, event: ApprovalEscalated, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    if opened.asked is None:
        raise KeyError(event.step)
    asked = opened.asked._replace(approvers=tuple(event.approvers), expires_ms=event.expires_ms, escalated=True)
    opened.asked, opened.due_ms = asked, asked.due_ms


def _decided(state: RunState, event: ApprovalDecided, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.asked, opened.phase, opened.due_ms = None, "proposed", 0
    opened.permit = event
    if event.verdict == "edit":
        state.edited[event.step] = event.args, event.key
    if event.use:
        state.uses[event.grant, event.use] = event.step


def _slept(state: RunState, event: SleepStarted, seq: int, at_ms: int) -> None:
    state.open[_step(state, event, seq)] = Open("sleep", seq, event.until_ms)


def _dispatched(state: RunState, event: CallDispatched, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.dispatches = opened.dispatches + 1 if opened.attempt == event.attempt else 1
    opened.phase, opened.attempt, opened.due_ms = "dispatched", event.attempt, event.deadline_ms
    opened.first_ms = opened.first_ms or at_ms


def _attempt_failed(state: RunState, event: AttemptFailed, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.phase, opened.due_ms, opened.failure = "backoff", event.retry_ms, event.failure
    opened.maybe = opened.maybe or event.unknown
    opened.refused += event.failure.code in REFUSED


def _doubted(state: RunState, event: CallDoubted, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.phase, opened.due_ms, opened.failure = "doubt", 0, event.failure


def _resolved(state: RunState, event: DoubtResolved, seq: int, at_ms: int) -> None:
    state.resolved[event.step] = event
    if opened := state.open.get(event.step):
        # Whatever the receiver remembers of earlier attempts, the effect is not among it: its key window starts anew.
        opened.maybe, opened.first_ms = False, 0


def _settled(state: RunState, event: Outcome, seq: int, at_ms: int) -> None:
    del state.open[event.step]
    state.outcomes[event.step] = (at_ms, event)


def _late(state: RunState, event: LateResultRecorded, seq: int, at_ms: int) -> None:
    state.late[event.step] = event


def _ended(state: RunState, event: RunCompleted | RunFailed | RunCancelled, seq: int, at_ms: int) -> None:
    state.end = event
    state.status = _END_STATUS[type(event)]


_END_STATUS: dict[type, Status] = {RunCompleted: "completed", RunFailed: "failed", RunCancelled: "cancelled"}

_TRANSITIONS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    RunRequested: _requested,
    RunStarted: _started,
    NoteRecorded: _noted,
    CallProposed: _proposed,
    CallJudged: _judged,
    ApprovalRequested: _asked,
    ApprovalEscalated: _escalated,
    ApprovalDecided: _decided,
    CallDispatched: _dispatched,
    AttemptFailed: _attempt_failed,
    CallCompleted: _settled,
    CallFailed: _settled,
    CallDoubted: _doubted,
    DoubtResolved: _resolved,
    LateResultRecorded: _late,
    SleepStarted: _slept,
    SleepEnded: _settled,
    RunCompleted: _ended,
    RunFailed: _ended,
    RunCancelled: _ended,
}


def kinds() -> frozenset[type[Event]]:
    """Every event type that a fold knows."""
    return frozenset(_TRANSITIONS)
