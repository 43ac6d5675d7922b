"""Cache folder, lock files and atomic writes."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from refold.core.errors import ConflictError


def cache_dir() -> Path:
    if chosen := os.environ.get("REFOLD_CACHE"):
        return Path(chosen).expanduser().resolve()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refold"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "refold"


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for its holder; the kernel frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomic(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file's content in one step. `mode` is for a new file, less the umask."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # The mode before the content, which others could read until a later chmod.
        draft.touch(mode)
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a failed write does not say where
        raise


class FolderLock:
    """Exclusive right to run on a folder; the kernel frees it when the holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: TextIO | None = None

    def acquire(self) -> None:
        """Take the lock without waiting. **Raises** ConflictError with the pid of the holder."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # "w" would delete the pid of a living holder, which the error names.
        handle = self._path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            handle.close()
            raise ConflictError(
                f"process {holder} already runs on {self._path.parent}",
                hint="stop it, or choose another folder",
                pid=holder,
                folder=str(self._path.parent),
            ) from error
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._handle = handle

    def holder(self) -> int:
        """Pid of the holder, 0 if none."""
        return int(self._path.read_text() or 0) if self.is_held() else 0

    def is_held(self) -> bool:
        try:
            with self._path.open() as handle:
                # Shared: two exclusive looks at once would take each other for the holder.
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def is_own(self) -> bool:
        """True if this process has the lock, and its file was not deleted or replaced since."""
        try:
            return self._handle is not None and os.path.samestat(os.fstat(self._handle.fileno()), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None
