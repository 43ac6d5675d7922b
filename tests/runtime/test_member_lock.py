"""A member has at most one living process on a machine; its next one knows that the one before is dead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold.core.errors import ConflictError
from refold.engine.runtime.member_lock import lock_member

HOLDS = """
import os, sys
from refold.engine.runtime.member_lock import lock_member
print(lock_member(*sys.argv[1:]), flush=True)
child = os.fork()
if not child: os.setsid()
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@contextmanager
def holder(group: str, member: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A process that has a lock, and a forked child beside it that lives on."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, group, member], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the child reads the end of it, too
        process.wait()


def test_a_name_that_a_living_process_has_is_refused_with_its_pid() -> None:
    with holder("executors", "a") as (_, process), pytest.raises(ConflictError, match=f"process {process.pid} .* is a"):
        lock_member("executors", "a")


def test_the_next_process_after_a_kill_has_the_same_lock_though_a_child_of_the_first_lives() -> None:
    with holder("executors", "b") as (first, process):
        process.kill()
        process.wait()

        assert lock_member("executors", "b") == first


def test_locks_of_other_members_groups_and_machines_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder("executors", "c") as (first, _):
        others = [lock_member("executors", "d"), lock_member("planners", "c")]
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))

        assert len({first, *others, lock_member("executors", "c"), lock_member("executors", "c")}) == 5
