"""Child processes in groups of their own, with log files, that never outlive this process."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from refold.core.errors import UsageError
from refold.engine.runtime import launch

Process = subprocess.Popen[bytes]


def check_command(argv: Sequence[str]) -> None:
    if shutil.which(argv[0]) is None:
        raise UsageError(f"no such command: {argv[0]}", command=argv[0])


def spawn(argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a child whose output is appended to a log file. **Raises** UsageError if the command does not exist. On
    Linux the child is killed when the *thread* that called this ends: call it from one that lasts. Elsewhere a child
    outlives a parent that was killed with SIGKILL."""
    check_command(argv)
    log.parent.mkdir(parents=True, exist_ok=True)
    # A bare interpreter in place of a preexec_fn, which may deadlock beside threads such as Kafka's.
    launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())] if sys.platform == "linux" else []
    with log.open("ab") as output:
        return subprocess.Popen(
            [*launcher, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            # A Ctrl-C at the terminal reaches only this process, which ends children in order.
            start_new_session=True,
        )


def ask(process: Process) -> None:
    """Ask a child to end, by SIGTERM."""
    process.send_signal(signal.SIGTERM)
    # A suspended process would not handle SIGTERM.
    process.send_signal(signal.SIGCONT)


def end(process: Process, *, grace: timedelta) -> None:
    ask(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace.total_seconds())
    kill(process)


def kill(process: Process) -> None:
    """Kill a child and its descendants, and reap it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def log_bytes(log: Path) -> int:
    """Bytes of a log; 0 if it does not exist."""
    return log.stat().st_size if log.exists() else 0


def logged(log: Path, event: str, since: int) -> bytes | None:
    """First whole line of a log, from a position on, that has an event; None without one."""
    with log.open("rb") as handle:
        handle.seek(since)
        lines = handle.read().split(b"\n")[:-1]
    return next((line for line in lines if f'"event": "{event}"'.encode() in line), None)


def tail(log: Path, lines: int = 15) -> str:
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 8192))
            return "\n".join(handle.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
