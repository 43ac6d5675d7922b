"""Retries of a call, as authors write them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from refold.core.errors import UsageError
from refold.core.events import RetryPolicy


@dataclass(frozen=True, slots=True)
class Retry:
    """Attempts in all, and the wait in between: `base`, doubled after every attempt, at most `cap`, with jitter.

    With `retry_if` only failures of these codes are tried again: `timeout`, the code of a `NotDone`, or the name of an
    error's class. It does not limit repetitions after an unknown outcome, under the same key. `then="hold"`: after the
    last attempt the call waits for an operator (`refold run resolve`) instead of raising in the agent. **Raises**
    UsageError for less than one attempt, a negative wait, or an unknown word.

    **Example**

    >>> Retry(attempts=3, base=timedelta(seconds=1), retry_if=("timeout",)).policy
    RetryPolicy(attempts=3, base_ms=1000, cap_ms=60000, retry_if=['timeout'], then='raise')
    """

    attempts: int = 5
    base: timedelta = timedelta(milliseconds=500)
    cap: timedelta = timedelta(minutes=1)
    retry_if: tuple[str, ...] = ()
    then: Literal["raise", "hold"] = "raise"

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(f"Retry(attempts={self.attempts!r}) never tries", hint="give a whole number from 1 up")
        milliseconds(self.base, "Retry(base=...)")
        milliseconds(self.cap, "Retry(cap=...)")
        codes = self.retry_if
        if not isinstance(codes, tuple | list) or not all(isinstance(code, str) and code for code in codes):
            raise UsageError(f"Retry(retry_if={codes!r})", hint='give the codes of failures: ("timeout", "busy")')
        if self.then not in ("raise", "hold"):
            raise UsageError(f"Retry(then={self.then!r})", hint='it is "raise" or "hold"')

    @property
    def policy(self) -> RetryPolicy:
        base_ms, cap_ms = milliseconds(self.base, "base"), milliseconds(self.cap, "cap")
        return RetryPolicy(self.attempts, base_ms, cap_ms, list(self.retry_if), self.then)


def milliseconds(duration: timedelta, subject: str) -> int:
    """Convert a duration. **Raises** UsageError if it is no timedelta or negative."""
    if not isinstance(duration, timedelta):
        raise UsageError(f"{subject} is {duration!r}, not a timedelta", hint="write timedelta(seconds=...)")
    if duration < timedelta():
        raise UsageError(f"{subject} is negative ({duration})", hint="durations start at zero")
    return duration // timedelta(milliseconds=1)
