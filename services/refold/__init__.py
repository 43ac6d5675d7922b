"""Refold: durable AI agents as event-sourced services on Kafka, so that a crash is a non-event.

This is the menu of those who write agents and tools. It needs neither Kafka nor Redis, so that an app can be tested
by itself.

- `App` registers tools and agents; `Context` is what an agent gets to reach the world; `Retry` is how often.
- A tool raises `NotDone` when the effect did not happen and may be tried again, `TerminalError` when trying again is
  pointless; anything else that it raises leaves the outcome unknown. `DID_NOT_HAPPEN` is what a probe returns.
- `Heartbeat` is handed to tools that ask for it, and raises `Cancelled` once the call is not wanted any more.
- `Secret` names what a tool needs and nobody else may read: the log has the name, the tool gets the value.
- `Budget` is what a run may take, `Limit` what all may in a day or month, `Reserve` what a call may, `Price` what a
  model costs.
- `Projection` fills tables from the log, declared with `table`, `sums` and `key`; `View` and `Recorded` are what its
  `apply` is handed.
- `Signal` is what `ctx.wait_for` gives, `Callback` what `ctx.callback` gives.
- An agent may catch `CallFailed`, `ChildFailed`, `CallbackError` and, of what has a timeout, `TimeoutError`.
- `UsageError` and `NonDeterminismError` tell the author what to change.
"""

from __future__ import annotations

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
    from refold.core.run.intents import Signal
    from refold.core.run.metering import Reserve
    from refold.sdk.app import App
    from refold.sdk.budget import Budget, Limit
    from refold.sdk.callback import Callback
    from refold.sdk.context import Context
    from refold.sdk.heartbeat import Cancelled, Heartbeat
    from refold.sdk.prices import Price
    from refold.sdk.projection import Projection, Recorded, View, key, sums, table
    from refold.sdk.retry import Retry
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
    "NonDeterminismError",
    "NotDone",
    "Price",
    "Projection",
    "Recorded",
    "RefoldError",
    "Reserve",
    "Retry",
    "Secret",
    "Signal",
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
    "Callback": "refold.sdk.callback",
    "Cancelled": "refold.sdk.heartbeat",
    "Context": "refold.sdk.context",
    "Heartbeat": "refold.sdk.heartbeat",
    "Limit": "refold.sdk.budget",
    "Price": "refold.sdk.prices",
    "Projection": "refold.sdk.projection",
    "Recorded": "refold.sdk.projection",
    "Reserve": "refold.core.run.metering",
    "Retry": "refold.sdk.retry",
    "Secret": "refold.sdk.secret",
    "Signal": "refold.core.run.intents",
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
