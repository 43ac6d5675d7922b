"""Process of forks: it loads the app after it is restricted, and reads pickled orders from stdin. Answers are lines of
JSON, which the parent only parses."""

import json
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import BufferedReader
from typing import Any, cast

from refold.core.approval.policy import Policy
from refold.core.errors import RefoldError, text_of
from refold.core.ids import RunId
from refold.core.run.handed import Values
from refold.engine.planner.settings import Bounds
from refold.lab.forks.ban import PREVENTED, shut
from refold.lab.forks.engine import Act, ForkChanges, Surroundings
from refold.lab.forks.record import LogRow
from refold.lab.forks.report import CheckJob, check_replay, forked
from refold.sdk.app import App
from refold.sdk.frames import user_line


@dataclass(frozen=True, slots=True)
class ForkJob:
    """Order to fork a run; `policy` is the content of a draft."""

    run_id: str
    family: dict[RunId, list[LogRow]]
    at: int = 0
    changes: ForkChanges = field(default_factory=ForkChanges)
    policy: dict[str, Any] | None = None
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForkSetup:
    """Setup of all forks of a process: app, platform, and the model that replaces its agents' own."""

    target: str
    environment: str
    policies: list[dict[str, Any]]
    model: str = ""
    bounds: Bounds = field(default_factory=Bounds)


def serve(act: Callable[[App], Act] | None = None) -> None:
    """Answer orders until stdin ends; `act` makes the runner of `pure` calls, for which the network stays open."""
    orders, answers = cast(BufferedReader, sys.stdin.buffer), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an app prints is no answer
    setup: ForkSetup = pickle.load(orders)
    alone = shut(network=act is not None)
    try:
        app = App.load(setup.target)
        if setup.model:
            _replace_models(app, setup.model)
        acts = act(app) if act else None
        policies = [Policy.parse(content) for content in setup.policies]
    except BaseException as error:  # noqa: BLE001 - the boundary to the app's code
        _write_answer(answers, {"error": _error_fields(error)})
        return
    # Not pickle: this process ran foreign code, which unpickling would run in the parent.
    _write_answer(answers, {"app": app.version})
    # Each report has what the app was refused while it was loaded.
    loading = PREVENTED.copy()
    while orders.peek(1):
        job: ForkJob | CheckJob = pickle.load(orders)
        PREVENTED.clear()
        try:
            if isinstance(job, CheckJob):
                _write_answer(answers, {"check": check_replay(app, *job).model_dump(mode="json")})
                continue
            changes = replace(job.changes, policy=Policy.parse(job.policy) if job.policy else None)
            around = Surroundings(setup.environment, policies, job.values, acts, setup.bounds)
            report = forked(app, job.family, RunId(job.run_id), job.at, changes, around)
            report = report.model_copy(update={"refused": dict(PREVENTED + loading), "isolated": alone})
            _write_answer(answers, {"report": report.model_dump(mode="json")})
        except BaseException as error:  # noqa: BLE001 - the boundary to the app's code
            _write_answer(answers, {"error": _error_fields(error)})


def _write_answer(answers: Any, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def _error_fields(error: BaseException) -> dict[str, str]:
    if isinstance(error, RefoldError):
        return {"code": error.code, "message": error.message, "hint": error.hint or ""}
    place = f" ({own})" if (own := user_line(error)) else ""
    return {"code": "raises", "message": f"{type(error).__name__}: {text_of(error)}{place}", "hint": ""}


def _replace_models(app: App, model: str) -> None:
    for agent in app.agents.values():
        if (thinking := getattr(agent, "agent", None)) is not None:
            setattr(thinking, "model", model)  # noqa: B010 - it is none of ours


if __name__ == "__main__":
    serve()
