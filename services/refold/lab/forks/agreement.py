"""Replay of recorded runs with an app's code: which runs it would continue, and which would stall."""

from typing import Literal, NamedTuple

from refold.client.reading.model import Data, ReadModel
from refold.core.errors import NonDeterminismError, text_of
from refold.core.run.handed import NO_VALUES, Values
from refold.core.run.state import RunState
from refold.sdk.app import App
from refold.sdk.frames import stack_of
from refold.sdk.rehearsal import rehearse
from refold.sdk.source import spoken


class CheckJob(NamedTuple):
    state: RunState
    values: Values = NO_VALUES


class ReplayCheck(ReadModel):
    """Result of a replay of a run's history with an app's code.

    `verdict`: `agrees`; `differs`, first at `step`, by `change`; `no_agent`; or `raises`, with the user's `stack`.
    `version`: of the run; `code`: of the tried agent. `needs`: Python, framework or version that this app lacks: an
    agreement then proves little, and a planner would hold the run.
    """

    run_id: str
    agent: str
    version: str
    code: str
    verdict: Literal["agrees", "differs", "no_agent", "raises"]
    steps: int
    over: bool = False
    step: int = 0
    change: str = ""
    message: str = ""
    needs: str = ""
    stack: str = ""


def check_replay(app: App, state: RunState, values: Values = NO_VALUES) -> ReplayCheck:
    """Replay a run with the app's code for it; `values` are its large values."""
    name = state.request.agent if state.request else ""
    registered = app.agent_of(name, state.version)
    agent = registered or app.agents.get(name)  # where a migration to the newest would lead
    report = ReplayCheck(
        run_id=state.run_id, agent=name, version=state.version, code="", verdict="no_agent", steps=len(state.steps)
    )
    if agent is None:
        names = ", ".join(sorted(app.agents)) or "none"
        return report.model_copy(update={"message": f"app {app.name} has no agent {name}; there is {names}"})
    needs = agent.needs(state.version) if state.version else ""
    if registered is None and not needs:
        needs = f"version {spoken(state.version)[0]}"
    try:
        arrival = rehearse(app, agent, state, values)
        result = {"verdict": "agrees", "over": arrival.over, **(_raised(arrival.error) if arrival.error else {})}
    except NonDeterminismError as error:
        result = _difference(error)
    except Exception as error:  # noqa: BLE001 - the boundary to agent code, which is only tried here
        result = {"verdict": "raises", **_raised(error)}
    return report.model_copy(update={"code": agent.version, "needs": needs, **result})


def _difference(error: NonDeterminismError) -> Data:
    step, change = error.fields.get("step"), str(error.fields.get("change") or "")
    return {"verdict": "differs", "step": step if isinstance(step, int) else 0, "change": change, "message": str(error)}


def _raised(error: BaseException) -> Data:
    return {"message": f"{type(error).__name__}: {text_of(error)}", "stack": stack_of(error)}
