"""Bugs of a fork: something follows of what it keeps, or it goes on with what is its source's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from refold.core import events
from refold.core.planning import copying
from refold.core.planning.verdict import Rules
from refold.core.run.fold import _TRANSITIONS
from refold.core.run.state import RunState
from refold.engine.planner.deciding.decide_loop import DecideLoop
from refold.engine.planner.intake.inbox import Pending
from refold.engine.planner.lane import Lane
from tests.sim.bugs.planting import Bug


class TellsOfCopies(Lane):
    """Takes what is kept of another run for the run's own."""

    def accepted(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """See `Lane`."""
        with patch.object(RunState, "copied", lambda *_: False):
            super().accepted(after, entry, offset)


class BillsCopies(Lane):
    """Counts what a source has spent once more."""

    def accepted(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """See `Lane`."""
        if after.copied(entry.last_seq):
            self.log.windows.accepted(entry, after, offset)
        super().accepted(after, entry, offset)


class CopiesOnto(DecideLoop):
    """Copies a history onto whatever a fork is by then."""

    def copy(self, item: Pending, asked: copying.ForkAsked, history: Any, now: int) -> bool:
        """See `DecideLoop`."""
        with patch.object(copying, "lacks_history", lambda *_: True):
            super().copy(item, asked, history, now)
        self._inbox.push([item])
        return True


def _nothing_lacks(state: RunState | None, asked: copying.ForkAsked) -> bool:
    """What there is of a copy is taken for all of it."""
    return state is None


def _key_of_its_source(state: RunState, step: int, rules: Rules) -> str:
    return state.call(step).key


def _open_keys(state: RunState, rules: Rules) -> dict[str, str]:
    """A call that has failed keeps its key."""
    return {str(step): copying._key(state, step, rules) for step in state.open_calls()}


def _nobody(state: RunState) -> Iterator[Any]:
    return iter(())


def _due_as_before(state: RunState, event: events.RunForked, seq: int, at_ms: int) -> None:
    """What waits for time is due when it was in the source."""
    due = {step: opened.due_ms for step, opened in state.open.items()}
    _TRANSITIONS[events.RunForked](state, event, seq, at_ms)
    for step, opened in state.open.items():
        if not state.is_call(step):
            state.open = state.open.set(step, opened._replace(due_ms=due[step]))


def _anything(what: object) -> bool:
    return True


_FORKS = ("forked", "forked-slow", "forked-twice")

FORKED: dict[str, Bug] = {
    "copies-are-told": Bug(_FORKS, (("planner.service.Lane", TellsOfCopies),)),
    "copies-are-billed": Bug(("limit-forked",), (("planner.service.Lane", BillsCopies),)),
    "copied-onto-another-fork": Bug(("forked-waiting",), (("planner.lane.DecideLoop", CopiesOnto),)),
    "half-a-copy-goes-on": Bug(
        ("forked-asleep", "forked-waiting"), (("forking.may_come", _anything),), ("die-after", "die")
    ),
    "half-a-copy-is-all": Bug(
        _FORKS,
        (("forking.lacks_history", _nothing_lacks), ("planner.recovery.lacks_history", _nothing_lacks)),
        ("die-after",),
    ),
    "fork-under-the-keys-of-its-source": Bug(("forked-slow", "forked-once"), (("forking._key", _key_of_its_source),)),
    "failed-under-the-key-of-its-source": Bug(("forked-held",), (("forking._keys", _open_keys),)),
    "fork-without-its-children": Bug(("forked-parent",), (("planning.family._begin_again", _nobody),)),
    "fork-due-as-its-source": Bug(
        ("forked-asleep", "forked-waiting"),
        (("fold._TRANSITIONS", {**_TRANSITIONS, events.RunForked: _due_as_before}),),
    ),
}
"""By name."""
