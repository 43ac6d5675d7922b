"""All lanes of a planner process: routes items to them, and collects their effects."""

from collections import Counter
from collections.abc import Callable
from itertools import count

from refold.core.ids import parse_log_key
from refold.core.run.log import NOTHING_LOST, Lost
from refold.core.topics import CATALOG, RUN_LOG, RUN_REQUESTED, TOOL_REQUESTED, executors, pool_of
from refold.engine.planner.agents.stalls import LiveRoom
from refold.engine.planner.deciding.decide_loop import BlobOrders, Shared
from refold.engine.planner.intake.inbox import ASK_MS, UnknownRuns, WaitsFor
from refold.engine.planner.lane import Lane, earliest
from refold.engine.planner.log.outbox import AskerAt
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports import effects
from refold.engine.ports.log import Assigned, Delivery, End, Outgoing, Reached, Record, Revoked, Shrunk
from refold.engine.runtime.lanes import Awake, Journal, Lanes, Tokens
from refold.engine.runtime.watchdog import Mark
from refold.sdk.app import App

USERS_BYTES = 262_144
"""Bytes of user inputs that a turn begins to answer: some 20 ms of work."""

REST = 3
"""Pause for user inputs after a turn that used up `USERS_BYTES`, as a multiple of its duration."""

LONGEST_REST_MS = 200
"""Longest such pause of user inputs: a turn may have been long for other reasons."""


class Fairness:
    """Order and time shares of the lanes of one planner. **Units**: monotonic, milliseconds."""

    def __init__(self, lanes: Lanes[Lane]) -> None:
        self._lanes, self._mono, self._first = lanes, 0, -1
        self._left, self._begun, self._rests_until = USERS_BYTES, 0, 0
        self._awake = Awake(lanes)
        self.touch, self.forget, self.next_due_ms = self._awake.touch, self._awake.forget, self._awake.next_due_ms

    def begin(self, mono_ms: int) -> None:
        self._mono = mono_ms
        self._awake.begin(mono_ms)

    @property
    def awake(self) -> list[Lane]:
        """Lanes that work in this turn, in rotating order."""
        return sorted(self._awake, key=lambda lane: lane.partition <= self._first)

    def work(self) -> None:
        """Have lanes work, with this turn's share of user inputs."""
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
        self._awake.rest(lambda lane: lane.lane_schedule.next_due_ms())


class Planner:
    """The planner as a `Service`. `nonce` returns 16 random bytes, a watchdog reads `mark`, and `process` distinguishes
    entries of this process from a predecessor's."""

    def __init__(
        self,
        app: App,
        settings: PlannerSettings,
        nonce: Callable[[], bytes],
        mark: Mark | None = None,
        *,
        process: str = "",
    ) -> None:
        assert settings.windows or not app.windows, "whoever shares limits reads what others tell"
        self.journal = Journal()
        self.counts, self.news = self.journal.counts, self.journal.news
        self._unknown_runs, self._blobs = UnknownRuns(settings.membership.group, settings.partitions), BlobOrders()
        actor = f"{settings.member}/{process}" if process else settings.member
        self._tokens = tokens = Tokens[AskerAt](count(1).__next__)
        unknown, room, mark = self._unknown_runs, LiveRoom(settings.budget.live_bytes), mark or Mark()
        self._shared = Shared(app, settings, nonce, self.journal, unknown, actor, self._blobs, tokens, room, mark)
        self.lanes = Lanes(self._open, leave=self._drop_lane, commit_ms=settings.commit_ms)
        self._mono = self._ask_due = 0
        self._draining = False
        self._fairness = Fairness(self.lanes)
        self._late: set[int] = set()
        self._distrusted: dict[int, Lost] = {}
        self._mirrored: set[int] = set()
        self._paused: dict[int, frozenset[str]] = {}

    def turn(self, inbox: list[effects.Item], now: effects.Now) -> list[effects.Effect]:
        self._mono = now.mono_ms
        self._fairness.begin(now.mono_ms)
        orders: list[effects.Effect] = []
        for item in inbox:
            orders += self._take_item(item)
        for partition, waited in self._unknown_runs.without_run(self._decided):
            if (served := self.lanes.get(partition)) is not None:
                self._fairness.touch(partition)
                served.inbox.give_up(waited)
        if self._draining:
            for lane in self.lanes:
                self._fairness.touch(lane.partition)
                if lane.log.live:  # entries accepted at the last moment
                    lane.outbox.send_accepted(lane.log.fold.states)
        else:
            self._fairness.work()
        lanes = self._fairness.awake
        orders += [*self._records_and_reads(lanes), *self._ask(lanes), *self._flow(lanes)]
        self._fairness.rest()
        return [*orders, *self.lanes.commit(now, at_once=self._draining)]

    def drain(self) -> bool:
        """Stop deciding; True once all commands are in their topics."""
        # A successor repeats the commands beyond the committed position: each deploy would publish outcomes twice.
        begins, self._draining = not self._draining, True
        live = [lane for lane in self.lanes if lane.log.live]
        return not begins and all(not lane.log.flying and lane.outbox.is_sent(lane.log.position) for lane in live)

    def lanes_now(self) -> effects.LanesNow:
        lanes = list(self.lanes)
        waiting = Counter[str]()
        for lane in lanes:
            waiting.update(lane.inbox.waiting.counts())
        executions = sum(map(len, self._shared.room.lanes))
        return effects.LanesNow(len(lanes), sum(not lane.log.live for lane in lanes), executions, waiting)

    def next_due_ms(self) -> int | None:
        due = (self._fairness.next_due_ms(), self._unknown_runs.next_due_ms(), self._ask_due if self._late else None)
        return earliest(due)

    def _decided(self, partition: int) -> int:
        return lane.decided() if (lane := self.lanes.get(partition)) is not None else 0

    def _take_item(self, item: effects.Item) -> list[effects.Effect]:
        if isinstance(item, Delivery):
            return self._deliver(item)
        if isinstance(item, (Record, Reached)):  # with deliveries, nearly all items
            return self._feed(item)
        if isinstance(item, (effects.BlobLoaded, effects.BlobSaved)):
            for lane in self.lanes:  # any of them may have requested it
                self._fairness.touch(lane.partition)
            self._blobs.answered(item)
        elif not isinstance(item, (End, effects.CommittedAt)):
            return self._position_changed(item)
        elif item.topic == RUN_REQUESTED:
            self._unknown_runs.take(item, self._mono)
        elif isinstance(item, effects.CommittedAt) or item.topic.startswith(TOOL_REQUESTED):
            self._requests_passed(item)
            return []
        return self._feed(item) if isinstance(item, End) else []

    def _feed(self, item: Record | Reached | End) -> list[effects.Effect]:
        lane = self._fairness.touch(item.partition)
        if lane is None:
            return []
        lane.feed(item)
        return self._restart(lane) if lane.log.shrunk or lane.start.foreign else []

    def _requests_passed(self, item: effects.CommittedAt | End) -> None:
        self._ask_due = self._mono + ASK_MS  # the answer may have taken long, and all else has waited for it
        for partition in sorted(self._late) if isinstance(item, effects.CommittedAt) else (item.partition,):
            if (late := self.lanes.get(partition)) is not None:
                self._fairness.touch(partition)
                late.passed(item)

    def _position_changed(self, item: effects.Item) -> list[effects.Effect]:
        if isinstance(item, (Assigned, Revoked)):
            self._unknown_runs.forget(item.partition)
            self._paused.pop(item.partition, None)
        elif isinstance(item, Shrunk):
            read = self.lanes.get(item.partition)  # positions in its marks may rest on lost records
            self._distrusted[item.partition] = _missed(read) if read else NOTHING_LOST
        orders = self.lanes.route(item)
        if isinstance(item, Assigned):
            self._fairness.touch(item.partition)
        return orders

    def _deliver(self, delivery: Delivery) -> list[effects.Effect]:
        if (sent := self._tokens.take(delivery.token)) is None:
            return []
        partition, asker = sent
        if (lane := self._fairness.touch(partition)) is None:
            return []
        lane.delivered(asker, delivery)
        return self._restart(lane) if lane.log.shrunk else []

    def _restart(self, lane: Lane) -> list[effects.Effect]:
        """Restart a lane whose log has lost records, or whose marks belong to another log."""
        number, shrunk = lane.partition, lane.log.shrunk
        self._distrusted[number] = _missed(lane) if shrunk else NOTHING_LOST
        if shrunk:
            self.journal.tell("log.shrunk", topic=RUN_LOG, partition=number, position=lane.log.position)
        else:
            self.journal.tell("marks.foreign", partition=number)
            self._mirrored.add(number)
        return self.lanes.restart_lane(number)

    def _drop_lane(self, lane: Lane) -> None:
        lane.leave()
        self._fairness.forget(lane.partition)
        self._late.discard(lane.partition)
        # The fate of records of a revoked lane is found out by its successor.
        self._tokens.forget(lambda sent: sent[0] == lane.partition)

    def _open(self, assigned: Assigned) -> Lane:
        lost, mirrored = self._distrusted.pop(assigned.partition, None), assigned.partition in self._mirrored
        return Lane(assigned, self._shared, mono_ms=self._mono, lost=lost, mirrored=mirrored)

    def _records_and_reads(self, lanes: list[Lane]) -> list[effects.Effect]:
        publishes: list[Outgoing] = []
        appends: list[Outgoing] = []
        reads: list[effects.Effect] = []
        for lane in lanes:
            lane.publish()
            outbox = lane.outbox
            publishes += outbox.publishes
            appends += outbox.appends
            outbox.publishes, outbox.appends = [], []
            if lane.histories.needs_log():
                reads.append(effects.Read(RUN_LOG, lane.partition, 0))
            reads += [effects.Read(topic, lane.partition, offset) for topic, offset in lane.start.seeks().items()]
            if lane.log.needs_log_end or lane.inbox.waiting.has_waiting(WaitsFor.LOG):
                lane.log.requested_at = lane.log.position
                reads.append(effects.AskEnd(RUN_LOG, lane.partition))
            if lane.inbox.waiting.has_waiting(WaitsFor.CATALOG):
                reads.append(effects.AskEnd(CATALOG, lane.partition))
        orders: list[effects.Effect] = [*self._blobs.orders]
        self._blobs.orders.clear()
        if publishes or appends:
            orders.append(effects.Publish(publishes + appends))
        return orders + reads

    def _ask(self, lanes: list[Lane]) -> list[effects.Effect]:
        orders = self._unknown_runs.effects(self._mono)
        for lane in lanes:
            (self._late.add if lane.outbox.unanswered.topics else self._late.discard)(lane.partition)
        if self._late and self._mono >= self._ask_due:
            self._ask_due = self._mono + ASK_MS
            lanes = list(self.lanes)
            ends = [effects.AskEnd(topic, lane.partition) for lane in lanes for topic in lane.outbox.unanswered.topics]
            topics = sorted({end.topic for end in ends})
            orders += [*(effects.AskCommitted(executors(pool_of(topic)), topic) for topic in topics), *ends]
        return orders

    def _flow(self, lanes: list[Lane]) -> list[effects.Effect]:
        orders: list[effects.Effect] = []
        for lane in lanes:
            number, before = lane.partition, self._paused.get(lane.partition, frozenset())
            self._paused[number] = paused = lane.admission.paused(before)
            orders += [effects.Flow("pause", topic, number) for topic in sorted(paused - before)]
            orders += [effects.Flow("resume", topic, number) for topic in sorted(before - paused)]
        return orders


def _missed(lane: Lane) -> Lost:
    """Entries and runs that this lane or a truncated predecessor had read from a log that lost its end."""
    log, before = lane.log, lane.log.fold.lost
    unread = {parts[2] for key in log.unread if (parts := parse_log_key(key))}
    return Lost(before.unread | unread, {*before.runs, *log.fold.states, *log.asleep})
