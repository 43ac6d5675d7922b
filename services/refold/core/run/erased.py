"""Records in `run-snapshot` about single runs: holds of their code, and markers of erased runs. A marker is there from
before the first tombstone of a run until no topic has any record of it; meanwhile its remaining records are void, and
its id is not reused. A record with the run's digest replaces its claims for ever, because a copied order may come again
when the ledger has forgotten the call."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeGuard

from refold.core.errors import GoneError
from refold.core.ids import HOLD_KEY, RunId, parse_log_key
from refold.core.messages import Hold, RunErased
from refold.core.run.finished import run_digest
from refold.core.wire import codec

HORIZON_KEY = b"erased"
"""Key in `run-snapshot` of an archivist's horizon: all runs that ended before its time are completely erased."""

_PREFIX = b"erased/"
_YEAR_10000_MS = 253_402_300_800_000
_CLAIMS_KEY_BYTES = len(_PREFIX) + 32


def erased_key(run: RunId) -> bytes:
    return _PREFIX + run.encode()


def erased_claims_key(run: RunId) -> bytes:
    """Key of the record that replaces an erased run's claims."""
    # A digest: the record stays for ever, and an id may contain a user's name.
    return _PREFIX + run_digest(run).hex().encode()


def is_erased_claims_key(key: bytes | None) -> TypeGuard[bytes]:
    return key is not None and len(key) == _CLAIMS_KEY_BYTES and key.startswith(_PREFIX)


def erased_run(key: bytes | None) -> RunId | None:
    return RunId(key[len(_PREFIX) :].decode(errors="replace")) if key and key.startswith(_PREFIX) else None


class Markers:
    """Erased runs (`runs`), from the markers of one or all partitions of `run-snapshot` in order of offset."""

    def __init__(self, records: Iterable[tuple[bytes | None, bytes | None]] = ()) -> None:
        self.runs: dict[RunId, RunErased] = {}
        for key, value in records:
            self.follow(key, value)

    def follow(self, key: bytes | None, value: bytes | None) -> bool:
        """Read a record of `run-snapshot`; false if it is no marker."""
        run = erased_run(key)
        if run is None:
            return False
        self.runs.pop(run, None)
        if value is not None:
            self.runs[run] = read_marker(run, value)
        return True

    def hides(self, key: bytes | None) -> bool:
        """True for the run-log key of an erased run: its record is void."""
        parts = parse_log_key(key) if self.runs else None
        return parts is not None and parts[0] in self.runs


def gone(run: RunId, at_ms: int, file: str) -> GoneError:
    """Error for a run erased at a time. `file` is its copy in the archive, empty if there is none."""
    when = f" at {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if 0 < at_ms < _YEAR_10000_MS else ""
    hint = f"its copy is in {file} of the archive: set REFOLD_ARCHIVE__URL" if file else "no copy of it was kept"
    return GoneError(f"run {run} was erased{when}", hint=hint, file=file)


def read_marker(run: RunId, value: bytes) -> RunErased:
    # An unreadable marker still marks its run.
    return codec.decode_known(RunErased, value) or RunErased(run)


def held_run(key: bytes | None) -> RunId | None:
    return RunId(key.removeprefix(HOLD_KEY).decode(errors="replace")) if key and key.startswith(HOLD_KEY) else None


def read_hold(run: RunId, value: bytes) -> Hold:
    # An unreadable hold, of a newer version or malformed, still holds its run.
    unreadable = Hold(run, "stalled", "unreadable", "its hold cannot be read by this version")
    return codec.decode_known(Hold, value) or unreadable
