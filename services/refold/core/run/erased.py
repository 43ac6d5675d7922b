"""Runs that were erased: how a marker says so, and what their ids stand for meanwhile.

A marker lies in `run-snapshot` from before the first tombstone of a run until nothing of it lies in any topic. As long
as it does, the run is closed and unknown: nothing that is left of it counts, and its id is not given to another.

What executors claimed of it is erased too, so a record with the digest of the run stays in place of its claims, for
ever: a tool that copies records may repeat one of its orders when the ledger has forgotten the call.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeGuard

from refold.core.errors import FoldError, GoneError, MalformedError
from refold.core.ids import RunId, parse_log_key
from refold.core.messages import RunErased
from refold.core.run.finished import run_digest
from refold.core.wire import codec

HORIZON_KEY = b"erased"
"""The key, in `run-snapshot`, of what an archivist says of all runs at once: those that ended before its time are
erased, nothing of them lies anywhere, and their rows go as well."""

_PREFIX = b"erased/"
_YEAR_10000_MS = 253_402_300_800_000
_CLAIMS_KEY_BYTES = len(_PREFIX) + 32


def erased_key(run: RunId) -> bytes:
    return _PREFIX + run.encode()


def erased_claims_key(run: RunId) -> bytes:
    """The key of the record in place of a run's claims: the digest of its id in hex, no name that a user gave."""
    return _PREFIX + run_digest(run).hex().encode()


def is_erased_claims_key(key: bytes | None) -> TypeGuard[bytes]:
    """True if a record of claims stands in place of those of a run."""
    return key is not None and len(key) == _CLAIMS_KEY_BYTES and key.startswith(_PREFIX)


def erased_run(key: bytes | None) -> RunId | None:
    """The run of a marker's key; None for the key of anything else."""
    return RunId(key[len(_PREFIX) :].decode(errors="replace")) if key and key.startswith(_PREFIX) else None


class Markers:
    """The markers of a partition or of all, fed in order of offset. `runs` has what each says of its run."""

    def __init__(self, records: Iterable[tuple[bytes | None, bytes | None]] = ()) -> None:
        self.runs: dict[RunId, RunErased] = {}
        for key, value in records:
            self.follow(key, value)

    def follow(self, key: bytes | None, value: bytes | None) -> bool:
        """Takes note of a record of `run-snapshot`; false if it is no marker."""
        run = erased_run(key)
        if run is None:
            return False
        self.runs.pop(run, None)
        if value is not None:
            self.runs[run] = read_marker(run, value)
        return True

    def hides(self, key: bytes | None) -> bool:
        """True if a record of the run log is what is left of an erased run."""
        parts = parse_log_key(key) if self.runs else None
        return parts is not None and parts[0] in self.runs


def gone(run: RunId, at_ms: int, file: str) -> GoneError:
    """Return the error of a run that was erased at a time. `file`: where the archive has its copy, empty if nowhere."""
    when = f" at {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if 0 < at_ms < _YEAR_10000_MS else ""
    hint = f"its copy is in {file} of the archive: set REFOLD_ARCHIVE__URL" if file else "no copy of it was kept"
    return GoneError(f"run {run} was erased{when}", hint=hint, file=file)


def read_marker(run: RunId, value: bytes) -> RunErased:
    """Content of a marker. One that cannot be read still marks its run."""
    try:
        return codec.decode(RunErased, value)
    except (MalformedError, FoldError):
        return RunErased(run)
