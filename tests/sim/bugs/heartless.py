"""Bugs in what the runs of a family owe each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from refold.core import events
from refold.core.planning import family
from refold.core.planning.verdict import ChildEnded, Ruling
from refold.core.run import fold
from refold.core.run.state import OpenStep, RunState
from refold.engine.planner.log.outbox import Outbox
from tests.sim.bugs.planting import Bug


def _believes_any_child(state: RunState | None, what: Any) -> Ruling:
    """Takes the end of a child whoever waits for it."""
    if isinstance(what, ChildEnded) and state is not None and not state.over and what.step not in state.outcomes:
        return [events.ChildCompleted(what.step, what.status, what.result, what.failure)]
    return _respond(state, what)


def _settles_what_is_given_up(state: RunState, event: Any, seq: int, at_ms: int) -> None:
    if event.step not in state.open:
        state.open = state.open.set(event.step, OpenStep("child", seq))
    _settled(state, event, seq, at_ms)


_respond, _settled = family.respond, fold._TRANSITIONS[events.ChildCompleted]


def _deaf(state: RunState | None, what: Any) -> Ruling:
    return family.Ignore("not now") if isinstance(what, ChildEnded) else _respond(state, what)  # type: ignore[attr-defined]


def _told_only(kind: type, original: Callable[..., Any]) -> Callable[..., Any]:
    """Does not say that a run is left, where such an event is why."""

    def family_messages(state: RunState, entry: events.Entry) -> Any:
        kept = [event for event in entry.events if not isinstance(event, kind)]
        yield from original(state, replace(entry, events=kept))

    return family_messages


def _without(told: type, original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, entry: [each for each in original(state, entry) if not isinstance(each, told)]


def _at_once(self: Outbox, position: int) -> int:
    return self.emitted.low_water(position)


def _not_before(self: Outbox) -> bool:
    return self.emitted.low_water(self._begun + 1) <= self._begun


def _never_outlives(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda parent, origin: original(parent, replace(origin, outlives=False))


_TRANSITIONS = {**fold._TRANSITIONS, events.ChildCompleted: _settles_what_is_given_up}

HEARTLESS: dict[str, Bug] = {
    "late-child-heard": Bug(
        ("child-given-up",), (("planning.family.respond", _believes_any_child), ("fold._TRANSITIONS", _TRANSITIONS))
    ),
    "child-unheard": Bug(("child",), (("planning.family.respond", _deaf),)),
    "family-debt-forgotten": Bug(("child-eager",), (("Outbox.low_water", _at_once),), ("lost", "die-after")),
    "given-up-child-goes-on": Bug(
        ("child-given-up",),
        (("planning.family.family_messages", _told_only(events.StepGivenUp, family.family_messages)),),
    ),
    "orphans-go-on": Bug(
        ("parent-cancelled",),
        (("planning.family.family_messages", _without(family.ParentEnded, family.family_messages)),),  # type: ignore[attr-defined]
    ),
    "abandoned-with-its-parent": Bug(
        ("child-left",), (("planning.family.waits_for", _never_outlives(family.waits_for)),)
    ),
}
"""By name."""
