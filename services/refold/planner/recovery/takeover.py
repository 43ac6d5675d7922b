"""How a lane comes to know its partition: the snapshot first, which says from where the log and the inputs are read.

What a snapshot says of positions holds in the log in which it was written, and in no mirror of that. So the log is read
from the entry on that the marks name, and unless that lies where they say, everything is read from its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from refold.core.ids import RunId, parse_log_key
from refold.core.messages import Marks
from refold.core.planning.verdict import Due
from refold.core.run.chain import anchor_name
from refold.core.run.snapshot import Asleep
from refold.core.topics import (
    APPROVAL_DECIDED,
    BUDGET_SPENT,
    CATALOG,
    RUN_LOG,
    RUN_OPERATED,
    RUN_REQUESTED,
    RUN_SIGNALLED,
    RUN_SNAPSHOT,
)
from refold.planner.agents.stalls import Holds
from refold.planner.intake.inbox import Inbox, Pending
from refold.planner.log.acceptance import Acceptance
from refold.planner.log.outbox import Outbox
from refold.planner.snapshot import Anchor
from refold.ports.log import Assigned, Reached, Record
from refold.runtime.lanes import CatchUp, resumed


class TakeOver:
    """What has to be read before a lane is live, and the runs that it takes up then.

    `inputs` is from where the inputs are read, by topic. With `distrust` no position is believed, whoever says it.
    `foreign`: the marks proved to be those of another log; what was read so far is of no use.
    """

    def __init__(
        self,
        assigned: Assigned,
        log: Acceptance,
        outbox: Outbox,
        *,
        inbox: Inbox,
        holds: Holds,
        distrust: bool = False,
    ) -> None:
        self._assigned = replace(assigned, committed={}) if distrust else assigned
        self._log, self._outbox, self._journal = log, outbox, log.journal
        self._inbox, self._holds, self._distrust = inbox, holds, distrust
        self._waiting: deque[RunId] = deque()
        self._unheard: list[Due] = []
        self._read_by: dict[str, int] = {}
        self._hears = {RUN_OPERATED, RUN_SIGNALLED, APPROVAL_DECIDED}.intersection(inbox.topics)
        self._first = (RUN_SNAPSHOT, BUDGET_SPENT) if log.windows.limits else (RUN_SNAPSHOT,)
        self._catch_up = CatchUp(assigned, (*self._first, CATALOG, RUN_LOG))
        self.foreign = False
        self.inputs: dict[str, int] = {}
        self._positions: dict[str, int] = {}
        self._reads_log, self._anchored = False, True
        self._wants = {topic: assigned.starts.get(topic, 0) for topic in self._first}
        self.reached(RUN_SNAPSHOT, 0)

    @property
    def done(self) -> bool:
        """Whether all that was there at the take-over has been read."""
        return self._reads_log and self._anchored and self._catch_up.done

    @property
    def disowned(self) -> bool:
        """True if the log has no marks any more that rest on what it has lost."""
        return self._log.keeper.opened or not self._distrust

    def wants(self) -> Mapping[str, int]:
        """From where topics are to be read, each told once."""
        wants, self._wants = self._wants, {}
        return wants

    def follow(self, record: Record) -> None:
        """A record of the snapshot. What comes once the log is read is our own, or too late."""
        if not self._catch_up.has(RUN_SNAPSHOT):
            self._log.snapshot.feed(record.key or b"", record.value)
            self.reached(RUN_SNAPSHOT, record.offset + 1)

    def reached(self, topic: str, offset: int) -> None:
        """Reading of a topic has come to this offset."""
        if topic != RUN_LOG or self._reads_log:
            self._catch_up.reached(topic, offset)
        if self._catch_up.has(BUDGET_SPENT):
            self._log.windows.load()  # what is told from now on is told by somebody who had the lane before
        if not self._reads_log and all(map(self._catch_up.has, self._first)):
            self._reads_log = True
            self._read_log()

    def admits(self, item: Record | Reached) -> bool:
        """Whether what comes of the run log may be taken: where the anchor lies has to lie the anchor."""
        marks = self._log.snapshot.marks
        if self.foreign or self._anchored or marks is None:
            return not self.foreign
        if isinstance(item, Reached):
            self.foreign = item.offset > marks.anchor_offset
        elif item.offset == marks.anchor_offset and (anchor := _anchor(marks, item)) is not None:
            self._anchored = True
            self._log.keeper.anchors.add(anchor)
            self._read_inputs(self._positions)
        else:
            self.foreign = item.offset >= marks.anchor_offset
        return not self.foreign

    @property
    def heard(self) -> bool:
        """Whether all that was said of runs before the take-over is answered, or as much as may wait at once waits."""
        return not self._hears or all(self._has_heard(topic) for topic in list(self._hears))

    @property
    def waits(self) -> bool:
        """Whether something is held back, so far, until all that was said before is answered."""
        return bool(self._hears and (self._unheard or self._inbox.holders))

    def _has_heard(self, topic: str) -> bool:
        if topic not in self._read_by:
            read = max(self.inputs.get(topic, 0), self._inbox.read(topic))
            if read < self._assigned.ends.get(topic, 0):
                return False
            self._read_by[topic] = self._inbox.turn
        if heard := self._inbox.heard(topic, self._read_by[topic]):
            self._hears.discard(topic)  # for good: what comes from now on comes later
        return heard

    def ready(self, timers: Iterable[Due], hears: Callable[[Due], bool]) -> list[Due]:
        """What may be done of what is due. What `hears` what others say waits until all is heard that was there before.

        A cancel comes before any cost, and who has said in time what ends a wait is not late because nobody was there.
        """
        if self.heard:
            due, self._unheard = [*self._unheard, *timers], []
            return due
        due = []
        for timer in timers:
            (self._unheard if hears(timer) else due).append(timer)
        return due

    def begin(self, states: Iterable[RunId]) -> None:
        """The lane is live, with these states; of what is asleep only that is looked into which cannot wait."""
        asleep = self._log.asleep
        inputs = self.inputs | {RUN_LOG: self._log.position}
        live = [*self._log.fold.states, *asleep]
        self._log.keeper.begin(self._log.snapshot, live, inputs, distrust=self._distrust)
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
                self._outbox.take_up(state)
                if state.unseen and self._holds.get(run) is None:
                    self._inbox.push([Pending(run, None)])
            if not self._waiting:
                self._outbox.begun()

    def _read_log(self) -> None:
        snapshot, number, start = self._log.snapshot, self._assigned.partition, self._assigned.starts.get(RUN_LOG, 0)
        asleep, marks, end = snapshot.close(), snapshot.marks, self._assigned.ends[RUN_LOG]
        if marks is None and end > start:
            # Either of the first version, which had the group's offsets alone, or somebody has emptied a topic.
            self._journal.tell("marks.missing", partition=number)
        elif marks is not None and not self._distrust and not self._has_all(marks, asleep):
            self._distrust, self._assigned = True, replace(self._assigned, committed={})
            self._journal.tell("log.shrunk", partition=number, marks=marks.log, end=end)
        if self._distrust:
            self._log.windows.distrust(end)
        emit_from = self._emit_from(marks)
        # What the group has committed is fresher than marks, but may rest on entries that the log has lost since.
        # Of requests it is what is decided or kept, and what is kept has to be read again.
        committed = (
            {} if marks else {topic: at for topic, at in self._assigned.committed.items() if topic != RUN_REQUESTED}
        )
        known = replace(self._assigned, committed=committed)
        inputs = resumed(known, self._inbox.topics)
        if marks is None or not marks.anchor or self._distrust:
            snapshot.whole = False
            self._begin(start, start, emit_from=emit_from)
            self._read_inputs(inputs)
            return
        self._positions = {topic: max(at, int(marks.inputs.get(topic, 0))) for topic, at in inputs.items()}
        emit_from, self._anchored = max(marks.log, emit_from), False
        if snapshot.whole:
            self._log.asleep = asleep
            self._begin(marks.log, marks.anchor_offset, emit_from=emit_from)
        else:
            self._journal.tell("snapshot.broken", partition=number, round=marks.round)
            self._begin(start, start, emit_from=emit_from)

    def _emit_from(self, marks: Marks | None) -> int:
        """Below which offset of the log all that it orders was told, by the group's positions.

        Who has found that the log lost its end says so by marks that say nothing: what was committed counts no more.
        """
        disowned = marks is not None and not (marks.anchor or marks.inputs)
        return resumed(replace(self._assigned, committed={}) if disowned else self._assigned, (RUN_LOG,))[RUN_LOG]

    def _has_all(self, marks: Marks, asleep: Mapping[RunId, Asleep]) -> bool:
        """Whether all topics go on to where the marks, and what was kept since, say that they were read."""
        positions = {topic: int(position) for topic, position in marks.inputs.items()}
        logs = [marks.log, positions.get(RUN_LOG, 0), *(kept.log for kept in asleep.values())]
        ends = self._assigned.ends
        return all(at <= ends.get(topic, at) for topic, at in (positions | {RUN_LOG: max(logs)}).items())

    def _read_inputs(self, positions: dict[str, int]) -> None:
        self.inputs = positions
        self._wants |= positions

    def _begin(self, position: int, reads: int, *, emit_from: int) -> None:
        self._log.position = position
        self._outbox.begin(emit_from)
        self._wants |= {RUN_LOG: reads}
        self._catch_up.reached(RUN_LOG, position)


def _anchor(marks: Marks, record: Record) -> Anchor | None:
    """The anchor of the marks, if this is it. A mirror appends at a time of its own."""
    parts, own = parse_log_key(record.key), anchor_name(record.key)
    run, name = (parts[0], parts[2]) if parts else (RunId(""), own)
    if name is None or not record.value or name.hex() != marks.anchor or record.at_ms != marks.anchor_ms:
        return None
    return Anchor(run, name, record.offset, record.at_ms)
