"""A service process that was told to end ends, whatever holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refold.cli.commands.serve.process import CLOSE_S
from tests.cli.terminal import served
from tests.waiting import eventually

HELD = """
import os, signal, time
from refold.cli.commands.serve.process import ends_within
with ends_within(0.3) as asked:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        time.sleep(1)
"""
DONE = """
import os, signal
from refold.cli.commands.serve.process import ends_within
with ends_within(3600) as asked:
    os.kill(os.getpid(), signal.SIGTERM)
    asked.wait()
print(signal.getitimer(signal.ITIMER_REAL)[0])
"""
TOOL = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from refold.cli.commands.serve.process import leave_threads
threads = ThreadPoolExecutor(1)
if {daemon}:
    maker = threading.Thread(target=threads.submit, args=(time.sleep, 3600), daemon=True)
    maker.start()
    maker.join()
else:
    threads.submit(time.sleep, 3600)
print("stopped")
leave_threads()
"""

GRACE_S = 4
APP = """
import asyncio, time
from datetime import timedelta
from pathlib import Path

from refold import App, Context

app = App("sleepers")


@app.tool(effect="once", timeout=timedelta(hours=2))
def sleeps(seconds: float, number: int) -> str:
    (Path(__file__).parent / f"begun-{number}").touch()
    time.sleep(seconds)
    return "slept"


@app.agent
async def sleepers(ctx: Context, seconds: list[float]) -> list[str]:
    return list(await asyncio.gather(*(ctx.call(sleeps, each, number) for number, each in enumerate(seconds))))
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_who_does_not_end_in_time_is_ended_and_says_where_it_stood() -> None:
    ended = run(HELD)

    assert ended.returncode == -signal.SIGALRM
    assert 'File "<string>"' in ended.stderr


def test_who_ends_in_time_is_left_alone() -> None:
    ended = run(DONE)

    assert (ended.returncode, ended.stdout) == (0, "0.0\n")


@pytest.mark.parametrize("daemon", [True, False])
def test_a_tool_in_a_thread_that_nobody_can_interrupt_does_not_keep_its_process(daemon: bool) -> None:
    ended = run(TOOL.format(daemon=daemon))

    assert (ended.returncode, ended.stdout) == (0, "stopped\n")


@pytest.mark.long
def test_an_executor_ends_within_its_grace_beside_tools_that_hang_and_records_what_has_finished(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "app.py").write_text(APP)
    with served(tmp_path / "app.py", tmp_path / "data", REFOLD_EXECUTOR__GRACE_MS=str(GRACE_S * 1_000)) as dev:
        dev.refold("run", "start", "sleepers", "--id", "s-1", "--input", '{"seconds": [3600, 3600, 3600, 2]}')
        eventually(lambda: len(list(tmp_path.glob("begun-*"))) == 4, within=60, what="the tools")
        pid = dev.pid("executor")  # of the one that serves: by now the process in reserve has forked it

        told = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: pid not in dev.state["processes"]["executor"], within=60, what="the end of the executor")

        assert time.monotonic() - told < GRACE_S + CLOSE_S
        assert f'"pid": {pid}, "event": "service.stopped"' in (tmp_path / "data/logs/all.log").read_text()
        steps = dev.read("run", "show", "s-1")["timeline"]
        assert [step["status"] for step in steps] == ["running", "running", "running", "completed"]
        assert [len(step["attempts"]) for step in steps] == [1, 1, 1, 1]
