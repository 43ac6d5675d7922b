"""Client for starting, reading and operating runs, on topics alone: no service or consumer group.

**Consumes** every topic, through a `LogReader`. **Produces** `run-requested`, `run-signalled`, `approval-voted` and,
for operators, `run-operated`. **Guarantees** the planner's rule of the log (`core.run.log`): readers see the events
that planners act on. **Fails** with UnreachableError; no state is kept.
"""

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

_MODULES = {
    "awaiting": "AsyncClient",
    "blocking": "Client",
    "reading.approval": "Question",
    "reading.member": "AgentServed ToolServed",
    "reading.outcome": "CommandResult SignalResult Started Voted",
    "reading.run": "Ended RunEvent RunInfo WhyFailed",
    "streams": "LivePart",
}
_PLACES = {name: f"refold.client.{module}" for module, names in _MODULES.items() for name in names.split()}
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
    # Lazily: most commands need no Kafka.
    return getattr(importlib.import_module(_PLACES[name]), name)
