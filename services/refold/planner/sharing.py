"""How much of what users say is answered at a time: they may say anything, and others' runs are under way meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from refold.planner.lane import Lane

USERS_BYTES = 262_144
"""What a turn begins to answer of what users say, or a single input that is larger: some 20 ms of work."""

REST = 3
"""After a turn that had so much of it, others have the planner for so many times as long."""

LONGEST_REST_MS = 200
"""A turn may have taken long for other reasons."""


class Sharing:
    """The time of one planner, and who of its lanes comes first. **Units**: monotonic, milliseconds."""

    def __init__(self) -> None:
        self._left, self._begun, self._turns, self._rests_until = USERS_BYTES, 0, 0, 0

    def work(self, lanes: Iterable[Lane], now_ms: int) -> None:
        """Lets all lanes work, with what users may have of this turn: first another lane each time."""
        every = list(lanes)
        if self._left <= 0 and any(lane.admission.busy for lane in every):
            self._rests_until = now_ms + min(LONGEST_REST_MS, REST * (now_ms - self._begun))
        self._left = USERS_BYTES if now_ms >= self._rests_until else 0
        self._begun, self._turns = now_ms, self._turns + 1
        first = self._turns % len(every) if every else 0
        rested = self._left > 0
        for lane in every[first:] + every[:first]:
            lane.inbox.begin(self._left, self._rests_until)
            lane.work()
            self._left = lane.inbox.allowance
        if not rested:
            self._left = USERS_BYTES
