"""Scenarios of runs that start others: their ends, their parents' ends, and what is given up in between."""

from __future__ import annotations

from typing import Any

from tests.simulator.workload.inputs import Scenario, operation, signal, start_run


def _family(name: str, agent: str, *scripts: str, tool: str = "push", **changes: Any) -> Scenario:
    return Scenario(name, (start_run("r-1", agent, {"tool": tool}),), {tool: scripts}, changes=changes)


FAMILIES = {
    scenario.name: scenario
    for scenario in (
        _family("child", "parent"),
        _family("child-eager", "parent", commit_ms=1),
        _family("child-shared", "parent", planners=2, sharing=True),
        _family("grandchild", "grandparent", tool="book"),
        _family("siblings", "siblings"),
        _family("child-given-up", "impatient", "slow", "slow"),
        _family("child-left", "leaving", "slow", "slow"),
        _family("submitted", "submitter"),
        _family("submitted-shared", "submitter", planners=2, sharing=True),
        _family("large", "reader"),
        _family("large-shared", "reader", planners=2, sharing=True),
        _family("children-wait-for-room", "siblings", active=1),
        Scenario(
            "parent-cancelled",
            (
                start_run("r-1", "parent", {"tool": "push"}),
                signal("r-1", "c", "cancel", {"reason": "enough"}, at_ms=60),
            ),
            {"push": ("slow",)},
        ),
        Scenario(
            "child-cancelled",
            (start_run("r-1", "siblings", {"tool": "push"}), operation("r-1.1", "c", "cancel", at_ms=60)),
            {"push": ("slow",)},
        ),
    )
}
"""By name."""
