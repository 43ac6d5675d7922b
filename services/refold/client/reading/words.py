"""Texts for terminals and pages: times, durations, names."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from refold.core.planning.windows import DAY_MS

_OF_A_TOOLSET = re.compile(r"(?P<agent>.+?)__[a-z_]+__(?P<toolset>.+)\.call_tool:(?P<tool>.+)")


def moment(at_ms: int) -> str:
    """Time in UTC, in the format of --since; a dash for 0."""
    return _at(at_ms, lambda at: f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z") if at_ms else "-"


def clock(at_ms: int, now_ms: int) -> str:
    """Time in UTC: within a day of now the time alone, else the date and the minute."""
    form = "{:%H:%M:%S}" if abs(now_ms - at_ms) < DAY_MS else "{:%Y-%m-%d %H:%M}"
    return _at(at_ms, form.format) if at_ms else "-"


def in_utc(at_ms: int) -> str:
    return _at(at_ms, "{:%Y-%m-%d %H:%M:%S} UTC".format)


def _at(at_ms: int, show: Callable[[datetime], str]) -> str:
    try:
        return show(datetime.fromtimestamp(at_ms / 1000, UTC))
    # A log may contain any number as a time.
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def duration(ms: int) -> str:
    """Duration in at most two units: `81 ms`, `3.2 s`, `3 m 12 s`, `2 h 5 m`, `3 d 4 h`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    for unit, size, part, below in (("d", DAY_MS, "h", 3_600_000), ("h", 3_600_000, "m", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit} {ms % size // below} {part}"
    return f"{ms // 60_000} m {ms % 60_000 // 1000} s"


def ago(at_ms: int, now_ms: int) -> str:
    """Distance from now in one unit: `now`, `40 s ago`, `2 min ago`, `in 3 h`, `5 d ago`."""
    distance = abs(now_ms - at_ms)
    if distance < 2_000:
        return "now"
    units = ((DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
    phrase = next(f"{distance // size:,} {unit}" for size, unit in units if distance >= size)
    return f"{phrase} ago" if at_ms < now_ms else f"in {phrase}"


def tool_name(name: str) -> str:
    """Short name of a tool: `buyer.buy` for `buyer__function_toolset__<agent>.call_tool:buy` of pydantic-ai."""
    if match := _OF_A_TOOLSET.fullmatch(name):
        toolset = "" if match["toolset"] == "<agent>" else f"{match['toolset']}."
        return f"{match['agent']}.{toolset}{match['tool']}"
    return name


def with_ellipsis(text: str, limit: int) -> str:
    """Cut a text for display to `limit` characters, with an ellipsis; 0 means no limit."""
    return text if not limit or len(text) <= limit else f"{text[: limit - 1]}…"
