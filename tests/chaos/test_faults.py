"""A fault counts only if it was shown to have happened."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from refold.dev import process
from refold.dev.supervisor import Exit
from tests.chaos.faults import ended_by_kill, exit_of, state_of
from tests.waiting import eventually

OLD = Exit("executor-1", 24482, -signal.SIGKILL, timedelta())
NEW = Exit("planner-1", 24482, -signal.SIGKILL, timedelta())
SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")


def test_the_exit_of_an_older_process_with_the_same_pid_proves_nothing() -> None:
    assert exit_of([OLD], "planner-1", 24482) is None
    assert exit_of([OLD, NEW], "planner-1", 24482) is NEW


def test_a_stopped_process_is_told_from_a_running_one(tmp_path: Path) -> None:
    victim = process.spawn(SLEEPER, log=tmp_path / "log")
    before = state_of(victim.pid)

    os.kill(victim.pid, signal.SIGSTOP)

    assert before != "T"
    assert eventually(lambda: state_of(victim.pid) == "T")
    process.kill(victim)


def test_an_end_that_was_no_kill_does_not_count(tmp_path: Path) -> None:
    leaves = process.spawn((sys.executable, "-c", "pass"), log=tmp_path / "log")

    assert not ended_by_kill(leaves, unless=lambda: False, within=20)
