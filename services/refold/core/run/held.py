"""Runs whose code is held: which one a record of `run-snapshot` says it of, and why."""

from __future__ import annotations

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import HOLD_KEY, RunId
from refold.core.messages import Hold
from refold.core.wire import codec


def held_run(key: bytes | None) -> RunId | None:
    """The run of a hold's key; None for the key of anything else."""
    return RunId(key.removeprefix(HOLD_KEY).decode(errors="replace")) if key and key.startswith(HOLD_KEY) else None


def read_hold(run: RunId, value: bytes) -> Hold:
    """Content of a hold. One of a newer version, or of nobody's, holds its run all the same, whatever it says."""
    try:
        return codec.decode(Hold, value)
    except (MalformedError, FoldError):
        return Hold(run, "stalled", "unreadable", "its hold cannot be read by this version")
