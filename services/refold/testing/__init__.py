"""Tests of agents, in three lines: no Kafka, no Redis, and a clock that does not wait.

**Example**

>>> import asyncio
>>> from refold import App, Context
>>> from refold.testing import run
>>> app = App("words")
>>> @app.tool(effect="pure")
... def count(path: str) -> int:
...     raise NotImplementedError
>>> @app.agent
... async def report(ctx: Context, paths: list[str]) -> int:
...     return sum(await asyncio.gather(*(ctx.call(count, path) for path in paths)))

>>> result = run(app, "report", tools={count: 7}, paths=["a.txt", "b.txt"])
>>> result.value, [(call.tool, call.args) for call in result.calls]
(14, [('count', {'path': 'a.txt'}), ('count', {'path': 'b.txt'})])

`run` takes an agent to its end, `start` to its first waits. After every event fresh code runs along the history, as
after a crash: an agent that then differs ends the test with NonDeterminismError. `crash_matrix` kills planner and
executor wherever they can be killed, and finds tools that then act twice.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.testing.agents import AgentRun, run, start
    from refold.testing.assertions import assert_called, assert_history
    from refold.testing.crashes import CrashError, CrashReport, Repeated, crash_matrix
    from refold.testing.kit import Kit
    from refold.testing.people import answer, edit, reject
    from refold.testing.projecting import project
    from refold.testing.reading import Boundary, CallMade
    from refold.testing.reruns import replay
    from refold.testing.scripts import attempts

__all__ = [
    "AgentRun",
    "Boundary",
    "CallMade",
    "CrashError",
    "CrashReport",
    "Kit",
    "Repeated",
    "answer",
    "assert_called",
    "assert_history",
    "attempts",
    "crash_matrix",
    "edit",
    "project",
    "reject",
    "replay",
    "run",
    "start",
]

_ROOMS = {
    "agents": ("AgentRun", "run", "start"),
    "assertions": ("assert_called", "assert_history"),
    "crashes": ("CrashError", "CrashReport", "Repeated", "crash_matrix"),
    "kit": ("Kit",),
    "people": ("answer", "edit", "reject"),
    "projecting": ("project",),
    "reading": ("Boundary", "CallMade"),
    "reruns": ("replay",),
    "scripts": ("attempts",),
}


def __getattr__(name: str) -> Any:
    # Lazy: pytest loads the plugin of this package in every project.
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(importlib.import_module(f"refold.testing.{room}"), name)
    raise AttributeError(f"module refold.testing has no attribute {name!r}")
