"""Refold: durable AI agents as event-sourced services on Kafka, so that a crash is a non-event.

These names are for authors of agents and tools. Tests of an app need neither Kafka nor Redis.

- `App` registers tools and agents, `Context` is an agent's access to the world, `Retry` bounds attempts.
- A tool raises `NotDone` if the effect did not happen and may be tried again, `TerminalError` if another try is
  pointless; after any other exception the outcome is unknown. A probe returns `DID_NOT_HAPPEN`.
- `Heartbeat` is passed to tools that declare it, and raises `Cancelled` once the call is not needed.
- `Secret` is a value that only a tool reads: the log contains its name.
- `Budget` limits a run, `Limit` all runs of a day or month. `Reserve` is held for a call, `Price` belongs to a model.
- `Projection` fills tables from the log, declared with `table`, `sums` and `key`; `apply` gets `View` and `Recorded`.
- `App.every` declares a `Schedule`.
- A source maps each `SourceRecord` of a topic to a `NewRun`, a `NewSignal` or None.
- `Signal` is the result of `ctx.wait_for`, `Callback` of `ctx.callback`.
- An agent may catch `CallFailed`, `ChildFailed`, `CallbackError` and `TimeoutError`.
- `UsageError` and `NonDeterminismError` name the necessary change of the code.
"""

import importlib
from typing import TYPE_CHECKING, Any

from refold.core.errors import (
    CallbackError,
    CallFailed,
    ChildFailed,
    NonDeterminismError,
    NotDone,
    RefoldError,
    TerminalError,
    TransientError,
    UsageError,
)

if TYPE_CHECKING:
    from refold.core.run.account import Reserve
    from refold.core.run.intents import Signal
    from refold.sdk.app import App
    from refold.sdk.budget import Budget, Limit
    from refold.sdk.context import Callback, Context
    from refold.sdk.heartbeat import Cancelled, Heartbeat
    from refold.sdk.prices import Price
    from refold.sdk.projection import Projection, Recorded, View, key, sums, table
    from refold.sdk.records import NewRun, NewSignal, SourceRecord
    from refold.sdk.retry import Retry
    from refold.sdk.schedule import Schedule
    from refold.sdk.secret import Secret
    from refold.sdk.tool import DID_NOT_HAPPEN

__all__ = [
    "DID_NOT_HAPPEN",
    "App",
    "Budget",
    "CallFailed",
    "Callback",
    "CallbackError",
    "Cancelled",
    "ChildFailed",
    "Context",
    "Heartbeat",
    "Limit",
    "NewRun",
    "NewSignal",
    "NonDeterminismError",
    "NotDone",
    "Price",
    "Projection",
    "Recorded",
    "RefoldError",
    "Reserve",
    "Retry",
    "Schedule",
    "Secret",
    "Signal",
    "SourceRecord",
    "TerminalError",
    "TransientError",
    "UsageError",
    "View",
    "key",
    "sums",
    "table",
]


_LAZY = {
    "DID_NOT_HAPPEN": "refold.sdk.tool",
    "App": "refold.sdk.app",
    "Budget": "refold.sdk.budget",
    "Callback": "refold.sdk.context",
    "Cancelled": "refold.sdk.heartbeat",
    "Context": "refold.sdk.context",
    "Heartbeat": "refold.sdk.heartbeat",
    "Limit": "refold.sdk.budget",
    "NewRun": "refold.sdk.records",
    "NewSignal": "refold.sdk.records",
    "Price": "refold.sdk.prices",
    "Projection": "refold.sdk.projection",
    "Recorded": "refold.sdk.projection",
    "Reserve": "refold.core.run.account",
    "Retry": "refold.sdk.retry",
    "Schedule": "refold.sdk.schedule",
    "Secret": "refold.sdk.secret",
    "Signal": "refold.core.run.intents",
    "SourceRecord": "refold.sdk.records",
    "View": "refold.sdk.projection",
    "key": "refold.sdk.projection",
    "sums": "refold.sdk.projection",
    "table": "refold.sdk.projection",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("refold")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module refold has no attribute {name!r}")
