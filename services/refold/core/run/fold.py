"""The fold: a run's state is what its events make of it, and nothing else.

`fold` works in place on a state of its own (take-over, replay: 60,000 to 90,000 events a second from the broker),
`evolve` leaves its argument alone (speculation in the planner). Both apply the same transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from refold.core import events
from refold.core.errors import FoldError
from refold.core.ids import EntryId, RunId
from refold.core.run.chain import Head
from refold.core.run.state import SENT_BACK, Asked, OpenStep, RunState, Settled, Status, Step


def evolve(state: RunState | None, entry: events.Entry, entry_id: EntryId) -> RunState:
    """The state after an entry that extends `state`, which stays as it was."""
    return apply(state.copy() if state else RunState(entry.run_id), entry, entry_id)


def fold(entries: Iterable[tuple[EntryId, events.Entry]], run_id: RunId) -> RunState:
    """The state of a whole history, given in order."""
    state = RunState(run_id)
    for entry_id, entry in entries:
        apply(state, entry, entry_id)
    return state


def apply(state: RunState, entry: events.Entry, entry_id: EntryId) -> RunState:
    """Applies an entry to a state that nobody else holds, and returns it. **Raises** FoldError on an unknown event."""
    if entry.seq == 1:
        state.position = entry.cause
    advance(state, entry.events, seq=entry.seq, at_ms=entry.at_ms)
    state.head = Head(entry_id, entry.last_seq)
    return state


def advance(state: RunState, fresh: Iterable[events.Event], *, seq: int, at_ms: int) -> None:
    """Applies events in place, the first of them with this seq; the head stays, for the entry has no name yet."""
    if state.end is not None:
        raise FoldError(f"run {state.run_id} has an entry after its end", hint="`refold run verify` shows the record")
    for event in fresh:
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


def _status(steps: dict[int, OpenStep]) -> Status:
    """Suspended is a run that has open steps and waits in all of them."""
    for opened in steps.values():
        if opened.phase not in _WAITING:
            return "running"
    return "suspended" if steps else "running"


def _requested(state: RunState, event: events.RunRequested, seq: int, at_ms: int) -> None:
    state.request, state.requested_ms = event, at_ms


def _started(state: RunState, event: events.RunStarted, seq: int, at_ms: int) -> None:
    state.status, state.version, state.started_ms = "running", event.version, at_ms


def _step(state: RunState, event: Step, seq: int) -> int:
    state.steps.append(event)
    state.seqs.append(seq)
    if event.step != len(state.steps):
        raise FoldError(f"run {state.run_id} numbers a step {event.step} as its {len(state.steps)}th")
    return event.step


def _noted(state: RunState, event: events.NoteRecorded, seq: int, at_ms: int) -> None:
    _step(state, event, seq)


def _proposed(state: RunState, event: events.CallProposed, seq: int, at_ms: int) -> None:
    opened = state.open[_step(state, event, seq)] = OpenStep("proposed", seq)
    if state.request is not None:
        opened.policy = state.request.policy


def _judged(state: RunState, event: events.CallJudged, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.policy, opened.decision = event.policy, None


def _asked(state: RunState, event: events.ApprovalRequested, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    approvers = tuple(event.requirement.approvers)
    opened.question = Asked(seq, event, approvers, at_ms, event.expires_ms, escalated=False)
    opened.phase, opened.due_ms, opened.policy = "approval", opened.question.due_ms, event.policy
    opened.decision = None


def _escalated(state: RunState, event: events.ApprovalEscalated, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    if opened.question is None:
        raise KeyError(event.step)
    asked = opened.question._replace(approvers=tuple(event.approvers), expires_ms=event.expires_ms, escalated=True)
    opened.question, opened.due_ms = asked, asked.due_ms


def _decided(state: RunState, event: events.ApprovalDecided, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    # Whatever was decided, nobody is asked any more; what follows of it stands in the same entry.
    opened.question, opened.phase, opened.due_ms = None, "proposed", 0
    opened.decision = event
    if event.verdict == "edit":
        state.edited[event.step] = event.args, event.key
    if event.use:
        state.uses[event.grant, event.use] = event.step


def _slept(state: RunState, event: events.SleepStarted, seq: int, at_ms: int) -> None:
    state.open[_step(state, event, seq)] = OpenStep("sleep", seq, event.until_ms)


def _dispatched(state: RunState, event: events.CallDispatched, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    # Sent twice under one number, two executors may act: how a failure is judged depends on it (`planning.matrix`).
    opened.dispatches = opened.dispatches + 1 if opened.attempt == event.attempt else 1
    opened.phase, opened.attempt, opened.due_ms = "dispatched", event.attempt, event.deadline_ms
    opened.first_sent_ms = opened.first_sent_ms or at_ms


def _attempt_failed(state: RunState, event: events.AttemptFailed, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.phase, opened.due_ms, opened.failure = "backoff", event.retry_ms, event.failure
    # That an effect may have happened no later failure takes back, only a human (`_resolved`).
    opened.may_have_happened = opened.may_have_happened or event.unknown
    opened.sent_back += event.failure.code in SENT_BACK


def _doubted(state: RunState, event: events.CallDoubted, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    opened.phase, opened.due_ms, opened.failure = "doubt", 0, event.failure


def _resolved(state: RunState, event: events.DoubtResolved, seq: int, at_ms: int) -> None:
    state.resolved[event.step] = event
    if opened := state.open.get(event.step):
        # Whatever the receiver remembers of earlier attempts, the effect is not among it: its key window starts anew.
        opened.may_have_happened, opened.first_sent_ms = False, 0


def _settled(state: RunState, event: Settled, seq: int, at_ms: int) -> None:
    del state.open[event.step]
    state.outcomes[event.step] = (at_ms, event)


def _late(state: RunState, event: events.LateResultRecorded, seq: int, at_ms: int) -> None:
    state.late[event.step] = event


def _ended(
    state: RunState, event: events.RunCompleted | events.RunFailed | events.RunCancelled, seq: int, at_ms: int
) -> None:
    state.end = event
    state.status = _END_STATUS[type(event)]


_END_STATUS: dict[type, Status] = {
    events.RunCompleted: "completed",
    events.RunFailed: "failed",
    events.RunCancelled: "cancelled",
}


_TRANSITIONS: dict[type, Callable[[RunState, Any, int, int], None]] = {
    events.RunRequested: _requested,
    events.RunStarted: _started,
    events.NoteRecorded: _noted,
    events.CallProposed: _proposed,
    events.CallJudged: _judged,
    events.ApprovalRequested: _asked,
    events.ApprovalEscalated: _escalated,
    events.ApprovalDecided: _decided,
    events.CallDispatched: _dispatched,
    events.AttemptFailed: _attempt_failed,
    events.CallCompleted: _settled,
    events.CallFailed: _settled,
    events.CallDoubted: _doubted,
    events.DoubtResolved: _resolved,
    events.LateResultRecorded: _late,
    events.SleepStarted: _slept,
    events.SleepEnded: _settled,
    events.RunCompleted: _ended,
    events.RunFailed: _ended,
    events.RunCancelled: _ended,
}


def kinds() -> frozenset[type[events.Event]]:
    """Every event type that a fold knows."""
    return frozenset(_TRANSITIONS)
