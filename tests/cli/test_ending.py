"""A service process that was told to end ends, whatever holds it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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
