"""Live forks on a real platform: a run goes on from the history of another one, and is as real as that."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.cli.conftest import APP
from tests.cli.terminal import Dev
from tests.waiting import eventually


def ended(dev: Dev, run: str, status: str = "completed") -> dict[str, Any]:
    """A run that has come to this end."""

    def shown() -> dict[str, Any] | None:
        rows = [row for row in dev.read("run", "list", "--limit", "500") if row["run_id"] == run]
        return dev.read("run", "show", run) if rows and rows[0]["status"] == status else None

    found: dict[str, Any] = eventually(shown, what=f"{run} {status}")
    return found


def done_at(dev: Dev, run: str, step: int) -> int:
    """The last event of the entry in which a step of a run has its outcome."""
    told = dev.lines("run", "events", run)
    done = next(each for each in told if each["type"] == "CallCompleted" and each["event"]["step"] == step)
    return max(int(each["seq"]) for each in told if each["offset"] == done["offset"])


@pytest.fixture(scope="module")
def source(dev: Dev) -> str:
    """Give the id of a run that has left four marks."""
    dev.refold("run", "start", "marks", "--id", "forksource-1", "--input", '{"count": 4}', "--wait")
    return "forksource-1"


def test_a_live_fork_does_the_rest_again_and_nothing_of_what_it_keeps(dev: Dev, source: str) -> None:
    at = str(done_at(dev, source, 2))
    fork = ("fork", source, "--at", at, "--live")

    asked = dev.refold(*fork, given="n\n", code=1).output
    before = len(dev.effects(source))
    answer = dev.read(*fork, "--yes", "--reason", "once more")

    assert f"keeps {source} up to event {at}" in asked
    assert "made once more if the code asks for them: step 3 mark (keyed), step 4 mark (keyed)" in asked.replace(
        "\n", " "
    )
    assert before == 4
    shown = ended(dev, answer["run_id"])
    assert answer["outcome"] == "accepted"
    assert shown["forked"]["run_id"] == source
    assert shown["forked"]["reason"] == "once more"
    assert [line.split()[1] for line in dev.effects(source)] == ["0", "1", "2", "3", "2", "3"]
    dev.refold("verify", "--run", answer["run_id"])
    dev.refold("replay", answer["run_id"], "--app", str(APP))
    kept = dev.read("why", f"{answer['run_id']}/{done_at(dev, source, 1)}")
    assert {link["run_id"] for link in kept["links"]} == {source}, "the effect is that of the source"


def test_a_planner_may_be_killed_at_any_moment_of_a_fork(dev: Dev, source: str) -> None:
    at, before = str(done_at(dev, source, 3)), len(dev.effects(source))
    names = []
    for _ in range(6):
        answers = [dev.read("fork", source, "--at", at, "--live", "--yes", "--timeout", "60")]
        os.kill(dev.pid("planner"), signal.SIGKILL)
        names += [answer["run_id"] for answer in answers]

    shown = [ended(dev, name) for name in names]

    assert [row["result"] for row in shown] == [4] * 6
    assert len(dev.effects(source)) == before + 6, "each has left its last mark, and once"
    for name in (source, *names):  # alone: other files leave records with other bytes on this platform
        dev.refold("verify", "--run", name)


def test_people_are_asked_anew_about_a_call_of_a_fork(dev: Dev) -> None:
    dev.refold("run", "start", "cleaner", "--id", "forkasked-1")
    (first,) = eventually(lambda: [each for each in dev.read("approval", "list") if each["run_id"] == "forkasked-1"])
    seq = dev.read("run", "show", "forkasked-1")["seq"]

    name = dev.read("fork", "forkasked-1", "--at", str(seq), "--live", "--yes")["run_id"]
    (second,) = eventually(lambda: [each for each in dev.read("approval", "list") if each["run_id"] == name])
    dev.refold("approval", "reject", first["approval"], "--message", "not today")
    ended(dev, "forkasked-1", "failed")

    assert second["approval"].startswith(f"{name}/")
    assert dev.read("run", "show", name)["status"] == "suspended", "the word was about another call"
    dev.refold("approval", "approve", second["approval"])
    ended(dev, name)


def test_a_live_fork_that_cannot_be_says_why(dev: Dev, source: str) -> None:
    over = dev.read("run", "show", source)["seq"]

    def refused(*words: str, code: int = 2) -> str:
        return dev.refold("fork", *words, "--live", "--yes", code=code).stderr

    assert "--at SEQ" in refused(source)
    assert "had ended" in refused(source, "--at", str(over), code=4)
    assert "is for a fork that nothing comes of" in refused(source, "--at", "5", "--result", "3=1")
    assert "was asked for before the cut" in refused(source, "--at", "9", "--edit-call", '1={"n":1}')
    assert "is the id of a child" in refused(source, "--at", "9", "--as", "x.1")
    assert "next step alone" in refused(source, "--at", "9", "--edit-call", '4={"n":1}')
    assert "there is no run" in refused("nobody", "--at", "9", code=3)
    assert "needs code" in dev.refold("fork", source, code=2).stderr
