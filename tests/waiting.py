"""Wait for what another process or thread will do: poll a condition, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

_POLL_S = 0.02


def eventually(condition: Callable[[], T | Literal[False] | None], *, within: float = 15.0, what: str = "") -> T:
    """Return the first truthy answer of the condition.

    **Units**: `within` in seconds. **Raises**: AssertionError, naming the last answer, when the time is over.
    """
    deadline = time.monotonic() + within
    pause = threading.Event()
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or condition} still {answer!r} after {within} s")
        pause.wait(_POLL_S)
    return answer
