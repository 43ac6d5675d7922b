"""Runs as a view has them: folded from the rows of their entries, in milliseconds, whatever the log holds."""

from __future__ import annotations

from refold.core.ids import RunId, run_id
from refold.operations.runs import Runs
from refold.ports.tables import ViewReader
from refold.projections.projector import HEADS
from refold.projections.reader import EntriesReader
from refold.projections.shipped.tables import ENTRIES
from refold.views.history import Run


class ViewedRuns:
    """See the module. `store` is the generation in use of the shipped projection."""

    def __init__(self, store: ViewReader) -> None:
        self._store = store

    def find(self, run: str) -> Run | None:
        """Return a run with its whole history; None if the view has none, or only the log can tell.

        Records that do not count are in the log alone, and so is why the code of a run is not run.
        """
        wanted = run_id(run)
        head = self._store.rows(HEADS, [(wanted,)]).get((wanted,))
        if head is None or head[HEADS.places["reason"]]:
            return None
        return Runs(EntriesReader(self._store, ENTRIES, wanted)).find(wanted)

    def family(self, run: Run) -> list[Run]:
        """Return the runs below one, each behind the one that has started it."""
        found: list[Run] = []
        for name in children_of(run):
            if (child := self.find(name)) is not None:
                found += [child, *self.family(child)]
        return found


def children_of(run: Run) -> list[RunId]:
    """Return the runs that a run has started itself, in order."""
    return [RunId(name) for step in run.timeline.steps if step.kind in ("run", "event") for name in step.runs]
