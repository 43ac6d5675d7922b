"""Memory that a process has freed and its allocator keeps, and how often it looks for more."""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import Any

COLLECT_AFTER = 50_000
"""New objects per pass of the garbage collector. Imports and reading the log make thousands and no cycles to speak of;
Python's default of 700 spends a third of a fold, and a seventh of all imports, on looking for them."""


@cache
def _trim() -> Any:
    """The function of glibc; None elsewhere."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Return what is free to the system. Costs some milliseconds."""
    gc.collect()
    if (trim := _trim()) is not None:
        trim(0)
