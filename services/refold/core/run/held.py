"""Records in `run-snapshot` that hold a run's code."""

from refold.core.errors import FoldError, MalformedError
from refold.core.ids import HOLD_KEY, RunId
from refold.core.messages import Hold
from refold.core.wire import codec


def held_run(key: bytes | None) -> RunId | None:
    return RunId(key.removeprefix(HOLD_KEY).decode(errors="replace")) if key and key.startswith(HOLD_KEY) else None


def read_hold(run: RunId, value: bytes) -> Hold:
    # An unreadable hold, of a newer version or malformed, still holds its run.
    try:
        return codec.decode(Hold, value)
    except (MalformedError, FoldError):
        return Hold(run, "stalled", "unreadable", "its hold cannot be read by this version")
