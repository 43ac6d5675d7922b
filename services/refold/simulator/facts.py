"""What everybody knows of the simulated tools: executors, checker and attackers alike."""

from __future__ import annotations

from functools import cache

from refold.core.approval.decision import ToolFacts
from refold.simulator.app import simulated

CLAIMED_EFFECTS = ("probed", "once")
"""The classes whose every attempt is a link of the claim chain."""


@cache
def facts() -> dict[str, ToolFacts]:
    """The facts of the tools of the app, by name."""
    return {tool.name: tool.facts for tool in simulated.tools.values()}
