"""Recorded runs against an app's code: which go on with it, and which would stand still."""

from __future__ import annotations

from dataclasses import dataclass, replace

from refold.client.values import values_of
from refold.core.errors import NonDeterminismError, text_of
from refold.core.run.state import RunState
from refold.ports.blobs import Blobs
from refold.runtime.frames import stack_of
from refold.sdk.app import App
from refold.sdk.rehearsal import rehearse
from refold.sdk.source import spoken


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """Result of a replay of a run's history with an app's code.

    `verdict`: `agrees`; `differs`, first at `step` and by what `change`; `no_agent`; or `raises`, where something else
    went wrong. `version` is the run's, `code` that of the agent that was tried. `over`: the code has come to its end.
    `needs`: what the run began on, in words, where that is another Python or framework than this, or the version of
    its agent, where that is not registered: then an agreement
    here says little, and a planner that has what is here would hold the run. `stack`: the user's lines where the code
    raised, if it did.
    """

    run_id: str
    agent: str
    version: str
    code: str
    verdict: str
    steps: int
    over: bool = False
    step: int = 0
    change: str = ""
    message: str = ""
    needs: str = ""
    stack: str = ""


def check_replay(app: App, state: RunState, blobs: Blobs | None = None) -> ReplayCheck:
    """Runs the code that would go on with a run along its history. Nothing of it can have an effect.

    Large values are read from `blobs`. **Raises** UnreachableError.
    """
    name = state.request.agent if state.request else ""
    registered = app.agent_of(name, state.version)
    agent = registered or app.agents.get(name)  # where a migration to the newest would lead
    steps = len(state.steps)
    if agent is None:
        there = ", ".join(sorted(app.agents)) or "none"
        why = f"app {app.name} has no agent {name}; there is {there}"
        return ReplayCheck(state.run_id, name, state.version, "", "no_agent", steps, message=why)
    needs = agent.needs(state.version) if state.version else ""
    if registered is None and not needs:
        needs = f"version {spoken(state.version)[0]}"
    agrees = ReplayCheck(state.run_id, name, state.version, agent.version, "agrees", steps, needs=needs)
    values = values_of(state, blobs)
    try:
        stands = rehearse(app, agent, state, values)
    except NonDeterminismError as error:
        step, change = error.fields.get("step"), error.fields.get("change")
        place = step if isinstance(step, int) else 0
        return replace(agrees, verdict="differs", step=place, change=str(change or ""), message=str(error))
    except Exception as error:  # noqa: BLE001 - the boundary to agent code, which is only tried here
        return replace(agrees, verdict="raises", message=_words(error), stack=stack_of(error))
    if stands.error is not None:
        return replace(agrees, over=True, message=_words(stands.error), stack=stack_of(stands.error))
    return replace(agrees, over=stands.over)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"
