"""One partition's planner: from a record to accepted entries and the commands that they order.

An input goes from the `inbox` through `decide` and the agent's code into an entry; the entry through `acceptance`, when
the log has it, to the `outbox`, which sends what it orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.core import events
from refold.core.approval.catalog import Catalog
from refold.core.ids import RunId
from refold.core.planning.verdict import Rules
from refold.core.run.state import RunState
from refold.core.topics import CATALOG, RUN_LOG, RUN_REQUESTED, RUN_SNAPSHOT
from refold.planner import inputs
from refold.planner.acceptance import Acceptance, SentEntry
from refold.planner.answering import Answering, Shared
from refold.planner.holds import Holds
from refold.planner.hosting import Agents
from refold.planner.inbox import Inbox, Pending
from refold.planner.outbox import Asker, Beat, Outbox
from refold.planner.receipts import Receipts
from refold.planner.repairs import Repairs
from refold.planner.snapshots import SentKept
from refold.planner.takeover import TakeOver
from refold.planner.telling import tell_accepted, tell_resumed
from refold.planner.timers import ASLEEP, Timers
from refold.ports.effects import CommittedAt
from refold.ports.log import NEVER, Assigned, Delivery, End, Reached, Record
from refold.runtime.clock import LogClock
from refold.runtime.lanes import Positions, Tokens

BEAT_MS = 1_000
"""How long a lane waits for the time that it asked the log for."""

QUIET_MS = 60_000
"""How long it goes by its own clock, which stands still while a machine sleeps, before it asks again."""


class Lane:
    """What serves one partition. The service feeds it, lets it `work` once a turn, and collects what it sends."""

    def __init__(
        self,
        assigned: Assigned,
        shared: Shared,
        tokens: Tokens[tuple[Lane, Asker]],
        *,
        agents: Agents,
        rules: Rules,
        catalog: Catalog,
        mono_ms: int,
        distrust: bool = False,
    ) -> None:
        self.partition, self.clock = assigned.partition, LogClock()
        self.clock.tick(mono_ms)
        self._beat_due = self._round_due = 0
        self._active: set[RunId] = set()
        self._settings, self._limits, self._journal = shared.settings, shared.settings.limits, shared.journal
        self._agents, self._catalog = agents, catalog
        self.inbox = Inbox(self._limits)
        self.outbox = Outbox(self.partition, self._settings.member, lambda asker: tokens.give((self, asker)))
        self.log = Acceptance(
            self.inbox, agents, shared.journal, told=self, keep=self._keeps, member=self._settings.member
        )
        self._timers, self.holds = Timers(), Holds(self._settings.member, shared.journal, self.outbox.hold)
        self._answering = Answering(
            self.partition,
            shared,
            self.inbox,
            self.log,
            self.outbox,
            self._timers,
            agents=agents,
            holds=self.holds,
            rules=rules,
            room=self._room,
        )
        self.repairs = self._new_repairs()
        self._receipts = Receipts(self.log, self.outbox, self.inbox, answering=self._answering, holds=self.holds)
        self.start = TakeOver(assigned, self.log, self.outbox, inbox=self.inbox, holds=self.holds, distrust=distrust)
        self._moved()

    def _keeps(self, sent: SentKept) -> None:
        self.outbox.keep(sent, self.clock.now_ms)

    def _new_repairs(self) -> Repairs:
        def bury(item: Pending, why: str) -> None:
            self._answering.bury(item, "conflict", why, self.clock.now_ms)

        return Repairs(self.log, self.outbox, bury)

    # Whose it is

    def reads(self) -> Mapping[str, int]:
        return {CATALOG: self._catalog.position, **self.start.wants()}

    def leave(self) -> None:
        """What is another's now goes on elsewhere; a successor of ours begins with what that one has kept of it."""
        for run in self.log.fold.states:
            self._agents.forget(run)

    # What comes in

    def feed(self, item: Record | Reached | End) -> None:
        if not isinstance(item, End) and item.topic == RUN_LOG and not self.start.admits(item):
            return
        if isinstance(item, End):
            if item.topic == CATALOG:
                self.inbox.catalog.reached_end(item.offset)
            elif item.topic == RUN_LOG:
                self.inbox.unconfirmed.reached_end(item.offset)
                self.log.reached_end(item.offset)
        elif isinstance(item, Reached):
            if item.topic == CATALOG:
                self._catalog.reached(item.offset)
            elif item.topic == RUN_SNAPSHOT:
                self.start.reached(item.topic, item.offset)
            elif item.topic == RUN_LOG:
                self.log.reached(item.offset)
                self.repairs.reached(item.offset)
            else:
                self.inbox.reached(item.topic, item.offset)
        elif item.topic == RUN_LOG:
            if item.offset >= self.log.position:
                self.clock.read(item.at_ms)
            self.log.follow(item)
            self.repairs.follow(item)
        elif item.topic == RUN_SNAPSHOT:
            self.log.erase(item)
            # Live, a lane knows better: what it reads then it has written itself, and it may be otherwise by now.
            if not self.log.live:
                self.holds.follow(item.key, item.value, at_ms=item.at_ms)
            self.start.follow(item)
        elif item.topic == CATALOG:
            self._catalog.follow(item.offset, item.key, item.value)
        else:
            taken = self.inbox.take(item)
            if taken.letter:
                self._answering.bury(taken, *taken.letter, self.clock.now_ms)
            return
        self._moved()

    def delivered(self, asker: Asker, delivery: Delivery) -> None:
        """The answer for a record that this lane has sent."""
        offset = delivery.offset
        if isinstance(asker, SentEntry | SentKept | Beat) and offset is not None and offset != NEVER:
            self.clock.delivered(delivery.at_ms)
            self._beat_due = self.clock.mono_ms + QUIET_MS
        if isinstance(asker, SentEntry):
            asker.at_ms = delivery.at_ms
            self.log.delivered(asker, offset)
            self._moved()
        elif asker is not None:
            self._receipts.published(asker, offset, self.clock.now_ms)

    @property
    def wants_end(self) -> bool:
        """Whether the high watermark of the run log has to be asked for."""
        return self.log.lost or self.inbox.unconfirmed.wants_end

    def work(self) -> None:
        """Decides what is ready, unless the log has to be read first, or has not told the time and whose it is."""
        if not self.log.live:
            return
        self.outbox.tell(self.log.fold.states)
        if self.clock.mono_ms >= self._beat_due and (self._times() or not self.clock.fresh):
            self._beat_due = self.clock.mono_ms + BEAT_MS
            self.outbox.beat()
        if not self.log.keeper.opened and self.clock.mono_ms >= self._round_due:
            self._round_due = self.clock.mono_ms + self._settings.snapshot_ms
            self.log.keeper.send_refused()
        if not self.clock.fresh or not self.log.keeper.opened:
            return
        self.start.resume(self._limits.turn_resumed)
        now = self.clock.now_ms
        for timer in self.start.ready(self._timers.due(now)):
            state = self.log.accepted(timer.run_id)  # looks into a run that was asleep, and sets its timers
            if state is not None and timer.step != ASLEEP:
                self.inbox.push([Pending(timer.run_id, timer)])
        self._answering.late(self.outbox.unanswered.due(now), now)
        self.inbox.push(Pending(run, None) for run in self.holds.due(now))
        self.inbox.admit(self._room())
        while self.inbox and self.log.flying < self._limits.turn_entries and not self.log.blocked:
            item = self.inbox.pop()
            if not self.repairs.takes(item):
                self._answering.answer(item, now)
        self._keep()

    def _keep(self) -> None:
        """Writes what has moved, every few seconds, some of it in every turn."""
        if self.clock.mono_ms >= self._round_due and not (self.start.resuming or self.outbox.beginning):
            self._round_due = self.clock.mono_ms + self._settings.snapshot_ms
            inputs = self.start.inputs | self.inbox.low_water()
            self.log.keeper.round(self.log.settled(self.outbox.emitted.low_water(self.log.position)), inputs)
        self.log.keeper.write(self.log.position)

    def passed(self, answer: CommittedAt | End) -> None:
        """Executors have come so far, or the topic has: what is passed and not answered, or lost, goes out again."""
        calls = self.outbox.unanswered.told(answer, self.partition)
        self._answering.late(calls, self.clock.now_ms, passed=True)

    def _times(self) -> list[int]:
        """When time alone will make something due."""
        times = (self._timers.next_ms(), self.outbox.unanswered.next_ms(), self.holds.next_ms())
        return [at for at in times if at is not None]

    def _room(self) -> int:
        """How many more runs may be with executors."""
        return self._limits.active - len(self._active) - self.log.flying if self.start.heard else 0

    def paused(self, before: frozenset[str]) -> frozenset[str]:
        """The topics of which no more is to be taken. `before`: of which none is taken so far."""
        topics = {topic for topic in inputs.TOPICS if self.inbox.crowded(topic)}
        least = self._limits.active // 10 if RUN_REQUESTED in before else 0
        if self.inbox.held or self._room() <= least:
            topics.add(RUN_REQUESTED)
        return frozenset(topics)

    def decided(self) -> int:
        """Up to where all requests of this partition are decided."""
        return max(self.start.inputs.get(RUN_REQUESTED, 0), self.inbox.passed(RUN_REQUESTED))

    def low_water(self) -> Positions:
        """What may be committed: per input topic and, for the emission of commands, of the run log."""
        settled = self.start.inputs | self.inbox.low_water()
        positions = {(topic, self.partition): position for topic, position in settled.items()}
        if self.log.live:
            positions[RUN_LOG, self.partition] = self.outbox.emitted.low_water(self.log.position)
        return positions

    def next_due_ms(self) -> int | None:
        """When `work` wants to be called at the latest. **Units**: monotonic."""
        if not self.log.live:
            return None
        if not self.clock.fresh:
            return self._beat_due
        if not self.log.keeper.opened:
            return self._round_due
        if (self.inbox or self.start.resuming) and not self.log.blocked and not self.log.flying:
            return 0
        if self.log.keeper.writing:
            return 0
        times = self._times()
        return min(self.clock.mono_of(min(times)), self._beat_due) if times else None

    # What the log says

    def accepted(self, after: RunState, entry: events.Entry, offset: int, own: bool) -> None:
        """An entry counts: what it orders goes out."""
        run = entry.run_id
        if not self.log.live:
            self.outbox.settled(after, entry, offset)
            return
        if own:
            self.outbox.emit(after, entry, offset)
        else:
            self.outbox.hear(after, entry, offset)
        if after.over:
            self._agents.forget(run)
            self.holds.lift(run, over=True)
        elif after.status == "suspended" and not self.log.speculates(run) and _waits_for_people(after):
            self._agents.forget(run)  # it is made again when they have decided: months cost nothing but the fold
        self._count(after)
        self._timers.follow(after, entry)
        tell_accepted(self._journal, self.partition, entry)
        self.inbox.unpark(run)

    def woken(self, state: RunState) -> None:
        """A run of which the entries alone were known was looked into."""
        self._timers.set(state.run_id, ASLEEP, 0)
        if self.log.live:
            self._count(state)
            self._timers.rebuild(state)

    def refused(self, sent: SentEntry) -> None:
        """The run fails with what it wanted to write as the reason."""
        before = self.log.fold.states.get(sent.entry.run_id)
        self._journal.tell("publish.refused", topic=RUN_LOG, run=sent.entry.run_id)
        self._answering.send_too_large(before, sent.entry.events, sent.item, sent.entry.at_ms)

    def _count(self, state: RunState) -> None:
        """A run is active while executors have something of it; what waits for time or people is not."""
        if state.status == "running" and state.open:
            self._active.add(state.run_id)
        else:
            self._active.discard(state.run_id)

    def mended(self, state: RunState, offset: int) -> None:
        """A run that was stalled has one history again: from here on it is like any other."""
        self.holds.lift(state.run_id, over=state.over)
        self.outbox.open_orders(state, offset)
        if not state.over:
            self._count(state)
            self._timers.rebuild(state)
            self.inbox.push([Pending(state.run_id, None)])
        self.inbox.unpark(state.run_id)

    def _moved(self) -> None:
        """The fold may have come further."""
        for key in self.log.swept():
            self.outbox.sweep(key)
        self.start.reached(RUN_LOG, self.log.position)
        self.start.reached(CATALOG, self._catalog.position)
        if not self.log.live and self.start.done:
            self._go_live()
        if not self.log.flying:
            self.inbox.settle(self.log.position)
        self.inbox.push(self.inbox.catalog.take(self._catalog.position))

    def _go_live(self) -> None:
        """The fold has reached the end that was captured at the take-over. Runs that wait are left asleep."""
        for run, reason in self.log.go_live().items():
            self.holds.tangle(run, reason, self.clock.now_ms)
        self.outbox.release(self.log.fold.frozen)
        frozen, asleep = self.log.fold.frozen, self.log.asleep
        states = {run: state for run, state in self.log.fold.states.items() if run not in frozen}
        for state in states.values():
            self._count(state)
            self._timers.rebuild(state)
        for run, kept in asleep.items():
            self._timers.set(run, ASLEEP, kept.due_ms)
            if kept.status == "running":
                self._active.add(run)
        ready = list(self.holds.ready(self.log.latest, self._agents.code_of))
        self.inbox.push(Pending(run, None) for run in ready)
        self.start.begin(states)
        self._beat_due = self.clock.mono_ms + (0 if self.log.keeper.opened else BEAT_MS)
        runs = len(states) + len(asleep)
        self._journal.tell("lane.live", partition=self.partition, position=self.log.position, runs=runs)
        tell_resumed(self._journal, states.values())


def _waits_for_people(state: RunState) -> bool:
    return all(opened.phase in ("approval", "doubt") for opened in state.open.values())
