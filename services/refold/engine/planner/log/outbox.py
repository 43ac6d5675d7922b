"""Outgoing records of a lane: entries, commands, strays, dead letters. The run log is the planner's outbox: commands
follow from accepted entries alone. The offset below which all are acknowledged is the planner's position on `run-log`;
a successor sends the rest again."""

import dataclasses
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from refold.core import events, topics
from refold.core.approval.catalog import Catalog, Halts
from refold.core.ids import CallId, EntryId, RunId, call_id, entry_id, parse_approval_id, parse_call_id
from refold.core.messages import ApprovalRequest, Hold, RunOutcome, ShortRequest, ToolRequest, ToolResult
from refold.core.planning.asking import opened_by
from refold.core.planning.commands import (
    Command,
    ask_people,
    close,
    commands,
    outcomes,
    recall,
    request,
    without_result,
)
from refold.core.planning.verdict import Decided, Undeliverable
from refold.core.run.building import Base, calls_before
from refold.core.run.chain import CLOCK_PROBE_KEY, anchor_key
from refold.core.run.snapshot import weight
from refold.core.run.state import OpenStep, RunState
from refold.core.wire import codec
from refold.core.wire.headers import BASE, CALL_KEY, TAKEN_BACK, cloud_event, taken_back, text_in
from refold.engine.planner.agents.stalls import hold_record
from refold.engine.planner.intake.inbox import Emitted, Pending, SentEntry
from refold.engine.planner.intake.inputs import FROM_USERS
from refold.engine.planner.log.windows import SentSpent
from refold.engine.planner.snapshot import SentKept
from refold.engine.ports.effects import CommittedAt
from refold.engine.ports.log import End, Headers, Outgoing, Record
from refold.engine.runtime import letters
from refold.engine.runtime.lanes import Recent, Tokens


@dataclass(slots=True)
class SentRequest:
    """Last request of a call, after `times` earlier ones of its attempt; the run-log entry at `issued` ordered it."""

    attempt: int
    topic: str
    offset: int
    at_ms: int
    issued: int
    times: int = 0


class Unanswered:
    """Unanswered requests of one lane. **Units**: milliseconds of the lane's clock."""

    def __init__(self) -> None:
        self._sent: dict[CallId, SentRequest] = {}
        self._late: list[tuple[int, CallId]] = []
        self._waiting: dict[str, list[tuple[int, CallId]]] = {}

    @property
    def topics(self) -> list[str]:
        """Topics whose late calls wait for the executors' positions."""
        return [topic for topic, waiting in self._waiting.items() if waiting]

    def add(self, call: CallId, sent: SentRequest) -> None:
        before = self._sent.get(call)
        if before is not None and before.attempt == sent.attempt:
            sent.times = before.times + 1
        self._sent[call] = sent

    def last(self, call: CallId) -> SentRequest | None:
        return self._sent.get(call)

    def close(self, call: CallId) -> None:
        self._sent.pop(call, None)

    def watch(self, call: CallId, due_ms: int) -> None:
        heapq.heappush(self._late, (due_ms, call))

    def wait(self, call: CallId) -> None:
        """Wait with a late call until executors have passed its request."""
        sent = self._sent[call]
        heapq.heappush(self._waiting.setdefault(sent.topic, []), (sent.offset, call))

    def answered(self, answer: CommittedAt | End, partition: int) -> Iterable[CallId]:
        """Late calls that will get no answer, by this position of executors or end of a topic."""
        if isinstance(answer, End):
            return self._lost(answer.topic, answer.offset)
        return self._passed(answer.topic, answer.positions.get(partition, 0))

    def _passed(self, topic: str, position: int) -> Iterator[CallId]:
        waiting = self._waiting.get(topic, [])
        while waiting and waiting[0][0] < position:
            offset, call = heapq.heappop(waiting)
            if (sent := self._sent.get(call)) is not None and sent.offset == offset:
                yield call

    def _lost(self, topic: str, end: int) -> list[CallId]:
        # No executor can ever pass a request that its topic has lost.
        waiting = self._waiting.get(topic, [])
        self._waiting[topic] = sorted(order for order in waiting if order[0] < end)
        return [call for offset, call in waiting if offset >= end]

    def due(self, now: int) -> Iterator[CallId]:
        """Calls to check again, if they are still open."""
        while self._late and self._late[0][0] <= now:
            yield heapq.heappop(self._late)[1]

    def next_ms(self) -> int | None:
        return self._late[0][0] if self._late else None


CHECKS_PER_TURN = 100
"""Sleeping runs folded in a turn after a halt was lifted: some milliseconds."""


class Halting:
    """Commands of one lane that a halt holds back. `missing` pools have no topics, and count as halted. `paused` are
    held-back calls of paused runs, `resumed` runs that go on."""

    def __init__(self, catalog: Catalog, missing: frozenset[str]) -> None:
        self._catalog, self._halts, self.missing = catalog, catalog.halts, missing
        self.never_sent: set[CallId] = set()
        self.paused: set[CallId] = set()
        self.resumed: set[RunId] = set()
        self._unseen: deque[tuple[RunId, Halts]] = deque()

    def passes(self, command: Command, state: RunState, *, own: bool = False) -> bool:
        """True if a command may be sent now; `own`: this process wrote its entry."""
        order = command.message
        if not isinstance(order, ToolRequest):
            self.never_sent.discard(CallId(command.key))
            self.paused.discard(CallId(command.key))
            return topics.pool_of(command.topic) not in self.missing
        if state.paused:
            self.paused.add(order.call_id)
        elif not self._why(order, topics.pool_of(command.topic)):
            self.never_sent.discard(order.call_id)
            return True
        if own and not order.again:
            self.never_sent.add(order.call_id)
        return False

    def _why(self, order: ToolRequest, pool: str) -> str:
        if pool in self.missing:
            return "its topics are missing"
        return self._catalog.halts.why(
            tool=order.tool, pool=pool, agent=order.agent, requester=order.requester, above=order.above
        )

    @property
    def looking(self) -> bool:
        """True while sleeping runs remain to be checked after a lifted halt."""
        return bool(self._unseen)

    def lifted(
        self, states: Mapping[RunId, RunState], asleep: Iterable[RunId], find: Callable[[RunId], RunState | None]
    ) -> Iterator[tuple[RunState, int]]:
        """Calls (state and step) no longer held back; runs `asleep` are checked `CHECKS_PER_TURN` in a turn."""
        if self.resumed:
            resumed, self.resumed = self.resumed, set()
            for run in resumed & states.keys():
                yield from self._no_longer_paused(states[run])
        before, self._halts = self._halts, self._catalog.halts
        if before is not self._halts:
            if before.by_name.keys() - self._halts.by_name.keys():
                # A predecessor held their calls back: without this they would go out at their deadlines only.
                self._unseen.extend((run, before) for run in asleep)
            for state in list(states.values()):
                yield from self._no_longer_halted(state, before)
        for _ in range(min(CHECKS_PER_TURN, len(self._unseen))):
            run, halts = self._unseen.popleft()
            if (halted := find(run)) is not None:
                yield from self._no_longer_halted(halted, halts)

    def _no_longer_halted(self, state: RunState, before: Halts) -> Iterator[tuple[RunState, int]]:
        for step, opened in sorted(state.open.items()) if not (state.over or state.copying) else ():
            if opened.phase == "dispatched" and _halted(before, state, step) and not _halted(self._halts, state, step):
                yield state, step

    def _no_longer_paused(self, state: RunState) -> Iterator[tuple[RunState, int]]:
        for step, opened in sorted(state.open.items()) if not (state.over or state.paused) else ():
            call = call_id(state.run_id, opened.seq)
            if opened.phase == "dispatched" and call in self.paused:
                self.paused.discard(call)
                yield state, step


def _halted(halts: Halts, state: RunState, step: int) -> str:
    call, request = state.call(step), state.request or events.NO_REQUEST
    return halts.why(
        tool=call.tool, pool=call.pool, agent=request.agent, requester=request.requester, above=request.above
    )


@dataclass(frozen=True, slots=True)
class Ordered:
    """A published command of the entry at `offset`. `again`: acknowledged before; `short`: in place of one that the log
    refused; `pending`: the input to finish once it is in the log."""

    offset: int
    record: Outgoing
    again: bool = False
    short: bool = False
    pending: Pending | None = None


@dataclass(frozen=True, slots=True)
class SentTombstone:
    """Receiver of the delivery of a tombstone, for an input that is refused or ignored for good."""

    item: Pending


@dataclass(frozen=True, slots=True)
class SentLetter:
    """Receiver of the delivery of an input's dead letter; `short`: cut in size, after the log refused the first."""

    item: Pending
    letter: Outgoing
    short: bool = False


@dataclass(frozen=True, slots=True)
class ClockProbe:
    """Receiver of the delivery of a record that was written to read the log's time."""


@dataclass(frozen=True, slots=True)
class SentHold:
    """Receiver of the delivery of a run's hold (stalled, or in quarantine), or of the tombstone that lifts it."""

    run_id: RunId


Asker = SentEntry | Ordered | SentTombstone | SentLetter | Pending | ClockProbe | SentHold | SentKept | SentSpent | None
"""Receivers of a delivery; None for records that may be lost."""

AskerAt = tuple[int, Asker]

ENDS_BYTES = 16 << 20
"""Most bytes of held-back ends at a take-over: some 10,000 ends."""

END_BYTES = 1_024
"""Memory of an end besides its record."""

_CLOSED = events.ApprovalDecided | events.ApprovalEscalated | events.CallCompleted | events.CallFailed
_ENDS = _CLOSED | events.SignalSent | events.RunSubmitted | events.StepGivenUp | events.Terminal
"""Events that close a command, or end a run."""


class Bases:
    """Earlier calls that executors have confirmed and commands leave out; an executor without them requests all."""

    def __init__(self) -> None:
        self._sent: Recent[CallId, tuple[_Place, Base]] = Recent(BASES)
        self._recent: Recent[_Place, Base] = Recent(BASES)

    def complete(self, state: RunState, request: ToolRequest) -> ToolRequest:
        """A request with the earlier calls that its executor lacks; with all if it is sent again."""
        call, base = state.call(request.step), None
        place = state.place_of(request.step)
        if not request.again:
            places = (place, *map(state.place_of, reversed(call.builds_on)))
            base = next(filter(None, map(self._recent.get, places)), None)
        before = calls_before(state, call, base.steps if base else frozenset())
        longer = (base or Base.of(state.run_id)).followed_by(before)
        self._sent.add(request.call_id, (place, longer))
        if base is None:
            return dataclasses.replace(request, earlier=before)
        values = {name: getattr(request, name) for name in _FIELDS} | {"earlier": before, "base": base.digest}
        return ShortRequest(**values)

    def answered(self, result: ToolResult, record: Record) -> None:
        # An executor of a version without short commands never confirms.
        place, base = self._sent.pop(result.call_id, (None, None))
        if place and base and text_in(record.read_headers(), BASE) == base.digest:
            self._recent.add(place, base)


BASES = 500
"""Commands with earlier calls that a lane remembers, some kilobytes each."""

_Place = tuple[EntryId, int, int]
_FIELDS = tuple(field.name for field in dataclasses.fields(ToolRequest))


class Outbox:
    """Outgoing records of one lane. `tokens` names the receiver of each delivery."""

    def __init__(
        self, partition: int, actor: str, tokens: Tokens[AskerAt], catalog: Catalog, missing: frozenset[str]
    ) -> None:
        self._partition, self._actor, self._tokens, self.halting = partition, actor, tokens, Halting(catalog, missing)
        self._begun = self._ends_bytes = 0
        self._unacknowledged_runs: set[RunId] = set()
        self._ends: OrderedDict[RunId, list[Outgoing]] = OrderedDict()
        self.appends: list[Outgoing] = []
        self.publishes: list[Outgoing] = []
        self._accepted: list[tuple[RunState, events.Entry, int]] = []
        self.emitted, self.owed = Emitted(), Emitted()
        self.owed_before: list[Pending] = []
        self.unanswered, self.bases = Unanswered(), Bases()
        self._own_nonces: set[bytes] = set()

    def append(self, sent: SentEntry, value: bytes) -> None:
        entry, request = sent.entry, sent.after.request
        run, trace = entry.run_id, request.traceparent if request else ""
        headers = cloud_event(topics.RUN_LOG, run, id=sent.id.hex(), source=self._actor, at_ms=entry.at_ms, trace=trace)
        self._own_nonces.add(entry.nonce)
        token = self._tokens.give((self._partition, sent))
        self.appends.append(Outgoing(topics.RUN_LOG, self._partition, sent.key, value, headers, token, awaited=True))

    def add_accepted(self, after: RunState, entry: events.Entry, offset: int) -> None:
        self.emitted.add(offset, 1)
        self._accepted.append((after, entry, offset))
        if type(entry.events[0]) is events.RunUnpaused and not after.paused:
            self.halting.resumed.add(after.run_id)

    def send_accepted(self, states: Mapping[RunId, RunState]) -> None:
        """Send the commands of accepted entries in log order, except obsolete ones."""
        accepted, self._accepted = self._accepted, []
        for after, entry, offset in accepted:
            ordered = commands(after, entry, offset)
            if (latest := states.get(after.run_id)) is not after:
                ordered = [order for order in ordered if _is_current(order, states)]
            # Another writer of the entry may have sent it as well, before it was held back here.
            self._emit(latest or after, ordered, offset, entry.at_ms, own=entry.nonce in self._own_nonces)
            self._own_nonces.discard(entry.nonce)
            self.emitted.acknowledge(offset)

    # A take-over: state is sent, not history

    def begin(self, emit_from: int) -> None:
        """Start emitting at this run-log offset; earlier commands are acknowledged."""
        self._begun = emit_from
        self.emitted.add(emit_from, 1)

    def begins(self, offset: int) -> bool:
        """True if this lane has to send the commands of an entry."""
        return offset >= self._begun

    def begun(self) -> None:
        """Note that all open commands were sent again."""
        self._unacknowledged_runs.clear()
        self.emitted.acknowledge(self._begun)

    @property
    def beginning(self) -> bool:
        """True while commands or family messages of a take-over are open."""
        self.owed_before = [item for item in self.owed_before if not item.done]
        return bool(self.owed_before) or self.emitted.low_water(self._begun + 1) <= self._begun

    def low_water(self, position: int) -> int:
        """Run-log offset below which all commands are acknowledged and family messages answered."""
        return min(self.emitted.low_water(position), self.owed.low_water(position))

    def is_sent(self, position: int) -> bool:
        """True if all commands below a position are acknowledged, or a take-over has yet to send its own."""
        return self.beginning or self.emitted.low_water(position) == position

    def settled(self, after: RunState, entry: events.Entry, offset: int) -> None:
        """Send the ends in an entry again that a predecessor may not have sent."""
        self._unacknowledged_runs.add(after.run_id)
        ended = _ended(after, entry, offset)
        # The end of a run is final: it waits until the log is read and the run certainly has no other history.
        if after.over:
            self._hold_end(after.run_id, [self._record(after, order, self._begun, entry.at_ms) for order in ended])
        else:
            self._emit(after, ended, self._begun, entry.at_ms)

    def reread(self, state: RunState, news: Iterable[events.Entry], offset: int) -> None:
        """Send the ends in entries read late, even if already sent; the run's outcome is sent apart."""
        orders = (order for entry in news for order in _ended(state, entry, offset))
        ends = [order for order in orders if not isinstance(order.message, RunOutcome)]
        self._emit(state, ends, offset, state.at_ms)

    def _hold_end(self, run: RunId, ends: list[Outgoing]) -> None:
        self._ends_bytes += _bytes(ends) - _bytes(self._ends.get(run, []))
        self._ends[run] = ends
        while self._ends_bytes > ENDS_BYTES:
            # Memory is limited: an end beyond it goes out before its run certainly has no other history.
            oldest = self._ends.popitem(last=False)[1]
            self._ends_bytes -= _bytes(oldest)
            self._emit_records(oldest, self._begun)

    def release(self, frozen: Container[RunId]) -> None:
        """Publish the ends of runs held back at a take-over, except those of `frozen` runs."""
        for run in [run for run in self._ends if run not in frozen]:
            self._emit_records(self._ends.pop(run), self._begun)

    def take_up(self, state: RunState) -> None:
        """Send the open commands of a run that has entries in the unacknowledged tail."""
        if state.run_id in self._unacknowledged_runs:
            self._unacknowledged_runs.discard(state.run_id)
            self.open_orders(state, self._begun)

    def open_orders(self, state: RunState, offset: int) -> None:
        """Send a run's open commands, or its outcome, for the entry at `offset`."""
        ends = self._ends.pop(state.run_id, [])
        if state.over and state.end is None:  # only its held-back records are known
            self._emit_records(ends, offset)
        orders = outcomes(state)
        for step, opened in sorted(state.open.items()) if not (state.over or state.copying) else ():
            if opened.phase == "dispatched":
                # A predecessor has probably sent it: executors differ in the bases that they hold.
                orders.append(request(state, step, opened.attempt, issued=offset, at_ms=opened.sent_ms, again=True))
            orders += recall(state, step)
            orders += ask_people(state, step)
        self._emit(state, orders, offset, state.at_ms)

    def _emit(self, state: RunState, orders: list[Command], offset: int, at_ms: int, *, own: bool = False) -> None:
        """Publish commands of the entry at `offset`, except those that a halt holds back."""
        sent = [order for order in orders if self.halting.passes(order, state, own=own)]
        self._emit_records([self._record(state, order, offset, at_ms) for order in sent], offset)
        for order in orders:
            if order.message is None:
                self.unanswered.close(CallId(order.key))

    def _emit_records(self, records: list[Outgoing], offset: int) -> None:
        if records:
            self.emitted.add(offset, len(records))
        for record in records:
            self.publish(record, Ordered(offset, record))

    def publish_snapshot(self, sent: SentKept, now: int) -> None:
        headers: Headers = ()
        # The event id is a digest of the record: a repetition is the same event.
        if sent.value is not None:
            name, key = f"{self._partition}/{weight(sent.key, sent.value):032x}", sent.key.decode()
            headers = cloud_event(topics.RUN_SNAPSHOT, key, id=name, source=self._actor, at_ms=now)
        awaited = sent.marks is not None  # a lane that begins does nothing before its marks are there
        self.publish(Outgoing(topics.RUN_SNAPSHOT, self._partition, sent.key, sent.value, headers, 0, awaited), sent)

    # Deliveries

    def acknowledged(self, ordered: Ordered, offset: int | None, states: Mapping[RunId, RunState], now: int) -> None:
        """Handle the delivery of a command; None: unknown, so it is sent again if it still holds."""
        if offset is None and (record := self._again(ordered, states)):
            self.publish(record, dataclasses.replace(ordered, record=record))
            return
        if ordered.pending:
            ordered.pending.finish()
        if not ordered.again:
            self.emitted.acknowledge(ordered.offset)
        if offset is not None and is_request(ordered.record):
            call = CallId(ordered.record.key.decode())
            if opened := _dispatched_step(call, states):
                sent = SentRequest(opened.attempt, ordered.record.topic, offset, now, ordered.offset)
                self.unanswered.add(call, sent)

    def ask_again(self, state: RunState, step: int, *, issued: int, now: int, pending: Pending | None = None) -> None:
        """Repeat the request of an unanswered call, as the same attempt; `pending` is finished once the log has it."""
        opened = state.open[step]
        # A request that a halt held back has no first order: marked `again`, its failure would be judged as of two.
        before = call_id(state.run_id, opened.seq) not in self.halting.never_sent
        again = before or pending is not None
        # Its time is now: a decision that has expired since lets nothing out, whatever an executor's clock reads.
        command = request(state, step, opened.attempt, issued=issued, at_ms=now, again=again)
        if self.halting.passes(command, state):
            record = self._record(state, command, issued, now)
            self.publish(record, Ordered(issued, record, again=True, pending=pending))
        elif pending:
            pending.finish()

    def go_on(self, state: RunState, step: int, now: int, pending: Pending | None = None) -> None:
        """Send the whole request of a call that was halted, or for which an executor has sent the input `pending`."""
        sent = self.unanswered.last(call_id(state.run_id, state.open[step].seq))
        self.ask_again(state, step, issued=sent.issued if sent else 0, now=now, pending=pending)

    def refused(self, ordered: Ordered, states: Mapping[RunId, RunState]) -> Pending | None:
        """Shorten or drop a command that the log refuses; return the input about that, if any."""
        record = ordered.record
        if record.topic == topics.RUN_COMPLETED and not ordered.short:
            outcome = codec.decode(RunOutcome, record.value or b"")
            record = record._replace(value=codec.encode(without_result(outcome)))
            self.publish(record, dataclasses.replace(ordered, record=record, short=True))
            return None
        if ordered.pending:
            ordered.pending.finish()
        if not ordered.again:
            self.emitted.acknowledge(ordered.offset)
        if record.value is None or ordered.short or record.topic in FROM_USERS:
            return None
        name = record.key.decode()
        if record.topic == topics.APPROVAL_REQUESTED:
            run, seq, _ = parse_approval_id(name)
            return Pending(run, Undeliverable(run, seq, approval=name))
        run, seq = parse_call_id(name)
        message = codec.decode(ToolRequest, record.value)
        return Pending(run, Undeliverable(run, seq, attempt=message.attempt, sent_before=message.again))

    def close_again(self, state: RunState, answer: ToolResult | Decided, now: int) -> None:
        """Close a request again after a second answer: it may have been sent twice."""
        orders: list[Command] = []
        if isinstance(answer, Decided):
            if opened_by(state, answer.approval) is None:
                orders.append(Command(topics.APPROVAL_REQUESTED, answer.approval, None))
        else:
            step = state.step_of(parse_call_id(answer.call_id)[1])
            orders += [Command(topics.tool_requested(pool), answer.call_id, None) for pool in state.pools]
            if step and (step not in state.open or answer.call_id != state.call_id(step)):
                orders.append(dataclasses.replace(close(state, step), key=answer.call_id))
            elif step:
                orders += recall(state, step)
        for order in orders:
            if topics.pool_of(order.topic) not in self.halting.missing:
                self.publish(self._record(state, order, 0, now), None)

    def sweep(self, key: bytes) -> None:
        """Bury a run-log record that can never count."""
        self.publish(Outgoing(topics.RUN_LOG, self._partition, key, None, (), 0), None)

    def repeat(self, record: Record, asker: Pending | None) -> None:
        headers = record.read_headers() or []
        self.publish(Outgoing(topics.RUN_LOG, self._partition, record.key or b"", record.value, headers, 0), asker)

    def clock_probe(self) -> None:
        probe = Outgoing(topics.RUN_LOG, self._partition, CLOCK_PROBE_KEY, None, (), 0, awaited=True)
        self.publish(probe, ClockProbe())

    def anchor(self, position: int, now: int) -> None:
        """Write an anchor for the snapshot when all entries are of erased runs."""
        subject = f"{self._partition}/{position}"
        name = entry_id(f"{self._actor}/{subject}".encode())
        event = cloud_event("anchor", subject, id=name.hex(), source=self._actor, at_ms=now)
        headers = [(key, b"application/json" if key == "content-type" else value) for key, value in event]
        self.publish(Outgoing(topics.RUN_LOG, self._partition, anchor_key(name), b"{}", headers, 0), None)

    def publish_stall(self, run: RunId, hold: Hold | None) -> None:
        self.publish(hold_record(self._partition, run, hold, source=self._actor), SentHold(run))

    def forward(self, item: Pending, target: int) -> None:
        record = item.record
        assert record is not None, "only records stray"
        key, headers = record.key or item.run_id.encode(), record.read_headers() or []
        self.publish(Outgoing(record.topic, target, key, record.value, headers, 0), item)

    def close(self, item: Pending) -> None:
        """Finish an input that is refused or ignored for good; one of people gets a tombstone first."""
        if not item.from_people:
            item.finish()
            return
        # A refusal recorded in a position alone is undone if that is lost: a cancel of long ago would reach a run that
        # reuses the id. A later record with the key is read before compaction (`min.compaction.lag.ms`) removes it.
        record = item.record
        assert record is not None, "what people send is a record"
        self.publish(Outgoing(record.topic, record.partition, record.key or b"", None, (), 0), SentTombstone(item))

    def bury(self, item: Pending, why: tuple[str, str], now: int, limit: int) -> None:
        """Send an unusable input to the dead letters, with up to `limit` bytes; `why`: code and reason."""
        assert item.record is not None, "only records become dead letters"
        at_ms = max(now, item.record.at_ms)
        letter = letters.letter(item.record, why, service=self._actor, at_ms=at_ms, limit=limit)
        self.publish(letter, SentLetter(item, letter))

    def _again(self, ordered: Ordered, states: Mapping[RunId, RunState]) -> Outgoing | None:
        """Record to send again for a command, if it still holds; a question in its present form."""
        record = ordered.record
        question, name = record.topic == topics.APPROVAL_REQUESTED, record.key.decode()
        if record.value is None and taken_back(record.headers) and _dispatched_step(CallId(name), states):
            return None  # it would bury the request of a later attempt
        if record.value is None or not (question or is_request(record)):
            return record
        state = states.get(parse_approval_id(name)[0] if question else parse_call_id(name)[0])
        if state is None or state.over:
            return None
        if not question:
            return self._request_again(state, record, states)
        step = opened_by(state, name)
        return self._record(state, ask_people(state, step)[0], ordered.offset, state.at_ms) if step else None

    def _request_again(self, state: RunState, record: Outgoing, states: Mapping[RunId, RunState]) -> Outgoing | None:
        call = CallId(record.key.decode())
        # An acknowledgement may be 30 s late. By then an executor may have answered the request, and people may have
        # rejected the call: sent again, it would let the call out under the earlier decision.
        message = dataclasses.replace(codec.decode(ToolRequest, record.value or b""), again=True)
        opened = _dispatched_step(call, states)
        if opened is None or opened.attempt != message.attempt:
            return None
        if state.paused:
            self.halting.paused.add(call)
            return None
        return record._replace(value=codec.encode(message))

    def _record(self, state: RunState, order: Command, offset: int, at_ms: int) -> Outgoing:
        if order.message is None:
            named = [(CALL_KEY, order.call_key.encode())] if order.call_key else []
            if order.attempt:
                named.append((TAKEN_BACK, b"%d" % order.attempt))
            return Outgoing(order.topic, self._partition, order.key.encode(), None, named, 0)
        trace = state.request.traceparent if state.request else ""
        event = f"{self._partition}/{offset}/{order.key}"
        headers = cloud_event(order.topic, order.key, id=event, source=self._actor, at_ms=at_ms, trace=trace)
        message = order.message
        if isinstance(message, ToolRequest) and state.call(message.step).builds_on:
            message = self.bases.complete(state, message)
        return Outgoing(order.topic, self._partition, order.key.encode(), codec.encode(message), headers, 0)

    def publish(self, record: Outgoing, asker: Asker) -> None:
        token = self._tokens.give((self._partition, asker))
        self.publishes.append(Outgoing(*record[:5], token, record[6]))  # as `_replace` would, in half the time


def _bytes(records: list[Outgoing]) -> int:
    return sum(END_BYTES + len(record.value or b"") for record in records)


def is_request(record: Outgoing) -> bool:
    return record.value is not None and record.topic.startswith(f"{topics.TOOL_REQUESTED}.")


def _ended(after: RunState, entry: events.Entry, offset: int) -> list[Command]:
    """Commands of an entry that close requests or report the run's end, without questions to people."""
    ends: list[events.Event] = [event for event in entry.events if isinstance(event, _ENDS)]
    orders = commands(after, dataclasses.replace(entry, events=ends), offset)
    return [order for order in orders if not isinstance(order.message, ApprovalRequest)]


def _is_current(order: Command, states: Mapping[RunId, RunState]) -> bool:
    """False for a request or question that its call no longer waits for."""
    if not isinstance(order.message, ToolRequest | ApprovalRequest):
        return True
    state = states.get(order.message.run_id)
    if state is None or state.over:
        return False
    if isinstance(order.message, ApprovalRequest):
        return opened_by(state, order.key) is not None
    _, seq = parse_call_id(order.key)
    return any(step.seq == seq and step.attempt == order.message.attempt for step in state.open.values())


def _dispatched_step(call: CallId, states: Mapping[RunId, RunState]) -> OpenStep | None:
    """Open step of a call that is with the executors."""
    run, seq = parse_call_id(call)
    state = states.get(run)
    step = state.step_of(seq) if state and not state.over else None
    opened = state.open.get(step) if state and step else None
    return opened if opened and opened.phase == "dispatched" and opened.seq == seq else None
