"""Tells a run what it waits for, or answers a callback, and learns from the log what became of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from refold.client.inputs import InputAnswer, Inputs
from refold.core.errors import ConflictError, NotFoundError
from refold.core.events import CallbackCompleted, CallbackFailed, Cause, SignalDropped, SignalReceived
from refold.core.ids import RunId, callback_digest, parse_callback_token
from refold.core.messages import RunSignal
from refold.core.planning.waiting import check_name
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.views.history import JudgedRecord, Run


@dataclass(frozen=True, slots=True)
class SignalAnswer(InputAnswer):
    """What became of a signal or an answer: `step` has it now, or nobody so far (0)."""

    step: int = 0


class Signals(Inputs):
    """Inputs that waits and callbacks take. **Units**: timeouts in seconds; None waits for ever."""

    def signal(self, said: RunSignal, timeout_s: float | None = 30.0) -> SignalAnswer:
        """Tells a run something, for a wait that is open or to come.

        **Raises** NotFoundError, ConflictError when there is no room, the run is over, or had another signal of this
        id; TimedOutError.
        """
        state = self.runs.get(said.run_id).state
        if not _was_told(state, said):
            _refuse_the_end(state)

        def judge(run: Run, judged: JudgedRecord | None) -> SignalAnswer | None:
            return self.told(run, said, position, whole=judged is None)

        position = self.send(said)
        return self.follow(said.run_id, position, judge, timeout_s)

    def told(self, run: Run, said: RunSignal, position: Cause, *, whole: bool) -> SignalAnswer | None:
        """What became of a signal that lies at this position, once the log says it. `whole`: it was read to its end.

        **Raises** ConflictError when the run has no room for it, or is over.
        """
        fresh, step = self.caused(run, position), run.state.mail.taken.get(said.signal_id, 0)
        if any(isinstance(event, SignalDropped) for event in fresh):
            reason = f"run {said.run_id} has no room for it: it keeps {run.state.mail.bytes:,} bytes of signals already"
            raise ConflictError(reason, hint="say it again when the run has waited for some of them")
        if fresh:
            return SignalAnswer("accepted", run, position, step)
        if whole and _was_told(run.state, said):
            return SignalAnswer("known", run, position, step)
        if whole:
            _refuse_the_end(run.state)
        return None

    def answer(self, said: RunSignal, timeout_s: float | None = 30.0) -> SignalAnswer:
        """Resolves or fails a callback, of which `said` has the token.

        **Raises** NotFoundError when there is no such run or callback; ConflictError when it was resolved otherwise,
        has expired, or the run is over; UsageError for a result that does not fit; TimedOutError.
        """
        state = self.runs.get(said.run_id).state
        step = state.callbacks.get(callback_digest(said.callback), 0)
        if not step:
            raise NotFoundError(f"run {said.run_id} has made no callback with this token", hint="pass it on whole")

        def judge(run: Run, judged: JudgedRecord | None) -> SignalAnswer | None:
            if self.caused(run, position):
                return SignalAnswer("accepted", run, position, step)
            if judged is None and _was_answered(run.state, step, said):
                return SignalAnswer("known", run, position, step)
            if judged is None:
                _refuse_the_end(run.state)
            return None

        if not _was_answered(state, step, said):
            _refuse_the_end(state)
        position = self.send(said)
        return self.follow(said.run_id, position, judge, timeout_s)


def _refuse_the_end(state: RunState) -> None:
    """**Raises** ConflictError when the run is over."""
    if state.over:
        raise ConflictError(f"run {state.run_id} is {state.status}", hint="nothing waits for this any more")


def _was_told(state: RunState, said: RunSignal) -> bool:
    """Whether a run has had this very signal before."""
    step, kept = state.mail.taken.get(said.signal_id), state.mail.kept.get(said.signal_id)
    had = state.outcomes[step][1] if step else kept.signal if kept else None
    return isinstance(had, SignalReceived) and (had.name, had.data) == (said.name, said.data)


def _was_answered(state: RunState, step: int, said: RunSignal) -> bool:
    """Whether a callback was resolved like this before, or by whoever says this again."""
    outcome = state.outcomes[step][1] if step in state.outcomes else None
    if isinstance(outcome, CallbackCompleted):
        same = (outcome.result, "") == (said.data, said.failure)
    else:
        same = isinstance(outcome, CallbackFailed) and outcome.failure.message == said.failure
    return same or bool(said.key and said.key == getattr(outcome, "key", ""))


def signalling(run: str, name: str, data: object, *, signal_id: str = "", actor: str) -> RunSignal:
    """What tells a run something. **Raises** UsageError for what is no name of a signal."""
    said = signal_id or f"signal-{secrets.token_hex(6)}"
    return RunSignal(RunId(run), said, "signal", canonical.dumps(data), actor, name=check_name(name))


def answering(token: str, data: object = None, *, failure: str = "", key: str = "", actor: str) -> RunSignal:
    """What resolves a callback, or with a `failure` fails it. **Raises** MalformedError for what is no token."""
    return RunSignal(
        parse_callback_token(token),
        f"callback-{secrets.token_hex(6)}",
        "callback",
        canonical.dumps(data),
        actor,
        callback=token,
        failure=failure,
        key=key,
    )
