"""Forks on the gateway: one at a time, each in a process of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from refold.console.gateway.rates import BusyError
from refold.core.errors import UsageError
from refold.lab.forks.report import ForkReport
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import ForkProcess

FORK_S = 60.0
"""Seconds for a fork to load its app, and to run."""

MOST_FORKED = 64 << 20
"""Bytes of a family that a gateway forks: memory has several copies."""


class ForkRoom:
    """Runner of one fork at a time, in a process of its own. `app`: the code to fork with, empty for none."""

    def __init__(self, app: str = "", limit_s: float = FORK_S) -> None:
        self.app, self.limit_s, self._room = app, limit_s, threading.Lock()
        self._process: ForkProcess | None = None

    @contextmanager
    def free(self) -> Iterator[None]:
        """Reserve the only fork of the gateway. **Raises** BusyError while another runs; UsageError without an app."""
        if not self.app:
            hint = "refold serve gateway --app APP, or refold fork where the code is"
            raise UsageError("this gateway has no code to fork with", hint=hint)
        if not self._room.acquire(blocking=False):
            raise BusyError("another fork is running on this gateway", hint="retry when it ends", retry_after=5.0)
        try:
            yield
        finally:
            self._room.release()

    def fork(self, job: ForkJob, setup: ForkSetup) -> ForkReport:
        """Forks a run. **Raises** UsageError for an app that does not load, or an invalid change."""
        self._process = process = ForkProcess(setup, limit_s=self.limit_s)
        try:
            return process.load().fork(job)
        finally:
            process.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
