"""Where large values lie: by run, and by the digest of their text."""

from __future__ import annotations

from typing import Protocol

from refold.core.ids import RunId


class Blobs(Protocol):
    """A blob store. Methods block, and may be called from any thread.

    **Raises** UnreachableError when nobody can say: ask again.
    """

    def put(self, run: RunId, text: str) -> str:
        """Keeps a text for a run and returns what stands for it. When this returns the text is durable."""
        ...

    def get(self, run: RunId, pointer: str) -> str:
        """The text of a run that a pointer stands for. **Raises** BlobError when it is missing, altered or too long."""
        ...

    def erase(self, run: RunId) -> int:
        """Drops all that is kept for a run; returns how many there were."""
        ...
