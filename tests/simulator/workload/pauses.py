"""Scenarios of runs that are paused at an odd moment; the operator lets each go on after a while."""

from __future__ import annotations

from typing import Any

from tests.simulator.workload.inputs import Scenario, pause, start_run
from tests.simulator.world.law import REQUESTER
from tests.simulator.world.people import Say


def _paused(name: str, agent: str, tool: str, *scripts: str, at_ms: int, **changes: Any) -> Scenario:
    given = {"tool": tool} if tool else None
    inputs = (start_run("r-1", agent, given), pause("r-1", "p", at_ms=at_ms))
    return Scenario(name, inputs, {tool or "push": scripts}, changes=changes)


PAUSES = {
    scenario.name: scenario
    for scenario in (
        _paused("paused", "one", "push", "slow", at_ms=60),
        _paused("paused-before-the-run", "one", "push", at_ms=0),
        _paused("paused-retrying", "one", "push", "not-done", "not-done", "ok", at_ms=40),
        _paused("paused-asleep", "sleeper", "", at_ms=200),
        _paused("paused-parent", "grandparent", "push", "slow", at_ms=60),
        _paused("paused-parent-retrying", "parent", "push", "not-done", "not-done", "not-done", "ok", at_ms=40),
        Scenario(
            "paused-while-people-decide",
            (
                start_run("r-1", "handling", {"tool": "wipe_push"}, requester=REQUESTER, labels={"session": "s-1"}),
                pause("r-1", "p", at_ms=145),
            ),
            {"wipe_push": ()},
            changes={"approvals": 1},
            people=(Say("ada"),),
            policy="ask",
        ),
    )
}
"""By name."""
