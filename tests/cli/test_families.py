"""What the command line shows of runs that start others, and says to many at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.terminal import Dev
from tests.waiting import eventually


def test_a_family_is_shown_and_decided_on_by_its_first_run(dev: Dev) -> None:
    dev.refold("run", "start", "household", "--id", "home-1", "--session", "s-1", "--label", "team=home")
    asked = eventually(lambda: dev.read("approval", "list", "--run", "home-1"), what="the question")

    shown = eventually(lambda: _where_all(dev, "home-1", "suspended"), what="the whole family waits")
    drawn = dev.refold("run", "show", "home-1").stdout

    assert [row["run_id"] for row in asked] == ["home-1.2"]
    assert [(row["run_id"], row["status"]) for row in shown["family"]] == [
        ("home-1.1", "suspended"),
        ("home-1.2", "suspended"),
    ]
    assert "home-1.2  cleaner  suspended  refold approval show home-1.2/" in drawn
    dev.refold("approval", "approve", "home-1", code=2)  # nobody has seen the question
    dev.refold("approval", "approve", asked[0]["approval"], "--actor", "ada")
    eventually(lambda: dev.read("run", "show", "home-1")["status"] == "completed", what="the end of it")
    assert dev.effects("home-1.2") == ["home-1.2 wiped"]
    eventually(lambda: dev.read("run", "show", "home-1.1")["status"] == "cancelled", what="nobody's sleeper is stopped")


def _where_all(dev: Dev, run: str, status: str) -> dict[str, Any] | None:
    """The run, once it and all below it are what is said."""
    shown: dict[str, Any] = dev.read("run", "show", run)
    return shown if all(row["status"] == status for row in (shown, *shown["family"])) else None


def test_the_runs_of_a_session_are_listed_and_cancelled_at_once(dev: Dev) -> None:
    for number in (1, 2, 3):
        labels = ["--label", f"half={number % 2}", "--session", "s-2", "--session", f"own-{number}"]
        dev.refold("run", "start", "sleeper", "--id", f"many-{number}", *labels)
    listed = ("run", "list", "--session", "s-2")
    eventually(lambda: [row["status"] for row in dev.read(*listed)] == ["suspended"] * 3, what="three runs")

    odd = dev.read(*listed, "--label", "half=1")
    meant = dev.read("run", "cancel", "--session", "s-2")
    done = dev.read("run", "cancel", "--session", "s-2", "--yes", "--reason", "enough")

    assert {row["run_id"] for row in odd} == {"many-1", "many-3"}  # two partitions promise no order
    assert dev.read("run", "list", "--session", "own-2")[0]["sessions"] == ["s-2", "own-2"]
    assert (meant["dry_run"], meant["count"]) == (True, 3)
    assert {row["status"] for row in done["runs"]} == {"cancelled"}
    dev.refold("run", "cancel", code=2)
    dev.refold("run", "cancel", "many-1", "--session", "s-2", code=2)


@pytest.mark.long
def test_the_runs_of_a_session_are_told_at_once_and_each_once(dev: Dev) -> None:
    for number, agent in ((1, "ordering"), (2, "ordering"), (3, "household")):
        dev.refold("run", "start", agent, "--id", f"told-{number}", "--session", "s-3")
    listed = ("run", "list", "--session", "s-3", "--status", "suspended")
    eventually(lambda: len(dev.read(*listed)) == 5, what="three runs and two children")
    said = ("shipped", "--session", "s-3", "--payload", '{"parcel": "p-1"}')

    meant = dev.read("run", "signal", *said)
    done = dev.read("run", "signal", *said, "--yes", "--id", "s-1", "--actor", "bob")
    again = dev.read("run", "signal", *said, "--yes", "--id", "s-1", "--actor", "bob")
    dev.refold("run", "signal", "shipped", "--session", "s-3", "--id", "s-1", "--yes", code=1)

    assert (meant["dry_run"], meant["count"]) == (True, 5)
    assert {row["run_id"] for row in meant["runs"] if "shipped" in row["waiting"]} == {"told-1", "told-2"}
    assert {row["run_id"]: (row["outcome"], row["step"]) for row in done["runs"]} == {
        "told-1": ("accepted", 3),
        "told-2": ("accepted", 3),
        "told-3": ("accepted", 0),
        "told-3.1": ("accepted", 0),
        "told-3.2": ("accepted", 0),
    }
    assert {row["outcome"] for row in again["runs"]} == {"known"}
    assert dev.refold("run", "signal", "shipped", "--label", "nobody=has", "--yes").stdout.startswith(
        "0 runs of 0 told"
    )
    dev.refold("run", "signal", "told-1", "shipped", "--session", "s-3", code=2)
    dev.refold("run", "signal", "told-1", code=2)
    dev.refold("run", "cancel", "--session", "s-3", "--yes")


@pytest.mark.long
def test_runs_are_paused_and_resumed_one_by_one_and_many_at_once(dev: Dev) -> None:
    for number in (1, 2):
        dev.refold("run", "start", "sleeper", "--id", f"rest-{number}", "--session", "s-4")
    listed = ("run", "list", "--session", "s-4")
    eventually(lambda: [row["status"] for row in dev.read(*listed)] == ["suspended"] * 2, what="two runs")

    one = dev.read("run", "pause", "rest-1", "--reason", "look first", "--actor", "ops")
    again = dev.read("run", "pause", "rest-1", "--actor", "ops")
    rest = dev.read("run", "pause", "--session", "s-4", "--agent", "sleeper")
    many = dev.read("run", "pause", "--session", "s-4", "--agent", "sleeper", "--yes")
    shown = dev.refold("run", "show", "rest-1").stdout
    paused = dev.read("run", "list", "--status", "paused")
    back = dev.read("run", "resume", "--session", "s-4", "--yes", "--as-operator", "--actor", "ops")

    assert (one["outcome"], one["status"], one["paused"][0]["role"]) == ("accepted", "suspended", "operator")
    assert again["outcome"] == "known"
    assert (rest["dry_run"], [row["run_id"] for row in rest["runs"]]) == (True, ["rest-2"])
    assert [row["status"] for row in many["runs"]] == ["paused"]
    assert "paused by ops" in shown
    assert "look first" in shown
    assert {row["run_id"] for row in paused} >= {"rest-1", "rest-2"}
    assert (back["count"], [row["paused"] for row in dev.read(*listed)]) == (2, [[], []])
    dev.refold("run", "resume", "rest-1", code=4)
    dev.refold("run", "pause", code=2)
    dev.refold("run", "cancel", "--session", "s-4", "--yes")
    dev.refold("run", "pause", "rest-1", code=4)
