"""Scenarios of runs that wait: signals early, late and twice, equal waits, races, and answers to callbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.simulator.settings import SimSettings
from tests.simulator.workload.inputs import ClientInput, Scenario, start_run, word
from tests.simulator.world.outside import Reply

NARROW_BYTES = 1_200
"""Room for two signals that nobody waits for."""


def _told(name: str, agent: str, *said: ClientInput, given: Any = None, **changes: Any) -> Scenario:
    return Scenario(name, (start_run("r-1", agent, given), *said), changes=changes)


def _called(name: str, *replies: Reply) -> Scenario:
    return Scenario(name, (start_run("r-1", "caller"),), replies=replies)


WAITS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _told("signal", "waiter", word("r-1", "s-1", at_ms=200)),
        _told("signal-before-the-run", "waiter", word("r-1", "s-1")),
        _told(
            "signal-twice", "pair", *(word("r-1", "s-1", at_ms=at) for at in (30, 60, 90)), word("r-1", "s-2", at_ms=99)
        ),
        _told("signals-kept", "late", *(word("r-1", f"s-{n}", {"n": n}, at_ms=20 * n) for n in range(1, 6))),
        _told(
            "signals-overflow",
            "late",
            *(word("r-1", f"s-{n}", {"n": n, "text": "x" * 300}, at_ms=20 * n) for n in range(1, 15)),
            rules=replace(SimSettings().rules, signal_bytes=NARROW_BYTES),
        ),
        _told(
            "signals-shared", "pair", *(word("r-1", f"s-{n}", at_ms=15 * n) for n in range(4)), planners=2, sharing=True
        ),
        _told(
            "signal-matched",
            "waiter",
            *(word("r-1", f"s-{n}", data, at_ms=30 * n) for n, data in enumerate((None, {"n": 1}, {"n": 2}))),
            given={"match": "data.n == 2"},
        ),
        _told("signal-too-late", "waiter", word("r-1", "s-1", at_ms=2_600)),
        _called("callback", Reply(60, 1)),
        _called("callback-twice", Reply(60, 1, key="k"), Reply(90, 2, key="k"), Reply(120, 1), Reply(150, 2)),
        _called("callback-unfit", Reply(40, "many"), Reply(80, 2)),
        _called("callback-failed", Reply(60, failure="declined")),
        _called("callback-stray", Reply(60, 1, stray=True)),
        _called("callback-expires"),
        _called("callback-too-late", Reply(1_600, 1)),
    )
}
"""By name."""
