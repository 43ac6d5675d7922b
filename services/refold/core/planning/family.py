"""What becomes of one run by another of its family: it is started, its parent hears of its end, or has its own.

A family has one home and so one lane, and what one of them does to another follows from the accepted entries of both
alone. There is no topic for it: nobody could write into that what no run has done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from hashlib import blake2b

from refold.core import events
from refold.core.ids import RunId, child_id, parent_of
from refold.core.messages import RunRequest
from refold.core.planning.verdict import ChildOver, Ignore, Origin, ParentOver, Ruling, Start
from refold.core.run.state import RunState
from refold.core.wire.canonical import utf8_bytes

Tidings = Start | ChildOver | ParentOver


def tidings(state: RunState, entry: events.Entry) -> Iterator[Tidings]:
    """What an accepted entry means for others. `state` is the run's right after it, or later."""
    for event in entry.events:
        if isinstance(event, events.ChildStarted):
            yield _start(state, event.step, child_id(state.run_id, event.step), event)
        elif isinstance(event, events.EventPublished):
            for number, agent in enumerate(event.agents, start=1):
                started = events.ChildStarted(event.step, agent, event.data, outlives=True)
                yield _start(state, 0, child_id(state.run_id, event.step, number), started)
        elif isinstance(event, events.StepGivenUp):
            yield from _left(state, event.step, "has given it up")
        elif isinstance(event, events.RunCompleted | events.RunFailed | events.RunCancelled):
            yield from _ended(state, event)


def origin_of(state: RunState) -> Origin | None:
    """Who has started a run, if another run has."""
    parent, step = parent_of(state.run_id)
    asked = state.request
    return Origin(parent, step, asked.policy, asked.outlives) if parent and asked else None


def waits_for(parent: RunState | None, origin: Origin) -> bool:
    """Whether a run may go on that `parent` has started; None: that one is over, and no more is known of it."""
    return origin.outlives or (parent is not None and not parent.over and origin.step in parent.open)


def left(child: RunId, parent: RunId, why: str = "is over") -> ParentOver:
    """A run whose parent does not wait for it any more."""
    return ParentOver(child, parent, f"run {parent}, which has started it, {why}")


def respond(state: RunState | None, what: ChildOver | ParentOver) -> Ruling:
    """What a run makes of the end of another."""
    if state is None:
        return Ignore("the run is not there")
    if state.over:
        return Ignore("the run is over")
    if isinstance(what, ParentOver):
        return [events.RunCancelled(what.reason, what.parent)]
    opened = state.open.get(what.step)
    if opened is None or opened.phase != "child":
        return Ignore("nobody waits for that run")
    return [events.ChildCompleted(what.step, what.status, what.result, what.failure)]


def _start(state: RunState, step: int, child: RunId, started: events.ChildStarted) -> Start:
    asked = state.request
    assert asked is not None, "a run that starts others was requested"
    # Whoever has asked for the first run of a family has asked for all of it, and what was signed is shown with each.
    request = RunRequest(
        child,
        started.agent,
        started.input,
        asked.requester,
        labels=asked.labels,
        token=asked.token,
        sessions=asked.sessions,
    )
    origin = Origin(state.run_id, step, asked.policy, started.outlives)
    return Start(request, request_digest(request), seed="", traceparent=asked.traceparent, origin=origin)


def request_digest(request: RunRequest) -> str:
    """What tells the same request again from another for a run of the same name."""
    content = f"{len(request.agent)}:{request.agent}{request.input}"
    return blake2b(content.encode(), digest_size=16).hexdigest()


def _ended(state: RunState, event: events.RunCompleted | events.RunFailed | events.RunCancelled) -> Iterator[Tidings]:
    if (origin := origin_of(state)) is not None and origin.step:
        yield ChildOver(origin.parent, origin.step, state.status, *_outcome(event))
    for step in sorted(state.open):
        yield from _left(state, step, f"is {state.status}")


def _left(state: RunState, step: int, why: str) -> Iterator[Tidings]:
    started = state.steps[step - 1]
    if isinstance(started, events.ChildStarted) and not started.outlives:
        yield left(child_id(state.run_id, step), state.run_id, why)


def _outcome(
    event: events.RunCompleted | events.RunFailed | events.RunCancelled,
) -> tuple[str, events.Failure | None]:
    if isinstance(event, events.RunCompleted):
        return event.result, None
    if isinstance(event, events.RunFailed):
        return "null", event.failure
    return "null", events.Failure("cancelled", event.reason or "it was cancelled")


def cut_to(over: ChildOver, payload_bytes: int) -> ChildOver:
    """The end of a run as its parent hears of it, whose entry has to have room for it."""
    if (size := utf8_bytes(over.result)) <= payload_bytes:
        return over
    message = f"its result has {size:,} bytes, more than {payload_bytes:,}: return a reference to where it lies"
    return dataclasses.replace(over, status="failed", result="null", failure=events.Failure("too_large", message))
