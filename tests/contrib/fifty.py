"""An agent of fifty steps with all that might come out in another order, and its history run along once more.

`python -m tests.contrib.fifty FILE N`, in a process of its own without a network, runs fresh code along every Nth
beginning of a history.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits

from refold import App
from refold.contrib.pydantic_ai import CallOptions, durable
from refold.core.ids import run_id
from refold.core.run import chain
from refold.core.run.fold import evolve
from refold.core.run.state import RunState
from refold.testing import AgentRun, Boundary
from refold.testing.reruns import rerun
from tests.contrib.thinking import Model, calls, says

STEPS, NOWHERE = 50, Boundary("planner", -1)
_NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def _talk(turn: int, messages: list[ModelMessage]) -> ModelResponse:
    """Three tools at once, one after the other, one that is not there, and so on for twelve turns."""
    if turn >= 12:
        return says("done")
    wanted = [(_NAMES[(turn + n) % len(_NAMES)], {"tags": ["b", "a", str(turn)]}) for n in range(1 + turn % 5)]
    return calls(*wanted)


def app_of() -> tuple[App, Model]:
    """The app; its agent is `fifty`."""
    model = Model(_talk)
    functions: FunctionToolset[set[str] | None] = FunctionToolset(id="letters")

    def tool(name: str) -> Any:
        async def letter(ctx: RunContext[dict[str, int]], tags: set[str]) -> dict[str, int]:
            return {each: len(each) for each in sorted(tags)}

        letter.__name__, letter.__doc__ = name, f"Knows {name}."
        return letter

    for name in _NAMES:
        functions.add_function(tool(name), metadata={"refold": CallOptions(effect="pure"), "kinds": {"x", "y", name}})
    agent = Agent(model.model, name="fifty", deps_type=dict[str, int], toolsets=[functions])

    @agent.instructions
    def turns(ctx: RunContext[dict[str, int]]) -> str:
        return f"You are asked for the {ctx.run_step}. time, by one who has {sorted(ctx.deps)}."

    app = App("fifty")
    durable(app, agent, usage_limits=UsageLimits(request_limit=None))
    return app, model


def recorded(path: Path) -> AgentRun:
    """A run of it, kept in a file."""
    app, _ = app_of()
    ended = AgentRun(app, "fifty", {"prompt": "go", "deps": {"one": 1}}, boundary=NOWHERE).finish()
    kept = [[key.hex(), value.hex()] for key, value in ended.records]
    path.write_text(json.dumps(kept))
    return ended


def along(records: list[tuple[bytes, bytes]], every: int) -> None:
    """Runs fresh code along the beginnings of a history: it must ask for nothing that is not there."""
    app, model = app_of()
    state = RunState(run_id("r-1"))
    for number, (key, value) in enumerate(records, start=1):
        record = chain.read(key, value)
        assert isinstance(record, chain.LogRecord)
        state = evolve(state, record.entry, record.id)
        if number % every == 0 or number == len(records):
            _, beyond = rerun(app, "fifty", state)
            assert beyond == [], beyond
    assert model.asked == [], "a model was asked again"


def _no_network(*args: Any) -> Any:
    raise AssertionError("somebody wants to reach the network")


if __name__ == "__main__":
    socket.socket.connect = socket.getaddrinfo = _no_network  # type: ignore[assignment,method-assign]
    found = json.loads(Path(sys.argv[1]).read_text())
    along([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in found], int(sys.argv[2]))
