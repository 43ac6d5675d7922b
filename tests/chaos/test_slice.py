"""A minute of the campaign: every kind of fault at least once, all of the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.campaign import Plan, run

SLICE = Plan(
    seed=20,
    seconds=0,
    pause_s=(0.3, 0.6),
    in_flight=16,
    points=("2", "7", "15:after"),
    decisions=("1", "1:after", "2"),
    first=(
        ("stop", "planner"),
        ("stop", "executor"),
        ("stop", "approval"),
        ("kill", "valkey"),
        ("wipe", "valkey"),
        ("rest", ""),
        ("kill", "planner"),
        ("kill", "executor"),
        ("kill", "approval"),
        ("kill", "broker"),
    ),
    poison=3,
    quiet_s=100,
)
ASSIGNED_AT_FIRST = 12
"""Four partitions of planners, of executors and of approval services. More assignments are take-overs."""


@pytest.mark.timeout(240)
def test_no_fault_loses_doubles_or_sticks_anything(tmp_path: Path) -> None:
    report = run(SLICE, tmp_path)

    assert report.problems == {}, json.dumps(report.as_json(), indent=2)
    happened = report.fault_counts
    assert {f"{kind} {victim}" for kind, victim in SLICE.first if kind != "rest"} <= happened.keys()
    assert [swept.missed for swept in report.swept.values()] == [[], [], []]
    assert happened["exact point planner"] == happened["exact point executor"] == len(SLICE.points)
    assert happened["exact point approval"] == len(SLICE.decisions)
    assert report.seen["partition.assigned"] > ASSIGNED_AT_FIRST
    counts = report.verdict.counts
    assert counts["dead_letters"] > 0
    assert all(counts[f"effects.{effect}"] > 0 for effect in ("pure", "keyed", "probed", "once"))
    assert all(counts[f"approvals.{verdict}"] > 0 for verdict in ("approve", "edit", "reject", "answer", "expire"))
    assert counts["effects_agreed_to"] > 0
    assert report.as_json()["counted"]["grants_used"] > 0
    assert all(counts[name] > 0 for name in ("revocations", "rechecks", "approvals_asked_again"))
