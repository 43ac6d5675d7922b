"""Large values of runs: copied beside the archive, then erased with their runs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from refold.core.errors import BlobError
from refold.core.ids import RunId
from refold.core.run import chain
from refold.core.run.handed import own_pointers
from refold.engine.ports.blobs import Blobs

if TYPE_CHECKING:  # services that open a blob store do without the packages of an archive
    from refold.engine.archive.container import ArchivedRun

COPIES = "/blobs"
"""Folder of copies below the address of an archive."""
MISSING = "blob_missing"
"""Error code of a value that is not in its store."""


def values_behind(run: "ArchivedRun") -> list[str]:
    """Pointers of a run's records to the blob store, without duplicates."""
    read = [chain.read(record.key, record.value) for record in run.records]
    events = [event for item in read if isinstance(item, chain.LogRecord) for event in item.entry.events]
    return list(dict.fromkeys(own_pointers(events)))


class ArchivedBlobs:
    """The blob store, and the store of copies; without `copies` values are erased uncopied."""

    def __init__(self, blobs: Blobs, copies: Blobs | None) -> None:
        self._blobs, self._copies = blobs, copies

    def copy(self, run: "ArchivedRun", *, dry_run: bool = False) -> None:
        """Copy (`dry_run`: read) the values of a run that are not lost. **Raises** UnreachableError, BlobError."""
        if self._copies is None:
            return
        for pointer in values_behind(run):
            try:
                value = self._blobs.get(run.run_id, pointer)
                if not dry_run:
                    self._copies.put(run.run_id, value)
            except BlobError as error:
                if error.fields.get("code") != MISSING:
                    raise

    def erase(self, runs: Iterable[RunId]) -> None:
        """Erase all values of these runs, referenced or not. **Raises** UnreachableError."""
        for run in runs:
            self._blobs.erase(run)
