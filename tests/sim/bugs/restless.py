"""Bugs of a pause: something goes on all the same, or never again."""

from __future__ import annotations

from typing import Any

from refold.core.planning import decide
from refold.core.run.state import RunState
from refold.engine.planner.deciding.decide_loop import DecideLoop
from refold.engine.planner.intake import timers
from tests.sim.bugs.planting import Bug, Patch

_due, _moment, _react = decide._timer_due, timers._moment, DecideLoop._react


def _unpaused(state: RunState) -> RunState:
    """The same run, as if nobody had paused it."""
    calm = state.copy()
    calm.paused = ()
    return calm


def _runs_its_code(self: DecideLoop, after: RunState, *given: Any) -> Any:
    """The code is run along whatever comes."""
    pauses, after.paused = after.paused, ()
    reaction = _react(self, after, *given)
    after.paused = pauses
    return reaction


_TIME: tuple[Patch, ...] = (
    ("decide._due", lambda state, *given: _due(_unpaused(state), *given)),
    ("timers._moment", lambda state, step: _moment(_unpaused(state), step)),
)
_OUT: Patch = ("pausing.keep_back", lambda fresh: fresh)

RESTLESS: dict[str, Bug] = {
    "timer-while-paused": Bug(("paused-asleep",), _TIME),
    "retry-while-paused": Bug(("paused-retrying",), (*_TIME, _OUT)),
    "decision-lets-out-while-paused": Bug(("paused-while-people-decide",), (_OUT,)),
    "code-while-paused": Bug(("paused",), (("DecideLoop._react", _runs_its_code),)),
    "child-not-reached": Bug(
        ("paused-parent-retrying",),
        (("planning.family._paused", lambda *_: iter(())), ("Family._otherwise", lambda *_: [])),
    ),
    "kept-back-for-ever": Bug(("paused-while-people-decide",), (("pausing.send", lambda *_, **__: []),)),
}
"""By name."""
