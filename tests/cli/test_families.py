"""What the command line shows of runs that start others, and says to many at once."""

from __future__ import annotations

from tests.cli.terminal import Dev
from tests.waiting import eventually


def test_a_family_is_shown_and_decided_on_by_its_first_run(dev: Dev) -> None:
    dev.refold("run", "start", "household", "--id", "home-1", "--session", "s-1", "--label", "team=home")
    asked = eventually(lambda: dev.read("approval", "list", "--run", "home-1"), what="the question")

    shown = dev.read("run", "show", "home-1")
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
    assert dev.read("run", "show", "home-1.1")["status"] == "cancelled"


def test_the_runs_of_a_session_are_listed_and_cancelled_at_once(dev: Dev) -> None:
    for number in (1, 2, 3):
        labels = ["--label", f"half={number % 2}", "--session", "s-2", "--session", f"own-{number}"]
        dev.refold("run", "start", "sleeper", "--id", f"many-{number}", *labels)
    listed = ("run", "list", "--session", "s-2")
    eventually(lambda: [row["status"] for row in dev.read(*listed)] == ["suspended"] * 3, what="three runs")

    odd = dev.read(*listed, "--label", "half=1")
    meant = dev.read("run", "cancel", "--session", "s-2")
    done = dev.read("run", "cancel", "--session", "s-2", "--yes", "--reason", "enough")

    assert [row["run_id"] for row in odd] == ["many-1", "many-3"]
    assert dev.read("run", "list", "--session", "own-2")[0]["sessions"] == ["s-2", "own-2"]
    assert (meant["dry_run"], meant["count"]) == (True, 3)
    assert {row["status"] for row in done["runs"]} == {"cancelled"}
    dev.refold("run", "cancel", code=2)
    dev.refold("run", "cancel", "many-1", "--session", "s-2", code=2)
