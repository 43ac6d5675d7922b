"""The user's own lines in a traceback of a tool, an agent or an app."""

from __future__ import annotations

import sysconfig
import traceback
from itertools import islice
from pathlib import Path
from traceback import FrameSummary

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
