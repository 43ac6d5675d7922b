"""Scenarios beside which views are kept: of runs that are forked, and of runs that are erased in time and on demand."""

from __future__ import annotations

from typing import Any

from tests.simulator.workload.inputs import ClientInput, Scenario, erase, start_run
from tests.simulator.world.broker import AHEAD_MS


def _viewed(name: str, *inputs: ClientInput, **changes: Any) -> Scenario:
    return Scenario(name, inputs, {"push": (), "book": (), "pay": ()}, changes={"projectors": 1, **changes})


VIEWED = {
    scenario.name: scenario
    for scenario in (
        _viewed(
            "viewed",
            start_run("r-1", "three"),
            start_run("r-2", "one", {"tool": "push"}, at_ms=300),
        ),
        _viewed(
            "viewed-erased",
            *(start_run(f"r-{n}", "one", {"tool": "push"}, at_ms=(n - 1) * 900) for n in (1, 2)),
            archivists=1,
            keep_ms=AHEAD_MS + 500,
        ),
        _viewed(
            "viewed-erased-on-demand",
            start_run("r-1", "parent", {"tool": "book"}),
            erase("r-1", at_ms=2_000),
            archivists=1,
        ),
    )
}
"""By name."""
