"""Failed runs that go on, on a real platform and from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.terminal import Dev
from tests.waiting import eventually


@contextmanager
def closed(dev: Dev, *runs: str) -> Iterator[None]:
    """Meanwhile nothing can be delivered for these runs."""
    doors = [dev.data / f"closed-{run}" for run in runs]
    for door in doors:
        door.touch()
    yield
    for door in doors:
        door.unlink()


def ended(dev: Dev, run: str, status: str) -> dict[str, Any]:
    """A run that has come to this end."""

    def shown() -> dict[str, Any] | None:
        rows = [row for row in dev.read("run", "list") if row["run_id"] == run]
        return dev.read("run", "show", run) if rows and rows[0]["status"] == status else None

    found: dict[str, Any] = eventually(shown, what=f"{run} {status}")
    return found


def fail(dev: Dev, *runs: str) -> None:
    """Runs that fail at their first delivery."""
    with closed(dev, *runs):
        for run in runs:
            dev.read("run", "start", "parcels", "--id", run)
        for run in runs:
            ended(dev, run, "failed")


def done(dev: Dev, run: str) -> list[str]:
    """The effects of a run, without keys."""
    words = (line.split()[1:] for line in dev.effects(run))
    return [" ".join(found if found[0] == "delivered" else found[:1]) for found in words]


def test_a_failed_run_goes_on_where_it_failed_also_with_another_planner(dev: Dev) -> None:
    fail(dev, "retried-1")
    told = dev.refold("run", "show", "retried-1").stdout
    dev.kill("planner")

    said = dev.read("run", "retry", "retried-1", "--reason", "the door is open")

    assert "refold run retry retried-1" in told
    assert (said["outcome"], said["kept"]) == ("accepted", 2)
    assert ended(dev, "retried-1", "completed")["result"] == 2
    assert done(dev, "retried-1") == ["0", "delivered 0", "1", "delivered 1"]
    assert "is completed: there is nothing to retry" in dev.refold("run", "retry", "retried-1", code=4).stderr
    dev.refold("verify", "--run", "retried-1")


@pytest.mark.long
def test_a_step_is_done_again_with_other_arguments_after_a_look_at_what_that_repeats(dev: Dev) -> None:
    fail(dev, "retried-2")
    edit = ("--from", "1", "--edit", '{"run": "retried-2", "n": 7}')

    asked = dev.refold("run", "retry", "retried-2", *edit, given="n\n", code=1).output
    same = dev.read("run", "show", "retried-2")["status"]
    dev.read("run", "retry", "retried-2", *edit, "--yes")

    assert "step 1 mark (keyed)" in asked
    assert same == "failed"
    shown = ended(dev, "retried-2", "completed")
    assert [line["step"] for line in shown["timeline"] if line["status"] == "left"] == [1, 2]
    assert done(dev, "retried-2") == ["0", "7", "delivered 0", "1", "delivered 1"]


@pytest.mark.long
def test_many_failed_runs_are_shown_first_and_go_on_together(dev: Dev) -> None:
    runs = [f"retried-3-{n}" for n in range(3)]
    fail(dev, *runs)
    meant = ("--agent", "parcels", "--since", "1h")

    would = dev.read("run", "retry", *meant)
    same = {row["status"] for row in dev.read("run", "list") if row["run_id"] in runs}
    did = dev.read("run", "retry", *meant, "--yes")

    assert (would["dry_run"], sorted(row["run_id"] for row in would["runs"])) == (True, runs)
    assert same == {"failed"}
    assert [row["outcome"] for row in did["runs"]] == ["accepted"] * 3
    for run in runs:
        ended(dev, run, "completed")
        assert done(dev, run) == ["0", "delivered 0", "1", "delivered 1"]


@pytest.mark.long
def test_a_run_that_has_missed_its_deadline_gets_another(dev: Dev) -> None:
    dev.read("run", "start", "sleeper", "--id", "retried-4", "--deadline", "1s")
    missed = ended(dev, "retried-4", "failed")

    dev.read("run", "retry", "retried-4", "--deadline", "none")

    assert missed["failure"]["code"] == "deadline"
    assert "refold run retry --deadline" in missed["failure"]["message"]
    ended(dev, "retried-4", "suspended")
    dev.read("run", "cancel", "retried-4", "--reason", "seen")
