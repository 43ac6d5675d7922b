"""Timers of a lane: a heap that the fold rebuilds, so that losing it costs nothing."""

import heapq
from collections.abc import Iterable, Iterator

from refold.core.events import Entry, RunForked, RunPaused, RunRetried, RunUnpaused
from refold.core.ids import RunId
from refold.core.planning.verdict import Due
from refold.core.run.snapshot import next_moment
from refold.core.run.state import RunState

ASLEEP = -1
"""Step of a sleeping run: its entries are to be folded then."""

_RESCHEDULING = frozenset({RunRetried, RunForked, RunPaused, RunUnpaused})
"""Events after which all open steps are set again: nothing of a paused run is due."""

_SLACK = 64
"""Cancelled timers that may stay in the heap, besides one for each set timer."""


class Timers:
    """Due times of runs; an open step has at most one. **Units**: milliseconds since 1970."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, RunId, int]] = []
        self._due: dict[tuple[RunId, int], int] = {}

    def follow(self, after: RunState, entry: Entry) -> None:
        steps = {step for event in entry.events if (step := getattr(event, "step", 0))}
        if after.over or type(entry.events[0]) in _RESCHEDULING:
            steps.update(after.open)
        self._set(after, [0, *steps])

    def rebuild(self, state: RunState) -> None:
        self._set(state, [0, *state.open])

    def rest(self, state: RunState, due_ms: int) -> None:
        """Set only the time to fold a sleeping run."""
        for step in (0, *state.open):
            self.set(state.run_id, step, 0)
        self.set(state.run_id, ASLEEP, due_ms)

    def again(self, state: RunState, due: Due, now: int) -> None:
        """Set a step again that is not due, as the clock has gone back."""
        moment = _moment(state, due.step)
        if moment > now:
            self.set(due.run_id, due.step, moment)

    def set(self, run: RunId, step: int, due_ms: int) -> None:
        """Set the one due time of a step; 0: none."""
        place = run, step
        if not due_ms:
            self._due.pop(place, None)
        elif self._due.get(place) != due_ms:
            self._due[place] = due_ms
            heapq.heappush(self._heap, (due_ms, run, step))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [(due, *where) for where, due in self._due.items()]
            heapq.heapify(self._heap)

    def due(self, now: int) -> Iterator[Due]:
        while (due_ms := self.next_ms()) is not None and due_ms <= now:
            _, run, step = heapq.heappop(self._heap)
            del self._due[run, step]
            yield Due(run, step, due_ms)

    def next_ms(self) -> int | None:
        while self._heap:
            due_ms, run, step = self._heap[0]
            if self._due.get((run, step)) == due_ms:
                return due_ms
            heapq.heappop(self._heap)
        return None

    def _set(self, state: RunState, steps: Iterable[int]) -> None:
        for step in steps:
            self.set(state.run_id, step, _moment(state, step))


def _moment(state: RunState, step: int) -> int:
    """Due time of a step, or of the run itself if `step` is 0. 0: none."""
    if state.paused:
        return 0
    if step == 0:
        return 0 if state.over else next_moment(state)
    opened = None if state.over else state.open.get(step)
    return opened.due_ms if opened else 0
