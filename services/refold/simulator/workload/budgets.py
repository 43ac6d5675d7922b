"""Scenarios of budgets: what is bought alone and at once, is lost on the way, and is tried again."""

from __future__ import annotations

from typing import Any

from refold.simulator.app import PRICED
from refold.simulator.workload.inputs import Scenario, start_run


def _buys(name: str, agent: str, *scripts: str, times: int = 5, **changes: Any) -> Scenario:
    return Scenario(name, (start_run("r-1", agent, {"times": times}),), {PRICED: scripts}, changes=changes)


BUDGETS = {
    scenario.name: scenario
    for scenario in (
        _buys("budget", "shopper"),
        _buys("budget-within", "shopper", "not-done", times=2),
        _buys("budget-lost", "shopper", "raises-after", "not-done"),
        _buys("budget-slow", "shopper", "slow", times=2),
        _buys("budget-crawls", "shopper", "crawls", times=2),
        _buys("budget-family", "market", times=3),
        _buys("budget-family-lost", "market", "not-done", "raises-after", times=2),
        _buys("budget-family-shared", "market", times=3, planners=2, executors=2, sharing=True),
        _buys("budget-child-left", "fickle", "slow", times=3),
    )
}
"""By name."""
