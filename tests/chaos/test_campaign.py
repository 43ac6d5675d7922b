"""The campaign of `make chaos` (15 minutes) and of `make soak` (hours)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.chaos import programs
from tests.chaos.campaign import FAULTS, full, run
from tests.chaos.rolling import Deploy, deploy

SOAK_HOURS = float(os.environ.get("REFOLD_SOAK") or 0)
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(0 if SOAK_HOURS else 1_800)]


GAP_S = 2.0
"""How long a partition may finish no step while everything that is ours is restarted, on a machine with nothing else
to do."""


def test_a_deploy_under_load_costs_nothing_and_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = deploy(Deploy(rounds=3), tmp_path)

    with capsys.disabled():
        print(json.dumps(found.as_json(), indent=2))  # noqa: T201
    assert (found.verdict.problems(), found.charged, found.waiting) == ({}, [], [])
    assert max(found.gaps.values()) < GAP_S


def test_a_campaign_of_faults_loses_doubles_and_sticks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or int.from_bytes(os.urandom(3)))

    report = run(full(seed, seconds=SOAK_HOURS * 3_600 or 600, points=60), tmp_path)

    with capsys.disabled():
        print(json.dumps(report.as_json(), indent=2))  # noqa: T201
    assert report.problems == {}, f"seed {seed}"
    happened = report.fault_counts
    assert sum(happened.values()) >= FAULTS
    assert all(happened[f"exact point {kind}"] > 0 for kind in report.swept)
    assert {"scale planner", "deploy planner", "stop broker", "kill broker"} <= happened.keys()
    assert {"forget planner", "forget executor", "roll broker", "skew executor"} <= happened.keys()
    counts = report.verdict.counts
    assert all(counts[f"effects.{effect}"] > 0 for effect in ("pure", "keyed", "probed", "once"))
    assert counts["takeovers_in_runs"] > 0
    assert counts["doubts"] > 0
    assert counts["late_results"] > 0
    assert counts["effects_avoided_by_key"] > 0
    assert counts["dead_letters"] > 0
    assert all(counts[f"approvals.{verdict}"] > 0 for verdict in ("approve", "amend", "reject", "answer", "expire"))
    assert all(counts[f"votes_void.{code}"] > 0 for code in ("late", "requester", "unentitled", "unauthorised"))
    assert counts["effects_agreed_to"] > 0
    assert counts["approvals_escalated"] > 0
    assert counts["approvals_asked_again"] > 0
    assert all(counts[name] > 0 for name in ("revocations", "rechecks", "grants_given", "grants_used"))
    assert all(counts[f"held_no_longer.{why}"] > 0 for why in ("decision_revoked", "policy_changed", "on_arrival"))
    assert counts["effects_under_a_decree"] > 0


def test_random_agents_do_under_faults_what_plain_asyncio_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or int.from_bytes(os.urandom(3)))

    report = run(programs.full(seed, minutes=20), tmp_path)

    with capsys.disabled():
        print(json.dumps(report.as_json(), indent=2))  # noqa: T201
    assert report.problems == {}, f"seed {seed}"
    counts = report.verdict.counts
    assert counts["programs"] > 1_000
    assert all(counts[f"program.{kind}"] > 0 for kind in programs.MET)
