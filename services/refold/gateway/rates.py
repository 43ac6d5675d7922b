"""Limits on how often somebody may do something."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque

from refold.core.errors import TransientError

MOST_NAMES = 10_000
"""Names that are remembered: a few MiB."""


class BusyError(TransientError):
    """More is asked for at once, or in a minute, than the gateway serves."""

    code = "busy"


class RateLimit:
    """At most so many times a minute, for each name. Any thread may ask. **Units**: seconds."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, name: str) -> float:
        """Count one more time and return 0, or how long to wait if there were too many in the last minute."""
        now = time.monotonic()
        with self._lock:
            times = self._times.setdefault(name, deque())
            self._times.move_to_end(name)
            if len(self._times) > MOST_NAMES:
                self._times.popitem(last=False)
            while times and now - times[0] > 60:
                times.popleft()
            if len(times) >= self._most:
                return 60 - (now - times[0])
            times.append(now)
            return 0.0
