"""Confines paths to one folder, even while other processes move files: each name is opened relative to its open folder,
and no link is followed."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from refold.core.errors import NotDone, TerminalError, UsageError

NAME_BYTES, DEEPEST, LONGEST = 200, 32, 1_000
"""Bytes of a name (systems take 255, and a draft has a suffix), depth of folders, characters of a path."""
LOCKED_S = 10.0
"""Longest wait for another write, which takes milliseconds unless its process or disk hangs."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Not blocking: opening a pipe in place of a file would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LINKED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)

Parts = tuple[str, ...]


class Jail:
    """Folder of file tools; `hidden` permits names that begin with a dot. **Raises** UsageError on other systems."""

    def __init__(self, root: Path, *, hidden: bool) -> None:
        if os.open not in os.supports_dir_fd or os.scandir not in os.supports_fd:
            raise UsageError("file tools need a system that opens files relative to folders", hint="use Linux or macOS")
        self._root, self._hidden = root, hidden

    def parts(self, path: str) -> Parts:
        """Names of a path, from the folder down; empty for the folder itself. **Raises** TerminalError."""
        if path.startswith("/") or "\0" in path or len(path) > LONGEST:
            raise TerminalError(f"{path[:200]!r} is not below the folder", hint="give a path relative to it")
        names = tuple(name for name in path.split("/") if name not in ("", "."))
        if len(names) > DEEPEST:
            raise TerminalError(f"{path[:200]!r} is more than {DEEPEST} folders deep")
        for name in names:
            if name == ".." or not self.shows(name):
                raise TerminalError(f"{path[:200]!r} is not to be used", hint=f"no path has a name like {name[:50]!r}")
        return names

    def shows(self, name: str) -> bool:
        """True if paths may have this name: short, no first dot unless `hidden`, printable (others may look alike)."""
        return (
            name.isprintable()
            and len(name.encode(errors="replace")) <= NAME_BYTES
            # Keys, settings and hooks of version control, which other programs execute.
            and (self._hidden or not name.startswith("."))
        )

    @contextmanager
    def folder(self, parts: Parts, *, make: bool = False, above: int | None = None) -> Iterator[int]:
        """Descriptor of a folder, below the open one `above` or the root; `make` creates missing ones. **Raises**
        TerminalError, NotDone."""
        opened = self._open_root() if above is None else os.dup(above)
        try:
            for name in parts:
                inner = self._open_inner(opened, name, make=make)
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)

    def _open_root(self) -> int:
        try:
            return os.open(self._root, _FOLDER)
        except OSError as error:  # it may be mounted in a moment
            raise NotDone(f"the folder of these tools cannot be opened: {error.strerror}") from None

    def _open_inner(self, opened: int, name: str, *, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=opened)
                os.fsync(opened)
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=opened)
        except OSError as error:
            raise _refusal(name, error) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writes of these tools. **Raises** NotDone after `LOCKED_S`."""
        opened, begun = self._open_root(), time.monotonic()
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() - begun > LOCKED_S:
                    raise NotDone(f"another write has the folder for {LOCKED_S:g} s")
                time.sleep(0.01)
            yield
        finally:
            os.close(opened)  # which unlocks


def read_below(folder: int, name: str, most: int) -> tuple[bytes, int]:
    """Content and mode of a file in an open folder. **Raises** TerminalError for links, long and special files."""
    try:
        # Opening a device may have an effect: the kind is checked by name first, and again when it is open.
        _check_ordinary(name, os.stat(name, dir_fd=folder, follow_symlinks=False))
        opened = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise _refusal(name, error) from None
    with os.fdopen(opened, "rb") as file:
        status = os.fstat(opened)
        _check_ordinary(name, status)
        data = file.read(most + 1) if status.st_size <= most else b""
        if status.st_size > most or len(data) > most:
            raise TerminalError(f"{name!r} has more than {most:,} bytes", hint="it is too large for this tool")
    return data, stat.S_IMODE(status.st_mode)


def _check_ordinary(name: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TerminalError(f"{name!r} is no ordinary file", hint="links are not followed")


class MissingError(TerminalError):
    """Error for a path at which there is no file or folder."""


def _refusal(name: str, error: OSError) -> TerminalError:
    """Error for a path that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return MissingError(f"there is no {name!r}", hint="list the folder")
    if error.errno in _LINKED:
        return TerminalError(f"{name!r} is a link, or not what the path takes it for", hint="links are not followed")
    return TerminalError(f"{name!r} cannot be opened: {error.strerror}")
