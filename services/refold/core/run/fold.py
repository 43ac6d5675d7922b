"""Fold of events into a run's state: in place (60,000 to 90,000 events a second), or by `evolve` in a copy."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from refold.core import events
from refold.core.errors import FoldError
from refold.core.events import DOUBT
from refold.core.ids import EntryId, RunId, child_id
from refold.core.run import redrive
from refold.core.run.account import BudgetAccount, of_budget
from refold.core.run.chain import Head
from refold.core.run.counting import add_child, billed, called, count_equal, let_on, raise_limits, reached, reserved
from refold.core.run.pausing import paused, unpaused
from refold.core.run.state import END_STATUSES, SENT_BACK, Asked, OpenStep, RunState, StepPhase
from refold.core.run.waiting import TRANSITIONS as OF_WAITS
from refold.core.run.waiting import waits_no_more
from refold.core.wire.canonical import utf8_bytes

_TO_VERIFY = "`refold verify` shows the record"

TOLD, TOLD_CHARS = 10, 300
"""Limits of the past shown in a question: number of attempts, characters of each text."""

WAKING = (
    events.RunStarted,
    events.CallCompleted,
    events.CallFailed,
    events.SleepEnded,
    events.WaitEnded,
    events.WaitExpired,
    events.CallbackCompleted,
    events.CallbackFailed,
    events.ChildCompleted,
)
_WAKES = frozenset(WAKING)

EVENT_BYTES = 64
"""Approximate bytes of an event besides its texts."""

_SENT = (events.RunSubmitted, events.RunContinued)
_TEXT_FIELDS: dict[str, tuple[type[events.Event], ...]] = {
    "input": (events.RunRequested, events.RunStarted, events.RunMigrated, events.ChildStarted, *_SENT),
    "data": (events.NoteRecorded, events.SignalReceived, events.EventPublished, events.SignalSent),
    "result": (
        *(events.CallCompleted, events.CallbackCompleted, events.LateResultRecorded, events.ChildCompleted),
        events.SignalAnswered,
    ),
    "edit": (events.RunRetried, events.RunForked),
    "text": (events.StatusSet,),
    "args": (events.CallProposed,),
    "token": (events.ApprovalDecided,),
    "schema": (events.CallbackCreated,),
    "patch": (events.PatchTaken,),
    "note": (events.RunAnnotated,),
}
_TEXTS = {kind: attrgetter(name) for name, kinds in _TEXT_FIELDS.items() for kind in kinds}


def evolve(state: RunState | None, entry: events.Entry, entry_id: EntryId) -> RunState:
    """State after an entry that extends `state`, which stays unchanged."""
    return apply(state.copy() if state else RunState(entry.run_id), entry, entry_id)


def fold(entries: Iterable[tuple[EntryId, events.Entry]], run_id: RunId) -> RunState:
    state = RunState(run_id)
    for entry_id, entry in entries:
        apply(state, entry, entry_id)
    return state


def apply(state: RunState, entry: events.Entry, entry_id: EntryId) -> RunState:
    """Apply an entry to a state with a single owner, and return it. **Raises** FoldError on an unknown event."""
    advance(state, entry.events, seq=entry.seq, at_ms=entry.at_ms)
    if entry.seq == 1:
        if state.request is None and not state.over:  # needed to go on; it may be too large for the log
            raise FoldError(f"run {state.run_id} begins without a request", hint=_TO_VERIFY)
        state.position = entry.cause
    state.unseen = state.unseen + wakes(entry.events) if entry.held else 0
    state.link(Head(entry_id, entry.last_seq))
    return state


def advance(state: RunState, fresh: Sequence[events.Event], *, seq: int, at_ms: int) -> None:
    """Apply events in place, the first with this seq. The head stays, because the entry has no id yet."""
    if state.over and not (fresh and state.status == "failed" and isinstance(fresh[0], events.RunRetried)):
        raise FoldError(f"run {state.run_id} has an entry after its end", hint=_TO_VERIFY)
    for event in fresh:
        transition = _TRANSITIONS.get(type(event))
        if transition is None:
            raise FoldError(f"{type(event).__name__} is not an event of a run", hint="upgrade this service")
        try:
            transition(state, event, seq, at_ms)
        except (LookupError, ValueError):
            raise FoldError(f"event {seq} of run {state.run_id} contradicts its history") from None
        seq += 1
        text = _TEXTS.get(type(event))
        state.size_bytes += EVENT_BYTES + utf8_bytes(text(event)) if text else EVENT_BYTES
    state.at_ms = at_ms
    if state.status in ("running", "suspended"):
        # A run is suspended if it has open steps and waits in all of them, or is paused.
        works = (state.busy or not state.open) and not state.paused
        state.status = "running" if works else "suspended"


def extended(
    state: RunState, fresh: list[events.Event], more: list[events.Event], *, seq: int, at_ms: int
) -> list[events.Event]:
    """Events of an entry (from `seq`, already applied) with those that follow from them, which are applied now."""
    if more:
        advance(state, more, seq=seq + len(fresh), at_ms=at_ms)
    return fresh + more


def wakes(fresh: Iterable[events.Event]) -> int:
    """Number of events that wake the agent's code: its start, and every outcome that it waits for."""
    return sum([type(event) in _WAKES for event in fresh])


def _requested(state: RunState, event: events.RunRequested, seq: int, at_ms: int) -> None:
    state.request, state.requested_ms = event, at_ms
    if event.budget is not None:
        state.account = BudgetAccount(event.budget, at_ms)


def _started(state: RunState, event: events.RunStarted, seq: int, at_ms: int) -> None:
    state.status, state.app, state.started_ms = "running", event.app, at_ms
    _migrated(state, event, seq, at_ms)


def _status_set(state: RunState, event: events.StatusSet, seq: int, at_ms: int) -> None:
    state.expose(event.name, event.text)


def _proposed(state: RunState, event: events.CallProposed, seq: int, at_ms: int) -> None:
    policy = state.request.policy if state.request is not None else ""
    state.keep(state.number(event, seq), OpenStep("proposed", seq, policy=policy))
    if state.account is not None:
        count_equal(state, event)
    if event.step == state.retried.edit[0]:
        state.take_edit(event.step)


def _judged(state: RunState, event: events.CallJudged, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    state.keep(event.step, opened._replace(policy=event.policy, decision=None), opened)


def _question_opened(state: RunState, event: events.ApprovalRequested, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    people = tuple(event.requirement.approvers)
    question = Asked(seq, event, people, at_ms, event.expires_ms, escalated=False, question=event.question)
    waiting = opened._replace(question=question, due_ms=question.due_ms, rounds=opened.rounds + 1)
    state.call(event.step)  # raises if the step is no call
    if event.about != DOUBT:  # a doubt does not replace the policy's decision
        waiting = waiting._replace(phase="approval", policy=event.policy, decision=None)
    state.keep(event.step, waiting, opened)


def _escalated(state: RunState, event: events.ApprovalEscalated, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    if opened.question is None:
        raise KeyError(event.step)
    changed = opened.question._replace(approvers=tuple(event.approvers), expires_ms=event.expires_ms)
    question = changed._replace(escalated=True, question=event.question)
    state.keep(event.step, opened._replace(question=question, due_ms=question.due_ms), opened)


def _decided(state: RunState, event: events.ApprovalDecided, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    # The question is closed by any decision; its consequences are in the same entry.
    after = opened._replace(question=None, due_ms=0)
    if opened.question is None or opened.question.event.about != DOUBT:
        after = after._replace(phase="proposed", decision=event)
    elif event.verdict == "approve":
        after = after._replace(settled=event)
    state.keep(event.step, after, opened)
    if event.verdict in ("edit", "amend"):
        state.edit(event.step, event.args, event.key, seq, by=event.actors)
    if event.use:
        state.uses = state.uses.set((event.grant, event.use), event.step)


def _child_started(state: RunState, event: events.ChildStarted, seq: int, at_ms: int) -> None:
    state.keep(state.number(event, seq), OpenStep("child", seq))
    state.children += 1


def _published(state: RunState, event: events.EventPublished | events.RunSubmitted, seq: int, at_ms: int) -> None:
    state.number(event, seq)
    state.children += len(event.agents) if isinstance(event, events.EventPublished) else 1


def _dispatched(state: RunState, event: events.CallDispatched, seq: int, at_ms: int) -> None:
    before = state.open[event.step]
    # An attempt sent twice may have two executors, which changes how its failure is judged (`planning.matrix`).
    dispatches = before.dispatches + 1 if before.attempt == event.attempt else 1
    first_sent_ms = before.first_sent_ms or at_ms
    # As `_replace` would, in half the time: every step comes here.
    sent = OpenStep(
        "dispatched", before.seq, event.deadline_ms, event.attempt, dispatches, first_sent_ms, at_ms, *before[7:]
    )
    state.keep(event.step, sent, before)
    if state.account is not None:
        called(state)


def _attempt_failed(state: RunState, event: events.AttemptFailed, seq: int, at_ms: int) -> None:
    opened = state.open[event.step]
    waiting = opened._replace(
        phase="backoff",
        due_ms=event.retry_ms,
        failure=event.failure,
        # No later failure revokes that an effect may have happened, only a human (`_resolved`).
        may_have_happened=opened.may_have_happened or event.unknown,
        uncounted=opened.uncounted + (event.failure.code in SENT_BACK),
        past=_past(opened, event.attempt, "unknown" if event.unknown else "failed", _why(event.failure), at_ms=at_ms),
    )
    state.keep(event.step, waiting, opened)


def _blocked(state: RunState, event: events.CallDoubted | events.CallHeld, seq: int, at_ms: int) -> None:
    opened, doubted = state.open[event.step], isinstance(event, events.CallDoubted)
    past = _past(opened, event.attempt, "doubt" if doubted else "failed", _why(event.failure), at_ms=at_ms)
    phase: StepPhase = "doubt" if doubted else "held"
    blocked = opened._replace(phase=phase, due_ms=0, failure=event.failure, doubted_ms=at_ms, past=past)
    state.keep(event.step, blocked, opened)


def _resolved(state: RunState, event: events.DoubtResolved, seq: int, at_ms: int) -> None:
    state.call(event.step)
    state.resolved = state.resolved.set(event.step, event)
    if opened := state.open.get(event.step):
        if opened.phase == "held" and event.verdict == "did_not_happen" and of_budget(opened.failure):
            let_on(state)
        # The human has ruled out an effect of earlier attempts, so the receiver's key window starts again.
        past = _past(opened, event.attempt, event.verdict, event.comment, by=event.actor, at_ms=at_ms)
        after = opened._replace(may_have_happened=False, first_sent_ms=0, past=past)
        state.keep(event.step, after._replace(uncounted=event.attempt) if opened.phase == "held" else after, opened)


def _past(
    opened: OpenStep, attempt: int, kind: str, text: str, *, by: str = "", at_ms: int
) -> tuple[events.Earlier, ...]:
    return (*opened.past, events.Earlier(attempt, kind, text[:TOLD_CHARS], by[:TOLD_CHARS], at_ms))[-TOLD:]


def _why(failure: events.Failure) -> str:
    return f"{failure.code}: {failure.message}"


def _child_over(state: RunState, event: events.ChildCompleted, seq: int, at_ms: int) -> None:
    state.settle(event.step, event, seq=seq, at_ms=at_ms)
    if event.used is not None:
        add_child(state, child_id(state.run_id, event.step), event.used)


def _retried(state: RunState, event: events.RunRetried, seq: int, at_ms: int) -> None:
    redrive.retried(state, event, seq, at_ms)
    raise_limits(state, event)


def _forked(state: RunState, event: events.RunForked, seq: int, at_ms: int) -> None:
    text, pasts = f"in run {event.source.run_id}, of which this one is a fork", dict[int, tuple[events.Earlier, ...]]()
    for step, was in state.open.items():
        if was.attempt:
            came = "unknown" if was.may_have_happened or was.phase in ("dispatched", "doubt") else "failed"
            pasts[step] = _past(was, was.attempt, came, text, at_ms=at_ms)
    state.fork(event, seq, at_ms, pasts)


def _step_given_up(state: RunState, event: events.StepGivenUp, seq: int, at_ms: int) -> None:
    state.give_up(event.step, seq=seq)
    waits_no_more(state, event.step)


def _late(state: RunState, event: events.LateResultRecorded, seq: int, at_ms: int) -> None:
    state.call(event.step)
    state.late = state.late.set(event.step, (*state.late.get(event.step, ()), event))


def _patched(state: RunState, event: events.PatchTaken, seq: int, at_ms: int) -> None:
    state.patches = state.patches.set(event.patch, seq)


def _migrated(state: RunState, event: events.RunStarted | events.RunMigrated, seq: int, at_ms: int) -> None:
    state.runs_by(event.version, seq=seq)
    state.read_as(event.input)


def _ended(state: RunState, event: events.Terminal, seq: int, at_ms: int) -> None:
    state.end, state.status = event, END_STATUSES[type(event)]


_TRANSITIONS: dict[type, Callable[[RunState, Any, int, int], object]] = {
    events.RunRequested: _requested,
    events.RunStarted: _started,
    events.RunMigrated: _migrated,
    events.RunRetried: _retried,
    events.RunForked: _forked,
    events.CallProposed: _proposed,
    events.CallJudged: _judged,
    events.ApprovalRequested: _question_opened,
    events.ApprovalEscalated: _escalated,
    events.ApprovalDecided: _decided,
    events.CallDispatched: _dispatched,
    events.AttemptFailed: _attempt_failed,
    events.CallDoubted: _blocked,
    events.CallHeld: _blocked,
    events.DoubtResolved: _resolved,
    events.LateResultRecorded: _late,
    events.CallRenewed: redrive.call_redriven,
    events.SleepStarted: lambda run, event, seq, _: run.keep(
        run.number(event, seq), OpenStep("sleep", seq, event.until_ms)
    ),
    events.StepGivenUp: _step_given_up,
    events.ChildStarted: _child_started,
    events.ChildCompleted: _child_over,
    events.EventPublished: _published,
    events.RunSubmitted: _published,
    events.RunPaused: paused,
    events.RunUnpaused: unpaused,
    events.CallReserved: reserved,
    events.CallBilled: billed,
    events.ChildBilled: lambda run, event, seq, at_ms: add_child(run, event.run_id, event.used),
    events.BudgetReached: reached,
    **OF_WAITS,
    events.PatchTaken: _patched,
    events.StatusSet: _status_set,
    events.RunAnnotated: lambda run, event, seq, at_ms: run.annotate(event.note_id, event.note),
    **dict.fromkeys(
        (events.NoteRecorded, events.SignalSent, events.CheckpointReached),
        lambda run, event, seq, at_ms: run.number(event, seq),
    ),
    **dict.fromkeys(
        (events.CallCompleted, events.CallFailed, events.SleepEnded),
        lambda run, event, seq, at_ms: run.settle(event.step, event, seq=seq, at_ms=at_ms),
    ),
    **dict.fromkeys(END_STATUSES, _ended),
    # For readers of the log alone.
    **dict.fromkeys(
        (events.RunSuspended, events.RunResumed, events.TaskFailed, events.CallRepeated),
        lambda run, event, seq, at_ms: None,
    ),
}


def kinds() -> frozenset[type[events.Event]]:
    return frozenset(_TRANSITIONS)
