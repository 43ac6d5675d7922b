"""Code of runs that is kept running is bounded: what was used longest ago is made again when it goes on."""

from __future__ import annotations

import dataclasses

import pytest

from refold.planner.agents.stalls import EXECUTION_BYTES
from refold.planner.settings import Bounds
from tests.planner.rig import Rig


@pytest.mark.parametrize("room", [0, 3, 1_000])
def test_runs_go_on_however_few_of_them_are_kept_running(room: int) -> None:
    rig = Rig()
    rig.settings = dataclasses.replace(rig.settings, budget=Bounds(live_bytes=room * 2 * EXECUTION_BYTES))
    rig.boot()
    rig.answers = False
    runs = [f"r-{number}" for number in range(8)]
    for run in runs:
        rig.start(run, steps=4)
    rig.pump()
    [lane] = rig.planner.lanes
    kept = list(lane._agents._live)

    rig.answers = True
    rig.pump()

    assert kept == (runs[-max(room, 1) :] if room < 8 else runs)
    outcomes = rig.outcomes()
    assert [{(status, result) for status, _, result in outcomes[run]} for run in runs] == [{("completed", "6")}] * 8
    assert sum(rig.world.done.values()) == 8 * 4
