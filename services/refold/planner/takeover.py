"""How a lane comes to know its partition: the snapshot first, which says from where the log and the inputs are read."""

from __future__ import annotations

from collections.abc import Mapping

from refold.core.topics import CATALOG, RUN_LOG, RUN_SNAPSHOT
from refold.planner.acceptance import Acceptance
from refold.planner.inputs import TOPICS
from refold.planner.outbox import Outbox
from refold.ports.log import Assigned, Record
from refold.runtime.lanes import CatchUp, Journal, resumed


class TakeOver:
    """What has to be read before a lane is live. `inputs` is from where the inputs are read, by topic."""

    def __init__(self, assigned: Assigned, log: Acceptance, outbox: Outbox, journal: Journal) -> None:
        self._assigned, self._log, self._outbox, self._journal = assigned, log, outbox, journal
        self._catch_up = CatchUp(assigned, (RUN_SNAPSHOT, CATALOG, RUN_LOG))
        self.inputs: dict[str, int] = {}
        self._reads_log = False
        self._wants = {RUN_SNAPSHOT: assigned.starts.get(RUN_SNAPSHOT, 0)}
        self.reached(RUN_SNAPSHOT, 0)

    @property
    def done(self) -> bool:
        """Whether all that was there at the take-over has been read."""
        return self._reads_log and self._catch_up.done

    def wants(self) -> Mapping[str, int]:
        """From where topics are to be read, each told once."""
        wants, self._wants = self._wants, {}
        return wants

    def follow(self, record: Record) -> None:
        """A record of the snapshot. What comes once the log is read is our own, or too late."""
        if not self._reads_log:
            self._log.snapshot.feed(record.key or b"", record.value)
            self.reached(RUN_SNAPSHOT, record.offset + 1)

    def reached(self, topic: str, offset: int) -> None:
        """Reading of a topic has come to this offset."""
        if topic != RUN_LOG or self._reads_log:
            self._catch_up.reached(topic, offset)
        if not self._reads_log and self._catch_up.has(RUN_SNAPSHOT):
            self._reads_log = True
            self._read_log()

    def begin(self) -> None:
        """The lane is live: its own snapshots go on from what was read."""
        live = [*self._log.fold.states, *self._log.asleep]
        self._log.keeper.begin(self._log.snapshot, live, self.inputs)

    def _read_log(self) -> None:
        snapshot, start, end = self._log.snapshot, self._assigned.starts.get(RUN_LOG, 0), self._assigned.ends[RUN_LOG]
        asleep, marks = snapshot.close(), snapshot.marks
        self.inputs = resumed(self._assigned, TOPICS)
        emit_from = self._assigned.committed.get(RUN_LOG, start)
        if marks is None and end > start:
            # Either of the first version, which had the group's offsets alone, or somebody has emptied a topic.
            self._journal.tell("marks.missing", partition=self._assigned.partition)
        elif marks is not None:
            # The group's offsets only mirror the marks, but are the fresher ones where they are there at all.
            emit_from = max(marks.log, emit_from if emit_from <= end else 0)
            for topic, position in self.inputs.items():
                mirrored = position if position <= self._assigned.ends.get(topic, position) else 0
                self.inputs[topic] = max(mirrored, int(marks.inputs.get(topic, 0)))
            if marks.log > end:
                self._journal.tell("log.shrunk", partition=self._assigned.partition, marks=marks.log, end=end)
                snapshot.whole, emit_from = False, start
            elif not snapshot.whole:
                self._journal.tell("snapshot.broken", partition=self._assigned.partition, round=marks.round)
        if marks is not None and snapshot.whole:
            self._log.asleep, start = asleep, marks.log
        self._log.position = start
        self._outbox.begin(emit_from)
        self._wants = {RUN_LOG: start, **self.inputs}
        self._catch_up.reached(RUN_LOG, start)
