"""Errors of users' code as data, with its own lines of their tracebacks."""

import sysconfig
import traceback
from itertools import islice
from pathlib import Path
from traceback import FrameSummary

from refold.core.errors import CallFailed, NonDeterminismError, RefoldError, text_of
from refold.core.events import Failure

_NOBODYS = (str(Path(__file__).parents[1]), "<frozen")
_PACKAGES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}, *_PACKAGES)
_STACK = 8_000
MOST_FRAMES = 10


def user_frames(error: BaseException) -> list[FrameSummary]:
    """Frames outside Refold, Python and packages, innermost last; without any, frames of packages."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOBODYS)]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    # The app itself may be an installed package.
    return own or [frame for frame in frames if frame.filename.startswith(_PACKAGES)]


def user_line(error: BaseException, *, inner: str = "") -> str:
    """Files and lines of the user's frames, innermost first, one per line: `shop/tools.py:14 in refund`; may be empty.
    `inner`, the line of the failure that the error reports, takes priority over a line of an installed package."""
    frames = user_frames(error)
    if not frames or (inner and frames[-1].filename.startswith(_PACKAGES)):
        return inner
    # Without parent folders: the text goes into the log, and must not expose a machine's layout.
    lines = (f"{Path(*Path(frame.filename).parts[-2:])}:{frame.lineno} in {frame.name}" for frame in reversed(frames))
    return "\n".join(islice(lines, MOST_FRAMES))


def stack_of(error: BaseException) -> str:
    return "".join(traceback.format_list(user_frames(error)))[-_STACK:]


def failure_of(error: BaseException) -> Failure:
    text = text_of(error)
    if isinstance(error, NonDeterminismError):
        return Failure(error.code, text, f"step {error.fields.get('step')}")
    if isinstance(error, RefoldError):
        code = error.fields.get("code", error.code)
        inner = error.fields.get("detail") if isinstance(error, CallFailed) else ""
        line = user_line(error, inner=inner if isinstance(inner, str) else "")
        return Failure(code if isinstance(code, str) else error.code, text, line)
    return Failure(type(error).__name__, text, user_line(error))
