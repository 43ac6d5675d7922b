"""Supervised process: command, state and restart pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from refold.dev import process
from refold.dev.process import Process
from refold.engine.runtime.standby import WELL_AFTER_S, deaths_of, pause_s, serving_pid

_NO_ROOM_S = 5.0


@dataclass(frozen=True)
class Child:
    """Process to keep alive; several may share a name, and higher ranks stop first."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] | None = None
    rank: int = 0
    grace: timedelta = timedelta(seconds=10)


@dataclass(frozen=True)
class Exit:
    """Unexpected end of a child, restarted after `pause`. **Units**: `code` is an exit status or minus a signal."""

    name: str
    pid: int
    code: int
    pause: timedelta


class Slot:
    """Supervised child: its living process, or the time of its next start."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: Process | None = None
        self.due: float | None = time.monotonic()
        self.started = threading.Event()
        self.starts = 0
        self._born = 0.0
        self.deaths = self._deaths_seen = self._serving_pid = 0
        self._short_lives = 0

    def start(self, report_end: Callable[[Slot], None]) -> None:
        """Start the process; another thread calls `report_end` at its end."""
        self.due = None
        try:
            running = process.spawn(self.child.argv, log=self.child.log, env=self.child.env)
        except OSError:  # no room for a log, no memory for a process: that may pass
            self._short_lives += 1
            self.due = time.monotonic() + _NO_ROOM_S
            return
        self.process = running
        self.starts += 1
        self.started.set()
        self._born, self._deaths_seen = time.monotonic(), 0

        def wait_and_report() -> None:
            running.wait()
            report_end(self)

        threading.Thread(target=wait_and_report, name=f"wait-{self.child.name}", daemon=True).start()

    def ended(self) -> Exit | None:
        """Exit of a process that died; also sets the time of its restart."""
        dead = self.process
        if dead is None or dead.poll() is None:
            return None
        # Its descendants may live on, and keep its ports.
        process.kill(dead)
        short = time.monotonic() - self._born < WELL_AFTER_S
        self._short_lives = self._short_lives + 1 if short else 0
        pause = pause_s(self._short_lives)  # a broken service costs a start every few seconds, and not a core
        self.process, self.due = None, time.monotonic() + pause
        return Exit(self.child.name, dead.pid, dead.returncode, timedelta(seconds=pause))

    def went_on(self) -> Exit | None:
        """Exit of a forked process that its standby parent has replaced since the last call; None without one."""
        if not self.lives or self.process is None:
            return None
        before, self._serving_pid = self._serving_pid, serving_pid(self.process.pid)
        count, code = deaths_of(self.process.pid)
        new, self._deaths_seen = count - self._deaths_seen, count
        if new <= 0:
            return None
        self.deaths += new
        return Exit(self.child.name, before, code, timedelta(0))

    def kill(self, *, due: float | None) -> None:
        """Kill the process with its descendants; `due` is the time of its restart, if any."""
        if self.process is not None:
            process.kill(self.process)
        self.process, self.due = None, due

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None
