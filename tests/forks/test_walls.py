"""The walls of a fork's process against whoever knows Python and C: nothing outside of it changes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT

LANDLOCK = sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, 0, 1)
"""Version of what the kernel refuses for us: files from 1 on, truncation from 3 on, signals from 6 on."""


@pytest.mark.skipif(LANDLOCK < 6, reason="Linux refuses signals to others from 6.12 on")
def test_an_attacker_that_knows_c_changes_nothing_outside_of_its_process(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    before = (tmp_path / "kept").stat()
    with subprocess.Popen(["sleep", "60"]) as victim:
        words = [sys.executable, "-m", "tests.forks.attacker", str(tmp_path), str(victim.pid)]
        said = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True).stdout
        alive = victim.poll() is None
        limits = Path(f"/proc/{victim.pid}/limits").read_text()
        victim.kill()

    after = (tmp_path / "kept").stat()
    tried = dict(line.split(": ") for line in said.splitlines())
    assert len(tried) == 33
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "as it was"
    assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)
    assert alive
    assert "Max cpu time              unlimited" in limits
    unheard = {"fork_exec", "thread", "io_uring"}  # what Python does not report ends with a number of the kernel
    assert {name for name, ended in tried.items() if ended == "ran"} <= unheard | {n for n in tried if n[:2] == "c-"}
