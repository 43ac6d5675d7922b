"""Children end with their group, and never outlive the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from refold.core.errors import UsageError
from refold.dev import process
from tests.embedded.processes import SLEEPER, STUBBORN, gone, has, lives
from tests.waiting import eventually

PARENT = """
import sys, time
from pathlib import Path
from refold.dev.process import spawn
child = spawn(sys.argv[2:], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_a_child_dies_with_a_parent_that_was_killed_with_sigkill(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), *SLEEPER], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    eventually(lambda: Path(f"/proc/{child}/cmdline").read_bytes().count(b"launch.py") == 0)

    parent.kill()
    parent.wait()
    parent.stdout.close()

    eventually(gone(child))


def test_output_goes_to_the_log_and_is_appended(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"

    for word in ("first", "second"):
        assert process.spawn((sys.executable, "-c", f"print({word!r})"), log=log).wait() == 0

    assert process.tail(log) == "first\nsecond"


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = process.spawn(STUBBORN, log=log)
    eventually(has(log, "deaf"))

    process.end(child, grace=timedelta(milliseconds=50))

    assert child.returncode == -signal.SIGKILL


def test_a_suspended_child_can_be_stopped(tmp_path: Path) -> None:
    child = process.spawn(SLEEPER, log=tmp_path / "log")
    os.kill(child.pid, signal.SIGSTOP)

    process.end(child, grace=timedelta(seconds=10))

    assert child.returncode == -signal.SIGTERM


def test_killing_a_child_ends_what_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = process.spawn((sys.executable, "-c", FAMILY), log=log)
    grandchild = int(eventually(lambda: process.tail(log)))
    assert lives(grandchild)

    process.kill(child)

    eventually(gone(child.pid, grandchild))


def test_an_unknown_command_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such command: refold-no-such-thing"):
        process.spawn(("refold-no-such-thing",), log=tmp_path / "log")

    assert not (tmp_path / "log").exists()
