"""The effect matrix: what becomes of a call after an attempt without a result. It is the README's table, as code."""

from __future__ import annotations

from typing import Literal, NamedTuple

_Way = Literal["retry", "doubt", "fail"]


class Course(NamedTuple):
    """What is done while another attempt is allowed, and when none is; `doubt` last: the effect may have happened."""

    again: _Way
    last: _Way


_REPEAT, _INSIST = Course("retry", "fail"), Course("retry", "doubt")
_FAIL, _DOUBT = Course("fail", "fail"), Course("doubt", "doubt")

# fmt: off
COURSES: dict[str, dict[str, Course]] = {
    # `unknown` is the README's "when the outcome is unknown". The other words mean the same for all.
    "pure":   {"unknown": _REPEAT, "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
    "keyed":  {"unknown": _INSIST, "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
    "probed": {"unknown": _INSIST, "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
    "once":   {"unknown": _DOUBT,  "failed": _REPEAT, "unauthorised": _FAIL, "broken": _FAIL, "doubt": _DOUBT},
}
# fmt: on
"""What becomes of a call, by its effect class and by what the executor says of the attempt that was the only one."""


def course(effect: str, status: str, *, sent_before: bool) -> Course:
    """The course of a call. `sent_before`: the attempt went out twice, or one before may have had its effect."""
    # "It did not happen" is said of one order. Of `probed` and `once` the claim chain admits no other, of `keyed` it
    # knows nothing: the receiver may have had the key before.
    if sent_before and (effect, status) == ("keyed", "failed"):
        status = "unknown"
    # Who is refused at the gate has not looked into the claim chain: what was sent before may be at work.
    if sent_before and status == "unauthorised":
        status = "doubt"
    return COURSES.get(effect, COURSES["once"])[status]  # a class of a later version is treated as the strictest


def is_last_word(effect: str, status: str) -> bool:
    """True if an executor that was overtaken is still believed, or whoever overtook it is waited for."""
    # What happened has happened, and a doubt stands in the claim chain. A `once` call nobody claims after another.
    return status in ("broken", "doubt") or (effect == "once" and status != "unauthorised")
