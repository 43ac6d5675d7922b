"""SIGINT and SIGTERM as an event that the main thread can wait for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from refold.core.errors import UsageError


@contextmanager
def stop_signals(hurry: Callable[[], None]) -> Iterator[threading.Event]:
    """Set the yielded event on the first SIGINT or SIGTERM and call `hurry` on every further one.

    **Raises**: UsageError outside the main thread, where Python takes no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("signals can be awaited in the main thread only")
    asked = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            hurry()
        asked.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
