"""Pauses a run and lets it go on, and learns from the log what became of that."""

from __future__ import annotations

from refold.client.inputs import InputAnswer, Inputs
from refold.core.errors import ConflictError
from refold.core.ids import parent_of
from refold.core.messages import RunOperation, RunSignal
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.pausing import OPERATOR, own
from refold.core.run.state import RunState
from refold.views.history import JudgedRecord, Run


class Pauses(Inputs):
    """Words that pause runs, and let them go on; `word_on` makes them. **Units**: timeouts in seconds."""

    def pause(self, said: RunSignal | RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Pauses a run. **Raises** NotFoundError, ConflictError when it is over, TimedOutError."""
        _refuse_an_end(self.runs.get(said.run_id).state)
        return self._say(said, timeout_s)

    def resume(self, said: RunSignal | RunOperation, timeout_s: float | None = 30.0) -> InputAnswer:
        """Lets a run go on.

        **Raises** NotFoundError, ConflictError when it is over, not paused, or by the run above it alone;
        TimedOutError.
        """
        state = self.runs.get(said.run_id).state
        _refuse_an_end(state)
        if own(state) is None:
            _refuse_what_goes_on(state)
        return self._say(said, timeout_s)

    def _say(self, said: RunSignal | RunOperation, timeout_s: float | None) -> InputAnswer:
        def judge(run: Run, judged: JudgedRecord | None) -> InputAnswer | None:
            if self.caused(run, position):
                return InputAnswer("accepted", run, position)
            _refuse_an_end(run.state)
            return InputAnswer("known", run, position) if judged is None and _is_so(run.state, said) else None

        position = self.send(said)
        return self.follow(said.run_id, position, judge, timeout_s)


def _is_so(state: RunState, said: RunSignal | RunOperation) -> bool:
    """Whether a run is what a word wants it to be, so that nothing follows of it."""
    pause = own(state)
    if said.kind == RESUME or pause is None:
        return (pause is None) == (said.kind == RESUME)
    return isinstance(said, RunSignal) or pause.role == OPERATOR


def is_done(state: RunState, kind: str) -> bool:
    """Whether a run is over, or what a word of this kind makes of it."""
    return state.over or (kind in (PAUSE, RESUME) and (own(state) is None) == (kind == RESUME))


def _refuse_an_end(state: RunState) -> None:
    if state.over:
        raise ConflictError(f"run {state.run_id} is {state.status} already", hint="nothing of it goes on")


def _refuse_what_goes_on(state: RunState) -> None:
    if not state.paused:
        raise ConflictError(f"run {state.run_id} is not paused, it is {state.status}", hint="it needs no resume")
    above, _ = parent_of(state.run_id)
    hint = f"resume that one: refold run resume {above}"
    raise ConflictError(f"run {state.run_id} is paused with {above}, which has started it", hint=hint)
