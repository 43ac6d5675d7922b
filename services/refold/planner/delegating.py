"""What an agent that starts others puts into the log, within what one run may start."""

from __future__ import annotations

from refold.core import events
from refold.core.errors import RefoldError
from refold.core.ids import depth_of
from refold.core.run.delegated import PublishEvent, SendSignal, StartRun
from refold.core.run.state import RunState
from refold.core.wire.canonical import utf8_bytes
from refold.planner.settings import Bounds
from refold.sdk.app import App


def delegated(
    state: RunState, intent: StartRun | PublishEvent, step: int, *, ahead: int, app: App, budget: Bounds
) -> events.ChildStarted | events.EventPublished:
    """The event of a step that starts others. `ahead`: how many the run starts before it in this entry.

    **Raises** RefoldError where it starts too many, too deep, or with too much.
    """
    if isinstance(intent, StartRun):
        given, count, most = intent.input, 1, max(budget.payload_bytes, budget.blob_bytes)
        event: events.ChildStarted | events.EventPublished = intent.recorded(step)
    else:
        # Who listens is asked once, and stands in the log: another version of the app may have others.
        agents = app.listeners(intent.name, intent.data)
        given, count, most = intent.data, len(agents), budget.payload_bytes
        event = events.EventPublished(step, intent.name, intent.data, agents)
    if (size := utf8_bytes(given)) > most:
        message = f"what {intent.words[:80]} is given has {size:,} bytes, more than {most:,}"
        raise RefoldError(message, code="too_large", hint="pass a reference to where the data lies")
    if count and depth_of(state.run_id) >= budget.depth:
        raise spent("budget_depth", f"it is {budget.depth} runs below the first, and starts others")
    if state.children + ahead + count > (many := state.retried.most_children or budget.children):
        raise spent("budget_children", f"it starts more than {many:,} runs")
    return event


def telling(intent: SendSignal, step: int, most: int) -> events.SignalSent:
    """The event of a step that tells another run something. **Raises** RefoldError where that is too much."""
    if (size := utf8_bytes(intent.data)) > most:
        message = f"the data of signal {intent.name} has {size:,} bytes, more than {most:,}"
        raise RefoldError(message, code="too_large", hint="pass a reference to where the data lies")
    return intent.recorded(step)


def started_by(event: events.ChildStarted | events.EventPublished) -> int:
    """How many runs an event starts."""
    return len(event.agents) if isinstance(event, events.EventPublished) else 1


def spent(code: str, message: str) -> RefoldError:
    """What a run fails with that takes more than its budget."""
    names = "RUN_STEPS, RUN_BYTES, RUN_CHILDREN and RUN_DEPTH"
    hint = f"let a run do a part of the work and start the next; REFOLD_PLANNER__{names} are the limits"
    if code != "budget_depth":  # a run that is too deep has a parent, which has heard of its failure
        hint += f", and `refold run retry --{code.removeprefix('budget_')}` raises this one for a run"
    return RefoldError(message, code=code, hint=hint)
