"""A wall clock that is wrong: Python imports this before anything else when the folder is on PYTHONPATH.

The file that CHAOS_CLOCK names says by how many milliseconds. The monotonic clock stays true, as on a real host.
"""

import os
import time
from pathlib import Path


def _skew() -> None:
    path = Path(os.environ.get("CHAOS_CLOCK", ""))
    by_ns = int(path.read_text()) * 1_000_000 if path.is_file() else 0
    if by_ns:
        true_ns = time.time_ns
        time.time_ns = lambda: true_ns() + by_ns
        time.time = lambda: time.time_ns() / 1e9


_skew()
