"""Sends an input as any user may, and learns from the log what became of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from refold.client.runs import JudgedRecord, Run, Runs
from refold.core.errors import (
    ConflictError,
    FoldError,
    MalformedError,
    NotFoundError,
    RefoldError,
    TimedOutError,
    UsageError,
)
from refold.core.events import CallProposed, Cause, Event
from refold.core.glyphs import is_same
from refold.core.ids import (
    EntryId,
    RunId,
    asked_about,
    call_id,
    home,
    parse_call_id,
    run_id,
)
from refold.core.messages import ApprovalVote, DeadLetter, Hold, RunOperation, RunRequest, RunSignal
from refold.core.planning import family
from refold.core.planning.pausing import RESUME
from refold.core.run.pausing import OPERATOR, own
from refold.core.run.state import RunState
from refold.core.topics import DEAD_LETTER
from refold.core.wire import canonical, codec
from refold.ports.log import Record
from refold.sdk.source import spoken

_T = TypeVar("_T")


class Sender(Protocol):
    """What publishes inputs and votes."""

    # What inputs of other kinds use, too

    def send(self, message: RunRequest | RunSignal | RunOperation | ApprovalVote) -> tuple[int, int]:
        """Publishes to the home of the run and waits for the ack; returns partition and offset."""
        ...


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """What became of an input.

    `what`: `accepted`, `known` when the log had it before and nothing changed, or `asked` when people are to say it.
    """

    what: str
    run: Run
    position: Cause


class Inputs:
    """Inputs to runs. **Units**: timeouts in seconds; None waits for ever."""

    def __init__(self, runs: Runs, sender: Sender) -> None:
        self.runs, self._sender = runs, sender

    def start(self, request: RunRequest) -> Cause:
        """Publishes a request; returns where it lies."""
        return self.send(request)

    def started(self, request: RunRequest, position: Cause, timeout_s: float | None = 30.0) -> InputAnswer:
        """Waits until the planner has taken a request.

        **Raises** ConflictError when the run exists with other input, TimedOutError.
        """

        return self.follow(request.run_id, position, lambda run, _: taken(request, position, run), timeout_s)

    def stall(self, run: str, timeout_s: float) -> Hold | None:
        """Why the code of a run that was just requested is held; None once it has acted, or if nothing came in time."""
        with suppress(TimedOutError):
            for found, _ in self.runs.follow(run, timeout_s):
                state = found.state
                if found.hold or state.over or state.steps or (found.records and state.status == "pending"):
                    return found.hold
        return None

    def ended(self, run: str, timeout_s: float | None = None) -> Run:
        """Waits until a run is over. **Raises** TimedOutError; NotFoundError when no planner here has its agent."""
        for found, judged in self.runs.follow(run, timeout_s):
            if is_over(found, judged):
                return found
            if judged is None and found.hold and found.hold.reason == "unknown_agent":
                hint = f"`refold run cancel {run}` gives it up; a planner that has the agent goes on with it"
                raise NotFoundError(found.hold.message, hint=hint)
        raise AssertionError("a tail goes on for ever")

    def cancel(self, signal: RunSignal | RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Cancels a run; `signal` comes from `cancelling`.

        **Raises** NotFoundError, ConflictError when it is over already, TimedOutError.
        """
        state = self.runs.get(signal.run_id).state
        if state.over and state.status != "cancelled":
            raise ConflictError(f"run {signal.run_id} is {state.status} already", hint="nothing is left to cancel")

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            if not is_over(run, judged):
                return None
            if run.state.status != "cancelled":
                raise ConflictError(f"run {signal.run_id} {run.state.status} first", hint="nothing is left to cancel")
            return InputAnswer("accepted" if self._answers(run, position) else "known", run, position)

        position = self.send(signal)
        return self.follow(signal.run_id, position, judge, timeout_s)

    def retry(self, signal: RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Has the code of a stalled run tried again.

        **Raises** NotFoundError, ConflictError when it is not stalled or is stalled again, TimedOutError.
        """
        before = self._stalled(signal)

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            if run.hold == before and not run.state.over:
                return None
            if run.hold is not None and not run.state.over:
                reason = f"{run.hold.reason}: {run.hold.message}"
                raise ConflictError(f"run {signal.run_id} is stalled again: {reason}", hint="deploy code that agrees")
            return InputAnswer("accepted", run, position) if judged is None else None

        position = self.send(signal)
        return self.follow(signal.run_id, position, judge, timeout_s)

    def redrive(self, signal: RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Has a failed run go on; `signal` comes from `redrive.retrying`.

        **Raises** ConflictError when it has gone on since, UsageError when what is said does not fit, TimedOutError.
        """

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            return InputAnswer("accepted", run, position) if self._answers(run, position) else None

        position = self.send(signal)
        return self.follow(signal.run_id, position, judge, timeout_s)

    def fail(self, signal: RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Ends a stalled run. **Raises** NotFoundError, ConflictError when it is not stalled, TimedOutError."""
        self._stalled(signal)

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            return InputAnswer("accepted", run, position) if is_over(run, judged) else None

        position = self.send(signal)
        return self.follow(signal.run_id, position, judge, timeout_s)

    def _stalled(self, signal: RunOperation) -> Hold:
        run = self.runs.get(signal.run_id)
        if run.hold is None or run.state.over:
            hint = "`refold run list --status stalled` shows those that are"
            raise ConflictError(f"run {signal.run_id} is not stalled, it is {run.status}", hint=hint)
        return run.hold

    def resolve(self, signal: RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Settles a call in doubt where no policy names people for that; `signal` comes from `resolution`.

        **Raises** ConflictError when somebody decided otherwise or the run is over, TimedOutError.
        """
        data = canonical.parse(signal.data)
        step, attempt, verdict = data["step"], data["attempt"], data["verdict"]

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            opened = run.state.open.get(step)
            if self._answers(run, position):
                asked = opened is not None and opened.phase == "doubt"
                return InputAnswer("asked" if asked else "accepted", run, position)
            said = run.state.resolved.get(step)
            if said and said.attempt >= attempt:
                if said.attempt == attempt and said.verdict != verdict:
                    raise ConflictError(
                        f"{said.actor or 'somebody'} resolved step {step} of {signal.run_id} as {said.verdict}",
                        hint=f"`refold run show {signal.run_id}` tells what followed",
                    )
                return InputAnswer("known", run, position)
            if is_over(run, judged):
                raise ConflictError(f"run {signal.run_id} is {run.state.status} already")
            return None

        position = self.send(signal)
        return self.follow(signal.run_id, position, judge, timeout_s)

    def repair(self, signal: RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Has the records of a run written again in order.

        **Raises** NotFoundError, ConflictError when it takes a human to say which history counts, TimedOutError.
        """
        run = self.runs.get(signal.run_id)
        known, read = len(run.records) + len(run.void), 0
        named = canonical.parse(signal.data)["head"]
        head = EntryId(bytes.fromhex(named)) if named else run.state.head.id

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            nonlocal read
            read += judged is not None
            again = judged is not None and read > known and judged.id == head and judged.record.value is not None
            return InputAnswer("accepted", run, position) if again else None

        position = self.send(signal)
        return self.follow(signal.run_id, position, judge, timeout_s)

    def migrate(self, said: RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Hands a run to another version of its agent.

        **Raises** NotFoundError, UsageError when there is no such version, TimedOutError; ConflictError when it does
        not go with the run's history, which says where, or the run is over.
        """
        to = canonical.parse(said.data)["to"]

        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            if self._answers(run, position):
                return InputAnswer("accepted", run, position)
            if judged is None and spoken(run.state.version)[0] == to:
                return InputAnswer("known", run, position)
            if run.state.over:
                raise ConflictError(f"run {said.run_id} is {run.state.status} already", hint="nothing is left to do")
            return None

        position = self.send(said)
        return self.follow(said.run_id, position, judge, timeout_s)

    # What inputs of other kinds use, too

    def send(self, message: RunRequest | RunSignal | RunOperation) -> Cause:
        """Publishes an input; returns where it lies."""
        return Cause(codec.SUBJECTS[type(message)], *self._sender.send(message))

    def _answers(self, run: Run, position: Cause) -> bool:
        return bool(self.caused(run, position))

    def caused(self, run: Run, position: Cause) -> list[Event]:
        """The events of the entry that answers an input; none if there is none so far."""
        entries = (found.entry for found in run.records if found.entry is not None)
        return next((entry.events for entry in entries if entry.cause == position), [])

    def follow(
        self,
        run: RunId,
        position: Cause,
        judge: Callable[[Run, JudgedRecord | None], _T | None],
        timeout_s: float | None,
    ) -> _T:
        """Waits until `judge` has an answer for an input. **Raises** what its dead letter says, TimedOutError."""
        letters = self._letters(run)
        what = f"done with {position.topic}/{position.partition}/{position.offset}"
        for found, judged in self.runs.follow(run, timeout_s, until=what):
            answer = judge(found, judged)
            if answer is not None:
                return answer
            if judged is None:
                _refuse(letters, position)
        raise AssertionError("a tail goes on for ever")

    def _letters(self, run: RunId) -> Iterator[Record | None]:
        return self.runs.reader.tail(DEAD_LETTER, home(run, self.runs.partitions))


def taken(request: RunRequest, position: Cause, run: Run) -> InputAnswer | None:
    """What became of a request that lies at this position. **Raises** ConflictError when the run is another one."""
    asked = run.state.request
    if asked is None:
        return None
    if run.state.position == position:
        return InputAnswer("accepted", run, position)
    if family.is_of(request, family.request_digest(request), asked.request_digest):
        return InputAnswer("known", run, position)
    hint = f"choose another id; `refold run show {request.run_id}` shows the run that has it"
    raise ConflictError(family.conflict(request, asked), hint=hint)


def is_over(run: Run, judged: JudgedRecord | None) -> bool:
    """Whether a run that is followed is over by the last `judged` record. Behind a failure there may be a retry."""
    return run.state.over and (judged is None or run.state.status != "failed")


def cancelling(runs: Runs, run: str, *, reason: str, actor: str, as_operator: bool = False) -> RunSignal | RunOperation:
    """What cancels a run: a user's word if they have asked for it, an operator's if not. **Raises** NotFoundError."""
    return word_on(runs.get(run).state, "cancel", reason=reason, actor=actor, as_operator=as_operator)


def operating(run: str, kind: str, data: object, *, actor: str) -> RunOperation:
    """Something that an operator says of a run. **Raises** MalformedError for what is no id."""
    return RunOperation(run_id(run), f"{kind}-{secrets.token_hex(6)}", kind, canonical.dumps(data), actor)


def word_on(
    state: RunState, kind: str, *, reason: str, actor: str, as_operator: bool = False
) -> RunSignal | RunOperation:
    """What cancels, pauses or resumes a run that was read: what an operator has paused, only an operator resumes."""
    held = own(state) if kind == RESUME else None
    mine = state.request is not None and is_same(state.request.requester, actor)
    said = RunOperation if as_operator or not mine or (held and held.role == OPERATOR) else RunSignal
    return said(state.run_id, f"{kind}-{secrets.token_hex(6)}", kind, canonical.dumps({"reason": reason}), actor)


class Doubted(NamedTuple):
    """A call, and the question to people what came of it: empty where nobody is asked that now."""

    tool: str
    approval: str


def doubted(runs: Runs, call: str) -> Doubted:
    """What people are asked about a call in doubt, by its id or that of a question about it.

    **Raises** MalformedError for what is no call id, NotFoundError.
    """
    name, seq = parse_call_id(asked_about(call))
    state = runs.get(name).state
    step = _step(state, seq)
    opened = state.open.get(step)
    waits = opened is not None and opened.phase == "doubt"
    return Doubted(state.call(step).tool, state.waits_for(step) if waits else "")


def _step(state: RunState, seq: int) -> int:
    step = state.step_of(seq)
    if step is None or not isinstance(state.steps[step - 1], CallProposed):
        call, hint = call_id(state.run_id, seq), f"`refold run show {state.run_id}` lists its calls"
        raise NotFoundError(f"run {state.run_id} proposed no call {call}", hint=hint)
    return step


def resolution(
    runs: Runs,
    call: str,
    *,
    verdict: str,
    result: object = None,
    actor: str,
    comment: str,
    though_asked: bool = False,
) -> RunOperation:
    """What an operator says to settle a call in doubt, or a held one, with step and attempt looked up in the log.

    **Raises** MalformedError for what is no call id, NotFoundError, ConflictError when the call is neither.
    """
    name, seq = parse_call_id(call)
    state = runs.get(name).state
    step = _step(state, seq)
    if (approval := state.waits_for(step)) and not though_asked:
        hint = f"`refold run resolve {approval}` is a vote on it"
        raise ConflictError(f"people are asked about the call {call}", hint=hint)
    opened, said = state.open.get(step), state.resolved.get(step)
    waits = opened is not None and opened.phase in ("doubt", "held")
    if said and said.verdict == verdict and not waits:
        attempt = said.attempt  # said again: harmless, and the answer is the same
    elif opened is None or not waits:
        now = f"resolved as {said.verdict}" if said else opened.phase if opened else "settled"
        raise ConflictError(
            f"call {call} is neither in doubt nor held, it is {now}", hint=f"`refold run show {name}` tells more"
        )
    else:
        attempt = opened.attempt
    content = {"step": step, "attempt": attempt, "verdict": verdict, "result": result, "comment": comment}
    return RunOperation(name, f"resolve-{secrets.token_hex(6)}", "resolve", canonical.dumps(content), actor)


def refusals(letters: Iterator[Record | None]) -> Iterator[tuple[Cause, RefoldError]]:
    """What dead letters say that came meanwhile: of which input each is, and why it was refused."""
    for record in letters:
        if record is None:
            return
        try:
            letter = codec.decode(DeadLetter, record.value or b"")
        except (MalformedError, FoldError):
            continue
        hint = f"`refold deadletter show {record.partition}/{record.offset}` has the whole input"
        refused: RefoldError = UsageError(f"the input was refused: {letter.reason}", hint=hint)
        if letter.code == "conflict":
            refused = ConflictError(letter.reason, hint=hint)
        yield Cause(letter.topic, letter.partition, letter.offset), refused


def _refuse(letters: Iterator[Record | None], position: Cause) -> None:
    """Raises what the dead letter of this input says, if there is one."""
    for place, refused in refusals(letters):
        if place == position:
            raise refused
