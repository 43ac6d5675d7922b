"""The wall clock, as records have it."""

import time


def clock_ms() -> int:
    """Now, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
