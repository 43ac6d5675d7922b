"""One attempt of a tool, or one question to its probe, as the executor records them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from refold import App, Heartbeat
from refold.sdk.tool import ToolDef


def run_tool(tool: ToolDef, args: str, *, key: str = "k", heartbeat: Heartbeat | None = None) -> str:
    """The result of a tool."""
    body = tool.run(args, idempotency_key=key, heartbeat=heartbeat or Heartbeat())
    return tool.result_json(body() if callable(body) else asyncio.run(body))


def run_probe(tool: ToolDef, args: str, *, key: str = "k") -> str | None:
    """The answer of a tool's probe."""
    body = tool.run_probe(args, idempotency_key=key, heartbeat=Heartbeat())
    return tool.probe_json(body() if callable(body) else asyncio.run(body))


def tool(**options: Any) -> Callable[[Any], ToolDef]:
    def make(function: Any) -> ToolDef:
        app = App("tests")
        app.tool(**options)(function)
        return next(iter(app.tools.values()))

    return make
