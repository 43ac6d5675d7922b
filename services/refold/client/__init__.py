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
    from refold.client.reading.approval import Question
    from refold.client.reading.member import AgentServed, ToolServed
    from refold.client.reading.outcome import CommandResult, SignalResult, Started, Voted
    from refold.client.reading.run import Ended, RunEvent, RunInfo, WhyFailed
    from refold.client.streams import LivePart

_PLACES = {
    "AgentServed": "refold.client.reading.member",
    "AsyncClient": "refold.client.awaiting",
    "Client": "refold.client.blocking",
    "CommandResult": "refold.client.reading.outcome",
    "Ended": "refold.client.reading.run",
    "LivePart": "refold.client.streams",
    "Question": "refold.client.reading.approval",
    "RunEvent": "refold.client.reading.run",
    "RunInfo": "refold.client.reading.run",
    "SignalResult": "refold.client.reading.outcome",
    "Started": "refold.client.reading.outcome",
    "ToolServed": "refold.client.reading.member",
    "Voted": "refold.client.reading.outcome",
    "WhyFailed": "refold.client.reading.run",
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
