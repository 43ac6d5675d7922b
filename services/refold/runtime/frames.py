"""The user's own lines in a traceback: where a tool, an agent or an app went wrong."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from traceback import FrameSummary

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_STACK = 8_000


def user_frames(error: BaseException) -> list[FrameSummary]:
    """Frames outside Refold, Python and installed packages, the innermost last; may be empty."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith((_OURS, *_LIBRARIES, "<frozen"))]


def user_line(error: BaseException) -> str:
    """File and line of the innermost frame of the user's: `shop/tools.py:14 in refund`; empty if there is none.

    The folders above stay out of it: it goes into the log, and a machine's layout is nobody's business.
    """
    frames = user_frames(error)
    if not frames:
        return ""
    *_, last = frames
    return f"{Path(*Path(last.filename).parts[-2:])}:{last.lineno} in {last.name}"


def stack_of(error: BaseException) -> str:
    """Lines of the user's frames as a traceback prints them, without values."""
    return "".join(traceback.format_list(user_frames(error)))[-_STACK:]
