"""Small programs to supervise, and a look at which processes live."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")
# Says that it heard SIGTERM, and goes on.
STUBBORN_PROGRAM = """
import signal, time
signal.signal(signal.SIGTERM, lambda *ignored: print("asked", flush=True))
print("deaf", flush=True)
time.sleep(600)
"""
STUBBORN = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    STUBBORN_PROGRAM,
)
# Writes its name into a file on SIGTERM, then leaves in good order.
POLITE = """
import signal, sys, time
def leave(number, frame):
    with open(sys.argv[1], "a") as journal:
        journal.write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(600)
"""


def polite(journal: Path, name: str) -> tuple[str, ...]:
    """Return the command of a program that writes its name into the journal when it is asked to stop."""
    return (sys.executable, "-I", "-S", "-c", POLITE, str(journal), name)


def lives(pid: int) -> bool:
    """Tell whether a process runs: it exists and is no zombie that waits to be reaped."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def gone(*pids: int) -> Callable[[], bool]:
    """Return a condition: none of these processes lives."""
    return lambda: not any(lives(pid) for pid in pids)


def has(path: Path, text: str) -> Callable[[], bool]:
    """Return a condition: the file is there and contains the text."""
    return lambda: path.exists() and text in path.read_text()
