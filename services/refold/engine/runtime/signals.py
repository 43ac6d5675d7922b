"""SIGINT and SIGTERM as a stop request that the main thread can wait for."""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from refold.core.errors import UsageError

# Longest delay of a signal.
_LOOK_S = 0.2


class StopAsked:
    """Event that a signal handler may set while the same thread waits for it."""

    def __init__(self) -> None:
        self._set = False
        # A threading.Event would deadlock: `set` and `wait` take one lock, and the handler may run within `wait`.
        # SimpleQueue.put may interrupt its own get.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._wake.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds in one thread; return True if a stop was requested."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._set and (rest := _LOOK_S if until is None else until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                # A signal just before the get does not interrupt it: no wait is longer than _LOOK_S.
                self._wake.get(timeout=min(rest, _LOOK_S))
        return self._set


@contextmanager
def stop_signals(
    hurry: Callable[[], None] = lambda: None, *, at_first: Callable[[], object] = lambda: None
) -> Iterator[StopAsked]:
    """Set the yielded event on the first SIGINT or SIGTERM, after `at_first`; call `hurry` on each further one. Both
    run in the signal handler and must take no lock. **Raises** UsageError outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("signals can be awaited in the main thread only")
    stop = StopAsked()

    def on_signal(number: int, frame: FrameType | None) -> None:
        (hurry if stop.is_set() else at_first)()
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
