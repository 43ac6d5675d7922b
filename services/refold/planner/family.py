"""Carries what one run means for another of its family from accepted entry to accepted entry, through any crash.

What an entry means for others is owed until their entries that answer it are accepted, or it is sure that it changes
nothing. Until then the lane's mark on the run log stays before it, so that a successor reads it and owes the same.
"""

from __future__ import annotations

from refold.core import events
from refold.core.events import Cause
from refold.core.ids import RunId, child_id
from refold.core.planning import family
from refold.core.planning.family import Tidings
from refold.core.planning.verdict import ChildOver, Origin, ParentOver, Start
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG
from refold.planner.acceptance import Acceptance
from refold.planner.inbox import Inbox, Pending
from refold.planner.outbox import Outbox


class Family:
    """What the runs of one lane owe each other. `payload_bytes` is the longest result that a parent is handed."""

    def __init__(self, partition: int, log: Acceptance, outbox: Outbox, inbox: Inbox, *, payload_bytes: int) -> None:
        self._partition, self._log, self._outbox, self._inbox = partition, log, outbox, inbox
        self._payload_bytes = payload_bytes
        self._before: dict[tuple[RunId, type], tuple[RunId, Pending]] = {}
        self._unsure: dict[RunId, list[Pending]] = {}

    def heard(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """An entry counts: what it means for others is answered next."""
        told = list(family.tidings(after, entry))
        if entry.seq == 1 and (origin := family.origin_of(after)) and not self._goes_on(origin):
            # Another planner has started it on what it knew, after its parent was over.
            told.append(family.left(after.run_id, origin.parent))
        self._inbox.push([self._owe(self._item(each, offset)) for each in told])

    def allows(self, given: Start | ParentOver) -> bool:
        """Whether something is to be done about a run, by what the log says of its parent now."""
        if isinstance(given, Start):
            return given.origin is None or self._goes_on(given.origin)
        state = self._log.accepted(given.run_id)
        origin = family.origin_of(state) if state else None
        return origin is None or not self._goes_on(origin)

    def _goes_on(self, origin: Origin) -> bool:
        return family.waits_for(self._log.accepted(origin.parent), origin)

    # A take-over

    def settled(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """An entry counts that a predecessor has heard of. What it means may be answered already, further on."""
        run = after.run_id
        for told in family.tidings(after, entry):
            about = told.request.run_id if isinstance(told, Start) else told.run_id
            key = child_id(about, told.step) if isinstance(told, ChildOver) else about
            self._before[key, type(told)] = run, self._item(told, offset)
        if entry.seq == 1 and (origin := family.origin_of(after)):
            self._before.pop((run, Start), None)
            self._before[run, ParentOver] = run, self._item(family.left(run, origin.parent), offset)
        for event in entry.events:
            if isinstance(event, events.ChildCompleted):
                self._before.pop((child_id(run, event.step), ChildOver), None)
        if after.over:
            self._before.pop((run, ParentOver), None)

    def go_live(self) -> None:
        """The log is read: what is owed is answered, but for what a run has said whose history is not sure."""
        for run, item in sorted(self._before.values(), key=lambda each: _offset(each[1])):
            if isinstance(item.input, ParentOver) and not self._needs(item.input):
                continue
            self._owe(item)
            if run in self._log.fold.frozen:
                self._unsure.setdefault(run, []).append(item)
                continue
            self._inbox.push([item])
            state = self._log.fold.states.get(run)
            if state is None or state.over:
                self._outbox.owed_before.append(item)  # a row would not stand for that
        self._before.clear()

    def _needs(self, told: ParentOver) -> bool:
        return self._log.accepted(told.run_id) is not None and self.allows(told)

    def mended(self, run: RunId) -> None:
        """A run has one history again."""
        for item in self._unsure.pop(run, []):
            if isinstance(item.input, ChildOver) and self._log.accepted(run) is not None:
                item.finish()  # it is not over, after all
            else:
                self._inbox.push([item])

    def _owe(self, item: Pending) -> Pending:
        self._outbox.owed.add(_offset(item), 1)
        item.owed = self._outbox.owed
        return item

    def _item(self, told: Tidings, offset: int) -> Pending:
        if isinstance(told, ChildOver):
            told = family.cut_to(told, self._payload_bytes)
        run = told.request.run_id if isinstance(told, Start) else told.run_id
        return Pending(run, told, source=Cause(RUN_LOG, self._partition, offset))


def _offset(item: Pending) -> int:
    assert item.source is not None, "what runs mean for each other stands in the log"
    return item.source.offset
