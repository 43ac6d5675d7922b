"""Which lanes of a planner work in a turn, and how much of what users say is answered at a time.

A lane works when something came for it or when its own time has come: turns cost nothing for partitions at rest. Users
may say anything, and others' runs are under way meanwhile.
"""

from __future__ import annotations

from refold.planner.lane import Lane
from refold.runtime.lanes import Lanes

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
        self._awake: set[int] = set()
        self._due: dict[int, int] = {}

    def begin(self, mono_ms: int) -> None:
        """A turn begins: lanes whose time has come work in it."""
        self._mono = mono_ms
        for partition in [partition for partition, due in self._due.items() if due <= mono_ms]:
            self.touch(partition)

    def touch(self, partition: int) -> None:
        """Have a lane work in this turn."""
        if partition not in self._awake and (lane := self._lanes.get(partition)) is not None:
            self._awake.add(partition)
            lane.clock.tick(self._mono)

    def forget(self, partition: int) -> None:
        """The lane of a partition is gone."""
        self._awake.discard(partition)
        self._due.pop(partition, None)

    @property
    def awake(self) -> list[Lane]:
        """Lanes that work in this turn: another one is first each time."""
        lanes = [lane for partition in self._awake if (lane := self._lanes.get(partition)) is not None]
        return sorted(lanes, key=lambda lane: (lane.partition <= self._first, lane.partition))

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
        for lane in self.awake:
            due = lane.pacing.next_due_ms()
            if due is None:
                self._due.pop(lane.partition, None)
            else:
                self._due[lane.partition] = due
        self._awake.clear()

    def next_due_ms(self) -> int | None:
        """When the first lane wants to work. **Units**: monotonic."""
        return min(self._due.values(), default=None)
