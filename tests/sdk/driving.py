"""Drives an agent as the planner does, with the tools' real functions, and keeps the history that this makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refold import App, Context, Heartbeat, RefoldError
from refold.core.events import (
    CallCompleted,
    CallFailed,
    CallProposed,
    Failure,
    NoteRecorded,
    RetryPolicy,
    SleepEnded,
    SleepStarted,
)
from refold.core.run.replay import Call, Execution, Intent, Moment, Note, Raised, Sleep, replay
from refold.core.run.state import RunState, Settled
from refold.core.wire.canonical import dumps
from refold.sdk.agent import AgentDef
from refold.sdk.determinism import watch
from refold.sdk.tool import ToolDef

START_MS = 1_700_000_000_000
Asked = list[tuple[int, Intent]]
Pick = Callable[[list[int]], int]


@dataclass
class Driven:
    """A run: its history so far, and how its code stands."""

    app: App
    agent: AgentDef
    input: str
    state: RunState = field(default_factory=lambda: RunState("r-1", started_ms=START_MS))
    execution: Execution = field(init=False)
    keys: list[str] = field(default_factory=list)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self.execution, asked = self.replay()
        self.record(asked)

    def replay(self, agent: AgentDef | None = None) -> tuple[Execution, Asked]:
        """Runs fresh code along the history, as after a take-over."""
        moment = Moment()
        context = Context("r-1", seed="seed", moment=moment, app=self.app)
        execution = Execution((agent or self.agent).open(self.input, context), moment)
        with watch.watching():
            return execution, replay(execution, self.state)

    def record(self, asked: Asked) -> None:
        """Puts what the code asked for into the history."""
        for step, intent in asked:
            self.state.steps.append(_recorded(step, intent))

    def settle(self, step: int) -> None:
        """Lets an open step end: its tool runs, its time comes."""
        self.now_ms += 1000
        outcome = self._outcome(step)
        self.state.outcomes[step] = (self.now_ms, outcome)
        self.execution.moment.now_ms = self.now_ms
        with watch.watching():
            asked = self.execution.settle(step, outcome)
        self.record(asked)

    @property
    def open(self) -> list[int]:
        """The steps that wait for an outcome."""
        steps = enumerate(self.state.steps, start=1)
        return [n for n, step in steps if not isinstance(step, NoteRecorded) and n not in self.state.outcomes]

    def finish(self, pick: Pick = lambda steps: steps[0]) -> Driven:
        """Settles whatever is open until the code is over."""
        while self.execution.end is None:
            self.settle(pick(self.open))
        return self

    @property
    def value(self) -> Any:
        """What the agent returned; raises what it raised."""
        end = self.execution.end
        assert end is not None, "the agent still waits"
        if isinstance(end, Raised):
            raise end.error
        return end.value

    def _outcome(self, step: int) -> Settled:
        asked = self.state.steps[step - 1]
        if not isinstance(asked, CallProposed):
            self.now_ms = max(self.now_ms, getattr(asked, "until_ms", 0))
            return SleepEnded(step)
        self.keys.append(f"key-{step}")
        try:
            return CallCompleted(step, 1, run_tool(self.app.tools[asked.tool], asked.args, key=f"key-{step}"))
        except RefoldError as error:
            return CallFailed(step, 1, Failure(error.code, error.message))


def start(app: App, agent: str, **inputs: Any) -> Driven:
    """A run of an agent, at its first waits."""
    return Driven(app, app.agents[agent], dumps(inputs))


def run(app: App, agent: str, **inputs: Any) -> Driven:
    """A run of an agent, to its end."""
    return start(app, agent, **inputs).finish()


def run_tool(tool: ToolDef, args: str, *, key: str = "k", heartbeat: Heartbeat | None = None) -> str:
    """The result of a tool as the executor would record it."""
    body = tool.run(args, idempotency_key=key, heartbeat=heartbeat or Heartbeat())
    return tool.result_json(body() if callable(body) else asyncio.run(body))


def run_probe(tool: ToolDef, args: str, *, key: str = "k") -> str | None:
    """The answer of a tool's probe as the executor would take it."""
    body = tool.run_probe(args, idempotency_key=key, heartbeat=Heartbeat())
    return tool.probe_json(body() if callable(body) else asyncio.run(body))


def _recorded(step: int, intent: Intent) -> CallProposed | NoteRecorded | SleepStarted:
    if isinstance(intent, Note):
        return NoteRecorded(step, intent.kind, intent.data)
    if isinstance(intent, Sleep):
        return SleepStarted(step, intent.until_ms)
    assert isinstance(intent, Call)
    return CallProposed(
        step, intent.tool, intent.args, "", intent.pool, intent.effect, intent.timeout_ms, RetryPolicy()
    )
