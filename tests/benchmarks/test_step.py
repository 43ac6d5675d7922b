"""What a step costs the product is what it cost before, and a loop that does nothing would be seen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import step
from refold.engine.planner.lane import Lane
from tests.tidy.repository import ROOT


def test_a_step_costs_no_more_instructions_than_are_kept() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.step"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert told.returncode == 0, f"{told.stdout}{told.stderr}\n`make bench-step` shows it"


def test_a_loop_that_does_nothing_in_a_turn_of_a_lane_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Lane.work

    def idling(self: Lane) -> None:
        for _ in range(200):
            pass
        work(self)

    kept = json.loads(step.KEPT.read_text())[step.MINOR]
    monkeypatch.setattr(Lane, "work", idling)

    figures = {f"{name}, 1 in flight": number for name, number in step.of_step(1).items()}
    figures |= {f"{name}, idle turn": number for name, number in step.idle(1).items()}

    assert step.worse(figures, kept).keys() == {"planner, 1 in flight"}  # a lane at rest does not work


def test_a_figure_may_be_two_percent_above_what_is_kept_of_it_and_no_more() -> None:
    assert step.worse({"a": 1_020, "b": 1_021, "c": 1}, {"a": 1_000, "b": 1_000}) == {"b": 1_021, "c": 1}
