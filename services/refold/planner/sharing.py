"""Which lanes of a planner work in a turn, and how much of what users say is answered at a time.

A lane works when something came for it or when its own time has come: turns cost nothing for partitions at rest. Users
may say anything, and others' runs are under way meanwhile.
"""

from __future__ import annotations

from refold.planner.lane import Lane
from refold.runtime.lanes import Awake, Lanes

USERS_BYTES = 262_144
"""What a turn begins to answer of what users say, or a single input that is larger: some 20 ms of work."""

REST = 3
"""After a turn that had so much of it, others have the planner for so many times as long."""

LONGEST_REST_MS = 200
"""A turn may have taken long for other reasons."""


class Sharing:
    """The time of one planner, and which of its lanes comes first. **Units**: monotonic, milliseconds."""

    def __init__(self, lanes: Lanes[Lane]) -> None:
        self._lanes, self._mono, self._first = lanes, 0, -1
        self._left, self._begun, self._rests_until = USERS_BYTES, 0, 0
        self._awake = Awake(lanes)
        self.touch, self.forget, self.next_due_ms = self._awake.touch, self._awake.forget, self._awake.next_due_ms

    def begin(self, mono_ms: int) -> None:
        """A turn begins: lanes whose time has come work in it."""
        self._mono = mono_ms
        self._awake.begin(mono_ms)

    @property
    def awake(self) -> list[Lane]:
        """Lanes that work in this turn: another one is first each time."""
        return sorted(self._awake, key=lambda lane: lane.partition <= self._first)

    def work(self) -> None:
        """Have lanes work, with what users may have of this turn."""
        now_ms, lanes = self._mono, self.awake
        if self._left <= 0 and any(lane.admission.busy for lane in self._lanes):
            self._rests_until = now_ms + min(LONGEST_REST_MS, REST * (now_ms - self._begun))
        self._left = USERS_BYTES if now_ms >= self._rests_until else 0
        self._begun = now_ms
        self._first = lanes[0].partition if lanes else self._first
        rested = self._left > 0
        for lane in lanes:
            lane.inbox.begin(self._left, self._rests_until)
            lane.work()
            self._left = lane.inbox.allowance
        if not rested:
            self._left = USERS_BYTES

    def rest(self) -> None:
        """The turn is over: note when its lanes want the next one."""
        self._awake.rest(lambda lane: lane.pacing.next_due_ms())
