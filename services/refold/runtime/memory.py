"""Memory that a process has freed, and its allocator keeps."""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """The function of glibc; None elsewhere."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Return what is free to the system. Costs some milliseconds."""
    gc.collect()
    if (trim := _trim()) is not None:
        trim(0)
