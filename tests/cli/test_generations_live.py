"""A run that goes on with new histories on a real platform, whose planner is killed in between."""

from __future__ import annotations

from typing import Any

from tests.cli.terminal import Dev
from tests.waiting import eventually


def told(dev: Dev, number: object, name: str) -> Any:
    """Sends the run a signal by its plain name."""
    return dev.read("run", "signal", "living-1", "message", "--payload", str(number), "--id", name)


def shown(dev: Dev, run: str) -> dict[str, Any]:
    """A run, or nothing while the log does not know it."""
    found = [row for row in dev.read("run", "list") if row["run_id"] == run]
    return dict(dev.read("run", "show", run)) if found else {}


def test_a_run_is_reached_by_its_name_in_every_generation(dev: Dev) -> None:
    dev.read("run", "start", "living", "--id", "living-1", "--input", '{"seen": []}')
    eventually(lambda: shown(dev, "living-1").get("status") == "suspended")
    for number in range(5):
        told(dev, number, f"m-{number}")
        if number in (1, 3):
            dev.kill("planner")
    again = told(dev, 4, "m-4")
    told(dev, '"end"', "m-end")

    ended = dev.read("run", "start", "living", "--id", "living-1", "--input", '{"seen": []}', "--wait")
    dev.refold("run", "start", "living", "--id", "living-1", "--input", '{"seen": [1]}', "--wait", code=4)

    assert again["outcome"] == "known"
    assert ended["result"] == [0, 1, 2, 3, 4, 3]
    assert ended["run_id"] == "living-1+3"
    assert shown(dev, "living-1+2")["status"] == "continued"
    eventually(lambda: shown(dev, "living-1-after").get("status") == "completed")
    assert "generation" not in str(dev.read("verify"))
