"""All lanes and attempts of an executor process: starts attempts, and routes answers and time to them."""

from collections import deque
from collections.abc import Callable

from refold.core.errors import MalformedError
from refold.core.ids import CallId
from refold.core.messages import ToolRequest
from refold.core.run.state import CHAINED
from refold.core.wire.headers import CALL_KEY, taken_back, text_in
from refold.core.wire.seal import OrderPlace
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.chained import ChainedAttempt
from refold.engine.executor.inputs import Requested
from refold.engine.executor.lane import ExecutorLane, request_of
from refold.engine.executor.outbox import ExecutorOutbox, Outlet, TimeAsked
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports import ledger
from refold.engine.ports.effects import Answers, Effect, Item, LanesNow, Leave, Look, Looked, Now, ToolEnded
from refold.engine.ports.log import Assigned, Delivery, End, Reached, Record
from refold.engine.runtime.lanes import Awake, Lanes

# Planners may read the end of a halt a moment before the executor.
HALTED_MS = 5_000
"""Time that a halted call is kept aside; after the halt planners send it again."""

FULL, _ROOM = 0.8, 0.75
"""Shares of the ledger's memory: above the first nothing is claimed, until below the second."""


class Executor:
    """The executor as a `Service`. `token` numbers attempts and outgoing records, `fresh` returns random ids."""

    def __init__(
        self, settings: ExecutorSettings, outlet: Outlet, *, token: Callable[[], int], fresh: Callable[[], str]
    ) -> None:
        self._settings, self._token = settings, token
        self._outbox: ExecutorOutbox[Attempt] = ExecutorOutbox(settings, outlet, token=token, fresh=fresh)
        self.counts, self.news = self._outbox.journal.counts, self._outbox.journal.news
        self.lanes = Lanes(
            lambda assigned: ExecutorLane(assigned, self._outbox),
            leave=self._leave,
            wake=ExecutorLane.wake,
            commit_ms=settings.commit_ms,
        )
        self._awake = Awake(self.lanes)
        self._queued: list[ExecutorLane] = []
        self.attempts: dict[int, Attempt] = {}
        self.draining = self._leaving = False
        self._cut_ms = 0
        self._by_call: dict[str, Attempt] = {}
        self._tend_due = self._round_due = self._turns = self._acting = 0
        self._missing: set[str] = set()
        self._fetching: dict[tuple[int, int], tuple[str, OrderPlace]] = {}
        self._claimed_in: set[int] = set()

    def turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        self._outbox.now = now
        self._turns += 1
        self._awake.begin(now.mono_ms)
        for queued in self._queued:
            self._awake.touch(queued.partition)
        # Nothing is acted upon before all records of the turn are read: a policy, a key, a tombstone.
        records_first = sorted(inbox, key=lambda item: isinstance(item, _ANSWERS))
        left = [effect for item in records_first for effect in self._route(item)]
        self._look_at_chains()
        if now.mono_ms >= self._tend_due:
            self._tend_due = now.mono_ms + self._settings.tend_ms
            self._tend_attempts()
        if now.mono_ms >= self._round_due:
            self._round_due = now.mono_ms + self._settings.reap_ms
            self._visit_lanes()
        lanes = list(self._awake)
        self._probe_clocks(lanes)
        self._admit(lanes)
        flow = self._throttle(sum(lane.waiting.bytes for lane in lanes))
        self._queued = [lane for lane in lanes if len(lane.waiting)]
        self._awake.rest(lambda lane: None)  # timers of a lane wait for the next round
        effects = [*self._outbox.collect(), *left, *flow, *self.lanes.commit(now, at_once=self._leaving)]
        if self._leaving:
            effects.append(Leave())
            self._leaving = False
        return effects

    def next_due_ms(self) -> int | None:
        soon = self.attempts or self._queued or self._outbox.ledger
        ahead = self._settings.tend_ms if soon else self._settings.reap_ms
        return self._outbox.now.mono_ms + ahead if soon or len(self.lanes) else None

    def drain(self) -> bool:
        """Hand over what has not begun, and cut tools after the grace. True once no outcome can follow."""
        if not self.draining:
            self.draining = self._leaving = True
            self._cut_ms = self._outbox.now.mono_ms + self._settings.grace_ms
            for lane in self.lanes:
                lane.waiting.clear()
            for attempt in list(self.attempts.values()):
                attempt.leave()
                self._forget_if_over(attempt)
            return False
        if over := self._outbox.now.mono_ms >= self._cut_ms:
            for attempt in self.attempts.values():
                attempt.cut()
        left = [attempt.phase for attempt in self.attempts.values() if attempt.phase != "over"]
        return all(over and phase == "running" for phase in left)

    def lanes_now(self) -> LanesNow:
        return LanesNow(len(self.lanes), sum(not lane.caught_up for lane in self.lanes), len(self.attempts))

    # Input

    def _route(self, item: Item) -> list[Effect]:
        if isinstance(item, Answers):
            self._answered(item)
        elif isinstance(item, Delivery):
            self._delivered(item)
        elif isinstance(item, Looked):
            self._queue_fetched(item)
        elif isinstance(item, ToolEnded):
            if attempt := self.attempts.get(item.number):
                attempt.ended(item)
                self._forget_if_over(attempt)
        elif isinstance(item, (Record, Reached, End)):
            if lane := self._awake.touch(item.partition):
                lane.feed(item)
                self._follow_up(item, lane)
        else:
            if isinstance(item, Assigned):
                self._round_due = 0
            return self.lanes.route(item)
        return []

    def _delivered(self, item: Delivery) -> None:
        sent = self._outbox.delivered(item)
        if isinstance(sent, TimeAsked):
            if lane := self._awake.touch(sent.home):
                lane.clock_probed(item, sent.sent_ms)
        elif sent is not None:
            sent.appended(item.offset)

    def _follow_up(self, item: Record | Reached | End, lane: ExecutorLane) -> None:
        """Pass on a record that an attempt may wait for, or that ends it."""
        if item.topic == self._settings.chains:
            self._claimed_in.add(item.partition)
        elif isinstance(item, Record) and item.topic == self._settings.topic and item.value is None:
            call, headers = CallId((item.key or b"").decode(errors="replace")), item.read_headers()
            key = text_in(headers, CALL_KEY)
            if headers and len(headers) > 1 and (upto := taken_back(headers)):
                self._take_back(lane, call, key, upto)
            else:
                self._close_call(lane, call, key)

    def _look_at_chains(self) -> None:
        homes, self._claimed_in = self._claimed_in, set()
        for attempt in list(self.attempts.values()) if homes else ():
            if attempt.home in homes and attempt.phase in ("waiting", "reading", "undoing"):
                attempt.look()
                self._forget_if_over(attempt)

    def _take_back(self, lane: ExecutorLane, call: CallId, key: str, upto: int) -> None:
        """Withdraw an attempt that is judged again, or in doubt; a running one goes on."""
        self._outbox.taken_back.add(call, max(upto, self._outbox.taken_back.get(call, 0)))
        lane.waiting.withdraw(call, upto)
        if (attempt := self._by_call.get(call)) and attempt.request.attempt <= upto:
            attempt.take_back()
            self._forget_if_over(attempt)
        self._outbox.close(lane.partition, key, call, upto)

    def _close_call(self, lane: ExecutorLane, call: CallId, key: str) -> None:
        lane.waiting.withdraw(call)
        if attempt := self._by_call.get(call):
            attempt.close()
        sent_key = self._outbox.keys.pop(call, "")
        for name in dict.fromkeys(name for name in (key, sent_key) if name):  # two, if people have edited the call
            self._outbox.close(lane.partition, name, call)
        if not key and not sent_key:
            self._outbox.gone.add(call, None)

    def _answered(self, answers: Answers) -> None:
        for asker, operation, reply in self._outbox.ledger.answered(answers, self._outbox.now):
            if isinstance(reply, ledger.Broken) and isinstance(operation, _OF_A_CALL):
                self._outbox.set_aside(operation.home, "no ledger has written it", broken=(operation.key,))
            if isinstance(asker, Attempt):
                asker.answered(operation, reply)
                self._forget_if_over(asker)
            elif asker is not None:
                asker.done = True
            elif isinstance(operation, ledger.Lapsed):
                self._take_over_lapsed(operation, reply)
            elif isinstance(operation, ledger.Fill) and isinstance(reply, ledger.Filled):
                self._note_fill_level(operation.home, reply)

    def _take_over_lapsed(self, operation: ledger.Lapsed, reply: ledger.Reply) -> None:
        """Look up the requests of lapsed leases, to queue them again."""
        home = operation.home
        if operation.heir and (lane := self.lanes.get(home)):
            lane.inherited()
        if not isinstance(reply, list):
            self._outbox.set_aside(home, "the index of leases is none")
            return
        for key, sealed in reply:
            try:
                place = self._settings.seal.open_order(home, key, sealed)
            except MalformedError as error:
                self._outbox.set_aside(home, error.message, leases=(key,))
                continue
            if place.call in self._outbox.gone:
                self._outbox.close(home, key, place.call)
            elif self._may_queue(home, place.call) and (home, place.offset) not in self._fetching:
                self._fetching[home, place.offset] = key, place
                self._outbox.orders.append(Look(self._settings.topic, home, place.offset))

    def _queue_fetched(self, fetched: Looked) -> None:
        """Queue the call of a request that was looked up at the ledger's offset."""
        home = fetched.partition
        pending, lane = self._fetching.pop((home, fetched.offset), None), self._awake.touch(home)
        if pending is None or lane is None or not fetched.known or not self._may_queue(home, pending[1].call):
            return
        (key, place), record = pending, fetched.record
        request = _request_under_lease(record, key, place) if record else None
        if record is None or request is None:
            # Compacted away: it is settled, or was sent again since and will be read.
            self._outbox.ledger.ask(ledger.Unlist(home, self._settings.pool, (key,)))
            return
        if not lane.halt_of(request):
            self._outbox.journal.tell("lease.lapsed", call_id=request.call_id, attempt=request.attempt)
            # Without an age: the ledger still has this call, so it cannot be too old to begin.
            if requested := self._outbox.requested(home, request, record._replace(at_ms=0)):
                lane.enqueue(requested)

    def _may_queue(self, home: int, call: CallId) -> bool:
        lane = self.lanes.get(home)
        return lane is not None and call not in self._by_call and call not in lane.waiting

    def _note_fill_level(self, home: int, filled: ledger.Filled) -> None:
        """Stop or resume claims by the ledger's memory, which calls under way need."""
        if (lane := self.lanes.get(home)) is None:
            return
        share = filled.used / filled.limit if filled.limit else 0.0
        full = share >= (_ROOM if lane.full else FULL)
        if full != lane.full:
            event = "ledger.full" if full else "ledger.room"
            self._outbox.journal.tell(event, partition=home, used=filled.used, limit=filled.limit)
        lane.full = full

    def _leave(self, lane: ExecutorLane) -> None:
        for attempt in [open_attempt for open_attempt in self.attempts.values() if open_attempt.home == lane.partition]:
            attempt.leave()
            self._forget_if_over(attempt)
        lane.waiting.clear()
        self._awake.forget(lane.partition)
        self._fetching = {at: request for at, request in self._fetching.items() if at[0] != lane.partition}

    # Timers

    def _tend_attempts(self) -> None:
        for attempt in list(self.attempts.values()):
            attempt.tend()
            self._forget_if_over(attempt)
        self._outbox.send_closes(at_once=self.draining)

    def _visit_lanes(self) -> None:
        """Visit all lanes, also those at rest."""
        settings, mono = self._settings, self._outbox.now.mono_ms
        free = max(1, settings.slots - len(self.attempts) - sum(len(lane.waiting) for lane in self.lanes))
        # No other process looks for leases that lapse in these partitions.
        for lane in self.lanes:
            self._awake.touch(lane.partition)
            lane.tend()
            if mono >= lane.fill_due:
                lane.fill_due = mono + settings.fill_ms
                self._outbox.ledger.ask(ledger.Fill(lane.partition, settings.pool))
            if not self.draining:
                self._outbox.ledger.ask(ledger.Lapsed(lane.partition, settings.pool, free, lane.heir))

    def _probe_clocks(self, lanes: list[ExecutorLane]) -> None:
        mono = self._outbox.now.mono_ms
        for lane in lanes:
            if mono >= lane.clock_probe_due:
                lane.clock_probe_due = mono + self._settings.clock_probe_ms
                self._outbox.probe_clock(lane.partition)

    def _throttle(self, waiting: int) -> list[Effect]:
        # The backlog is the process's: slots are, and waiting calls are in its memory.
        limit, topics = self._settings.backlog_bytes, (self._settings.topic,)
        if waiting <= limit and not self.lanes.throttled:
            return []
        return self.lanes.throttle(lambda lane: waiting, limit=limit, topics=topics)

    def _admit(self, lanes: list[ExecutorLane]) -> None:
        """Begin waiting calls, lane by lane, as far as slots and memory allow."""
        # Only with a free slot: a claim that waits behind others would only use up its lease.
        ready = deque(lane for lane in lanes if lane.ready and not self.draining)
        ready.rotate(self._turns)  # no lane is first for ever
        while ready and len(self.attempts) < self._settings.slots and self._acting < self._settings.acting_bytes:
            lane = ready.popleft()
            self._begin(lane, lane.waiting.take())
            if lane.ready:
                ready.append(lane)

    def _begin(self, lane: ExecutorLane, requested: Requested) -> None:
        if self._needs_no_attempt(lane, requested):
            requested.done = True
            return
        if self._put_aside(lane, requested):
            return
        call = requested.request.call_id
        self._outbox.settle(requested.request.key)
        self._outbox.keys.add(call, requested.request.key)
        common = self._token(), lane.partition, requested, lane.catalog, lane.clock, self._outbox
        chained = self._settings.gate.effect(requested.request) in CHAINED
        attempt = ChainedAttempt(*common, claims=lane.claims) if chained else Attempt(*common)
        self.attempts[attempt.number] = self._by_call[call] = attempt
        self._acting += requested.weight
        attempt.begin()

    def _needs_no_attempt(self, lane: ExecutorLane, requested: Requested) -> bool:
        """True if a call is under way, was taken back, or is too old to begin."""
        call = requested.request.call_id
        back = self._outbox.taken_back.get(call)
        if call in self._by_call:
            return True
        if back and requested.request.attempt <= back:
            # A planner whose log has lost its end waits for an answer; all others ignore it.
            self._outbox.refuse(lane.partition, requested.request)
            return True
        if late := lane.late(requested):
            # The ledger may have forgotten it; after its deadline the planner sends a fresh one.
            self._outbox.journal.tell("request.stale", call_id=call, at_ms=requested.at_ms)
        return late

    def _put_aside(self, lane: ExecutorLane, requested: Requested) -> bool:
        """Put a call aside if it is halted, or its tool is not here; return True if it was."""
        tool, now = requested.request.tool, self._outbox.now.mono_ms
        if why := lane.halt_of(requested.request):
            self._outbox.journal.tell("call.halted", call_id=requested.request.call_id, tool=tool, reason=why)
            lane.waiting.put_aside(requested, now + HALTED_MS)
            return True
        if self._settings.tools is None or tool in self._settings.tools:
            return False
        if tool not in self._missing:
            self._missing.add(tool)
            self._outbox.journal.tell("tool.missing", tool=tool, pool=self._settings.pool)
        lane.waiting.put_aside(requested, now + self._settings.aside_ms)
        return True

    def _forget_if_over(self, attempt: Attempt) -> None:
        """Forget an attempt that is over; while its tool runs it keeps its slot."""
        if attempt.phase not in ("leaving", "over"):
            return
        if self._by_call.get(attempt.request.call_id) is attempt:
            del self._by_call[attempt.request.call_id]
        if attempt.phase == "over" and not attempt.busy and attempt.number in self.attempts:
            del self.attempts[attempt.number]
            self._acting -= attempt.requested.weight


_ANSWERS = (Answers, Delivery, ToolEnded)
_OF_A_CALL = (ledger.Claim, ledger.Renew, ledger.Release, ledger.HandOver, ledger.Complete)


def _request_under_lease(record: Record, key: str, place: OrderPlace) -> ToolRequest | None:
    """Request of a record, if it is the one of a lease under `key`."""
    request = request_of(record)
    if not isinstance(request, ToolRequest):
        return None
    return request if (request.key, request.call_id, request.attempt) == (key, place.call, place.attempt) else None
