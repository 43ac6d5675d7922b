"""What time will make due in a lane: a heap that the fold rebuilds, so that losing it costs nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from refold.core.events import Entry
from refold.core.ids import RunId
from refold.core.planning.verdict import Due
from refold.core.run.state import RunState


class Timers:
    """The moments at which something of a run may be due; what has changed since then is for `decide` to say.

    **Units**: milliseconds since 1970.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, RunId, int]] = []

    def follow(self, after: RunState, entry: Entry) -> None:
        """Sets what an accepted entry makes due, from the state after it."""
        if entry.seq == 1:
            self._set_start(after)
        self._set_steps(after, {getattr(event, "step", 0) for event in entry.events})

    def rebuild(self, state: RunState) -> None:
        """Sets everything of a run that is taken over."""
        self._set_start(state)
        self._set_steps(state, state.open)

    def due(self, now: int) -> Iterator[Due]:
        """What time has made due, oldest first."""
        while self._heap and self._heap[0][0] <= now:
            due_ms, run, step = heapq.heappop(self._heap)
            yield Due(run, step, due_ms)

    def next_ms(self) -> int | None:
        """When the next thing is due."""
        return self._heap[0][0] if self._heap else None

    def _set_start(self, state: RunState) -> None:
        if state.status == "pending" and state.request:
            heapq.heappush(self._heap, (state.request.not_before_ms, state.run_id, 0))

    def _set_steps(self, state: RunState, steps: Iterable[int]) -> None:
        for step in steps:
            if (opened := state.open.get(step)) and opened.due_ms:
                heapq.heappush(self._heap, (opened.due_ms, state.run_id, step))
