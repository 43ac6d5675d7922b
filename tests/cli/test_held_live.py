"""Calls that wait for an operator when their attempts are used up, on a real platform."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.terminal import Dev
from tests.waiting import eventually


def held(dev: Dev, run: str) -> str:
    """A run whose call is held; the call."""
    (dev.data / f"closed-{run}").touch()
    dev.read("run", "start", "insisting", "--id", run)

    def listed() -> dict[str, Any] | None:
        return next((row for row in dev.read("run", "list", "--status", "held") if row["run_id"] == run), None)

    row: dict[str, Any] = eventually(listed, what="a call that is held")
    [call] = row["held"]
    assert (row["status"], row["suspended"]) == ("suspended", {"reason": "held", "blocked_by": call})
    return str(call)


def ended(dev: Dev, run: str) -> dict[str, Any]:
    shown = eventually(lambda: found if (found := dev.read("run", "show", run))["status"] == "completed" else None)
    return dict(shown)


@pytest.mark.long
def test_a_held_call_is_tried_again_by_an_operator_s_word_also_with_another_planner(dev: Dev) -> None:
    call = held(dev, "held-1")
    told = dev.refold("run", "show", "held-1").stdout
    dev.kill("planner")
    (dev.data / "closed-held-1").unlink()

    said = dev.read("run", "resolve", call, "--retry", "--actor", "ann", "--comment", "it is open")

    assert f"refold run resolve {call} --retry" in told
    assert (said["outcome"], said["verdict"]) == ("accepted", "did_not_happen")
    assert ended(dev, "held-1")["result"] == "through"
    assert dev.effects("held-1") == ["held-1 insisted"]
    assert "neither in doubt nor held" in dev.refold("run", "resolve", call, "--fail", code=4).stderr
    dev.refold("verify", "--run", "held-1")


def test_a_held_call_that_is_let_fail_raises_in_the_agent_and_its_result_is_for_people_alone(dev: Dev) -> None:
    call = held(dev, "held-2")

    refused = dev.refold("run", "resolve", call, "--answer", '"by hand"', code=2).stderr
    dev.read("run", "resolve", call, "--fail")

    assert "people whom the policy names" in refused
    assert ended(dev, "held-2")["result"] == "no: not_done"
    assert dev.effects("held-2") == []
