"""Runs as anyone can know them: read from the topics alone, with no service, group or database in between.

**Consumes** every topic, through a `LogReader`. **Produces** what users may, `run-requested`, `run-signalled` and
`approval-voted`, and for operators `run-operated`.

`Client` and `AsyncClient` are for programs that use agents; what they answer is in `answers`. All other modules are for
the command line, too.

Where to look: `timeline` tells a run step by step; `runs` finds, lists and follows runs; `inputs` sends something and
learns what became of it; `register` is what is known of approvals, `approvals` what is said of them; `catalog` is what
operators publish, `policies` their files, `hindsight` a policy asked about the past; `verify` re-checks everything from
raw bytes.

**Guarantees**: the same rule as the planner's (`core.run.log`), so that what is shown here is what the planner acts on.
**Fails** by raising UnreachableError; nothing here is remembered, so asking again is always right.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.client.answers import Ended, Question, RunEvent, RunInfo, Said, Started, Voted, WhyFailed
    from refold.client.awaiting import AsyncClient
    from refold.client.blocking import Client
    from refold.client.streams import LivePart

__all__ = [
    "AsyncClient",
    "Client",
    "Ended",
    "LivePart",
    "Question",
    "RunEvent",
    "RunInfo",
    "Said",
    "Started",
    "Voted",
    "WhyFailed",
]

_PLACES = {"AsyncClient": "awaiting", "Client": "blocking", "LivePart": "streams"}


def __getattr__(name: str) -> Any:
    """What needs Kafka is looked up when asked for: commands that need none import modules of this room."""
    if name not in __all__:
        raise AttributeError(f"module refold.client has no attribute {name!r}")
    return getattr(importlib.import_module(f"refold.client.{_PLACES.get(name, 'answers')}"), name)
