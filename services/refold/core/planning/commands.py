"""Commands that follow from an accepted entry: the log is the outbox. Equal keys make their repetition harmless."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refold.core import events
from refold.core.events import NO_REQUEST
from refold.core.ids import RunId, approval_id, attempt_trace, signal_id
from refold.core.messages import ApprovalRequest, RunOutcome, RunRequest, RunSignal, ToolRequest
from refold.core.planning import asking
from refold.core.run.state import END_STATUSES, RunState
from refold.core.topics import APPROVAL_REQUESTED, RUN_COMPLETED, RUN_REQUESTED, RUN_SIGNALLED, tool_requested


@dataclass(frozen=True, slots=True)
class Command:
    """Record to send. `topic` has no prefix. Message None is a tombstone, for which `call_key` is the idempotency key
    of the closed call; with an `attempt` it only revokes the requests up to that attempt."""

    topic: str
    key: str
    message: ToolRequest | ApprovalRequest | RunOutcome | RunRequest | RunSignal | None
    call_key: str = ""
    attempt: int = 0


def commands(state: RunState, entry: events.Entry, offset: int) -> list[Command]:
    """Commands of an accepted entry at `offset`; `state` is the state after it, or a later one."""
    requests: list[Command] = []
    ended: list[Command] = []
    closed: list[Command] = []
    for event in entry.events:
        if isinstance(event, events.CallProposed):
            continue  # another event of its entry sends it
        if isinstance(event, events.CallDispatched):
            if event.step not in state.given_up:  # not if given up in the same entry
                requests.append(request(state, event.step, event.attempt, issued=offset, at_ms=entry.at_ms))
        elif isinstance(event, (events.CallCompleted, events.CallFailed)):
            closed.append(close(state, event.step, at=entry.last_seq))
        elif isinstance(event, (events.ApprovalRequested, events.CallDoubted, events.CallHeld)):
            # A question's tombstone precedes the next question about its call: two at a time indicate forgery.
            requests, ended = [*requests, *ended, *_judged_again(state, event, at=entry.last_seq)], []
        elif isinstance(event, events.ApprovalDecided):
            ended.append(question_closed(state, event.step, event.question, at=entry.last_seq))
        elif isinstance(event, events.LateResultRecorded):
            closed += _close_again(state, event.step, closed, at=entry.last_seq)
        elif further := _BY_EVENT.get(type(event)):
            more, tombstones = further(state, event, entry.last_seq)
            requests += more
            closed += tombstones
    # Requests go first: executors and people wait for them, and for no tombstone.
    return requests + ended + closed


_Commands = tuple[list[Command], list[Command]]
"""Requests, and tombstones of calls and of their questions."""


def _close_run(state: RunState, event: events.Terminal, last_seq: int) -> _Commands:
    """Outcome of a run that is over, and tombstones of its open calls and questions."""
    if isinstance(event, events.RunFailed) and state.retried.at > last_seq:
        # A retried run reports its next end, and makes other calls.
        early = [step for step in state.open_at(last_seq) if state.seqs[step - 1] <= last_seq]
        return [], [close(state, step, at=last_seq) for step in early]
    closed: list[Command] = []
    for step, opened in sorted(state.open.items()):
        if opened.question is not None:
            closed.append(question_closed(state, step, opened.question.question))
        if state.is_call(step):
            closed.append(close(state, step))
    return outcomes(state), closed


def outcomes(state: RunState) -> list[Command]:
    """Outcome of a run that is over; none of a generation, which ends nothing."""
    return [outcome(state)] if state.end and not isinstance(state.end, events.RunContinued) else []


def _send_signal(state: RunState, event: events.SignalSent, last_seq: int) -> _Commands:
    target, name = RunId(event.run_id), signal_id(state.run_id, event.step)
    actor = (state.request or NO_REQUEST).requester
    signal = RunSignal(target, name, "signal", event.data, actor, name=event.name)
    return [Command(RUN_SIGNALLED, f"{target}/{name}", signal)], []


def _submit_run(state: RunState, event: events.RunSubmitted, last_seq: int) -> _Commands:
    order, run = state.request or NO_REQUEST, RunId(event.run_id)
    # Without the token, which is of another request: a copy of it in this topic could be anybody's. So the requester is
    # a claim, and policies that exclude the requester want one more vote.
    request = RunRequest(run, event.agent, event.input, order.requester, labels=order.labels, sessions=order.sessions)
    return [Command(RUN_REQUESTED, run, request)], []


def close(state: RunState, step: int, *, at: int = 0) -> Command:
    """Tombstone of a settled call. `at` is its event, if the call has later ones."""
    call = state.call(step)
    return Command(tool_requested(call.pool), state.call_id(step, at=at), None, call.key)


def take_back(state: RunState, step: int, attempt: int, *, at: int = 0) -> list[Command]:
    """Tombstone of the requests up to an attempt that is judged again, in doubt or held; none before the first one."""
    # An executor may still have one: sent twice, or restarted without its ledger.
    return [dataclasses.replace(close(state, step, at=at), attempt=attempt)] if attempt > 0 else []


def recall(state: RunState, step: int) -> list[Command]:
    """Tombstone of the requests of an open call that waits for people or an operator."""
    opened = state.open[step]
    return take_back(state, step, opened.attempt) if opened.phase in ("approval", "doubt", "held") else []


def _judged_again(
    state: RunState, event: events.ApprovalRequested | events.CallDoubted | events.CallHeld, *, at: int
) -> list[Command]:
    if isinstance(event, events.ApprovalRequested):
        return [*take_back(state, event.step, event.attempt - 1, at=at), *ask_people(state, event.step)]
    return take_back(state, event.step, event.attempt, at=at)


def _close_again(state: RunState, step: int, closed: list[Command], *, at: int) -> list[Command]:
    """Tombstone of a call with a late result, unless it is in `closed`."""
    # A question may have been sent since its first tombstone.
    again = [] if step in state.open else [close(state, step, at=at)]
    return [command for command in again if command not in closed]


def _ask_others(state: RunState, event: events.ApprovalEscalated, last_seq: int) -> _Commands:
    step, opened = event.step, state.open.get(event.step)
    asked = opened.question if opened else None
    if asked is None or asked.seq != event.approval:
        return [], []  # repeated after a later question, which stays open
    # The tombstone before the next question: two at a time indicate forgery.
    return [question_closed(state, step, asked.event.question), *ask_people(state, step)], []


def _withdraw_given_up(state: RunState, event: events.StepGivenUp, last_seq: int) -> _Commands:
    """Tombstones of a call that the agent has given up and of its question; none in doubt: that question stays open."""
    step, opened = event.step, state.given_up.get(event.step)
    if not state.is_call(step) or (opened is not None and opened.phase == "doubt"):
        return [], []
    question = opened.question if opened else None  # None, too: a retry has taken that back
    tombstones = [question_closed(state, step, question.question, at=last_seq)] if question else []
    return [], [*tombstones, close(state, step, at=last_seq)]


_BY_EVENT: dict[type, Callable[[RunState, Any, int], _Commands]] = {
    events.SignalSent: _send_signal,
    events.RunSubmitted: _submit_run,
    events.ApprovalEscalated: _ask_others,
    events.StepGivenUp: _withdraw_given_up,
    **dict.fromkeys(END_STATUSES, _close_run),
}


def question_closed(state: RunState, step: int, question: str, *, at: int = 0) -> Command:
    """Tombstone of a question. `at` is its event, if the call has later ones."""
    return Command(APPROVAL_REQUESTED, approval_id(state.call_id(step, at=at), question), None)


def ask_people(state: RunState, step: int) -> list[Command]:
    opened = state.open.get(step)
    if opened is None or opened.question is None:
        return []  # the entry that asks also ends the run
    request = asking.question_of(state, state.call(step), opened)
    return [Command(APPROVAL_REQUESTED, request.approval_id, request)]


def request(state: RunState, step: int, attempt: int, *, issued: int, at_ms: int, again: bool = False) -> Command:
    """Request of an attempt; `again` if it was sent before without an answer. The sender adds `earlier` calls."""
    call, opened, order = state.call(step), state.open.get(step), state.request or NO_REQUEST
    first_ms = opened.first_sent_ms if opened else state.at_ms
    name = state.call_id(step)
    message = ToolRequest(
        call_id=name,
        run_id=state.run_id,
        step=step,
        attempt=attempt,
        issued=issued,
        tool=call.tool,
        args=call.args,
        key=call.key,
        effect=call.effect,
        timeout_ms=call.timeout_ms,
        key_expires_ms=first_ms + call.key_window_ms if call.key_window_ms else 0,
        traceparent=attempt_trace(state.run_id, state.activation, name, attempt),
        policy=opened.policy if opened else "",
        decision=opened.decision.token if opened and opened.decision else "",
        at_ms=at_ms,
        again=again,
        agent=order.agent,
        requester=order.requester,
        settled=opened.settled.token if opened and opened.settled else "",
        above=order.above,
    )
    return Command(tool_requested(call.pool), name, message)


def outcome(state: RunState) -> Command:
    request, event = state.request or NO_REQUEST, state.end
    failure = event.failure if isinstance(event, events.RunFailed) else None
    message = RunOutcome(
        run_id=state.run_id,
        status=state.status,
        agent=request.agent,
        result=event.result if isinstance(event, events.RunCompleted) else "null",
        failure=failure,
        seq=state.head.seq,
        request=state.position,
        at_ms=state.at_ms,
        stop=failure.code if failure else "finished" if isinstance(event, events.RunCompleted) else state.status,
        used=state.account.used if state.account else None,
        labels=request.labels,
    )
    return Command(RUN_COMPLETED, state.run_id, message)


def without_result(outcome: RunOutcome) -> RunOutcome:
    """Outcome without its result, which the run log has."""
    text = f"the result is too large for run-completed: `refold run show {outcome.run_id}` has it"
    return dataclasses.replace(outcome, result="null", failure=events.Failure("too_large", text))
