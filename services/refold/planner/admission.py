"""How many runs of a lane may be with executors at once, and which topics are left alone meanwhile."""

from __future__ import annotations

from refold.core.ids import RunId
from refold.core.run.snapshot import Asleep
from refold.core.run.state import RunState
from refold.core.topics import RUN_REQUESTED
from refold.planner.acceptance import Acceptance
from refold.planner.inbox import Inbox
from refold.planner.takeover import TakeOver


class Admission:
    """The active runs of one lane, of which there may be `most`.

    A run is active while executors have something of it; what waits for time or people is not.
    """

    def __init__(self, most: int, inbox: Inbox, log: Acceptance, start: TakeOver) -> None:
        self._most, self._inbox, self._log, self._start = most, inbox, log, start
        self._active: set[RunId] = set()

    def count(self, state: RunState) -> None:
        """A run has changed."""
        if state.status == "running" and state.open:
            self._active.add(state.run_id)
        else:
            self._active.discard(state.run_id)

    def count_asleep(self, run: RunId, kept: Asleep) -> None:
        """A run is taken over of which no more is known than what was kept."""
        if kept.status == "running":
            self._active.add(run)

    def room(self) -> int:
        """How many more runs may be with executors; none before all is heard that was said of them."""
        return self._most - len(self._active) - self._log.flying if self._start.heard else 0

    def paused(self, before: frozenset[str]) -> frozenset[str]:
        """The topics of which no more is to be taken. `before`: of which none is taken so far."""
        topics = {topic for topic in self._inbox.topics if self._inbox.crowded(topic)}
        least = self._most // 10 if RUN_REQUESTED in before else 0
        if self._inbox.held or self.room() <= least:
            topics.add(RUN_REQUESTED)
        return frozenset(topics)
