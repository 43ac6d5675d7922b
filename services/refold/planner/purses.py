"""What all runs of a family have taken, as its lane knows them: the budgets that a run counts for."""

from __future__ import annotations

from collections.abc import Callable

from refold.core import events
from refold.core.ids import RunId, child_id, parent_of
from refold.core.planning.verdict import Scope
from refold.core.run.purse import NOTHING, Amount
from refold.core.run.state import RunState


class Purses:
    """Looks into the runs of one lane. `find` gives a run as it will be if what is on its way is accepted."""

    def __init__(self) -> None:
        self.find: Callable[[RunId], RunState | None] = lambda run: None

    def above(self, state: RunState) -> list[Scope]:
        """The budgets that a run counts for, its own first, with what others have taken of each."""
        found: list[Scope] = []
        run: RunState | None = state
        while run is not None and run.purse is not None and not run.over:
            purse = run.purse
            found.append(Scope(run.run_id, purse.limits, purse.since_ms, self._taken(run, but=state)))
            # A run that is told of nobody above counts for nobody: it outlives them, or they count nothing.
            run = self.find(parent_of(run.run_id)[0]) if purse.limits.root else None
        return found

    def _taken(self, run: RunState, *, but: RunState) -> Amount:
        """What a run has taken, and those below it that live, all but one."""
        if run.purse is None:
            return NOTHING
        taken = NOTHING if run.run_id == but.run_id else run.purse.total
        for step, opened in run.open.items():
            if opened.phase != "child":
                continue
            started, child = run.steps[step - 1], child_id(run.run_id, step)
            if isinstance(started, events.ChildStarted) and not started.outlives:
                below = but if child == but.run_id else self.find(child)
                taken = taken.plus(self._taken(below, but=but)) if below is not None else taken
        return taken
