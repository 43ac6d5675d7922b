"""Half a minute of the campaign on three brokers: faults of every service and server, and all of the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.campaign import Plan, run

SLICE = Plan(
    seed=20,
    seconds=0,
    pause_s=(0.1, 0.3),
    in_flight=16,
    first=(
        ("stop", "executor"),
        ("stop", "approval"),
        ("kill", "planner"),
        ("kill", "leader"),
        ("wipe", "valkey"),
        ("kill", "executor"),
        ("kill", "valkey"),
        ("forget", "planner"),
    ),
    poison=3,
    naps_ms=(0, 5, 300),
)
ASSIGNED_AT_FIRST = 12
"""Four partitions of planners, of executors and of approval services. More assignments are take-overs."""


TOGETHER = replace(
    SLICE,
    kinds=("all", "approval"),
    first=(
        ("stop", "all"),
        ("kill", "all"),
        ("kill", "leader"),
        ("wipe", "valkey"),
        ("kill", "all"),
        ("stop", "all"),
        ("kill", "valkey"),
    ),
)


@pytest.mark.timeout(240)
def test_no_fault_loses_doubles_or_sticks_anything(tmp_path: Path) -> None:
    report = run(SLICE, tmp_path)

    assert report.problems == {}, json.dumps(report.as_json(), indent=2)
    happened = report.fault_counts
    done = {f"{kind} {victim}" for kind, victim in SLICE.first}
    assert {each.replace("leader", "broker") for each in done} <= happened.keys()
    assert report.seen["partition.assigned"] > ASSIGNED_AT_FIRST
    counts = report.verdict.counts
    assert counts["dead_letters"] > 0
    assert all(counts[f"effects.{effect}"] > 0 for effect in ("pure", "keyed", "probed", "once"))
    # Every verdict and a grant's use are the whole campaign's to show: on a busy machine these seconds have few runs.
    assert counts["approvals"] > 0
    assert counts["effects_agreed_to"] > 0


@pytest.mark.timeout(240)
def test_no_fault_of_services_in_one_process_loses_doubles_or_sticks_anything(tmp_path: Path) -> None:
    """Processes are killed and held for longer than their session; the other one takes over, in both roles."""
    report = run(TOGETHER, tmp_path)

    assert report.problems == {}, json.dumps(report.as_json(), indent=2)
    assert report.fault_counts["kill all"] >= 2
    assert report.fault_counts["stop all"] == 2
    assert report.seen["partition.assigned"] > ASSIGNED_AT_FIRST
    counts = report.verdict.counts
    assert all(counts[f"effects.{effect}"] > 0 for effect in ("pure", "keyed", "probed", "once"))
