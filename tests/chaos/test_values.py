"""Runs with values that a process draws or orders go on in every process: none stalls.

`VALUE_STARTS=40 pytest tests/chaos/test_values.py -m campaign -n 0` starts the planner so often.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from refold.engine.runtime.standby import reserve_of
from tests.chaos.values import STEPS
from tests.cli.terminal import Dev, refold, served
from tests.waiting import eventually

STARTS = int(os.environ.get("VALUE_STARTS", "10"))
APP = Path(__file__).with_name("values.py")
TAGS = ["red", "green", "blue", "white", "black"]


def begin(dev: Dev, number: int) -> list[str]:
    """Two runs, of which one has two children."""
    one = json.dumps({"tags": TAGS, "chat": 2**63 - 1 + number})
    more = json.dumps({"orders": [{"tags": TAGS[:2]}, {"chat": 9007199254740993}], "tags": TAGS})
    dev.refold("run", "start", "drawn", "--id", f"drawn-{number}", "--input", one)
    dev.refold("run", "start", "beside", "--id", f"beside-{number}", "--input", more)
    return [f"drawn-{number}", f"beside-{number}"]


def events_of(dev: Dev, run: str) -> int:
    """The number of its events; nothing as long as no planner has it."""
    return refold("run", "events", run, "--json", "--data", str(dev.data)).stdout.count("\n")


def restart(dev: Dev, number: int, run: str) -> None:
    """Once a run has gone on, stops the planner, or kills it, and waits for the one that follows."""
    steps = events_of(dev, run)
    eventually(lambda: events_of(dev, run) > steps, within=90, what="a step")
    pid = dev.pid("planner")
    os.kill(reserve_of(pid), signal.SIGKILL if number % 2 else signal.SIGTERM)
    eventually(lambda: next(iter(set(dev.state["processes"]["planner"]) - {pid}), 0), within=90, what="a planner")


def end_of(dev: Dev, run: str) -> Any:
    """The run once it is over, or stands still."""

    def ended() -> Any:
        shown = dev.read("run", "show", run)
        return shown if shown["status"] in ("completed", "failed", "stalled") else None

    return eventually(ended, within=60 + 6 * STEPS, what=run)


@pytest.mark.campaign
@pytest.mark.timeout(600 + 60 * STARTS)
def test_no_run_stalls_however_often_the_planner_starts(tmp_path: Path) -> None:
    runs: list[str] = []
    # Each time all of the platform stops and starts once, besides three starts of the planner alone.
    for number in range(0, STARTS, 4):
        with served(APP, tmp_path) as dev:
            runs += begin(dev, number)
            for one in range(number, min(number + 3, STARTS)):
                restart(dev, one, runs[-2])
    with served(APP, tmp_path) as dev:
        ends = {run: end_of(dev, run) for run in runs}
        assert {run: end["status"] for run, end in ends.items() if end["status"] != "completed"} == {}
        orders = [ends[run]["result"] for run in runs if run.startswith("drawn")]

    assert [order["chat"] for order in orders] == [2**63 - 1 + number for number in range(0, STARTS, 4)]
    assert all(order["limit"] == "Infinity" and order["tags"] == sorted(TAGS) for order in orders)
