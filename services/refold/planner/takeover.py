"""How a lane comes to know its partition: the snapshot first, which says from where the log and the inputs are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from refold.core.ids import RunId
from refold.core.topics import CATALOG, RUN_LOG, RUN_SNAPSHOT
from refold.planner.acceptance import Acceptance
from refold.planner.holds import Holds
from refold.planner.inbox import Inbox, Pending
from refold.planner.inputs import TOPICS
from refold.planner.outbox import Outbox
from refold.ports.log import Assigned, Record
from refold.runtime.lanes import CatchUp, resumed


class TakeOver:
    """What has to be read before a lane is live, and the runs that it takes up then.

    `inputs` is from where the inputs are read, by topic.
    """

    def __init__(self, assigned: Assigned, log: Acceptance, outbox: Outbox, *, inbox: Inbox, holds: Holds) -> None:
        self._assigned, self._log, self._outbox, self._journal = assigned, log, outbox, log.journal
        self._inbox, self._holds = inbox, holds
        self._waiting: deque[RunId] = deque()
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

    def begin(self, states: Iterable[RunId]) -> None:
        """The lane is live, with these states; of what is asleep only that is looked into which cannot wait."""
        asleep = self._log.asleep
        self._log.keeper.begin(self._log.snapshot, [*self._log.fold.states, *asleep], self.inputs)
        self._waiting.extend(states)
        self._waiting.extend(run for run, kept in asleep.items() if not kept.status)
        if not self._waiting:
            self._outbox.begun()

    @property
    def resuming(self) -> bool:
        """Whether runs are left to be taken up."""
        return bool(self._waiting)

    def resume(self, count: int) -> None:
        """Takes so many runs up: what is open and was not told goes out, and what can go on does."""
        for _ in range(min(len(self._waiting), count)):
            run = self._waiting.popleft()
            state = self._log.accepted(run)
            if state is not None and state.over:
                self._log.finish(state)
            elif state is not None and run not in self._log.fold.frozen:
                self._outbox.open_orders(state)
                if (state.unseen or not state.open) and self._holds.get(run) is None:
                    self._inbox.push([Pending(run, None)])
            if not self._waiting:
                self._outbox.begun()

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
        self._wants |= {RUN_LOG: start, **self.inputs}
        self._catch_up.reached(RUN_LOG, start)
