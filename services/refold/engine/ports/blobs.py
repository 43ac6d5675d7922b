"""Store of large values, by run and digest."""

from typing import Protocol

from refold.core.ids import RunId


class Blobs(Protocol):
    """A blob store. Methods block, for any thread. **Raises** UnreachableError during an outage: retry."""

    def put(self, run: RunId, text: str) -> str:
        """Store a text for a run and return its pointer. The text is durable on return."""

    def get(self, run: RunId, pointer: str) -> str:
        """Return the text of a run's pointer. **Raises** BlobError if it is missing, altered or too long."""

    def erase(self, run: RunId) -> int:
        """Delete all values of a run; return their number."""
