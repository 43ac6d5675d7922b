"""Runs that were erased: how a marker says so, and what their ids stand for meanwhile.

A marker lies in `run-snapshot` from before the first tombstone of a run until nothing of it lies in any topic. As long
as it does, the run is closed and unknown: nothing that is left of it counts, and its id is not given to another.
"""

from __future__ import annotations

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import RunId
from refold.core.messages import RunErased
from refold.core.wire import codec

_PREFIX = b"erased/"


def erased_key(run: RunId) -> bytes:
    """The key of a run's marker."""
    return _PREFIX + run.encode()


def erased_run(key: bytes | None) -> RunId | None:
    """The run of a marker's key; None for the key of anything else."""
    return RunId(key[len(_PREFIX) :].decode(errors="replace")) if key and key.startswith(_PREFIX) else None


def read_marker(key: bytes | None, value: bytes) -> RunErased | None:
    """What a marker says; None where the record is not one. One that cannot be read still marks its run."""
    run = erased_run(key)
    if run is None:
        return None
    try:
        return codec.decode(RunErased, value)
    except (MalformedError, FoldError):
        return RunErased(run)
