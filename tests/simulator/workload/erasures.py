"""Scenarios with an archivist: runs that are archived and erased in time, on demand, with their families and values."""

from __future__ import annotations

from typing import Any

from tests.simulator.workload.inputs import ClientInput, Scenario, erase, start_run
from tests.simulator.world.broker import AHEAD_MS


def _erased(name: str, *inputs: ClientInput, **changes: Any) -> Scenario:
    return Scenario(name, inputs, {"push": (), "book": (), "pay": ()}, changes={"archivists": 1, **changes})


ERASURES = {
    scenario.name: scenario
    for scenario in (
        _erased(
            "erased",
            start_run("r-1", "one", {"tool": "push"}),
            start_run("r-1", "one", {"tool": "push"}, at_ms=4_000, kind="repeat"),
            keep_ms=AHEAD_MS + 500,
            rots=True,
        ),
        _erased("erased-probed", *(start_run(f"r-{n}", "one", {"tool": "book"}) for n in (1, 2, 3)), keep_ms=AHEAD_MS),
        _erased("erased-once", *(start_run(f"r-{n}", "one", {"tool": "pay"}) for n in (1, 2, 3)), keep_ms=AHEAD_MS),
        _erased(
            "erased-forgotten",
            *(start_run(f"r-{n}", "one", {"tool": "pay"}, at_ms=(n - 1) * 2_000) for n in (1, 2, 3)),
            keep_ms=AHEAD_MS + 500,
            horizon_ms=AHEAD_MS + 1_000,
        ),
        _erased("erased-large", start_run("r-1", "reader", {"tool": "push"}), keep_ms=AHEAD_MS + 500),
        _erased(
            "erased-on-demand",
            start_run("r-1", "parent", {"tool": "push"}),
            erase("r-1.1", at_ms=500),
            erase("never", at_ms=1_000),
            erase("r-1", at_ms=2_000),
        ),
    )
}
"""By name."""
