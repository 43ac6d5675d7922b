"""One partition's planner: from a record to accepted entries and the commands that they order.

An input goes from the `inbox` through `decide` and the agent's code into an entry; the entry through `acceptance`, when
the log has it, to the `outbox`, which sends what it orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.core import events
from refold.core.planning.verdict import Due
from refold.core.run.state import RunState
from refold.core.topics import CATALOG, RUN_LOG, RUN_REQUESTED
from refold.planner.acceptance import Acceptance, SentEntry
from refold.planner.admission import Admission
from refold.planner.answering import Answering, Shared
from refold.planner.family import Family
from refold.planner.holds import Holds
from refold.planner.inbox import Inbox, Pending
from refold.planner.outbox import Asker, Beat, Outbox
from refold.planner.pacing import Pacing
from refold.planner.parts import LaneParts, Means
from refold.planner.reading import Reading
from refold.planner.receipts import Receipts
from refold.planner.redrives import Redrives
from refold.planner.repairs import Repairs
from refold.planner.snapshots import SentKept
from refold.planner.takeover import TakeOver
from refold.planner.telling import Telling
from refold.planner.timers import ASLEEP, Timers
from refold.ports.effects import CommittedAt
from refold.ports.log import NEVER, Assigned, Delivery, End, Reached, Record
from refold.runtime.clock import LogClock
from refold.runtime.lanes import Positions, Tokens


class Lane:
    """What serves one partition. The service feeds it, lets it `work` once a turn, and collects what it sends."""

    def __init__(
        self,
        assigned: Assigned,
        shared: Shared,
        tokens: Tokens[tuple[Lane, Asker]],
        means: Means,
        *,
        mono_ms: int,
        distrust: bool = False,
    ) -> None:
        self.partition, self.clock = assigned.partition, LogClock()
        self.clock.tick(mono_ms)
        settings, self._limits, self._journal = shared.settings, shared.settings.limits, shared.journal
        self._agents, self._catalog, member = means.agents, means.catalog, settings.member
        self._telling = Telling(shared.journal, self.partition, shared.actor)
        self._timers = timers = Timers()
        self.inbox = inbox = Inbox(settings.inputs, self._limits)
        self.outbox = outbox = Outbox(self.partition, member, lambda who: tokens.give((self, who)), means.catalog)
        served = inbox, means.agents, shared.journal
        self.log = log = Acceptance(*served, told=self, windows=means.windows, member=member)
        self.holds = holds = Holds(member, shared.journal, outbox.hold)
        self.start = start = TakeOver(assigned, log, outbox, inbox=inbox, holds=holds, distrust=distrust)
        self.admission = admission = Admission(self._limits, means.rules.versions, inbox, log=log, start=start)
        self.family = family = Family(self.partition, log, outbox, inbox, payload_bytes=self._limits.payload_bytes)
        parts = LaneParts(self.partition, self.clock, inbox, log, outbox, timers, holds, start)
        self._answering = Answering(parts, shared, means, admission, family)
        self._receipts = Receipts(log, outbox, inbox, answering=self._answering, holds=holds)
        self.redrives = Redrives(log, inbox, admission, refuse=self._refuse, goes_on=self._goes_on)
        self.repairs = Repairs(log, outbox, self._refuse)
        self.again = self.repairs, self.redrives
        self._reading = Reading(parts, means.catalog, self.again)
        self.pacing = Pacing(parts, settings.snapshot_ms)
        self._moved()

    def _refuse(self, item: Pending, why: str) -> None:
        if item.record is None:  # a run waits for the result of another: of that the log has lost its end
            self._journal.tell("child.lost", run_id=item.run_id, reason=why)
            item.finish()
        else:
            self._answering.bury(item, "conflict", why, self.clock.now_ms)

    # Whose it is

    def reads(self) -> Mapping[str, int]:
        return {CATALOG: self._catalog.position, **self.start.wants()}

    def leave(self) -> None:
        """What is another's now goes on elsewhere; a successor of ours begins with what that one has kept of it."""
        self._agents.forget_all()

    # What comes in

    def feed(self, item: Record | Reached | End) -> None:
        self.pacing.moved()
        if isinstance(item, Record) and item.topic in self.inbox.topics:
            self.inbox.take(item)
        elif self._reading.take(item):
            self._moved()

    def delivered(self, asker: Asker, delivery: Delivery) -> None:
        """The answer for a record that this lane has sent."""
        offset = delivery.offset
        self.pacing.moved()
        if isinstance(asker, (SentEntry, Beat)) and offset is not None and offset != NEVER:
            self.clock.delivered(delivery.at_ms)
            self.pacing.heard()
        if isinstance(asker, SentEntry):
            asker.at_ms = delivery.at_ms
            self.log.delivered(asker, offset)
            self._moved()
        elif asker is not None:
            self._receipts.published(asker, offset, self.clock.now_ms)

    @property
    def wants_end(self) -> bool:
        """Whether the high watermark of the run log has to be asked for."""
        return self.log.wants_end or self.inbox.unconfirmed.wants_end

    def work(self) -> None:
        """Decides what is ready, unless the log has to be read first, or has not told the time and whose it is."""
        if not self.log.live:
            return
        self.outbox.tell(self.log.fold.states)
        if not (self.pacing.knows() and self.start.disowned):
            return
        self.start.resume(self._limits.turn_resumed)
        now = self.clock.now_ms
        log = self.log
        for halted, step in self.outbox.halting.lifted(log.fold.states, log.asleep, log.accepted):
            self._answering.redispatch.go_on(halted, step, now)
        for timer in self.start.ready(self._timers.due(now), self._hears):
            state = self.log.accepted(timer.run_id)  # looks into a run that was asleep, and sets its timers
            if state is not None and timer.step != ASLEEP:
                self.inbox.push([Pending(timer.run_id, timer)])
        self._answering.late(self.outbox.unanswered.due(now), now)
        self.inbox.push(Pending(run, None) for run in self.holds.due(now))
        self.admission.admit()
        while self.inbox.answerable and self.log.flying < self._limits.turn_entries and not self.log.blocked:
            item = self.inbox.pop()
            if self._answering.reads(item, now) and not (self.redrives.takes(item) or self.repairs.takes(item)):
                self._answering.answer(item, now)
        self.redrives.begin()
        self.pacing.keep()

    def _hears(self, timer: Due) -> bool:
        """Whether what is due is something else when others have said something: a start, a wait, a question."""
        state = self.log.accepted(timer.run_id) if timer.step > 0 else None
        opened = state.open.get(timer.step) if state else None
        return timer.step == 0 or bool(opened and (opened.phase in ("wait", "callback") or opened.question))

    def passed(self, answer: CommittedAt | End) -> None:
        """Executors have come so far, or the topic has: what is passed and not answered, or lost, goes out again."""
        self._answering.late(self.outbox.unanswered.told(answer, self.partition), self.clock.now_ms, passed=True)

    @property
    def executions(self) -> int:
        """How many runs have their agent's code in memory."""
        return self._agents.executions

    def decided(self) -> int:
        """Up to where all requests of this partition are decided, or kept for runs that are known."""
        return max(self.start.inputs.get(RUN_REQUESTED, 0), self.inbox.passed(RUN_REQUESTED))

    def low_water(self) -> Positions:
        """What may be committed: per input topic and, for the emission of commands, of the run log."""
        settled = self.start.inputs | self.inbox.low_water()
        positions = {(topic, self.partition): position for topic, position in settled.items()}
        if RUN_REQUESTED in settled:  # others wait for it, and for no run that stands still
            positions[RUN_REQUESTED, self.partition] = self.decided()
        if self.log.live:
            positions[RUN_LOG, self.partition] = self.log.linked_from(self.outbox.low_water(self.log.position))
        return positions

    # What the log says

    def accepted(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """An entry counts: what it orders goes out."""
        run = entry.run_id
        self.log.windows.accepted(entry, after, offset)
        if not self.log.live:
            self.outbox.settled(after, entry, offset)
            if self.outbox.begins(offset):
                self.family.settled(after, entry, offset)
            return
        self.outbox.hear(after, entry, offset)
        self.family.heard(after, entry, offset)
        if after.over:
            self._agents.forget(run)
            self.holds.lift(run, over=True)
        elif after.status == "suspended" and run not in self.log.speculated and after.waits_for_people:
            self._agents.forget(run)  # it is made again when they have decided: months cost nothing but the fold
        self.admission.count(after)
        self._timers.follow(after, entry)
        self._telling.accepted(after, entry)
        self.inbox.unpark(run)

    def keep(self, sent: SentKept) -> None:
        """A part of a snapshot is to be sent."""
        self.outbox.keep(sent, self.clock.now_ms)

    def woken(self, state: RunState) -> None:
        """A run of which the entries alone were known was looked into."""
        self._timers.set(state.run_id, ASLEEP, 0)
        if self.log.live:
            self._know(state)

    def refused(self, sent: SentEntry) -> None:
        """The run fails with what it wanted to write as the reason."""
        before = self.log.latest(sent.entry.run_id)
        self._journal.tell("publish.refused", topic=RUN_LOG, run=sent.entry.run_id)
        self._answering.send_too_large(before, sent.entry.events, sent.item, sent.entry.at_ms)

    def mended(self, state: RunState, offset: int) -> None:
        """A run that was stalled has one history again: from here on it is like any other."""
        self.holds.lift(state.run_id, over=state.over)
        self.outbox.open_orders(state, offset)
        self.family.mended(state.run_id)
        if not state.over:
            self._know(state)
            self.inbox.push([Pending(state.run_id, None)])
        self.inbox.unpark(state.run_id)

    def _goes_on(self, state: RunState, news: list[events.Entry]) -> None:
        """A failed run has its history again, for somebody else has let it go on: nobody has heard of `news`."""
        self.mended(state, self.log.position)
        self.family.revived(state, news, self.log.position)

    def _know(self, state: RunState) -> None:
        """All of a run that the lane has not followed is known by now."""
        self.admission.count(state)
        self._timers.rebuild(state)

    def _moved(self) -> None:
        """The fold may have come further."""
        for key in self.log.swept():
            self.outbox.sweep(key)
        if not self.log.live:
            self.start.reached(RUN_LOG, self.log.position)
            self.start.reached(CATALOG, self._catalog.position)
            if self.start.done:
                self._go_live()
        if not self.log.flying:
            self.inbox.settle(self.log.position)
        self.inbox.push(self.inbox.catalog.take(self._catalog.position))

    def _go_live(self) -> None:
        """The fold has reached the end that was captured at the take-over. Runs that wait are left asleep."""
        for run, reason in self.log.go_live().items():
            self.holds.tangle(run, reason, self.clock.now_ms)
        self.outbox.release(self.log.fold.frozen)
        self.family.go_live()
        states = [state for run, state in self.log.fold.states.items() if run not in self.log.fold.frozen]
        for state in states:
            self._know(state)
        for run, kept in self.log.asleep.items():
            self._timers.set(run, ASLEEP, kept.due_ms)
            self.admission.count_asleep(run, kept)
        ready = list(self.holds.ready(self.log.latest, self._agents.code_of))
        self.inbox.push(Pending(run, None) for run in ready)
        self.start.begin(state.run_id for state in states)
        self.pacing.begin()
        runs = len(states) + len(self.log.asleep)
        self._journal.tell("lane.live", partition=self.partition, position=self.log.position, runs=runs)
        self._telling.begin((*self.log.fold.states, *self.log.asleep))
