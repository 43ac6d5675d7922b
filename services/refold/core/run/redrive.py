"""Effect of a retry on a failed run: from one step on all steps are left behind; outcomes of earlier steps stay,
whenever they came. The code is replayed along the part that stays, and may make new requests beyond it. A step left
behind keeps its number, so its idempotency key is never reused."""

from collections.abc import Iterable
from typing import NamedTuple

from immutables import Map

from refold.core import events
from refold.core.run.chain import Head, extends
from refold.core.run.mailbox import KeptSignal
from refold.core.run.persistent import PersistentMap
from refold.core.run.state import BY_SEQ, NO_EDIT, WAITING, OpenStep, Retried, RunState, Settled, Status


class Staying(NamedTuple):
    """Steps that stay when the steps from `first` on are left behind. The outcomes from place `loose` on, after event
    `since` (and the start, if `loose` is 0), have no complete reaction that stays: the code may act differently there.
    `whole`: none of its requests there stays."""

    first: int
    loose: int
    since: int
    whole: bool


def staying(state: RunState, from_step: int = 0) -> Staying:
    """Part of a failed run that stays; without a step, all but the requests in the entry that ended it."""
    count = _steps_before(state, state.seqs[from_step - 1] if from_step else state.head.seq)
    first = from_step or count + 1
    # Held code reacts in one entry to several outcomes: loose are those after the last step that stays and was
    # requested in an earlier entry. Steps that an earlier retry left behind there were part of a reaction.
    while (before := state.retried.step_before(count)) != count:
        count = _steps_before(state, state.seqs[before])
    since = state.seqs[before - 1] if before else 0
    loose = sum(seq < since for _, _, seq in state.outcomes.values())
    return Staying(first, loose, since, whole=state.retried.step_before(first - 1) == before)


def _steps_before(state: RunState, seq: int) -> int:
    place = state.heads.place(seq, key=BY_SEQ)
    return state.seqs.place(state.heads[place - 1].seq + 1 if place else 1)


def reopens(head: Head, status: Status, entry: events.Entry) -> bool:
    """True if an entry retries a failed run."""
    return status == "failed" and isinstance(entry.events[0], events.RunRetried) and extends(head, entry)


def retried(state: RunState, event: events.RunRetried, seq: int, at_ms: int) -> None:
    stays, begun = staying(state, event.from_step), state.started_ms > 0
    loose_since = min((woke for _, _, woke in state.outcomes.values() if woke > stays.since), default=state.head.seq)
    # The code acts there at the present time: a repeated sleep takes its whole duration.
    fresh_ms = at_ms if stays.whole else 0
    from_start = begun and not stays.since
    unseen, back, acted = _leave_outcomes(state, stays, frozenset(event.again), fresh_ms)
    state.unseen = unseen + from_start
    if from_start and fresh_ms:
        state.started_ms = fresh_ms
    state.patches = _patches(state, stays)
    _wait_again(state, stays, loose_since if stays.since else 0)
    for step in [step for step in state.open if step >= stays.first]:
        state.open = state.open.delete(step)
    opened = ((state.steps[step - 1], step) for step in sorted(state.open))
    waits = ((wait.name, step) for wait, step in opened if isinstance(wait, events.WaitStarted))
    state.mail = state.mail.reopen(back, waits)
    _call_again(state, event.again, acted)
    state.retried = _limits(state, event, seq, stays.first)
    state.end, state.status = None, "running" if begun else "pending"


def _leave_outcomes(
    state: RunState, stays: Staying, again: frozenset[int], fresh_ms: int
) -> tuple[int, list[KeptSignal], set[int]]:
    """Keep the outcomes of steps that stay. Return the number of loose ones, which take effect at `fresh_ms`, and of
    the other steps the signals taken and the calls that may have acted."""
    unseen = 0
    outcomes, back, acted = PersistentMap[int, tuple[int, Settled, int]](), list[KeptSignal](), set[int]()
    for place, (step, (settled_ms, outcome, woke)) in enumerate(state.outcomes.items()):
        if step < stays.first and step not in again:
            loose = place >= stays.loose
            unseen += loose
            outcomes = outcomes.add(step, (fresh_ms if loose and fresh_ms else settled_ms, outcome, woke))
        elif isinstance(outcome, events.SignalReceived):
            back.append(KeptSignal(woke, outcome.sent_ms or settled_ms, outcome))
        elif isinstance(outcome, events.CallFailed) and outcome.acted:
            acted.add(step)
    state.outcomes = outcomes
    return unseen, back, acted


def _call_again(state: RunState, steps: Iterable[int], acted: set[int]) -> None:
    for step in steps:
        redriven = OpenStep("proposed", state.retried.redriven.get(step) or state.seqs[step - 1])
        if step in acted:  # a receiver with a key window may have forgotten the key
            redriven = redriven._replace(first_sent_ms=1, may_have_happened=True)
        state.open = state.open.set(step, redriven)
    state.busy = sum(opened.phase not in WAITING for opened in state.open.values())


def _limits(state: RunState, event: events.RunRetried, seq: int, first: int) -> Retried:
    if state.request is None:  # the request was too large for the log
        raise ValueError("request")
    was, last = state.retried, len(state.steps)
    edited = (last + 1, event.edit, state.call(first).tool, event.actor) if event.edit else NO_EDIT
    earlier = tuple(span for span in was.left if span[0] < first)
    return was._replace(
        at=seq,
        left=(*earlier, (first, last)) if first <= last else was.left,
        edit=edited,
        most_steps=event.steps or was.most_steps,
        most_bytes=event.history_bytes or was.most_bytes,
        deadline_ms=event.deadline_ms or was.deadline_ms,
        most_children=event.children or was.most_children,
    )


def _patches(state: RunState, stays: Staying) -> Map[str, int]:
    """Patches recorded before the steps left behind; the code meets later ones as new."""
    if stays.whole:
        end = state.heads[state.heads.place(stays.since, key=BY_SEQ)].seq if stays.since else 0
    else:
        end = state.seqs[state.retried.step_before(stays.first - 1) - 1]
    return Map({patch: seq for patch, seq in state.patches.items() if seq <= end})


def _wait_again(state: RunState, stays: Staying, since: int) -> None:
    """Reopen steps given up after event `since`: where the code acts differently it may wait for them."""
    for step, was in state.given_up.items():
        if step < stays.first and was.given_up_at < since:
            continue
        state.given_up = state.given_up.delete(step)
        if step not in state.outcomes:
            state.open = state.open.set(step, was._replace(given_up_at=0))


def call_redriven(state: RunState, event: events.CallRenewed, seq: int, at_ms: int) -> None:
    """Repeat an open call under the same key, in place."""
    opened = state.open[event.step]
    redriven = OpenStep(
        "proposed",
        seq,
        first_sent_ms=opened.first_sent_ms,
        # The outcome of the first one may stay unknown: its request was revoked when the run failed.
        may_have_happened=opened.may_have_happened or opened.phase in ("dispatched", "doubt"),
        policy=opened.policy or (state.request.policy if state.request else ""),
        rounds=opened.rounds,
        past=opened.past,
    )
    state.busy += opened.phase in WAITING
    state.open = state.open.set(event.step, redriven)
    was, before = state.retried, state.retried.redriven.get(event.step)
    superseded = was.superseded if before is None else was.superseded.set(before, event.step)
    state.retried = was._replace(redriven=was.redriven.set(event.step, seq), superseded=superseded)
    if event.step in state.resolved:
        state.resolved = state.resolved.delete(event.step)
