"""What a planner that comes or goes costs the partitions: the longest time without a run that ends, partition by
partition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.engine import APP, Engine

from refold.core.ids import home

IN_FLIGHT = 32
"""Enough that runs of every partition end all the time: the longest pause without any change is under 0.2 s."""

_SETTLE_S = 4.0
_WATCH_S = 5.0


class Coming:
    """A second planner beside that of an engine, under load."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._partitions = engine, engine.settings.partitions
        self._begun: set[bytes] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def measure(self) -> dict[str, Any]:
        """The longest pause of each partition in seconds, the longest first: with nothing, a planner more, one less."""
        self._drive(_SETTLE_S, lambda: None)
        found = {
            "nothing": self._drive(_WATCH_S, lambda: None),
            "planner_added": self._drive(2 * _WATCH_S, self._add),
            "planner_stopped": self._drive(_WATCH_S, self._stop),
        }
        return {name: sorted(pauses, reverse=True) for name, pauses in found.items()}

    def _drive(self, seconds: float, change: Callable[[], None]) -> list[float]:
        """Keeps runs in flight while something changes; the longest pause per partition."""
        client, begun = self._engine.client, time.monotonic()
        last, longest = [begun] * self._partitions, [0.0] * self._partitions
        change()
        while (now := time.monotonic()) - begun < seconds:
            if wanted := IN_FLIGHT - len(self._begun):
                self._begun |= client.start("ten", wanted)
            for run in client.completed(0.005):
                self._begun.discard(run)
                number = home(run.decode(), self._partitions)
                now = time.monotonic()
                longest[number], last[number] = max(longest[number], now - last[number]), now
        return [round(max(so_far, now - at), 2) for so_far, at in zip(longest, last, strict=True)]

    def _add(self) -> None:
        command = [sys.executable, "-m", "refold", "serve", "planner", "--app", APP, "--member", "another"]
        with (self._engine.folder / "another.log").open("wb") as log:
            self._process = subprocess.Popen(command, env=self._engine.environment, stdout=log, stderr=log)

    def _stop(self) -> None:
        assert self._process is not None, "only one that was added is stopped"
        os.kill(self._process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Waits for the end of the second planner."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
