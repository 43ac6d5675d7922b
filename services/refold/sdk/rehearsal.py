"""Rehearsal: replay of a history with other code, without effects, to see if both agree."""

from dataclasses import dataclass

from refold.core.errors import UsageError
from refold.core.run.handed import NO_VALUES, Handing, Values, pointed, whole
from refold.core.run.replay import Moment, Raised, replay
from refold.core.run.state import RunState
from refold.sdk.agent import AgentDef
from refold.sdk.app import App
from refold.sdk.determinism import watch
from refold.sdk.execution import Execution


class Past(Moment):
    """Moment of a rehearsal, which stays in replay."""

    # Also after `replay` sets it to false at the end of history: a rehearsal writes no log lines.
    replaying = property(lambda self: True, lambda self, value: None)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Place that code reaches at the end of a history."""

    steps: int  # number of steps that the code has requested
    over: bool  # the code has returned, or raised the `error`
    error: BaseException | None = None


def rehearse(app: App, agent: AgentDef, state: RunState, values: Values = NO_VALUES) -> Arrival:
    """Run fresh code along a history, whose large values are `values`; requests beyond its end are dropped. **Raises**
    NonDeterminismError if they disagree, and any error of the code."""
    request = state.request
    if request is None or not state.started_ms:
        return Arrival(0, over=state.over)
    moment = Past()
    context = app.context(state.run_id, seed=request.seed, moment=moment, history=state)
    with watch.watching():
        try:
            place = pointed(state.run_id, request)
            text = whole(values, place) if place else request.input
            seed, left = request.seed, state.retried.left
            execution = Execution(agent.open(text, context), moment, seed, left=left, context=context)
        except UsageError:
            if state.over and not state.steps:  # it did not take this input then either
                return Arrival(0, over=True)
            raise
        try:
            replay(Handing(execution, state.run_id, values), state, state.unseen)
            end = execution.end
            return Arrival(execution.steps, over=end is not None, error=end.error if isinstance(end, Raised) else None)
        finally:
            execution.close()
