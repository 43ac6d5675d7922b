"""Runs of an archive. Import it lazily: it needs the extra `archive`."""

import threading
import time
from contextlib import ExitStack, suppress

from refold.console.projections.following import LoggedRuns
from refold.console.projections.projector import Projector
from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import view_in_memory
from refold.core.errors import MalformedError, NotFoundError, UnreachableError
from refold.core.ids import RunId
from refold.core.topics import RUN_LOG
from refold.engine.archive.container import ArchivedRun
from refold.engine.archive.reader import ArchiveReader
from refold.engine.archive.store import ArchiveStore
from refold.engine.ports.tables import ViewReader

LOOKS_S = 10.0
"""Least seconds between two looks for new files in an archive."""


class ArchivedRuns:
    """Reader of archived runs, with the file of each cached. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._archive_store, self._lock = ArchiveStore(url), threading.Lock()
        self._looked_s = float("-inf")
        self._indexed: set[str] = set()
        self._files: dict[RunId, tuple[int, str]] = {}

    def find(self, run: RunId, file: str, opened: ExitStack) -> tuple[str, ViewReader] | None:
        """Return the file, `file` if known, and a view of an archived run, which `opened` closes; or None."""
        if not (file := file or self._file_of(run)):
            return None
        try:
            copy = next((copy for copy in self._archive_store.runs(file) if copy.run_id == run), None)
            return (file, _view_of(copy, opened)) if copy else None
        except NotFoundError:  # it was deleted
            return None
        except MalformedError as error:
            raise UnreachableError(error.message, hint="`refold archive verify` reads all files") from None

    def _file_of(self, run: RunId) -> str:
        """Return the archive's file with the most records of a run, empty for none; new files are seen after 10 s."""
        with self._lock:
            if run not in self._files and time.monotonic() - self._looked_s > LOOKS_S:
                for file in set(self._archive_store.files()) - self._indexed:
                    with suppress(MalformedError, NotFoundError):
                        for line in self._archive_store.index(file):
                            copy = line.records, file
                            self._files[line.run_id] = max(copy, self._files.get(line.run_id, copy))
                    self._indexed.add(file)
                self._looked_s = time.monotonic()
            return self._files.get(run, (0, ""))[1]


def _view_of(run: ArchivedRun, opened: ExitStack) -> ViewReader:
    projection, reader = Shipped(), ArchiveReader(run)
    records = list(reader.scan(RUN_LOG))
    store = opened.enter_context(view_in_memory(Projector.tables_of(projection)))
    end = max(record.offset for record in records) + 1
    Projector(projection, store, LoggedRuns(reader, run.partition)).apply(records, {(RUN_LOG, run.partition): (0, end)})
    return store
