"""Views in a SQLite file, with one writing process and any readers."""

import ctypes
import fcntl
import os
import select
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar

import sqlalchemy as sa

from refold.console.sql.database import Hints, SqlViews
from refold.console.sql.statements import Statements
from refold.core.errors import ConflictError, UnreachableError, UsageError
from refold.core.tables import ViewKey, ViewRow

_WAIT_MS = 5_000
"""Longest wait for a writing process; a batch of 5,000 records takes a tenth of it."""
_PARAMETERS = 900
"""Parameters of a statement: SQLite before 2020 takes 999."""
_IN_ATTRIB = 4
_SETTINGS = (
    f"busy_timeout = {_WAIT_MS}",
    "journal_mode = wal",
    # A transaction that a power failure takes back takes its position back too, and is read again from the log.
    "synchronous = normal",
    # By default the bytes of removed rows stay in the file, and with them erased runs.
    "secure_delete = on",
)


class SqliteViews(SqlViews):
    """Views in SQLite. Beside the file are `-wal`, `-shm`, and a lock for each written projection. Without a file they
    are in memory, for one thread at a time."""

    mark = "?"
    text = sa.Text()
    stillness = "SERIALIZABLE"
    away = "look at its disk and its folder"
    trouble: ClassVar[Hints] = {
        "SQLITE_BUSY": (UnreachableError, "another process writes it: wait, or end that process"),
        "SQLITE_LOCKED": (UnreachableError, "another process writes it: wait, or end that process"),
        "SQLITE_FULL": (UnreachableError, "make room on its disk"),
        "SQLITE_READONLY": (UnreachableError, "let this user write the file and its folder"),
        "SQLITE_CANTOPEN": (UnreachableError, "make its folder, and let this user write there"),
        "SQLITE_NOTADB": (UnreachableError, "move the file away, and build the views anew"),
        "SQLITE_CORRUPT": (UnreachableError, "move the file away, and build the views anew"),
        "SQLITE_CONSTRAINT": (UsageError, "a sum is beyond 64 bits"),
        "SQLITE_TOOBIG": (UsageError, "a row is larger than SQLite takes"),
        "SQLITE_ERROR": (ConflictError, "if its tables were dropped, open the generation in use"),
        "22003": (UsageError, "a sum is beyond 64 bits"),
    }

    def __init__(self, url: sa.URL) -> None:
        self._path = Path(url.database or "").absolute()
        self._changes: IO[bytes] | None = None
        self._locks: dict[str, IO[bytes]] = {}
        self._unclean = True  # a process that ended may have left it so
        # Transactions begin with `_begin`, not where the driver guesses.
        # A database in memory is lost with its connection, so all threads share one.
        shared: Any = {} if url.database else {"poolclass": sa.StaticPool}
        driver = {"isolation_level": None, "check_same_thread": False}
        engine = sa.create_engine(url, hide_parameters=True, connect_args=driver, **shared)
        sa.event.listen(engine, "connect", _set_up)
        sa.event.listen(engine, "begin", _begin)
        super().__init__(url, engine)

    def code(self, error: Any) -> str:
        return str(getattr(error, "sqlite_errorname", ""))

    def cursor(self, connection: sa.Connection, *, streaming: bool = False) -> Any:
        return connection.connection.cursor()

    def find(self, cursor: Any, of: Statements, keys: Collection[ViewKey]) -> Iterator[ViewRow]:
        left = iter(keys)
        while chunk := list(islice(left, _PARAMETERS // of.table.keys)):
            marks, values = ", ".join([of.key_marks] * len(chunk)), [value for key in chunk for value in key]
            cursor.execute(f"{of.select} where ({of.keys}) in (values {marks})", values)
            yield from cursor

    def fill(self, cursor: Any, of: Statements, rows: Collection[ViewRow]) -> None:
        cursor.executemany(of.upsert(f"values {of.row_marks}"), rows)

    def wait(self, timeout_s: float) -> bool:
        if self._changes is None:
            self._changes = _changes_of(self._path)
            return self._changes is not None  # changes before it are not noticed
        poll = select.poll()  # `select` takes no descriptors above 1,023, which a gateway has
        poll.register(self._changes, select.POLLIN)
        poll.poll(timeout_s * 1_000)
        self._changes.read(65_536)
        return True

    def cleanse(self, *, removed: bool) -> None:
        if self._locks:  # after the commit, so that a process that notices it sees the rows
            with suppress(OSError):
                os.utime(self._path)
        # What is overwritten in the file stays in the log of it until that is cut. A reader may hold that up: then a
        # later transaction does it. The one before this is committed, so nothing here may fail.
        self._unclean |= removed
        if self._unclean:
            with suppress(*self._errors), self._engine.connect() as connection:
                raw = self.cursor(connection)
                raw.execute("pragma busy_timeout = 0")
                try:
                    (busy, *_) = raw.execute("pragma wal_checkpoint(truncate)").fetchone()
                    self._unclean = bool(busy)
                finally:
                    raw.execute(f"pragma busy_timeout = {_WAIT_MS}")

    def lock(self, projection: str) -> bool:
        if projection in self._locks:
            return True
        path = self._path.with_name(f"{self._path.name}.{projection}.lock")
        try:
            handle = path.open("wb")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return False
        except OSError as error:
            raise UnreachableError(f"{path} cannot be locked ({error})", hint=self.away, url=self.url) from error
        self._locks[projection] = handle
        return True

    def bytes(self) -> int:
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        super().close()
        for handle in (*self._locks.values(), *filter(None, [self._changes])):
            handle.close()
        self._locks.clear()


def _changes_of(path: Path) -> IO[bytes] | None:
    """Open a stream of inotify events, one for each time that a process sets the times of a file; None without it."""
    library: Any = ctypes.CDLL(None)
    if not hasattr(library, "inotify_init1"):  # macOS
        return None
    number = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if number >= 0 and library.inotify_add_watch(number, bytes(path), _IN_ATTRIB) < 0:
        os.close(number)
        return None
    return os.fdopen(number, "rb", buffering=0) if number >= 0 else None


def _set_up(connection: Any, record: object) -> None:
    for setting in _SETTINGS:
        connection.execute(f"pragma {setting}")


def _begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("refold_writes")
    connection.exec_driver_sql("begin immediate" if writes else "begin")
