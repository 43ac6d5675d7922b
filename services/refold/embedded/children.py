"""One supervised process: what to run, whether it lives, and how long to wait before it is started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from refold.embedded import process
from refold.embedded.process import Process

# A child that lived this long was well: its next death is a first one. Shorter lives in a row are a crash
# loop, whose pauses double from 0.1 s to 5 s, so that a broken service costs a start every 5 s and not a
# core.
_WELL_AFTER_S = 2.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True)
class Child:
    """A process to keep alive. Several may share a name; a higher rank is stopped earlier."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] | None = None
    rank: int = 0
    grace: timedelta = timedelta(seconds=10)


@dataclass(frozen=True)
class Exit:
    """A child ended without being asked to; it starts again after the pause.

    **Units**: `code` is the exit status, negative for the number of the signal that ended it.
    """

    name: str
    pid: int
    code: int
    pause: timedelta


class Slot:
    """A child's place under the supervisor: its living process, or the moment at which it is due again."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: Process | None = None
        self.due: float | None = time.monotonic()
        self.started = threading.Event()
        self.starts = 0
        self._born = 0.0
        self._short_lives = 0

    def start(self, report_end: Callable[[Slot], None]) -> None:
        """Start the process; `report_end` is called from another thread when it is over."""
        self.due = None
        try:
            running = process.spawn(self.child.argv, log=self.child.log, env=self.child.env)
        except OSError:  # no room for a log, no memory for a process: that may pass
            self._short_lives += 1
            self.due = time.monotonic() + _LONGEST_PAUSE_S
            return
        self.process = running
        self.starts += 1
        self.started.set()
        self._born = time.monotonic()

        def wait() -> None:
            running.wait()
            report_end(self)

        threading.Thread(target=wait, name=f"wait-{self.child.name}", daemon=True).start()

    def ended(self) -> Exit | None:
        """Tell what happened if the process has died by itself, and set the time of its restart."""
        dead = self.process
        if dead is None or dead.poll() is None:
            return None
        process.kill(dead)
        short = time.monotonic() - self._born < _WELL_AFTER_S
        self._short_lives = self._short_lives + 1 if short else 0
        # None after a good life or a first short one.
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (self._short_lives - 2)) if self._short_lives > 1 else 0.0
        self.process, self.due = None, time.monotonic() + pause
        return Exit(self.child.name, dead.pid, dead.returncode, timedelta(seconds=pause))

    def kill(self, *, due: float | None) -> None:
        """Kill the process with all that it started, and set when it is due again, if ever."""
        if self.process is not None:
            process.kill(self.process)
        self.process, self.due = None, due

    @property
    def lives(self) -> bool:
        """Whether a process is there and has not ended."""
        return self.process is not None and self.process.poll() is None
