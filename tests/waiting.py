"""Wait for what another process or thread will do: poll a condition, with a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

GIVE_UP_S = 120.0
"""How long anything may take that comes at all: only a test that fails waits so long, however busy the machine is."""

BESIDE_OTHERS = 3.0
"""How much longer things take beside other workers at least: each has a broker and services of its own."""

_POLL_S = 0.02


def eventually(
    condition: Callable[[], T | Literal[False] | None],
    *,
    within: float = GIVE_UP_S,
    what: str = "",
    every: float = _POLL_S,
) -> T:
    """Return the first truthy answer of the condition.

    **Units**: `within` and `every` in seconds; the latter is how long it waits between two looks, and as long as a
    look has taken at least, up to 0.3 s: what is waited for may need this very core. **Raises**: AssertionError, naming
    the last answer, when the time is over.
    """
    begun = time.monotonic()
    pause = threading.Event()
    looked = begun
    while not (answer := condition()):
        now = time.monotonic()
        if now > begun + within:
            raise AssertionError(f"{what or condition} still {answer!r} after {within} s")
        pause.wait(max(every, min(now - looked, 0.3)))
        looked = time.monotonic()
    return answer


def busy() -> float:
    """How much longer than on a machine that does nothing else things take now, by the load of the last minute."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def under_load(seconds: float) -> float:
    """A bound on time for a machine that does nothing else, as it is for one that is as busy as this one is now.

    Beside other workers that is never idle: their servers may have been started since anybody measured.
    """
    return seconds * max(BESIDE_OTHERS if "PYTEST_XDIST_WORKER" in os.environ else 1.0, busy())
