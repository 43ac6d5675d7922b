"""What everybody knows of the simulated tools: executors, checker and attackers alike."""

from __future__ import annotations

from functools import cache

from refold.core.approval.decision import ToolFacts
from refold.simulator.app import app


@cache
def facts() -> dict[str, ToolFacts]:
    """The facts of the tools of the app, by name."""
    return {tool.name: tool.facts for tool in app.tools.values()}
