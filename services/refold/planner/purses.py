"""What all runs of a family have taken, as its lane knows them: the budgets that a run counts for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from refold.core import events
from refold.core.events import Used
from refold.core.ids import RunId, child_id, is_below, parent_of
from refold.core.planning.verdict import Scope
from refold.core.run.purse import NOTHING, Amount
from refold.core.run.state import RunState


class Purses:
    """Looks into the runs of one lane.

    `find` gives a run as it will be if what is on its way is accepted, `unheard` what runs have taken that are over,
    which those above them are about to hear. `windows` gives the limits that it shares with runs of
    other lanes.
    """

    def __init__(self) -> None:
        self.find: Callable[[RunId], RunState | None] = lambda run: None
        self.unheard: Mapping[RunId, Used] = {}
        self.windows: Callable[[RunState, int], Iterable[Scope]] = lambda state, now: ()

    def above(self, state: RunState, now: int) -> list[Scope]:
        """What bounds a run: its own budget, those of the runs above and of windows, with what others took of each."""
        found: list[Scope] = []
        run: RunState | None = state
        while run is not None and run.purse is not None and not run.over:
            purse = run.purse
            taken = self._taken(run, but=state).plus(self._unheard(run))
            found.append(Scope(run.run_id, purse.limits, purse.since_ms, taken))
            # A run that is told of nobody above counts for nobody: it outlives them, or they count nothing.
            run = self.find(parent_of(run.run_id)[0]) if purse.limits.root else None
        return [*found, *self.windows(state, now)]

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
                below = but if child == but.run_id else None if child in self.unheard else self.find(child)
                taken = taken.plus(self._taken(below, but=but)) if below is not None else taken
        return taken

    def _unheard(self, run: RunState) -> Amount:
        """What runs below it have taken that are over, and of which nobody has heard up to this one."""
        taken = NOTHING
        for child, used in self.unheard.items():
            if is_below(child, run.run_id) and not self._told(child, run.run_id):
                taken = taken.plus(Amount(used.tokens, used.nano_usd, used.calls))
        return taken

    def _told(self, child: RunId, top: RunId) -> bool:
        above = child
        while above != top:
            above = parent_of(above)[0]
            state = self.find(above)
            if state is not None and state.purse is not None and child in state.purse.heard:
                return True
        return False
