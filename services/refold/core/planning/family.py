"""Messages between a run and its children, from the accepted entries of their one lane: a topic could be forged."""

import dataclasses
import json
from collections.abc import Iterator
from hashlib import blake2b

from refold.core import events
from refold.core.ids import RunId, child_id, is_below, parent_of
from refold.core.messages import RunRequest
from refold.core.planning import generations
from refold.core.planning.verdict import ChildEnded, Ignore, Origin, ParentEnded, PauseAbove, Ruling, Start
from refold.core.run.pausing import PARENT, inherited
from refold.core.run.state import END_STATUSES, RunState
from refold.core.wire.canonical import utf8_bytes

_COMPARED = ("agent", "input", "requester", "labels", "sessions", "not_before_ms")

UNREAD = ""
"""Stands for the result of a finished run that has only a row in memory; its history has the result."""

FamilyMessage = Start | ChildEnded | ParentEnded | PauseAbove

_OF_CHILDREN = (events.ChildStarted, events.EventPublished, events.RunForked, events.StepGivenUp)
FOR_OTHERS = frozenset((*_OF_CHILDREN, events.RunPaused, events.RunUnpaused, *END_STATUSES))


def family_messages(state: RunState, entry: events.Entry) -> Iterator[FamilyMessage]:
    """Family messages of an accepted entry; `state` is the run's state after it, or a later one."""
    for event in entry.events:
        if type(event) not in FOR_OTHERS:
            continue
        if isinstance(event, events.ChildStarted):
            yield _child_request(state, event.step, child_id(state.run_id, event.step), event)
        elif isinstance(event, events.EventPublished):
            for number, agent in enumerate(event.agents, start=1):
                started = events.ChildStarted(event.step, agent, event.data, outlives=True)
                yield _child_request(state, 0, child_id(state.run_id, event.step, number), started)
        elif isinstance(event, events.RunForked):
            if not isinstance(entry.events[-1], events.Terminal):  # a fork that ends at once begins nothing
                yield from _begin_again(state)
        elif isinstance(event, events.StepGivenUp):
            yield from _leave_child(state, event.step, "has given it up")
        elif isinstance(event, events.RunPaused | events.RunUnpaused):
            yield from _paused(state, entry.seq)
        elif isinstance(event, events.Terminal):
            yield from _end_messages(state, event)
            if isinstance(event, events.RunContinued):
                yield generations.successor(state, event)


def origin_of(state: RunState) -> Origin | None:
    parent, step = parent_of(state.run_id)
    request = state.request
    return Origin(parent, step, request.policy, request.outlives) if parent and request else None


def ended_before(child: RunState, origin: Origin) -> ChildEnded:
    """End of a child, for a parent that starts to wait after it."""
    if child.end is not None:
        return ChildEnded(origin.parent, origin.step, child.status, *_ending(child.end), *_usage(child, origin))
    if child.status == "completed":
        return ChildEnded(origin.parent, origin.step, child.status, UNREAD, None)
    # A row has neither failure nor result.
    failure = events.Failure(child.status, "the log has lost why, or who had started it")
    return ChildEnded(origin.parent, origin.step, child.status, "null", failure)


def waits_for(parent: RunState | None, origin: Origin) -> bool:
    """True if a child of `parent` may go on; None: the parent is over, without a state in memory."""
    return origin.outlives or (parent is not None and not parent.over and origin.step in parent.open)


def pause_above(parent: RunState | None, origin: Origin) -> events.RunPaused | None:
    """Pause that a child inherits as it starts, else None."""
    if origin.outlives or parent is None or parent.over or not parent.paused:
        return None
    return events.RunPaused(parent.run_id, parent.paused[0].reason, PARENT, seq=parent.head.seq)


def stands_otherwise(child: RunState, parent: RunState | None) -> PauseAbove | None:
    """Message to a run whose inherited pause differs from its parent's state; None if it does not."""
    if child.over or parent is None or (origin := origin_of(child)) is None:
        return None
    same = (pause_above(parent, origin) is None) == (inherited(child) is None)
    return None if same else PauseAbove(child.run_id, parent.run_id, parent.head.seq)


def left(child: RunId, parent: RunId, why: str = "is over") -> ParentEnded:
    """Message that cancels a child, because its parent no longer waits for it."""
    return ParentEnded(child, parent, f"run {parent}, which has started it, {why}")


def respond(state: RunState | None, message: ChildEnded | ParentEnded) -> Ruling:
    """Ruling of a run on the end of a child, or on a parent that no longer waits for it."""
    if state is None:
        return Ignore("the run is not there")
    if state.over:
        return Ignore("the run is over")
    if isinstance(message, ParentEnded):
        return [events.RunCancelled(message.reason, message.parent)]
    if not message.child and (opened := state.open.get(message.step)) and opened.phase == "child":
        return [events.ChildCompleted(message.step, message.status, message.result, message.failure, message.used)]
    child = message.child or child_id(state.run_id, message.step)
    if message.used is None or (state.account and child in state.account.billed):
        return Ignore("nobody waits for that run")
    return [events.ChildBilled(child, message.used)]


def further_above(ended: ChildEnded) -> ChildEnded | None:
    """Usage of a child for the next run above; None at the root of the budget."""
    parent, _ = parent_of(ended.run_id)
    if ended.used is None or not ended.root or not parent or not is_below(parent, ended.root):
        return None
    return dataclasses.replace(ended, run_id=parent, child=ended.child or child_id(ended.run_id, ended.step))


def _child_request(state: RunState, step: int, child: RunId, started: events.ChildStarted) -> Start:
    parent_request = state.request
    assert parent_request is not None, "a run that starts others was requested"
    # The requester of the first run is that of its whole family, and the signed request is shown with each run.
    request = RunRequest(
        child,
        started.agent,
        started.input,
        parent_request.requester,
        labels={**started.labels, **parent_request.labels},
        token=parent_request.token,
        sessions=parent_request.sessions,
    )
    above = [] if started.outlives else [*parent_request.above, parent_request.agent]
    account = None if started.outlives else state.account
    counts_for = account.limits.root or state.run_id if account else ""
    origin = Origin(state.run_id, step, parent_request.policy, started.outlives, above, counts_for)
    return Start(request, request_digest(request), seed="", traceparent=parent_request.traceparent, origin=origin)


def request_digest(request: RunRequest) -> str:
    """Digest of a request's content without its token, to detect another request with the same run id."""
    # The token is left out: a request that is sent again is signed again.
    rest = [request.requester, request.labels, request.sessions, request.not_before_ms, request.deadline_ms]
    rest += [[] if request.budget is None else list(dataclasses.astuple(request.budget))]
    text = json.dumps(rest, sort_keys=True)
    return requested_digest(f"{len(request.agent)}:{request.agent}{len(request.input)}:{request.input}{text}")


def conflict(request: RunRequest, recorded: events.RunRequested) -> str:
    # A finished run has only a digest.
    other = [name for name in _COMPARED if recorded.agent and getattr(recorded, name) != getattr(request, name)]
    names = ", ".join(other) or "deadline or budget" if recorded.agent else "input, requester, labels or times"
    return f"run {request.run_id} exists with other {names}"


def is_of(request: RunRequest, digest: str, began_with: str) -> bool:
    """True if a run began with this request, by its digest."""
    # The digest of earlier releases covers less.
    return began_with in (digest, requested_digest(f"{len(request.agent)}:{request.agent}{request.input}"))


def requested_digest(content: str) -> str:
    return blake2b(content.encode(), digest_size=16).hexdigest()


def _end_messages(state: RunState, event: events.Terminal) -> Iterator[FamilyMessage]:
    if (origin := origin_of(state)) is not None and origin.step:
        # The state may be a later one, and the run may have been retried since.
        status = END_STATUSES[type(event)]
        yield ChildEnded(origin.parent, origin.step, status, *_ending(event), *_usage(state, origin))
    for step in sorted(state.open):
        yield from _leave_child(state, step, f"is {state.status}")


def _usage(child: RunState, origin: Origin) -> tuple[events.Used | None, str]:
    account = None if origin.outlives else child.account
    return (account.used, account.limits.root) if account else (None, "")


def _begin_again(state: RunState) -> Iterator[FamilyMessage]:
    for step, started in _waited_for(state):
        if started.outlives or not state.over:  # the state may be a later one
            yield _child_request(state, step, child_id(state.run_id, step), started)


def _paused(state: RunState, seq: int) -> Iterator[FamilyMessage]:
    for step, started in _waited_for(state):
        if not (started.outlives or state.over):
            yield PauseAbove(child_id(state.run_id, step), state.run_id, seq)


def _waited_for(state: RunState) -> Iterator[tuple[int, events.ChildStarted]]:
    for step in sorted(state.open):
        if isinstance(started := state.steps[step - 1], events.ChildStarted):
            yield step, started


def _leave_child(state: RunState, step: int, why: str) -> Iterator[FamilyMessage]:
    started = state.steps[step - 1]
    if isinstance(started, events.ChildStarted) and not started.outlives:
        yield left(child_id(state.run_id, step), state.run_id, why)


def _ending(event: events.Terminal) -> tuple[str, events.Failure | None]:
    if isinstance(event, events.RunCompleted):
        return event.result, None
    if isinstance(event, events.RunFailed):
        return "null", event.failure
    reason = event.reason if isinstance(event, events.RunCancelled) else ""
    return "null", events.Failure("cancelled", reason or "it was cancelled")


def cut_to(over: ChildEnded, payload_bytes: int) -> ChildEnded:
    """End of a run, failed if its result does not fit into an entry of its parent."""
    if (size := utf8_bytes(over.result)) <= payload_bytes:
        return over
    message = f"its result has {size:,} bytes, more than {payload_bytes:,}: return a reference to where it lies"
    return dataclasses.replace(over, status="failed", result="null", failure=events.Failure("too_large", message))
