"""One partition's planner: an input passes `inbox`, `decide`, agent code, `acceptance` by the log, and the `outbox`."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from refold.core import events
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog
from refold.core.errors import ConflictError
from refold.core.ids import RunId
from refold.core.messages import RunOperation
from refold.core.planning.verdict import ChildEnded, Due, UnreadableResult
from refold.core.run.fold import wakes
from refold.core.run.log import NOTHING_LOST, Lost
from refold.core.run.snapshot import rests
from refold.core.run.state import RunState, Step
from refold.core.topics import BUDGET_SPENT, CATALOG, DEAD_LETTER, RUN_LOG, RUN_REQUESTED, RUN_SNAPSHOT, pool_of
from refold.engine.planner.agents.agent_host import Agents
from refold.engine.planner.agents.stalls import Holds, LiveCode
from refold.engine.planner.deciding.admission import Admission
from refold.engine.planner.deciding.decide_loop import DecideLoop, LaneParts, Shared
from refold.engine.planner.deciding.family import Family
from refold.engine.planner.intake.inbox import Inbox, Pending, SentEntry, WaitsFor
from refold.engine.planner.intake.timers import ASLEEP, Timers
from refold.engine.planner.log.acceptance import Acceptance, AcceptedEntry, Happened, Repaired
from refold.engine.planner.log.outbox import Asker, ClockProbe, Ordered, Outbox, SentHold, SentLetter, SentTombstone
from refold.engine.planner.log.windows import BudgetAccounts, SentSpent, Windows
from refold.engine.planner.recovery import Histories, HistoryOutcome, LoadedHistory, TakeOver, Unmended
from refold.engine.planner.snapshot import SentKept
from refold.engine.ports.effects import CommittedAt
from refold.engine.ports.log import NEVER, Assigned, Delivery, End, Reached, Record
from refold.engine.runtime import letters
from refold.engine.runtime.clock import LogClock
from refold.engine.runtime.lanes import Journal, Positions, follow_catalog
from refold.sdk.sources import FactsTable

JOURNALED_EVENTS = {
    events.RunRequested: "run.requested",
    events.RunCompleted: "run.completed",
    events.RunFailed: "run.failed",
    events.RunCancelled: "run.cancelled",
    events.CallDoubted: "call.doubted",
    events.CallHeld: "call.held",
    events.ApprovalRequested: "approval.requested",
    events.ApprovalDecided: "approval.accepted",
    events.LateResultRecorded: "call.late",
    events.TaskFailed: "task.failed",
    events.RunPaused: "run.paused",
    events.RunUnpaused: "run.unpaused",
}
"""Events of accepted entries that are journaled: those that people wait for or act on."""

JOURNAL_CANDIDATES = frozenset({*JOURNALED_EVENTS, events.CallFailed})
"""Candidates for the journal; failed calls only if "unauthorised"."""


class RunJournal:
    """Journal of one lane, which writes its entries as `actor`."""

    def __init__(self, journal: Journal, partition: int, actor: str) -> None:
        self._journal, self._partition, self._actor = journal, partition, actor
        self._taken_over: set[RunId] = set()

    def begin(self, runs: Iterable[RunId]) -> None:
        """Mark runs that another process served until now."""
        self._taken_over.update(runs)

    def accepted(self, after: RunState, entry: events.Entry) -> None:
        run = entry.run_id
        if run in self._taken_over:
            self._resume(after, entry)
        if JOURNAL_CANDIDATES.isdisjoint(map(type, entry.events)):  # most steps are not journaled
            return
        for event in entry.events:
            if isinstance(event, (events.CallFailed, events.CallDoubted)) and event.failure.code == "unauthorised":
                self._journal.counts["unauthorised"] += 1
                self._journal.news.append(("call.unauthorised", {"run_id": run, "reason": event.failure.message}))
            if name := JOURNALED_EVENTS.get(type(event)):
                facts = {"run_id": run, "seq": entry.seq, "partition": self._partition}
                if isinstance(event, events.RunFailed):
                    facts |= {"code": event.failure.code, "at": event.failure.detail}
                self._journal.news.append((name, facts))

    def _resume(self, after: RunState, entry: events.Entry) -> None:
        """Journal where a run resumes, at the first entry for which its code was opened here."""
        steps = sum(isinstance(event, Step) for event in entry.events)
        opened = entry.actor == self._actor and not entry.held and (steps or wakes(entry.events))
        if opened and (step := len(after.steps) - steps):
            facts = {"run_id": entry.run_id, "step": step, "events": entry.seq - 1}
            self._journal.news.append(("run.resumed", facts))
        if opened or after.over:
            self._taken_over.discard(entry.run_id)


CLOCK_PROBE_MS = 1_000
"""Longest wait for an answer to a clock probe."""

QUIET_MS = 60_000
"""Local time, which stands still in a suspended machine, before the log is probed again."""


def earliest(due: Iterable[int | None]) -> int | None:
    return min((time_ms for time_ms in due if time_ms is not None), default=None)


class LaneSchedule:
    """Due times of one lane. A round of its snapshot begins every `snapshot_ms`. **Units**: monotonic, ms."""

    def __init__(self, parts: LaneParts, start: TakeOver, snapshot_ms: int) -> None:
        self._clock, self._snapshot_ms, self._log, self._inbox = parts.clock, snapshot_ms, parts.log, parts.inbox
        self._outbox, self._stalls, self._timers, self._start = parts.outbox, parts.stalls, parts.timers, start
        self._probe_due = self._round_due = self._anchor_due = 0
        self._changed = True

    def changed(self) -> None:
        self._changed = True

    def begin(self) -> None:
        # The log's time comes first: a decision by a clock a day ahead would stop the partition's timers for that day.
        self._probe_due = self._clock.mono_ms

    def delay_probe(self) -> None:
        self._probe_due = self._clock.mono_ms + QUIET_MS

    def has_fresh_clock(self) -> bool:
        """True if the log's time is fresh and the lane's marks are written; send missing records when due."""
        mono, snapshot_writer = self._clock.mono_ms, self._log.snapshot_writer
        if mono >= self._probe_due and (not self._clock.fresh or self._next_ms() is not None):
            self._probe_due = mono + CLOCK_PROBE_MS
            self._outbox.clock_probe()
        if not snapshot_writer.opened and mono >= self._round_due:
            self._round_due = mono + self._snapshot_ms
            snapshot_writer.send_refused()
        return self._clock.fresh and snapshot_writer.opened

    def write_snapshot(self) -> None:
        """Publish sums of shared limits and write moved runs, a part in every turn."""
        log, mono = self._log, self._clock.mono_ms
        log.windows.report(log.position, mono_ms=mono, now=self._clock.now_ms)
        low_water = log.windows.low_water(log.position)
        bare = self._lacks_anchor
        if not bare:
            self._anchor_due = 0
        elif mono >= self._anchor_due:  # without an anchor a successor would read the whole log
            self._anchor_due, self._round_due = mono + CLOCK_PROBE_MS, 0
            self._outbox.anchor(log.position, self._clock.now_ms)
        due = (log.snapshot_writer.heavy or mono >= self._round_due) and not bare
        # A successor does not read the entries that a snapshot covers, so their sums have to be published first.
        if due and low_water >= log.snapshot_writer.ended_at and not (self._start.resuming or self._outbox.beginning):
            self._round_due, self._changed = mono + self._snapshot_ms, False
            log.round(min(low_water, self._outbox.low_water(log.position)), self._inbox.low_water())
        log.snapshot_writer.write(log.position)

    @property
    def _lacks_anchor(self) -> bool:
        """True if marks have no anchor, as all entries read are of erased runs."""
        return not self._log.snapshot_writer.anchors and self._log.position > 0 and not self._start.resuming

    def next_due_ms(self) -> int | None:
        """Latest time of the next `work`; None: no time is due."""
        if not self._log.live:
            return None
        if not self._clock.fresh:
            return self._probe_due
        if not self._log.snapshot_writer.opened:
            return self._round_due
        free = self._log.has_room
        if self._log.snapshot_writer.writing or (free and self._has_work):
            return 0
        due = [self._inbox.next_due_ms() if free else None, self._log.windows.next_due_ms(), self._marks_due_ms()]
        if (at := self._next_ms()) is not None:
            due.append(min(self._clock.mono_of(at), self._probe_due))
        return earliest(due)

    def _marks_due_ms(self) -> int | None:
        """Time of the next round of the snapshot, or of an anchor for its marks."""
        mono = self._clock.mono_ms
        if self._lacks_anchor:
            return self._anchor_due
        if not self._changed:
            return None
        return self._round_due if self._round_due > mono else mono + CLOCK_PROBE_MS

    @property
    def _has_work(self) -> bool:
        # Inputs held back behind earlier ones go on as soon as those are answered.
        inbox = self._inbox
        return self._start.resuming or self._outbox.halting.looking or (inbox.holds_back and inbox.is_read)

    def _next_ms(self) -> int | None:
        times = (self._timers.next_ms(), self._outbox.unanswered.next_ms(), self._stalls.next_ms())
        return earliest(times)


class Lane:
    """State and parts of one partition. The service feeds it, and calls `work` once a turn."""

    def __init__(self, assigned: Assigned, shared: Shared, *, mono_ms: int, lost: Lost | None, mirrored: bool) -> None:
        self.partition, self.clock = assigned.partition, LogClock()
        self.clock.tick(mono_ms)
        settings, limits, journal, app = shared.settings, shared.settings.limits, shared.journal, shared.app
        self._limits, self._journal, member = limits, journal, settings.member
        self._catalog = catalog = Catalog(settings.trust)
        self._run_journal = RunJournal(journal, self.partition, shared.actor)
        self._timers = timers = Timers()
        inputs = tuple(topic for topic in settings.inputs if topic not in assigned.absent)
        self.inbox = inbox = Inbox(inputs, limits, assigned.ends)
        live = LiveCode(shared.room, shared.mark)
        of = self.partition, settings.partitions, app.windows
        windows = Windows(*of, actor=shared.actor, journal=journal, mirrored=mirrored)
        self.log = log = Acceptance(inbox, live, journal, windows=windows, member=member, lost=lost or NOTHING_LOST)
        # The usage before a retry of a failed run counts too.
        accounts = BudgetAccounts(log.latest, partial(windows.scopes, log.stands, log.speculated))
        authority = Authority(FactsTable(app.tools), settings.environment, catalog)
        rules = replace(settings.rules, app=app.facts(), authority=authority, above=accounts.above)
        budget = replace(settings.budget, payload_bytes=limits.payload_bytes, blob_bytes=limits.blob_bytes)
        agents = Agents(app, rules, settings.environment, budget=budget, live=live, journal=journal)
        self._agents = agents
        missing = frozenset(map(pool_of, assigned.absent))
        self.outbox = outbox = Outbox(self.partition, member, shared.tokens, catalog, missing)
        for pool in sorted(missing):
            hint = "its calls wait; create its topics with `refold topics apply --app APP`"
            journal.tell("pool.missing", pool=pool, partition=self.partition, hint=hint)
        self.stalls = holds = Holds(member, journal, outbox.publish_stall)
        self.start = start = TakeOver(assigned, log, outbox, inbox=inbox, holds=holds, distrust=lost is not None)
        self.admission = admission = Admission(limits, rules.app.versions, inbox, log=log)
        served = self.partition, outbox, inbox
        self.family = family = Family(*served, log=log, accounts=accounts, most=limits.payload_bytes)
        parts = LaneParts(self.partition, self.clock, inbox, log, outbox, timers, holds, agents, rules)
        self._decide_loop = DecideLoop(parts, shared, admission, family)
        self._histories_read: deque[LoadedHistory] = deque()
        self.histories = Histories(log, outbox, inbox, admission)
        self._readers = {
            RUN_LOG: self._read_log,
            RUN_SNAPSHOT: self._read_snapshot,
            CATALOG: self._read_catalog,
            BUDGET_SPENT: self._read_spent,
        }
        self.lane_schedule = LaneSchedule(parts, start, settings.snapshot_ms)
        self._after_reading()

    def _refuse(self, item: Pending, why: str) -> None:
        if item.record is None:  # a run waits for a child's result: the log has lost the child's end
            self._journal.tell("child.lost", run_id=item.run_id, reason=why)
            item.finish()
        else:
            self._decide_loop.bury(item, "conflict", why, self.clock.now_ms)

    # Ownership

    def reads(self) -> Mapping[str, int]:
        return {CATALOG: self._catalog.position, **self.start.seeks()}

    def leave(self) -> None:
        self._agents.forget_all()

    # Inputs

    def feed(self, item: Record | Reached | End) -> None:
        self.lane_schedule.changed()
        if isinstance(item, Record) and item.topic in self.inbox.topics:
            self.inbox.take(item)
        elif (reader := self._readers.get(item.topic)) is not None:
            reader(item)
            if not self.start.foreign:  # nothing may follow from records of another log
                self._after_reading()
        else:
            if isinstance(item, Reached):
                self.inbox.reached(item.topic, item.offset)
            self._after_reading()

    def delivered(self, asker: Asker, delivery: Delivery) -> None:
        offset = delivery.offset
        self.lane_schedule.changed()
        if not isinstance(asker, (SentEntry, ClockProbe)):
            self._published(asker, offset)
            return
        if offset is not None and offset != NEVER:
            self.clock.delivered(delivery.at_ms)
            self.lane_schedule.delay_probe()
        if isinstance(asker, SentEntry):
            asker.at_ms = delivery.at_ms
            if happened := self.log.delivered(asker, offset):
                self._follow(happened)
                self._after_reading()

    def _published(self, asker: Asker, offset: int | None) -> None:
        """Handle the delivery of a record that is no entry."""
        if isinstance(asker, (Ordered, SentTombstone, SentLetter, Pending)):
            if offset is None:
                self._journal.counts["publish.unknown"] += 1
            if offset == NEVER:
                self._refused_for_good(asker)
            elif isinstance(asker, Ordered):
                self.outbox.acknowledged(asker, offset, self.log.fold.states, self.clock.now_ms)
            else:
                self._answered(asker, offset)
        elif isinstance(asker, SentHold):
            if offset is None:
                self.outbox.publish_stall(asker.run_id, self.stalls.get(asker.run_id))
        elif isinstance(asker, SentSpent):
            self.log.windows.delivered(asker, offset)
        elif isinstance(asker, SentKept):
            self._snapshot_written(asker, offset)

    def _snapshot_written(self, sent: SentKept, offset: int | None) -> None:
        self.log.snapshot_writer.delivered(sent, offset)
        if offset == NEVER:
            stops = "snapshots" if self.log.snapshot_writer.opened else "all decisions"
            hint = f"{stops} of this partition wait: see max.message.bytes and the ACLs of run-snapshot"
            self._journal.tell("snapshot.refused", key=sent.key.decode(), hint=hint)
        for state, value in self.log.rest() if sent.marks else ():
            self._timers.rest(state, value.due_ms)

    def _answered(self, asker: SentTombstone | SentLetter | Pending, offset: int | None) -> None:
        """Handle the delivery of a record that settles an input (tombstone, letter, copy); None: unknown, try again."""
        if isinstance(asker, SentTombstone):
            (self.outbox.close if offset is None else Pending.finish)(asker.item)
        elif isinstance(asker, SentLetter) and offset is None:
            self.outbox.publish(asker.letter, asker)
        elif isinstance(asker, SentLetter) and not isinstance(asker.item.input, UnreadableResult):
            self.outbox.close(asker.item)
        elif isinstance(asker, SentLetter):
            self.inbox.push([asker.item])  # the dead letter is written; now the call is settled
        elif offset is None:
            self.inbox.push([asker])
        else:
            self.outbox.close(asker)

    def _refused_for_good(self, asker: Ordered | SentTombstone | SentLetter | Pending) -> None:
        if isinstance(asker, Ordered):
            topic, key = asker.record.topic, asker.record.key.decode()
            self._journal.tell("publish.refused", topic=topic, key=key, bytes=len(asker.record.value or b""))
            if never_sent := self.outbox.refused(asker, self.log.fold.states):
                self.inbox.push([never_sent])
        elif isinstance(asker, SentTombstone):  # it counts as answered, and stays in its topic
            item = asker.item
            self._journal.tell("publish.refused", topic=item.record.topic if item.record else "", run=item.run_id)
            item.finish()
        elif isinstance(asker, SentLetter):
            self._journal.tell("publish.refused", topic=DEAD_LETTER, run=asker.item.run_id)
            if asker.short:
                asker.item.finish()  # the journal line of this process is all that remains
            else:
                short = letters.shortened(asker.letter)
                self.outbox.publish(short, replace(asker, letter=short, short=True))
        else:  # a stray that its home partition refuses
            self._journal.tell("publish.refused", topic=RUN_REQUESTED, run=asker.run_id)
            self._decide_loop.bury(asker, "too_large", "its home partition does not take it", self.clock.now_ms)

    def _read_log(self, item: Record | Reached | End) -> None:
        if isinstance(item, End):
            # Records below `requested_at` are gone; records that came since prove nothing about them.
            self.log.shrunk |= item.offset < self.log.requested_at
            self.inbox.waiting.reached_end(WaitsFor.LOG, item.offset)
            self.log.reached_end(item.offset)
        elif not self.start.may_read(item):
            return
        elif isinstance(item, Reached):
            self.log.end_seen = item.offset
            self.log.reached(item.offset)
            self._take_histories(self.histories.reached(item.offset))
        else:
            if item.offset >= self.log.position:
                self.clock.read(item.at_ms)
            self.log.end_seen = item.offset + 1
            self._follow(self.log.follow(item))
            if outcomes := self.histories.follow(item):
                self._take_histories(outcomes)

    def _read_snapshot(self, item: Record | Reached | End) -> None:
        if isinstance(item, Reached):
            self.start.reached(item.topic, item.offset)
        elif isinstance(item, Record):
            self.log.erase(item)
            # Live, the lane itself has written these records, and its state may be newer.
            if not self.log.live:
                self.stalls.follow(item.key, item.value, at_ms=item.at_ms)
            self.start.follow(item)

    def _read_spent(self, item: Record | Reached | End) -> None:
        if isinstance(item, Record):
            self.log.windows.follow(item)
            self.start.reached(item.topic, item.offset + 1)
        elif isinstance(item, Reached):
            self.start.reached(item.topic, item.offset)

    def _read_catalog(self, item: Record | Reached | End) -> None:
        if isinstance(item, End):
            self.inbox.waiting.reached_end(WaitsFor.CATALOG, item.offset)
        else:
            follow_catalog(self._catalog, item, self._journal)

    def work(self) -> None:
        """Decide ready inputs, once the log is read and its time and the partition's ownership are confirmed."""
        if not self.log.live:
            return
        self.outbox.send_accepted(self.log.fold.states)
        if not self.lane_schedule.has_fresh_clock():
            return
        now = self.clock.now_ms
        self._take_up(now)
        self.admission.admit()
        self._copy(now)
        while self.inbox.answerable and self.log.has_room:
            item = self.inbox.pop()
            if self._decide_loop.reads(item, now) and not self._awaits_history(item):
                self._decide_loop.answer(item, now)
            if self.log.woken:
                self._schedule_woken()
        self.histories.begin()
        self.lane_schedule.write_snapshot()

    def publish(self) -> None:
        """Pass on the records that the snapshot and the shared limits have ordered."""
        if orders := self.log.snapshot_writer.orders:
            for sent in orders:
                self.outbox.publish_snapshot(sent, self.clock.now_ms)
            orders.clear()
        for record, asker in self.log.windows.orders:
            self.outbox.publish(record, asker)
        self.log.windows.orders.clear()

    def _copy(self, now: int) -> None:
        """Write the histories of forks, a part in every turn."""
        while self._histories_read and self.log.has_room:
            if self._decide_loop.copy(*self._histories_read[0], now):
                self._histories_read.popleft()

    def _take_up(self, now: int) -> None:
        """Queue the inputs that became ready by take-over, lifted halts and timers."""
        log = self.log
        if self.start.resuming:
            self.start.resume(self._limits.turn_resumed)
            self._schedule_woken()
        for halted, step in self.outbox.halting.lifted(log.fold.states, log.asleep, log.accepted):
            self._schedule_woken()
            self._decide_loop.go_on(halted, step, now)
        self._schedule_woken()
        for timer in self.inbox.ready(self._timers.due(now), self._is_due):
            state = self.log.accepted(timer.run_id)  # folds a run that was asleep, and sets its timers
            self._schedule_woken()
            if state is not None and timer.step != ASLEEP:
                self.inbox.push([Pending(timer.run_id, timer)])
        self._decide_loop.late(self.outbox.unanswered.due(now), now)
        self.inbox.push(Pending(run, None) for run in self.stalls.due(now))

    def _is_due(self, timer: Due) -> bool:
        """True if earlier inputs can change the effect of a timer."""
        state = self.log.accepted(timer.run_id) if timer.step > 0 else None
        opened = state.open.get(timer.step) if state else None
        return timer.step == 0 or bool(opened and (opened.phase in ("wait", "callback") or opened.question))

    def passed(self, answer: CommittedAt | End) -> None:
        """Queue calls whose requests executors have passed unanswered, or their topic has lost."""
        self._decide_loop.late(self.outbox.unanswered.answered(answer, self.partition), self.clock.now_ms, passed=True)

    def decided(self) -> int:
        """Offset below which all requests are decided, or kept for known runs."""
        return self.inbox.passed(RUN_REQUESTED)

    def low_water(self) -> Positions:
        """Positions to commit: of the input topics and, for emitted commands, of the run log."""
        settled = self.inbox.low_water()
        positions = {(topic, self.partition): position for topic, position in settled.items()}
        if RUN_REQUESTED in settled:  # other planners wait for this position, and not for runs that stand still
            positions[RUN_REQUESTED, self.partition] = self.decided()
        if self.log.live:
            positions[RUN_LOG, self.partition] = self.log.linked_from(self.outbox.low_water(self.log.position))
        return positions

    # Events of the log

    def _follow(self, happened: Iterable[Happened]) -> None:
        for event in happened:
            if self.log.woken:  # before later entries of those runs
                self._schedule_woken()
            if isinstance(event, AcceptedEntry):
                self.accepted(*event)
            elif isinstance(event, Repaired):
                self.mended(*event)
            elif isinstance(event, SentEntry):
                self._refused(event)

    def accepted(self, after: RunState, entry: events.Entry, offset: int) -> None:
        run, log = entry.run_id, self.log
        request = after.request
        if request and request.forked and after.copied(entry.last_seq):  # entries of a copy have no consequences
            return
        if log.windows.limits:
            log.windows.accepted(entry, after, offset)
        if not log.live:
            if self.outbox.begins(offset):
                self.outbox.settled(after, entry, offset)
                self.family.settled(after, entry, offset)
            return
        self.outbox.add_accepted(after, entry, offset)
        self.family.accepted(after, entry, offset)
        if log.woken:
            self._schedule_woken()
        if after.over:
            self.stalls.lift(run, over=True)
        # The code of a suspended run is opened again when it goes on: waits of months cost only the fold.
        if after.over or (after.status == "suspended" and run not in log.speculated and _waits_for_long(after)):
            self._agents.forget(run)
        self.admission.count(after)
        self._timers.follow(after, entry)
        self._run_journal.accepted(after, entry)
        self.inbox.unpark(run)

    def _schedule_woken(self) -> None:
        """Set timers of runs that were asleep and have been folded."""
        for state in self.log.woken:
            self._timers.set(state.run_id, ASLEEP, 0)
            if self.log.live:
                self._count_and_schedule(state)
        self.log.woken.clear()

    def _refused(self, sent: SentEntry) -> None:
        """Fail the run of an entry that the log refuses as too large."""
        before = self.log.latest(sent.entry.run_id)
        self._journal.tell("publish.refused", topic=RUN_LOG, run=sent.entry.run_id)
        self._decide_loop.send_too_large(before, sent.entry.events, sent.item, sent.entry.at_ms)

    def mended(self, state: RunState, offset: int) -> None:
        """Resume a run that stood still and has one history again."""
        self.stalls.lift(state.run_id, over=state.over)
        self.outbox.open_orders(state, offset)
        self.family.mended(state.run_id)
        if not state.over:
            self._count_and_schedule(state)
            self.inbox.push([Pending(state.run_id, None)])
        self.inbox.unpark(state.run_id)

    def _awaits_history(self, item: Pending) -> bool:
        """True if an input waits for a history, or was refused."""
        message = item.input
        if not isinstance(message, (ChildEnded, RunOperation)):  # most inputs
            return False
        try:
            return self.histories.parks(item, message)
        except ConflictError as error:
            self._refuse(item, error.message)
            return True

    def _take_histories(self, outcomes: Iterable[HistoryOutcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Unmended):
                self._refuse(*outcome)
            elif isinstance(outcome, LoadedHistory):
                self._histories_read.append(outcome)
            else:
                state, position = outcome.state, self.log.position
                self.mended(state, position)
                self.outbox.reread(state, outcome.news, position)
                self.family.reread(state, outcome.news, position)
                if state.over:
                    self.log.finish(state)

    def _count_and_schedule(self, state: RunState) -> None:
        self.admission.count(state)
        self._timers.rebuild(state)

    def _after_reading(self) -> None:
        """Go live once all is read, and queue inputs that waited for this."""
        if self.log.woken:
            self._schedule_woken()
        if sweep := self.log.fold.sweep:
            for key in sweep:
                self.outbox.sweep(key)
            sweep.clear()
        if not self.log.live:
            self.start.reached(RUN_LOG, self.log.position)
            self.start.reached(CATALOG, self._catalog.position)
            if self.start.done:
                self._go_live()
        self.inbox.settle(self.log.position, self._catalog.position)

    def _go_live(self) -> None:
        """Begin to decide, at the end captured by the take-over; waiting runs stay asleep."""
        for run, reason in self.log.go_live().items():
            self.stalls.disorder(run, reason, self.clock.now_ms)
        self.outbox.release(self.log.fold.frozen)
        self.family.go_live()
        self._schedule_woken()
        states = [state for run, state in self.log.fold.states.items() if run not in self.log.fold.frozen]
        for state in states:
            self._count_and_schedule(state)
        for run, asleep in self.log.asleep.items():
            self._timers.set(run, ASLEEP, asleep.due_ms)
            self.admission.count_asleep(run, asleep)
        ready = list(self.stalls.ready(self.log.latest, self._agents.code_of))
        self._schedule_woken()
        self.inbox.push(Pending(run, None) for run in ready)
        self.start.begin(state.run_id for state in states)
        self.lane_schedule.begin()
        runs = len(states) + len(self.log.asleep)
        self._journal.tell("lane.live", partition=self.partition, position=self.log.position, runs=runs)
        self._run_journal.begin((*self.log.fold.states, *self.log.asleep))


def _waits_for_long(state: RunState) -> bool:
    return state.waits_for_people or rests(state)
