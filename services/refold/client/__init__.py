"""Runs as anyone can know them: read from the topics alone, with no service, group or database in between.

**Consumes** every topic, through a `LogReader`. **Produces** what users may, `run-requested`, `run-signalled` and
`approval-voted`, and for operators `run-operated`.

`Client` and `AsyncClient` are for programs that use agents; they return models of `refold.views`. All other modules are
for the command line, too.

Where to look: `platform` and `addresses` find Kafka, `awaiting` has the client and `blocking` the one that waits,
`watcher` listens to many runs at once; `catalog` is what operators publish, `policies` their files, `back_test` a
policy asked about the past; `verify` re-checks everything from raw bytes. Runs are read and operations sent by
`refold.operations`.

**Guarantees**: the same rule as the planner's (`core.run.log`), so that what is shown here is what the planner acts on.
**Fails** by raising UnreachableError; nothing here is remembered, so asking again is always right.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.client.awaiting import AsyncClient
    from refold.client.blocking import Client
    from refold.client.streams import LivePart
    from refold.views.approval import Question
    from refold.views.member import AgentServed, ToolServed
    from refold.views.outcome import CommandResult, SignalResult, Started, Voted
    from refold.views.run import Ended, RunEvent, RunInfo, WhyFailed

_PLACES = {
    "AgentServed": "refold.views.member",
    "AsyncClient": "refold.client.awaiting",
    "Client": "refold.client.blocking",
    "CommandResult": "refold.views.outcome",
    "Ended": "refold.views.run",
    "LivePart": "refold.client.streams",
    "Question": "refold.views.approval",
    "RunEvent": "refold.views.run",
    "RunInfo": "refold.views.run",
    "SignalResult": "refold.views.outcome",
    "Started": "refold.views.outcome",
    "ToolServed": "refold.views.member",
    "Voted": "refold.views.outcome",
    "WhyFailed": "refold.views.run",
}
__all__ = [
    "AgentServed",
    "AsyncClient",
    "Client",
    "CommandResult",
    "Ended",
    "LivePart",
    "Question",
    "RunEvent",
    "RunInfo",
    "SignalResult",
    "Started",
    "ToolServed",
    "Voted",
    "WhyFailed",
]


def __getattr__(name: str) -> Any:
    """Names are loaded when they are asked for: commands that need no Kafka import modules of this room."""
    if name not in _PLACES:
        raise AttributeError(f"module refold.client has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
