"""Code of runs that is kept running is bounded: what was used longest ago is made again when it goes on."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from refold import App, Context
from refold.core.ids import home
from refold.engine.planner.agents.stalls import EXECUTION_BYTES
from refold.engine.planner.settings import Bounds
from tests.planner.rig import Rig

sleepers = App("sleepers")


@sleepers.agent
async def errand(ctx: Context, run: str, steps: int) -> int:
    """Sleeps for so many minutes."""
    await asyncio.sleep(60 * steps)
    return steps


def test_the_code_of_a_run_that_sleeps_for_long_is_let_go_at_once() -> None:
    rig = Rig(code=sleepers)
    for minutes in (5, 60):
        rig.start(f"r-{minutes}", steps=minutes)
    rig.pump()

    [lane] = rig.planner.lanes
    assert list(lane._agents._live) == ["r-5"]


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


def test_all_lanes_of_a_process_share_what_code_may_take_and_the_fullest_gives_first() -> None:
    rig = Rig(partitions=4)
    rig.settings = dataclasses.replace(rig.settings, budget=Bounds(live_bytes=6 * 2 * EXECUTION_BYTES))
    rig.boot()
    rig.answers = False
    few, many = (next(n for n in range(99) if home(f"r-{n}", 4) == place) for place in (0, 1))
    rig.start(f"r-{few}", steps=4)
    rig.pump()
    for number in [n for n in range(99) if home(f"r-{n}", 4) == home(f"r-{many}", 4)][:9]:
        rig.start(f"r-{number}", steps=4)
    rig.pump()

    lanes = list(rig.planner.lanes)
    kept = [lane._agents._live for lane in lanes]

    assert [len(live) for live in kept] == [1, 6, 0, 0]  # whoever came first is not the first to go
    rig.planner.lanes.restart_lane(1)
    assert (rig.planner._shared.room.bytes, [*rig.planner._shared.room.lanes]) == (kept[0].bytes, kept[:1])
