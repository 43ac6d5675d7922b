"""Messages between runs of a family, which survive any crash. A message of an entry is owed until accepted entries of
its receiver answer it, or it certainly changes nothing. Until then the lane's mark on the run log stays before the
entry, so that a successor owes the same."""

from collections.abc import Iterator

from refold.core import events
from refold.core.events import Cause
from refold.core.ids import RunId, child_id, parent_of
from refold.core.planning import family
from refold.core.planning.family import FamilyMessage
from refold.core.planning.verdict import ChildEnded, Origin, ParentEnded, PauseAbove, Start
from refold.core.run.pausing import PARENT
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG
from refold.engine.planner.intake.inbox import Inbox, Owing, Pending, WaitsFor
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.planner.log.outbox import Outbox
from refold.engine.planner.log.windows import BudgetAccounts


class Family:
    """Messages that the runs of one lane owe each other. **Units**: `most` is bytes of a result."""

    def __init__(
        self, partition: int, outbox: Outbox, inbox: Inbox, *, log: Acceptance, accounts: BudgetAccounts, most: int
    ) -> None:
        self._partition, self._log, self._outbox, self._inbox, self._most = partition, log, outbox, inbox, most
        self._predecessors: dict[tuple[RunId, type], tuple[RunId, Pending]] = {}
        self._unheard = accounts.unheard

    def accepted(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """Queue the messages of an accepted entry for other runs."""
        if self._unheard:
            self._billed_descendants(after.run_id, entry)
        if entry.seq == 1 or not family.FOR_OTHERS.isdisjoint(map(type, entry.events)):  # most entries have none
            self._inbox.push(self._messages(after, entry, offset))

    def _messages(self, after: RunState, entry: events.Entry, offset: int) -> list[Pending]:
        messages = [self._ended_before(message) for message in family.family_messages(after, entry)]
        if entry.seq == 1 and (origin := family.origin_of(after)):
            # Another planner has started it from an older view, after its parent was over or paused.
            if not self._is_running(origin):
                messages.append(family.left(after.run_id, origin.parent))
            else:
                messages += self._otherwise(after)
        elif _is_inherited_pause(entry):
            messages += self._otherwise(after)
        return [self._owe(self._task_of(message, offset)) for message in messages]

    def _ended_before(self, message: FamilyMessage) -> FamilyMessage:
        """Replace a request to start a child by the result for its parent, if the child is already over."""
        # The log may have lost the entry that started the child, but not the child's own entries.
        if not isinstance(message, Start) or message.origin is None or not message.origin.step:
            return message
        child = self._log.latest(RunId(message.request.run_id))
        return family.ended_before(child, message.origin) if child and child.over else message

    def allows(self, message: Start | ParentEnded) -> bool:
        """True if a message still applies, by the parent's current state."""
        if isinstance(message, Start):
            return message.origin is None or self._is_running(message.origin)
        state = self._log.accepted(message.run_id)
        origin = family.origin_of(state) if state else None
        return origin is None or not self._is_running(origin)

    def pause(self, message: Start | PauseAbove) -> events.RunPaused | None:
        """Pause that a run inherits from its parent."""
        child = self._log.accepted(message.run_id) if isinstance(message, PauseAbove) else None
        origin = message.origin if isinstance(message, Start) else family.origin_of(child) if child else None
        return family.pause_above(self._log.accepted(origin.parent), origin) if origin else None

    def _otherwise(self, child: RunState) -> list[PauseAbove]:
        """Correction for a child whose pause differs from its parent's."""
        messages = family.stands_otherwise(child, self._log.accepted(parent_of(child.run_id)[0]))
        return [messages] if messages else []

    def _is_running(self, origin: Origin) -> bool:
        return family.waits_for(self._log.accepted(origin.parent), origin)

    def addressed(self, item: Pending) -> None:
        """Fill in a child's result that was read again, and address its usage to the nearest live ancestor."""
        if isinstance(message := item.input, ChildEnded) and message.result == family.UNREAD:
            child = self._log.redriven_runs.state(child_id(message.run_id, message.step))
            assert child is not None, "its history is here"
            origin = Origin(message.run_id, message.step, policy="", outlives=False)
            item.redirect(item.run_id, family.cut_to(family.ended_before(child, origin), self._most))
        while isinstance(message := item.input, ChildEnded) and message.used is not None:
            state = self._log.latest(message.run_id)
            if state is None or not state.over:
                return
            if (further := family.further_above(message)) is None:  # no run counts it
                self._unheard.pop(RunId(message.child or child_id(message.run_id, message.step)), None)
                return
            item.redirect(further.run_id, further)

    # A take-over

    def settled(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """Collect the messages of an entry of a predecessor; later entries may answer them."""
        run = after.run_id
        for message in family.family_messages(after, entry):
            about = message.request.run_id if isinstance(message, Start) else message.run_id
            key = child_id(about, message.step) if isinstance(message, ChildEnded) else about
            self._predecessors[key, type(message)] = run, self._task_of(message, offset)
        if entry.seq == 1:
            self._predecessors.pop((run, Start), None)
        if entry.seq == 1 and (origin := family.origin_of(after)):
            self._predecessors[run, ParentEnded] = run, self._task_of(family.left(run, origin.parent), offset)
        for message in self._otherwise(after) if entry.seq == 1 or _is_inherited_pause(entry) else ():
            self._predecessors[run, PauseAbove] = run, self._task_of(message, offset)
        for child in self._billed_descendants(run, entry):
            self._predecessors.pop((child, ChildEnded), None)
        if after.over:
            self._predecessors.pop((run, ParentEnded), None)

    def go_live(self) -> None:
        """Queue a predecessor's unanswered messages; those of runs with an uncertain history wait."""
        self._inbox.push([self._owe(self._task_of(message, 0)) for message in list(self._ends_to_repeat())])
        for run, item in sorted(self._predecessors.values(), key=lambda owed: _offset(owed[1])):
            above = parent_of(item.run_id)[0]
            if above in self._log.redriven_runs.unknown and not isinstance(item.input, ChildEnded):
                run = above  # its history, not loaded yet, decides about the runs that it has started
            elif isinstance(item.input, ParentEnded | PauseAbove) and not self._still_applies(item.input):
                continue
            self._owe(item)
            if run in self._log.fold.frozen:
                self._inbox.waiting.put(item, WaitsFor.DOUBT, run)
                continue
            self._inbox.push([item])
            state = self._log.fold.states.get(run)
            if state is None or state.over:
                self._outbox.owed_before.append(item)  # a row would not cover this message
        self._predecessors.clear()

    def _ends_to_repeat(self) -> Iterator[ChildEnded]:
        """Ends of children that runs still wait for, as the log has lost entries about them."""
        for run, state in self._log.fold.states.items():
            waits = (step for step, opened in state.open.items() if opened.phase == "child")
            for step in waits if run not in self._log.fold.frozen else ():
                child = self._log.finished.state(child_id(run, step))
                if child and (child.run_id, ChildEnded) not in self._predecessors:
                    yield family.ended_before(child, Origin(run, step, policy="", outlives=False))

    def _billed_descendants(self, run: RunId, entry: events.Entry) -> list[RunId]:
        """Finished descendants whose usage an entry counts; they are no longer unheard."""
        runs: list[RunId] = []
        for event in entry.events:
            if isinstance(event, events.ChildCompleted):
                runs.append(child_id(run, event.step))
            elif isinstance(event, events.ChildBilled):
                runs.append(RunId(event.run_id))
        for child in runs:
            self._unheard.pop(child, None)
        return runs

    def _still_applies(self, message: ParentEnded | PauseAbove) -> bool:
        child = self._log.accepted(message.run_id)
        if isinstance(message, PauseAbove):
            return child is not None and bool(self._otherwise(child))
        return child is not None and self.allows(message)

    def reread(self, state: RunState, news: list[events.Entry], offset: int) -> None:
        """Send the family messages of a run that another planner resumed."""
        for entry in news:
            items = self._messages(state, entry, offset)
            self._outbox.owed_before += items  # with its history kept, a successor would not read the entry as news
            self._inbox.push(items)

    def mended(self, run: RunId) -> None:
        for item in self._inbox.waiting.take(WaitsFor.DOUBT, run):
            if isinstance(item.input, ChildEnded) and self._log.accepted(run) is not None:
                item.finish()  # it is not over, after all
            else:
                self._inbox.push([item])

    def _owe(self, item: Pending) -> Pending:
        self._outbox.owed.add(_offset(item), 1)
        return item

    def _task_of(self, message: FamilyMessage, offset: int) -> Pending:
        if isinstance(message, ChildEnded):
            message = family.cut_to(message, self._most)
            if message.used is not None and message.root:
                self._unheard[child_id(message.run_id, message.step)] = message.used
        run = message.request.run_id if isinstance(message, Start) else message.run_id
        if isinstance(message, Start) and message.before is not None:
            self._log.beginning.add(run)
        return Pending(run, message, owing=Owing(Cause(RUN_LOG, self._partition, offset), self._outbox.owed))


def _is_inherited_pause(entry: events.Entry) -> bool:
    """True if a run was paused with its parent, or resumed with it."""
    first = entry.events[0]
    return isinstance(first, (events.RunPaused, events.RunUnpaused)) and first.role == PARENT


def _offset(item: Pending) -> int:
    assert item.cause is not None, "what runs mean for each other stands in the log"
    return item.cause.offset
