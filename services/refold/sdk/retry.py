"""How often a call is tried, as authors write it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from refold.core.errors import UsageError
from refold.core.events import RetryPolicy


@dataclass(frozen=True, slots=True)
class Retry:
    """Attempts in all, and the wait in between: `base`, doubled after every attempt, at most `cap`, with jitter.

    **Raises** UsageError when there is not at least one attempt, or a wait is negative.

    **Example**

    >>> Retry(attempts=3, base=timedelta(seconds=1)).policy
    RetryPolicy(attempts=3, base_ms=1000, cap_ms=60000)
    """

    attempts: int = 5
    base: timedelta = timedelta(milliseconds=500)
    cap: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(f"Retry(attempts={self.attempts!r}) never tries", hint="give a whole number from 1 up")
        milliseconds(self.base, "Retry(base=...)")
        milliseconds(self.cap, "Retry(cap=...)")

    @property
    def policy(self) -> RetryPolicy:
        """The same for the wire."""
        return RetryPolicy(self.attempts, milliseconds(self.base, "base"), milliseconds(self.cap, "cap"))


def milliseconds(duration: timedelta, what: str) -> int:
    """A duration for the wire. **Raises** UsageError, naming `what`, when it is no timedelta or negative."""
    if not isinstance(duration, timedelta):
        raise UsageError(f"{what} is {duration!r}, not a timedelta", hint="write timedelta(seconds=...)")
    if duration < timedelta():
        raise UsageError(f"{what} is negative ({duration})", hint="durations start at zero")
    return duration // timedelta(milliseconds=1)
