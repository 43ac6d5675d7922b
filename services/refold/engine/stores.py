"""Blob stores of services and commands."""

from refold.engine.adapters.blobs.store import ObjectBlobs
from refold.engine.archive.blobs import COPIES, ArchivedBlobs
from refold.engine.runtime.settings import Settings


def blob_store(settings: Settings) -> ObjectBlobs | None:
    """Open the blob store, if one is set. **Raises** UsageError for an invalid address."""
    part = settings.blobs
    return ObjectBlobs(part.url, most=part.max_bytes) if part.url else None


def archived_blobs(settings: Settings, archive: str) -> ObjectBlobs:
    place, mark, options = archive.partition("?")
    return ObjectBlobs(f"{place.rstrip('/')}{COPIES}{mark}{options}", most=settings.blobs.max_bytes)


def archived_values(settings: Settings, archive: str) -> ArchivedBlobs | None:
    """Open the archivist's store of large values; without `archive` it keeps no copies."""
    blobs = blob_store(settings)
    return ArchivedBlobs(blobs, archived_blobs(settings, archive) if archive else None) if blobs else None
