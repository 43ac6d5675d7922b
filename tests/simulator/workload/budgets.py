"""Scenarios of budgets: what is bought alone and at once, is lost on the way, and is tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulator.app import PRICED
from tests.simulator.workload.inputs import Scenario, start_run
from tests.simulator.world.law import Decree


def _limited(
    name: str, *starts: tuple[str, int, int], scripts: tuple[str, ...] = (), tenants: str = "tttt", **changes: Any
) -> Scenario:
    """Runs of one tenant each (name, times, when), who may spend so much a day. Of `r-1` and `r-3` the homes differ."""
    inputs = tuple(
        start_run(run, "errand", {"times": times}, at_ms=at_ms, labels={"tenant": tenant})
        for (run, times, at_ms), tenant in zip(starts, tenants, strict=False)
    )
    return Scenario(name, inputs, {PRICED: scripts}, changes={"limited": True, **changes})


def _buys(name: str, agent: str, *scripts: str, times: int = 5, **changes: Any) -> Scenario:
    return Scenario(name, (start_run("r-1", agent, {"times": times}),), {PRICED: scripts}, changes=changes)


BUDGETS = {
    scenario.name: scenario
    for scenario in (
        _buys("budget", "shopper"),
        _buys("budget-within", "shopper", "not-done", times=2),
        _buys("budget-lost", "shopper", "raises-after", "not-done"),
        _buys("budget-slow", "shopper", "slow", times=2),
        _buys("budget-two-lost", "shopper", "slow", "raises-after", times=2),
        replace(
            _buys("budget-judged-again", "shopper", "slow", "slow", times=1, approvals=1),
            policy="thrifty",
            decrees=(Decree(1_000, "policy", "recheck-two"),),
        ),
        _buys("budget-crawls", "shopper", "crawls", times=2),
        _buys("budget-family", "market", times=3),
        _buys("budget-family-lost", "market", "not-done", "raises-after", times=2),
        _buys("budget-family-shared", "market", times=3, planners=2, executors=2, sharing=True),
        _buys("budget-child-left", "fickle", "slow", times=3),
        _limited("limit", ("r-1", 3, 0), ("r-3", 3, 0), ("r-2", 3, 4_000)),
        _limited("limit-alone", ("r-1", 3, 0), ("r-2", 4, 0), ("r-4", 4, 700), scripts=("not-done", "slow")),
        _limited(
            "limit-many", ("r-1", 5, 0), ("r-3", 4, 2_500), ("r-2", 6, 0), ("r-4", 5, 1_200), tenants="aabc", planners=2
        ),
        _limited(
            "limit-singly",
            *((f"r-{n}", 4, 400 * n) for n in (1, 2, 3, 4)),
            ("r-5", 4, 2_500),
            tenants="abcda",
            singly=1,
        ),
        replace(_limited("limit-forked", ("r-1", 3, 0), ("r-2", 4, 4_000)), forks=2),
        _limited("limit-shared", ("r-1", 3, 0), ("r-3", 2, 0), ("r-2", 4, 2_500), planners=2, sharing=True),
    )
}
"""By name."""
