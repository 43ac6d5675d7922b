"""Limits of concurrent requests, and of requests a minute."""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from refold.core.errors import TransientError

MOST_NAMES = 10_000
"""Names that are cached: a few MiB."""


class BusyError(TransientError):
    """More concurrent requests, or requests a minute, than the gateway serves."""

    code = "busy"


class SharedRoom:
    """Limited number of places, at most half of them for one name. Thread-safe."""

    def __init__(self, most: int, purpose: str) -> None:
        self._most, self._what, self._lock = most, purpose, threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Hold a place. **Raises** BusyError while all places, or the name's share, are taken."""
        with self._lock:
            if self._held.total() >= self._most or self._held[name] >= max(1, self._most // 2):
                raise BusyError(f"too many {self._what} are under way", retry_after=1.0)
            self._held[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[name] -= 1
                self._held += Counter()  # forgets names that hold nothing


class RateLimit:
    """Limit of requests a minute for each name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, name: str, most: int) -> float:
        """Count a request and return 0, or the seconds to wait if the last minute had too many."""
        now = time.monotonic()
        with self._lock:
            times = self._times.setdefault(name, deque())
            self._times.move_to_end(name)
            if len(self._times) > MOST_NAMES:
                self._times.popitem(last=False)
            while times and now - times[0] > 60:
                times.popleft()
            if len(times) >= most:
                return 60 - (now - times[0])
            times.append(now)
            return 0.0
