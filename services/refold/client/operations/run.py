"""Operations on runs: precondition, message, judge of the outcome, and refusal of each. Each takes a fresh reading of
the run, and **raises** ConflictError if the log shows that it is impossible."""

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from refold.client.operations.operation import Followed, OperationRow, Performed
from refold.client.reading.history import Run
from refold.client.reading.model import json_text
from refold.client.reading.outcome import UpdateResult
from refold.core import events
from refold.core.approval.requester import signed
from refold.core.approval.signature import SigningKey
from refold.core.confusables import is_same
from refold.core.errors import ClosedError, ConflictError, MalformedError, NotFoundError, ReusedIdError
from refold.core.ids import (
    EntryId,
    RunId,
    asked_about,
    call_id,
    callback_digest,
    parent_of,
    parse_call_id,
    parse_callback_token,
    run_id,
)
from refold.core.messages import Hold, RunOperation, RunRequest, RunSignal
from refold.core.planning import family
from refold.core.planning.generations import has_taken
from refold.core.planning.pausing import ANNOTATE, PAUSE, REASON_CHARS, RESUME
from refold.core.planning.redrive import child_refusal
from refold.core.planning.waiting import check_name
from refold.core.run.pausing import OPERATOR, own
from refold.core.run.redrive import staying
from refold.core.run.state import RunState, note_digest
from refold.core.wire import canonical
from refold.core.wire.blobs import is_large
from refold.core.wire.sizes import check_size
from refold.engine.ports.blobs import Blobs
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import Settings
from refold.sdk.source import spoken

Signed = Callable[[RunSignal], RunSignal]
_SHOWN = 200
_CallbackOver = events.CallbackCompleted | events.CallbackFailed


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class By(NamedTuple):
    """Author and reason of an operation; `as_operator` even if the author requested the run. `sign` signs signals."""

    actor: str
    reason: str = ""
    as_operator: bool = False
    sign: Signed = lambda signal: signal


def signing(key: SigningKey | None, platform: str) -> Signed:
    """Signer of a user's signals; without a key they stay unsigned."""
    return lambda signal: signed(signal, key, clock_ms(), platform) if key else signal


def operated(run: str, kind: str, data: object, actor: str) -> RunOperation:
    """Build an operation of an operator on a run, under a fresh id."""
    return RunOperation(run_id(run), f"{kind}-{secrets.token_hex(6)}", kind, canonical.dumps(data), actor)


def _accepted(look: Followed) -> str | None:
    return "accepted" if look.fresh else None


def _idempotent(
    message: RunSignal | RunOperation, had: Callable[[RunState], bool], refuse: Callable[[RunState], None]
) -> OperationRow:
    """Build an operation that is `known` if the log `had` it; `refuse` raises if it is neither known nor accepted."""

    def judge(look: Followed) -> str | None:
        # Judged at the end of the log: a state before a retry is no outcome.
        if look.fresh or not look.whole:
            return _accepted(look)
        if had(look.run.state):
            return "known"
        refuse(look.run.state)
        return None

    return OperationRow(message, judge)


def fresh_run_id(agent: str) -> str:
    return f"{re.sub('[^A-Za-z0-9_-]', '-', agent)}-{secrets.token_hex(8)}"


def prepared(
    request: RunRequest,
    settings: Settings,
    blobs: Callable[[], Blobs | None],
    key: SigningKey | None,
    labels: Iterable[str] | None = None,
) -> RunRequest:
    """Complete a request: id, large input in the blob store, and signature by `key` (of `labels` only, if given).
    **Raises** MalformedError for an invalid id or a large input; UnreachableError."""
    name, text = run_id(request.run_id or fresh_run_id(request.agent)), request.input
    # The store is opened for a large input alone: where it is away, other runs start all the same.
    if is_large(text) and (store := blobs()):
        check_size("input", canonical.utf8_bytes(text), settings.blobs.max_bytes)
        text = store.put(name, text)
    whole = replace(request, run_id=name, input=text)
    return signed(whole, key, clock_ms(), settings.platform, labels=labels) if key else whole


def start_run(request: RunRequest) -> OperationRow:
    """Build the start of a run; `known` if the run exists with the same agent and input."""

    def judge(look: Followed) -> str | None:
        existing = look.run.state.request
        if existing is None:
            return None
        if look.run.state.position == look.position:
            return "accepted"
        if family.is_of(request, family.request_digest(request), existing.request_digest):
            return "known"
        hint = f"choose another id; `refold run show {request.run_id}` shows the run that has it"
        reason = f"{family.conflict(request, existing)}: it is {existing.agent} with {_shortened(existing.input)}"
        raise ReusedIdError(reason, hint=hint)

    return OperationRow(request, judge)


def word(state: RunState, kind: str, by: By) -> OperationRow:
    """Build a cancel, pause or resume of a run, by its `kind`."""
    return (cancel if kind == "cancel" else hold)(state, kind, by)


def cancel(state: RunState, kind: str, by: By) -> OperationRow:
    """Build the cancellation of a run; `known` if the run was cancelled before."""
    if state.status != "cancelled":
        _refuse_an_end(state)

    def judge(look: Followed) -> str | None:
        if not look.over:
            return None
        if look.run.state.status != "cancelled":
            raise ConflictError(f"run {state.run_id} {look.run.state.status} first", hint=_result_hint(state))
        return "accepted" if look.fresh else "known"

    return OperationRow(_build_input(state, kind, by), judge)


def annotate(state: RunState, note: str, by: By, note_id: str = "") -> OperationRow:
    """Build a note on a run; `known` if the run has it. **Raises** MalformedError for an empty or long note."""
    if not note.strip() or len(note) > REASON_CHARS:
        raise MalformedError(f"a note has 1 to {REASON_CHARS:,} characters", hint="put what is longer elsewhere")
    name = note_id or f"{ANNOTATE}-{secrets.token_hex(6)}"

    def had(state: RunState) -> bool:
        if (digest := state.notes.get(name)) not in (None, note_digest(note)):
            raise ConflictError(f"another note of run {state.run_id} has the id {name}", hint="choose another id")
        return digest is not None

    if not had(state):
        _refuse_an_end(state)
    return _idempotent(_build_input(state, ANNOTATE, by, {"note": note, "id": name}), had, _refuse_an_end)


def hold(state: RunState, kind: str, by: By) -> OperationRow:
    """Build a pause or resume of a run; `known` if the run is paused, or goes on, already."""
    _refuse_an_end(state)
    if kind == RESUME and own(state) is None:
        if not state.paused:
            raise ConflictError(f"run {state.run_id} is not paused, it is {state.status}", hint="it needs no resume")
        above, _ = parent_of(state.run_id)
        hint = f"resume that one: refold run resume {above}"
        raise ConflictError(f"run {state.run_id} is paused with {above}, which has started it", hint=hint)
    message = _build_input(state, kind, by)

    def had(state: RunState) -> bool:
        pause = own(state)
        if kind == PAUSE and pause is not None:
            return isinstance(message, RunSignal) or pause.role == OPERATOR
        return not state.over and (pause is None) == (kind == RESUME)

    return _idempotent(message, had, _refuse_an_end)


def _build_input(state: RunState, kind: str, by: By, note: dict[str, str] | None = None) -> RunSignal | RunOperation:
    # Only an operator resumes an operator's pause: a signal for it would be refused.
    pause = own(state) if kind == RESUME else None
    is_requester = state.request is not None and is_same(state.request.requester, by.actor)
    name = note["id"] if note else f"{kind}-{secrets.token_hex(6)}"
    data = canonical.dumps(note or {"reason": by.reason})
    if by.as_operator or not is_requester or (pause and pause.role == OPERATOR):
        return RunOperation(state.run_id, name, kind, data, by.actor)
    return by.sign(RunSignal(state.run_id, name, kind, data, by.actor))


def _refuse_an_end(state: RunState) -> None:
    if state.over:
        raise ConflictError(f"run {state.run_id} is {state.status} already", hint=_result_hint(state))


def _result_hint(state: RunState) -> str:
    return f"`refold run show {state.run_id}` shows its result"


def retry_code(run: Run, actor: str) -> OperationRow:
    """Build the operation that runs the code of a stalled run again; refused if the run stalls again."""
    before = _hold_of_stalled(run)

    def judge(look: Followed) -> str | None:
        stall = look.run.hold
        if look.run.state.over or stall is None:
            return "accepted" if look.whole else None
        # The hold from before this retry is no answer to it.
        if stall == before:
            return None
        reason = f"{stall.reason}: {stall.message}"
        raise ConflictError(f"run {run.state.run_id} is stalled again: {reason}", hint="deploy code that agrees")

    return OperationRow(operated(run.state.run_id, "retry", None, actor), judge)


def fail_stalled(run: Run, by: By) -> OperationRow:
    """Build the operation that ends a stalled run as failed."""
    _hold_of_stalled(run)
    operation = operated(run.state.run_id, "fail", {"reason": by.reason}, by.actor)
    return OperationRow(operation, lambda look: "accepted" if look.over else None)


def _hold_of_stalled(run: Run) -> Hold:
    if run.hold is None or run.state.over:
        hint = "`refold run list --status stalled` shows those that are"
        raise ConflictError(f"run {run.state.run_id} is not stalled, it is {run.status}", hint=hint)
    return run.hold


class Changes(NamedTuple):
    """Changes of a retry. `edit`: JSON of all arguments of step `from_step`; `deadline_ms`: -1 removes it."""

    from_step: int = 0
    edit: str = ""
    steps: int = 0
    history_bytes: int = 0
    deadline_ms: int = 0
    children: int = 0
    reason: str = ""
    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0


def redrive(state: RunState, actor: str, changes: Changes) -> OperationRow:
    """Build a retry of a failed run, from its end or a step. **Raises** MalformedError for an edit without a step."""
    if state.status != "failed":
        hint = "a failed run goes on where it failed, and a stalled one with code that agrees with its history"
        raise ConflictError(f"run {state.run_id} is {state.status}: there is nothing to retry", hint=hint)
    if (refused := child_refusal(state)) is not None:
        raise ConflictError(refused[0], hint=refused[1])
    data: dict[str, Any] = changes._asdict() | {"seq": state.head.seq}
    data |= {"from": data.pop("from_step"), "bytes": data.pop("history_bytes")}
    if edit := data.pop("edit"):
        if not changes.from_step:
            raise MalformedError("an edit is for a call", hint="name its step: --from STEP")
        data["edit"] = canonical.parse(edit)
    return OperationRow(operated(state.run_id, "retry", data, actor), _accepted)


class Done(NamedTuple):
    """Call, or start of a child, whose effect may have happened, and that a retry or fork may repeat."""

    step: int
    tool: str
    effect: str


def left_behind(state: RunState, from_step: int) -> list[Done]:
    """Calls, from a step on, with an effect that may have happened and that a retry or fork would repeat."""
    calls = []
    for step, call in enumerate(state.steps[from_step - 1 :], from_step):
        if not isinstance(call, events.CallProposed) or call.effect == "pure" or not state.retried.counts(step):
            continue
        outcome = state.outcomes.get(step, (0, None))[1]
        if not isinstance(outcome, events.CallFailed) or outcome.failure.code == "given_up":
            calls.append(Done(step, call.tool, call.effect))
    return calls


def stays(state: RunState) -> int:
    """Last step of a failed run that a retry leaves as it is."""
    return state.retried.step_before(min(len(state.steps), staying(state).first - 1))


def signal_message(run: str, name: str, data: object, *, signal_id: str = "", actor: str) -> RunSignal:
    own_id = signal_id or f"signal-{secrets.token_hex(6)}"
    return RunSignal(RunId(run), own_id, "signal", canonical.dumps(data), actor, name=check_name(name))


def signal(state: RunState, message: RunSignal) -> OperationRow:
    """Build the sending of a signal; refused if the run has no room or is over, or another signal has the id."""
    message = replace(message, run_id=state.run_id)  # of the latest generation

    def refuse(state: RunState) -> None:
        if (other := _signal_with_id(message.signal_id, state)) is not None:
            sent = f"signal {message.signal_id} of run {state.run_id} is {other.name}"
            reason = f"{sent} with {_shortened(other.data)} already"
            raise ReusedIdError(reason, hint="choose another id for another signal")
        _refuse_an_end(state)

    if not _has_signal(message, state):
        _refuse_an_end(state)
    once = _idempotent(message, partial(_has_signal, message), refuse)

    def judge(look: Followed) -> str | None:
        if any(isinstance(event, events.SignalDropped) for event in look.fresh):
            mail = look.run.state.mail
            reason = f"run {state.run_id} has no room for it: it keeps {mail.bytes:,} bytes of signals already"
            raise ConflictError(reason, hint="send it again once the run has consumed some signals")
        return once.judge(look)

    return OperationRow(message, judge)


def update(state: RunState, message: RunSignal) -> OperationRow:
    """Build the sending of an update, whose outcome is the agent's answer. **Raises** ClosedError if the run is over
    without one, and as `signal`."""
    number = message.signal_id

    def refuse_an_end(state: RunState) -> None:
        if state.over and not state.answer_to(number):
            reason = f"run {state.run_id} is {state.status}, and has not answered {message.name} {number}"
            raise ClosedError(reason, hint=_result_hint(state))

    refuse_an_end(state)
    sent = signal(state, message)

    def judge(look: Followed) -> str | None:
        if look.run.state.answer_to(number) and _has_signal(message, look.run.state):
            return _accepted(look) or "known"
        if look.over:
            refuse_an_end(look.run.state)
        sent.judge(look)  # raises if the signal is refused
        return None

    return OperationRow(message, judge)


def update_result(done: Performed, message: RunSignal) -> UpdateResult:
    """Answer to a performed update."""
    state = done.run.state
    answer = state.answer_to(message.signal_id)
    assert answer is not None, "an update that is performed has its answer"
    about = {**dict(done.result), "step": step_of(state, message), "said": message.signal_id}
    return UpdateResult(**about, result=json_text(answer.result), failure=answer.failure)


def answered(token: str, data: object = None, *, failure: str = "", key: str = "", actor: str) -> RunSignal:
    """Build the message of a callback's result, or its `failure`. **Raises** MalformedError for an invalid token."""
    run, signal_id = parse_callback_token(token), f"callback-{secrets.token_hex(6)}"
    text = canonical.dumps(data)
    return RunSignal(run, signal_id, "callback", text, actor, callback=token, failure=failure, key=key)


def answer_callback(state: RunState, message: RunSignal) -> OperationRow:
    """Build the sending of an answer to a callback. **Raises** NotFoundError for an unknown token."""
    if not (step := step_of(state, message)):
        raise NotFoundError(
            f"run {message.run_id} has no callback with this token",
            hint="pass the whole token, as `ctx.callback()` returned it",
        )
    if not _has_answer(step, message, state):
        _refuse_an_end(state)
    return _idempotent(message, partial(_has_answer, step, message), _refuse_an_end)


def refuse_another_answer(state: RunState, message: RunSignal) -> None:
    """**Raises** ReusedIdError if the callback has another answer with the same key."""
    outcome = state.outcomes.get(step_of(state, message), (0, None))[1]
    if not isinstance(outcome, _CallbackOver) or not message.key or message.key != outcome.key:
        return
    if not _is_same_answer(outcome, message):
        was = outcome.result if isinstance(outcome, events.CallbackCompleted) else outcome.failure.message
        hint = "choose another key for another answer"
        raise ReusedIdError(f"the answer {message.key} was {_shortened(was)}", hint=hint)


def step_of(state: RunState, message: RunSignal) -> int:
    """Step that received a signal or an answer; 0 if none so far."""
    if message.callback:
        return state.callbacks.get(callback_digest(message.callback), 0)
    return state.mail.taken.get(message.signal_id, 0)


def _has_signal(message: RunSignal, state: RunState) -> bool:
    had = _signal_with_id(message.signal_id, state)
    if had is None:
        return has_taken(state, message.signal_id)
    return (had.name, had.data) == (message.name, message.data)


def _signal_with_id(signal_id: str, state: RunState) -> events.SignalReceived | None:
    step, waiting = state.mail.taken.get(signal_id), state.mail.kept.get(signal_id)
    had = state.outcomes[step][1] if step else waiting.signal if waiting else None
    return had if isinstance(had, events.SignalReceived) else None


def _has_answer(step: int, message: RunSignal, state: RunState) -> bool:
    outcome = state.outcomes[step][1] if step in state.outcomes else None
    if not isinstance(outcome, _CallbackOver):
        return False
    return _is_same_answer(outcome, message) or bool(message.key and message.key == outcome.key)


def _is_same_answer(outcome: _CallbackOver, message: RunSignal) -> bool:
    if isinstance(outcome, events.CallbackCompleted):
        return (outcome.result, "") == (message.data, message.failure)
    return outcome.failure.message == message.failure


def doubted(read: Callable[[str], Run], call: str) -> tuple[str, str]:
    """Tool of a call, and the open question about its outcome, if any. **Raises** MalformedError, NotFoundError."""
    name, seq = parse_call_id(asked_about(call))
    state = read(name).state
    step = _step_of_call(state, seq)
    opened = state.open.get(step)
    waits = opened is not None and opened.phase == "doubt"
    return state.call(step).tool, state.waits_for(step) if waits else ""


def _step_of_call(state: RunState, seq: int) -> int:
    step = state.step_of(seq)
    if step is None or not isinstance(state.steps[step - 1], events.CallProposed):
        call, hint = call_id(state.run_id, seq), f"`refold run show {state.run_id}` lists its calls"
        raise NotFoundError(f"run {state.run_id} proposed no call {call}", hint=hint)
    return step


class Settlement(NamedTuple):
    """Operator's finding on a call: `happened` (with a result), `did_not_happen` or `give_up`."""

    verdict: str
    result: object = None
    comment: str = ""


def settle_call(
    read: Callable[[str], Run], call: str, settlement: Settlement, actor: str, *, though_asked: bool = False
) -> OperationRow:
    """Build an operator's verdict on a call in doubt or on hold; `asked` if the policy now requires people. **Raises**
    MalformedError for an invalid call id, NotFoundError."""
    (name, seq), verdict = parse_call_id(call), settlement.verdict
    state = read(name).state
    step = _step_of_call(state, seq)
    if (approval := state.waits_for(step)) and not though_asked:
        hint = f"vote with `refold run resolve {approval}`"
        raise ConflictError(f"the call {call} waits for an approval", hint=hint)
    attempt = _unsettled_attempt(state, step, call, verdict)
    operation = operated(name, "resolve", {"step": step, "attempt": attempt, **settlement._asdict()}, actor)
    return OperationRow(operation, lambda look: _judge_settlement(look, step, attempt, verdict))


def _unsettled_attempt(state: RunState, step: int, call: str, verdict: str) -> int:
    """Attempt that a verdict is about. **Raises** ConflictError for a call that is neither in doubt nor held."""
    opened, before = state.open.get(step), state.resolved.get(step)
    if opened is not None and opened.phase in ("doubt", "held"):
        return opened.attempt
    # A repeated verdict is harmless, and its answer is the same.
    if before and before.verdict == verdict:
        return before.attempt
    now = f"resolved as {before.verdict}" if before else opened.phase if opened else "settled"
    hint = f"`refold run show {state.run_id}` shows the call"
    raise ConflictError(f"call {call} is neither in doubt nor held, it is {now}", hint=hint)


def _judge_settlement(look: Followed, step: int, attempt: int, verdict: str) -> str | None:
    state = look.run.state
    if look.fresh:
        opened = state.open.get(step)
        return "asked" if opened is not None and opened.phase == "doubt" else "accepted"
    settled = state.resolved.get(step)
    if settled and settled.attempt >= attempt:
        if settled.attempt == attempt and settled.verdict != verdict:
            raise ConflictError(
                f"{settled.actor or 'somebody'} resolved step {step} of {state.run_id} as {settled.verdict}",
                hint=f"`refold run show {state.run_id}` shows what followed",
            )
        return "known"
    if look.over:
        _refuse_an_end(state)
    return None


def repair(run: Run, head: str, actor: str) -> OperationRow:
    """Build the rewriting of a run's records in order; with a `head`, only the history that ends there is valid."""
    before, read = len(run.records) + len(run.void), 0
    head_id = EntryId(bytes.fromhex(head)) if head else run.state.head.id

    def judge(look: Followed) -> str | None:
        nonlocal read
        read += look.judged is not None
        record = look.judged
        # A later copy of the head: the repair is complete.
        again = record is not None and read > before and record.id == head_id and record.record.value is not None
        return "accepted" if again else None

    return OperationRow(operated(run.state.run_id, "repair", {"head": head}, actor), judge)


def migrate(state: RunState, to: str, actor: str) -> OperationRow:
    """Build the move of a run to another version of its agent; refused if the run is over."""
    data = {"from": state.version, "seq": state.versions[-1][0] if state.versions else 0, "to": to}
    operation = operated(state.run_id, "migrate", data, actor)
    return _idempotent(operation, lambda state: spoken(state.version)[0] == to, _refuse_an_end)
