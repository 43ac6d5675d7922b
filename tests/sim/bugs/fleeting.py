"""Bugs of runs that go on with a new history: it never begins, lacks something, or nobody reaches it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refold.core.events import Continued, Entry, Event, RunContinued
from refold.core.ids import RunId
from refold.core.run.state import RunState
from tests.sim.bugs.planting import Bug, wrapped


def _nothing(_: RunState) -> list[Any]:
    return []


def _never(*_: Any) -> bool:
    return False


def _to_nothing(before: RunState) -> Continued:
    return Continued(b"", b"")


def _as_written(_: Any, run: RunId) -> RunId:
    return run


def _forgets_the_next(settled: Any) -> Any:
    def follow(family: Any, after: RunState, entry: Entry, offset: int) -> None:
        others: list[Event] = [event for event in entry.events if not isinstance(event, RunContinued)]
        settled(family, after, replace(entry, events=others), offset)

    return follow


FLEETING: dict[str, Bug] = {
    "generation-never-begun": Bug(
        ("generations",), (wrapped("engine.Family.settled", _forgets_the_next),), ("die", "lost")
    ),
    "generation-without-its-signals": Bug(("generations-early",), (("generations.first_events", _nothing),)),
    "generation-unlinked": Bug(("generations",), (("generations.link", _to_nothing),)),
    "plain-name-is-the-first": Bug(("generations",), (("Acceptance.addressed", _as_written),)),
    "taken-by-two-generations": Bug(("generations-again",), (("generations.has_taken", _never),)),
}
