"""Effect matrix: course of a call after an attempt without result, as in the README, and time of its next attempt."""

from hashlib import blake2b
from typing import Literal, NamedTuple

from refold.core.events import RetryPolicy

REDISPATCH_MS = 10_000
"""Milliseconds past a call's timeout before it is sent again: enough to detect a dead executor."""

_Way = Literal["retry", "doubt", "fail"]


class Course(NamedTuple):
    """Reaction to an attempt without result: `again` if one more is allowed, else `last` (`doubt`: effect possible)."""

    again: _Way
    last: _Way


_REPEAT, _INSIST = Course("retry", "fail"), Course("retry", "doubt")
_FAIL, _DOUBT = Course("fail", "fail"), Course("doubt", "doubt")

# fmt: off
COURSES: dict[str, dict[str, Course]] = {
    # `unknown` is the README's "when the outcome is unknown". The other statuses mean the same for all classes.
    "pure":   {"unknown": _REPEAT, "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
    "keyed":  {"unknown": _INSIST, "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
    "probed": {"unknown": _INSIST, "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
    "once":   {"unknown": _DOUBT,  "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
}
# fmt: on
"""Course of a call by effect class and by the status of its only attempt."""


def course(effect: str, status: str, *, sent_before: bool) -> Course:
    """Course of a call after an attempt. `sent_before`: sent twice, or an earlier attempt may have had its effect."""
    # "It did not happen" covers one order. The claim chain admits no other of `probed` and `once`; a `keyed` call has
    # no chain, and the receiver may have had the key before.
    if sent_before and (effect, status) == ("keyed", "failed"):
        status = "unknown"
    # An executor that refuses authorisation has not read the claim chain: an earlier request may be in progress.
    if sent_before and status == "unauthorised":
        status = "doubt"
    return COURSES.get(effect, COURSES["once"])[status]  # an unknown class counts as the strictest


def is_last_word(effect: str, status: str) -> bool:
    """True if the late report of a superseded executor still counts."""
    # An effect is final, and a doubt is in the claim chain. A `once` call is never claimed twice.
    return status in ("broken", "doubt") or (effect == "once" and status != "unauthorised")


def backoff_ms(policy: RetryPolicy, attempt: int, salt: str) -> int:
    """Wait after attempt n in milliseconds: `base * 2^(n-1)`, at most `cap`, half of it jitter by the salt."""
    # A forged log may contain an attempt below 1: it waits as long as the first.
    full = min(policy.cap_ms, policy.base_ms << min(max(attempt - 1, 0), 30))
    draw = int.from_bytes(blake2b(f"{salt}/{attempt}".encode(), digest_size=4).digest())
    return full // 2 + (full - full // 2) * draw // 2**32
