"""Scenarios of runs that are handed to other versions of their agent."""

from __future__ import annotations

from dataclasses import replace

from tests.simulator.revised import APART, NEWEST, OLDER, REVISED
from tests.simulator.workload.inputs import Scenario, Upgrade, operation, pause, start_run


def _migrated(name: str, *upgrades: Upgrade, **scripts: tuple[str, ...]) -> Scenario:
    return Scenario(name, (start_run("r-1", REVISED),), scripts, upgrades=upgrades)


VERSIONS = {
    scenario.name: scenario
    for scenario in (
        _migrated("migrated", Upgrade(100, OLDER), push=("slow",)),
        _migrated("migrated-asleep", Upgrade(200, OLDER)),
        _migrated("migrated-and-back", Upgrade(60, OLDER), Upgrade(120, NEWEST), Upgrade(420, OLDER)),
        _migrated("migrated-twice", Upgrade(60, OLDER), Upgrade(60, OLDER), Upgrade(200, OLDER)),
        _migrated("migrate-refused", Upgrade(60, APART), Upgrade(90, "4"), Upgrade(120, OLDER, since=OLDER)),
        _migrated("migrate-too-late", Upgrade(720, OLDER), Upgrade(3_000, OLDER), push=("ok", "slow")),
        replace(
            _migrated("migrated-paused", Upgrade(100, OLDER)),
            inputs=(start_run("r-1", REVISED), pause("r-1", "p", at_ms=60)),
        ),
        replace(
            _migrated("migrated-and-cancelled", Upgrade(100, OLDER)),
            inputs=(start_run("r-1", REVISED), operation("r-1", "c", "cancel", {"reason": "enough"}, at_ms=110)),
        ),
        replace(_migrated("rolled-out"), rollout_ms=60),
        Scenario(
            "rolled-out-shared",
            (start_run("r-1", REVISED), start_run("r-3", REVISED)),
            changes={"planners": 2, "sharing": True},
            rollout_ms=60,
        ),
        replace(_migrated("rolled-out-early"), rollout_ms=0),
        replace(_migrated("rolled-out-migrated", Upgrade(250, OLDER)), rollout_ms=200),
        replace(_migrated("migrated-after-it-failed", Upgrade(100, OLDER), push=("terminal",)), retries=1),
    )
}
"""By name."""
