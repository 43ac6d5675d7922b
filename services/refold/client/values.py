"""Large values of runs, loaded for readers and for forks."""

from collections.abc import Callable
from typing import Any

from refold.client.reading.messages import inline_text
from refold.client.reading.model import Pointing
from refold.core.errors import BlobError, MalformedError
from refold.core.events import Failure
from refold.core.ids import RunId, child_id
from refold.core.run.handed import Values, pointers
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.core.wire.blobs import is_pointer, size_of
from refold.engine.ports.blobs import Blobs

MOST_LOADED = 64 << 20
"""Bytes of large values in one answer about a run."""


def values_of(state: RunState, blobs: Blobs | None) -> Values:
    """Load the large values of a run's history, or the reasons of their loss. **Raises** UnreachableError."""
    values: dict[tuple[RunId, str], str | Failure] = {}
    for run, pointer in pointers(state):
        if blobs is None:
            values[run, pointer] = Failure("blob_missing", "no blob store is set: REFOLD_BLOBS__URL")
            continue
        try:
            values[run, pointer] = blobs.get(run, pointer)
        except BlobError as error:
            values[run, pointer] = Failure(error.fields["code"], str(error))
    return values


def in_full(data: Any, run: RunId, blobs: Blobs, step: int = 0) -> Any:
    """Replace pointers in a run's data by their large values; lost ones stay pointers. **Raises** UnreachableError."""
    if isinstance(data, dict):
        step = data.get("step", step)
        return {name: in_full(value, run, blobs, step) for name, value in data.items()}
    if isinstance(data, list):
        return [in_full(element, run, blobs, step) for element in data]
    if isinstance(data, Pointing):
        # Values of a step may be its child's: each is stored under the run that wrote it.
        for owner in (run, child_id(run, step)) if step else (run,):
            try:
                return canonical.parse(blobs.get(owner, data))
            except (BlobError, MalformedError):
                continue
    return data


def texts_of(run: RunId, store: Callable[[], Blobs | None]) -> Callable[[str], str]:
    """Loader of a run's texts, inline or stored. **Raises** UnreachableError; BlobError, also beyond `MOST_LOADED`."""
    left = MOST_LOADED

    def text_of(text: str) -> str:
        nonlocal left
        if not (is_pointer(text) and (blobs := store())):
            return inline_text(text)
        if (left := left - size_of(text)) < 0:
            raise BlobError(f"the large values of this answer have more than {MOST_LOADED:,} bytes", code="too_large")
        return blobs.get(run, text)

    return text_of
