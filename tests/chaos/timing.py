"""The verdict on time, by the broker's clock: nothing early, nothing far too late, nothing done for what is over."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.chaos.raw import Fields, History

EARLY_MS = 50
"""Clocks of brokers and the rounding of three numbers."""

STALL_S = 240
"""How long a run may stand still under any faults, and how much later than asked it may wake up. 159 s was seen: of a
`once` call that nobody could settle, for its executor was killed again and again within the lease that it waited."""

AHEAD_MS, BEHIND_MS = 2_000, 90_000
"""How far an entry's own time may lie from when it was appended: a write may be under way for an outage, but nobody
knows the future."""

MOST_REPEATS = 4
"""How often more than it was tried a call may have run that may be repeated: a crash each, and crashes are rare."""

AFTER_MS = 15_000
"""How long after a call was settled a tool may still begin: an executor that was held had claimed it before."""


class Nap(NamedTuple):
    """A sleep that has ended. `founded`: it is counted from an entry of its run.

    **Units**: milliseconds since 1970; `late_ms` is how much later than it should, or could, it ended.
    """

    until_ms: int
    founded: bool
    late_ms: int


def check(history: History) -> tuple[dict[str, list[str]], Counter[str]]:
    """What is wrong with the times of a run, by kind of wrong, and what was counted."""
    wrong: dict[str, list[str]] = {"wrong": [*_dates(history)], "stuck": [*_stalls(history)]}
    counts: Counter[str] = Counter()
    for nap in _naps(history):
        counts["sleeps"] += 1
        if not nap.founded:
            wrong["wrong"].append(f"{history.run} sleeps until {nap.until_ms}, counted from nothing that has happened")
        if nap.late_ms < -EARLY_MS:
            wrong["wrong"].append(f"{history.run} woke up {-nap.late_ms} ms early")
        elif nap.late_ms > STALL_S * 1_000:
            wrong["stuck"].append(f"{history.run} woke up {nap.late_ms} ms late")
    return wrong, counts


def repeats(effect: str, attempts: int, lines: list[Fields]) -> int:
    """How often more than it was tried a call had its effect, where that is allowed at all."""
    return max(0, sum(line["applied"] for line in lines) - attempts) if effect == "pure" else 0


def begun_after(lines: Iterable[Fields], settled_ms: int) -> Fields | None:
    """An effect whose tool began long after the call was settled; None if there is none."""
    return next((line for line in lines if line["at"] * 1_000 - line["waited_ms"] > settled_ms + AFTER_MS), None)


def _dates(history: History) -> Iterable[str]:
    for at_ms, appended in sorted(set(zip(history.times, history.appended, strict=True))):
        if not appended - BEHIND_MS <= at_ms <= appended + AHEAD_MS:
            yield f"an entry of {history.run} is dated {at_ms - appended} ms after it was appended"
            return


def _stalls(history: History) -> Iterable[str]:
    for before, after in zip(history.appended, history.appended[1:], strict=False):
        if after - before > STALL_S * 1_000:
            yield f"{history.run} stood still for {(after - before) / 1_000:.0f} s"


def _naps(history: History) -> Iterable[Nap]:
    begun: dict[int, tuple[int, bool, int]] = {}
    asked_ms = json.loads(history.events[0][1]["input"] or "{}").get("nap_ms") if history.events else None
    moments: set[int] = set()
    for (name, fields), at_ms, appended in zip(history.events, history.times, history.appended, strict=True):
        moments.add(at_ms)  # of code that was held, sleeps are counted from what it has seen late
        if name == "SleepStarted":
            begun[fields["step"]] = (
                fields["until_ms"],
                asked_ms is None or fields["until_ms"] - asked_ms in moments,
                appended,
            )
        elif name == "SleepEnded":
            until_ms, founded, written_ms = begun[fields["step"]]
            yield Nap(until_ms, founded, appended - max(until_ms, written_ms))
