"""Limits of a gateway: times and sizes, concurrent requests, and requests a minute."""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from refold.core.errors import TransientError


@dataclass(eq=False)
class GatewayLimits:
    """Clock, times and sizes that the parts of a gateway share. They are no settings; tests take shorter ones."""

    clock: Callable[[], float] = time.time
    """Seconds since 1970, by which logins expire."""
    body_s: float = 10.0
    """Seconds for the whole body of a request."""
    wait_s: float = 2.0
    """Seconds that a read waits for a write."""
    kept_bytes: int = 32 << 20
    """Bytes of cached runs: three of 5,000 events, or hundreds of usual ones."""
    failed_s: float = 0.5
    """Seconds until a failed login is answered."""
    failing: int = 256
    """Failed logins that wait for their answer; a further one gets 429 at once."""
    names: int = 10_000
    """Names whose requests are counted: a few MiB."""
    recheck_s: float = 5.0
    """Seconds between checks of a stream's login."""
    jwks_bytes: int = 256 << 10
    refetch_s: float = 30.0
    """Least seconds between fetches of a provider's keys, whatever keys tokens name."""
    jwks_fresh_s: float = 600.0
    jwks_kept_s: float = 3_600.0
    """Seconds for which keys count while the provider is away: withdrawn ones count no longer."""
    streams: int = 1_000
    """Streams of a process. One actor has half of them."""
    early: int = 64
    """Streams of a process whose run the view lacks. One actor has half of them."""
    early_s: float = 10.0
    """Seconds that such a stream waits for its run."""
    parts_bytes: int = 1 << 20
    """Bytes of live parts that wait for a slow client."""
    news_s: float = 0.05
    """Seconds between looks of the streams' watch at the view."""
    look_entries: int = 500
    """Entries of a partition that a look reads; with more of them all streams are woken."""
    slow_s: float = 5.0
    """Seconds between looks at all followed runs: an erased run has no entries."""
    heartbeat_s: float = 15.0
    away_s: float = 1.0
    """Seconds that a stream waits while the database is away."""


DEFAULT_LIMITS = GatewayLimits()


class BusyError(TransientError, code="busy"):
    """More concurrent requests, or requests a minute, than the gateway serves."""


class SharedRoom:
    """Limited number of places, at most half of them for one name. Thread-safe."""

    def __init__(self, most: int, purpose: str) -> None:
        self._most, self._purpose, self._lock = most, purpose, threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Hold a place. **Raises** BusyError while all places, or the name's share, are taken."""
        with self._lock:
            if self._held.total() >= self._most or self._held[name] >= max(1, self._most // 2):
                raise BusyError(f"too many {self._purpose} are under way", retry_after=1.0)
            self._held[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._held[name] -= 1
                self._held += Counter()  # forgets names that hold nothing


class RateLimit:
    """Limit of requests a minute for each name. Thread-safe."""

    def __init__(self, names: int = DEFAULT_LIMITS.names) -> None:
        self._lock, self._names = threading.Lock(), names
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, name: str, most: int) -> float:
        """Count a request and return 0, or the seconds to wait if the last minute had too many."""
        now = time.monotonic()
        with self._lock:
            times = self._times.setdefault(name, deque())
            self._times.move_to_end(name)
            if len(self._times) > self._names:
                self._times.popitem(last=False)
            while times and now - times[0] > 60:
                times.popleft()
            if len(times) >= most:
                return 60 - (now - times[0])
            times.append(now)
            return 0.0
