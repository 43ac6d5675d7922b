"""Client for starting, reading and operating runs, on topics alone: no service or consumer group.

**Consumes** every topic, through a `LogReader`. **Produces** `run-requested`, `run-signalled`, `approval-voted` and,
for operators, `run-operated`. **Guarantees** the planner's rule of the log (`core.run.log`): readers see the events
that planners act on. **Fails** with UnreachableError; no state is kept.
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
    if name not in _PLACES:
        raise AttributeError(f"module refold.client has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)  # lazily: most commands need no Kafka
