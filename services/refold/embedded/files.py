"""The cache folder, lock files, and writes that never show halves."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for what can be made again: `REFOLD_CACHE`, or the platform's cache folder."""
    if chosen := os.environ.get("REFOLD_CACHE"):
        return Path(chosen).expanduser().resolve()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refold"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "refold"


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for whoever has it; the kernel frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's content so that a reader sees the old text or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
