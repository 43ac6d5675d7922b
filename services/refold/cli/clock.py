"""Times as people write them on the command line."""

from __future__ import annotations

from datetime import datetime

from refold.core.approval.requirement import duration_ms
from refold.core.errors import UsageError
from refold.runtime.clock import clock_ms


def time_ms(text: str) -> int:
    """A time with its zone. **Raises** UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(f"{text!r} is not a time with a zone", hint="write 2030-01-31T12:00Z")
    return int(moment.timestamp() * 1000)


def until_ms(text: str, option: str) -> int:
    """Until when, as an option says it: a time with its zone, how long from now, or 0: never. **Raises** UsageError."""
    if not text:
        return 0
    return time_ms(text) if "-" in text else clock_ms() + duration_ms(option, text)


def since_ms(text: str) -> int:
    """What --since means: a time with its zone, how long ago that is, or 0 for nothing. **Raises** UsageError."""
    if not text:
        return 0
    return time_ms(text) if "-" in text else clock_ms() - duration_ms("--since", text)
