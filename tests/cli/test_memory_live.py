"""Agents in memory on a real platform whose processes are killed, ended and told to stop in their middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.terminal import Dev
from tests.waiting import eventually

TWO_ENTRIES = 2


@contextmanager
def held(dev: Dev, run: str, n: int) -> Iterator[None]:
    """While it lasts, this tool of the run stands still."""
    hold = dev.data / f"hold-{run}-{n}"
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def status(dev: Dev, run: str) -> str:
    """What the log says of a run."""
    return str(next((row["status"] for row in dev.read("run", "list") if row["run_id"] == run), ""))


def test_a_run_in_memory_is_two_entries_and_shown_as_what_it_is(dev: Dev) -> None:
    ended = dev.read("run", "start", "looks", "--id", "looks-1", "--input", '{"count": 10}', "--wait")

    shown = dev.read("run", "show", "looks-1")

    assert ended["result"] == sum(range(1, 11))
    assert (shown["entries"], shown["steps"]) == (TWO_ENTRIES, 1)
    assert shown["timeline"][0]["name"] == "agent:looks"
    assert "its own calls are not in the log" in dev.refold("run", "show", "looks-1").output
    assert set(shown["manifest"]) >= {"code", "tools", "py"}
    assert shown["version"].startswith(shown["manifest"]["code"])


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_executor_that_ends_in_the_middle_loses_nothing_but_what_was_in_memory(
    dev: Dev, how: signal.Signals
) -> None:
    run = f"looks-{how.name}"
    with held(dev, run, 1):
        dev.read("run", "start", "looks", "--id", run)
        eventually(lambda: f"{run} looked 1" in dev.effects(run))
        before = dev.pid("executor-default") if "executor-default" in dev.state["processes"] else dev.pid("executor")

        os.kill(before, how)
        eventually(lambda: dev.effects(run).count(f"{run} looked 1") == 2)

    ended = eventually(lambda: status(dev, run) == "completed" and dev.read("run", "show", run))
    assert ended["result"] == 1 + 2 + 3
    assert ended["entries"] == TWO_ENTRIES
    assert dev.effects(run).count(f"{run} looked 0") == 2
    assert [attempt["number"] for attempt in ended["timeline"][0]["attempts"]] == [1]


def test_a_cancelled_run_stops_what_it_calls(dev: Dev) -> None:
    with held(dev, "looks-2", 1):
        dev.read("run", "start", "looks", "--id", "looks-2")
        eventually(lambda: "looks-2 looked 1" in dev.effects("looks-2"))

        dev.refold("run", "cancel", "looks-2")

        eventually(lambda: "looks-2 stopped 1" in dev.effects("looks-2"))
        eventually(lambda: status(dev, "looks-2") == "cancelled")
    assert "looks-2 looked 2" not in dev.effects("looks-2")


def test_what_takes_longer_than_it_may_fails(dev: Dev) -> None:
    with held(dev, "brief-1", 0):
        dev.read("run", "start", "brief", "--id", "brief-1")
        eventually(lambda: status(dev, "brief-1") == "failed")
        eventually(lambda: "brief-1 stopped 0" in dev.effects("brief-1"))

    failure = dev.read("run", "show", "brief-1")["failure"]
    assert (failure["code"], failure["message"]) == ("timeout", "no answer within 1000 ms")
