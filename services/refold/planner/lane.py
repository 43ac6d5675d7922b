"""One partition's planner: from a record to accepted entries and the commands that they order.

A lane keeps two states of a run: as *accepted* (the fold of the log up to `position`) and as *speculated* (what the
entries of this turn will make of it if they are accepted). Entries are acted upon when the log has accepted them, in
the order of the log, whoever wrote them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from refold.core.approval.catalog import Catalog
from refold.core.errors import FoldError, MalformedError
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallDoubted,
    CallFailed,
    Cause,
    Entry,
    Event,
    Failure,
    LateResultRecorded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
)
from refold.core.ids import EntryId, call_id, home, log_key, parse_call_id
from refold.core.messages import ToolResult
from refold.core.planning.asking import opened_by
from refold.core.planning.commands import Command, close, commands, question
from refold.core.planning.decide import decide
from refold.core.planning.verdict import Decided, Ignore, Park, Refuse, Rules, Start, Verdict
from refold.core.run import chain
from refold.core.run.fold import advance, apply, evolve
from refold.core.run.state import RunState
from refold.core.topics import APPROVAL_REQUESTED, CATALOG, RUN_LOG, tool_requested
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.planner import inputs, outgoing
from refold.planner.hosting import Agents
from refold.planner.marks import Emitted, Item, Outstanding
from refold.planner.timers import Timers
from refold.ports.effects import News
from refold.ports.log import NEVER, Assigned, Outgoing, Record

_TOLD = {
    RunRequested: "run.requested",
    RunCompleted: "run.completed",
    RunFailed: "run.failed",
    RunCancelled: "run.cancelled",
    CallDoubted: "call.doubted",
    ApprovalRequested: "approval.requested",
    ApprovalDecided: "approval.accepted",
    LateResultRecorded: "call.late",
}
"""What a lane tells of accepted entries: what somebody may wait for or has to look at, not every step."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a lane holds at most.

    **Units**: bytes, entries per turn, inputs parked per lane, milliseconds. An input for a run that is not known
    is parked because its request may be under way in another topic; a minute is ages for that.
    """

    payload_bytes: int = 1_048_576
    turn_entries: int = 500
    parked: int = 10_000
    park_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Ordered:
    """A command that was published for the entry at `offset`."""

    offset: int
    record: Outgoing


@dataclass(slots=True, eq=False)
class Sent:
    """An entry on its way into the log: the input that it answers and the state that it makes."""

    name: EntryId
    entry: Entry
    after: RunState
    item: Item


Nonce = Callable[[], bytes]
Token = Callable[[tuple["Lane", object]], int]


class Lane:
    """What serves one partition. The service feeds it and collects `appends`, `publishes` and `wants_end`."""

    def __init__(
        self,
        assigned: Assigned,
        *,
        partitions: int,
        agents: Agents,
        rules: Rules,
        catalog: Catalog,
        limits: Limits,
        nonce: Nonce,
        token: Token,
        actor: str,
        counts: Counter[str],
        news: list[News],
    ) -> None:
        self.partition = assigned.partition
        self._partitions, self._agents, self._rules, self._limits = partitions, agents, rules, limits
        self._nonce, self._token, self._actor, self._counts = nonce, token, actor, counts
        self._news, self._catalog = news, catalog
        self.accepted: dict[str, RunState] = {}
        self.frozen: dict[str, str] = {}
        self.position = 0
        self.appends: list[Outgoing] = []
        self.publishes: list[Outgoing] = []
        self.wants_end = False
        self.now = 0
        self._fold_to, self._learn_to = assigned.ends[RUN_LOG], assigned.ends[CATALOG]
        self._live = False
        self._emit_from = assigned.committed.get(RUN_LOG, 0)
        self._speculated: dict[str, RunState] = {}
        self._flying = 0
        self._own: dict[int, Sent] = {}
        self._read_back = 0
        self._lost = False
        self._ready: deque[Item] = deque()
        self._unsure: list[Item] = []
        self._unasked: list[Item] = []
        self._parked: dict[str, list[Item]] = {}
        self._parked_count = 0
        self._timers = Timers()
        self._inputs: dict[str, Outstanding] = {topic: Outstanding() for topic in inputs.TOPICS}
        self._emitted = Emitted()
        self._catch_up()

    # What comes in

    def take(self, record: Record) -> None:
        """A record of an input topic."""
        item = Item("", None, record)
        self._inputs[record.topic].add(record.offset, item)
        if inputs.passed_over(record):
            item.done = True
            return
        try:
            item.run_id, item.what = inputs.read(record, self._limits.payload_bytes)
        except MalformedError as error:
            self._dead_letter(item, error.code, str(error))
        else:
            self._ready.append(item)

    def follow(self, record: Record) -> None:
        """A record of the run log, in order of offset; own ones that are accepted already are passed over undecoded."""
        if record.offset < self.position:
            return
        for offset in sorted(offset for offset in self._own if offset < record.offset):
            self._accept_own(self._own.pop(offset), offset)
        own = self._own.pop(record.offset, None)
        if own:
            self._accept_own(own, record.offset)
        else:
            self._judge(record)
        self.position = record.offset + 1
        self._catch_up()

    def learn(self, record: Record) -> None:
        """A record of the catalog, in order of offset."""
        self._catalog.follow(record.offset, record.key, record.value)
        self._unpark([*self._parked])
        self._catch_up()

    def delivered(self, sent: Sent, offset: int | None) -> None:
        """The log's answer for an own entry. None: it may be there or come; the next end tells how far to read."""
        self._flying -= 1
        if offset is None:
            self._counts["append.unknown"] += 1
            self._drop_speculation(sent.entry.run_id)
            self._unasked.append(sent.item)
            self._lost = self.wants_end = True
        elif offset == NEVER:
            self._drop_speculation(sent.entry.run_id)
            self._send_too_large(self.accepted.get(sent.entry.run_id), sent.entry.events, sent.item)
        elif offset < self.position:
            self._retry(sent.item)  # read and judged before its delivery was reported
        else:
            self._own[offset] = sent
            self._catch_up()

    def acknowledged(self, what: object, offset: int | None) -> None:
        """The answer for a published record: a command (its run-log offset), or an item that is settled by it."""
        if isinstance(what, Item):
            if offset is not None:
                what.done = True
            else:
                self._counts["publish.unknown"] += 1
                self._ready.append(what)
        elif isinstance(what, Ordered):
            if offset is not None:
                self._emitted.acknowledge(what.offset)
            else:
                self._counts["publish.unknown"] += 1
                if record := self._again(what):
                    self._publish(record, Ordered(what.offset, record))
                else:
                    self._emitted.acknowledge(what.offset)

    def _again(self, what: Ordered) -> Outgoing | None:
        """What has to go out for a command again: of a question what it is by now, of a closed request nothing."""
        order = what.record
        asks = order.topic == APPROVAL_REQUESTED
        if order.value is None or not (asks or order.topic.startswith("tool-requested.")):
            return order
        run, seq = parse_call_id(order.key.decode())
        state = self.accepted.get(run)
        if state is None or state.over:
            return None
        if asks:
            step = opened_by(state, seq)
            return self._command(state, question(state, step)[0], what.offset, state.at_ms) if step else None
        return order if any(opened.seq == seq for opened in state.open.values()) else None

    def reached_end(self, end: int) -> None:
        """The high watermark that was asked for with `wants_end`."""
        for item in self._unasked:
            item.end = end
        if self._lost:
            self._read_back = max(self._read_back, end)
            self._lost = False
        self._unsure += self._unasked
        self._unasked = []
        self._settle_unsure()

    def reached(self, topic: str, offset: int) -> None:
        """Reading has come to this offset of a topic, though the records before it may be gone by compaction."""
        if topic == CATALOG:
            self._catalog.reached(offset)
            self._catch_up()
        elif not self._own:
            self.position = max(self.position, offset)
            self._catch_up()

    # What goes out

    def work(self, now: int) -> None:
        """Decides what is ready, unless the log has to be read first."""
        self.now = max(self.now, now)
        if not self._live:
            return
        self._ready.extend(Item(due.run_id, due) for due in self._timers.due(self.now) if due.run_id in self.accepted)
        self._expire_parked()
        while self._ready and self._flying < self._limits.turn_entries and not self._blocked:
            self._answer(self._ready.popleft())

    def low_water(self) -> dict[tuple[str, int], int]:
        """What may be committed: per input topic and, for the emission of commands, of the run log."""
        found = {
            (topic, self.partition): position
            for topic, outstanding in self._inputs.items()
            if (position := outstanding.low_water()) is not None
        }
        if self._live:
            found[RUN_LOG, self.partition] = self._emitted.low_water(self.position)
        return found

    def next_due_ms(self) -> int | None:
        """When `work` wants to be called at the latest."""
        if self._live and self._ready and not self._blocked and not self._flying:
            return 0
        return self._timers.next_ms()

    @property
    def backlog(self) -> int:
        """Inputs that wait to be decided."""
        return len(self._ready)

    @property
    def _blocked(self) -> bool:
        """Whether the log holds something that was not read yet. Nothing is decided on a state known to be old."""
        return self._lost or bool(self._own) or self.position < self._read_back

    # The log accepts

    def _catch_up(self) -> None:
        while self.position in self._own:
            self._accept_own(self._own.pop(self.position), self.position)
            self.position += 1
        if not self._live and self.position >= self._fold_to and self._catalog.position >= self._learn_to:
            self._go_live()
        self._settle_unsure()

    def _accept_own(self, sent: Sent, offset: int) -> None:
        run = sent.entry.run_id
        before = self.accepted.get(run)
        if run in self.frozen or not chain.extends(before.head if before else chain.Head(), sent.entry):
            self._counts["record.void"] += 1
            self._drop_speculation(run)
            self._retry(sent.item)
            return
        sent.item.done = True
        if self._speculated.get(run) is sent.after:
            del self._speculated[run]
        self._accept(sent.after, sent.entry, offset)

    def _judge(self, record: Record) -> None:
        """A record that somebody else wrote, or that is read for the first time since the take-over."""
        judged = chain.read(record.key, record.value)
        if isinstance(judged, chain.Unreadable):
            self._freeze(judged.run, judged.reason)
        elif isinstance(judged, str):
            self._counts["record.void"] += judged != "tombstone"
        elif judged.entry.run_id not in self.frozen:
            self._extend(judged, record.offset)

    def _extend(self, judged: chain.LogRecord, offset: int) -> None:
        entry = judged.entry
        run = entry.run_id
        before = self.accepted.get(run)
        if (before and before.over) or not chain.extends(before.head if before else chain.Head(), entry):
            self._counts["record.void"] += 1
            return
        try:
            transition = evolve if self._live else apply
            after = transition(before or RunState(run), entry, judged.id)
        except FoldError as error:
            self._freeze(run, error.message)
            return
        self.now = max(self.now, entry.at_ms)
        self._drop_speculation(run)
        self._accept(after, entry, offset)
        if self._live:
            self._counts["record.foreign"] += 1
            self._ready.appendleft(Item(run, None))

    def _accept(self, after: RunState, entry: Entry, offset: int) -> None:
        run = entry.run_id
        if offset >= self._emit_from:
            self._emit(after, entry, offset)
        if after.over:
            self._agents.forget(run)
            after = after.slim()
        elif after.status == "suspended" and run not in self._speculated and _waits_for_people(after):
            self._agents.forget(run)  # it is made again when they have decided: months cost nothing but the fold
        self.accepted[run] = after
        if self._live:
            self._timers.follow(after, entry)
            self._tell(entry)
        if run in self._parked:
            self._unpark([run])

    def _emit(self, after: RunState, entry: Entry, offset: int) -> None:
        ordered = commands(after, entry, offset)
        if ordered:
            self._emitted.add(offset, len(ordered))
            for command in ordered:
                record = self._command(after, command, offset, entry.at_ms)
                self._publish(record, Ordered(offset, record))

    def _command(self, state: RunState, order: Command, offset: int, at_ms: int) -> Outgoing:
        return outgoing.command(state, order, offset, partition=self.partition, actor=self._actor, at_ms=at_ms)

    def _publish(self, record: Outgoing, what: Item | Ordered | None) -> None:
        self.publishes.append(record._replace(token=self._token((self, what))))

    def _tell(self, entry: Entry) -> None:
        for event in entry.events:
            if isinstance(event, CallFailed | CallDoubted) and event.failure.code == "unauthorised":
                self._counts["unauthorised"] += 1
                self._news.append(("call.unauthorised", {"run_id": entry.run_id, "reason": event.failure.message}))
            if name := _TOLD.get(type(event)):
                self._news.append((name, {"run_id": entry.run_id, "seq": entry.seq, "partition": self.partition}))

    def _freeze(self, run: str, reason: str) -> None:
        """The run cannot be folded by this version: it stands still here until a version that can takes over."""
        self._counts["run.frozen"] += 1
        self._news.append(("run.frozen", {"run_id": run, "reason": reason}))
        self.frozen[run] = reason
        self._drop_speculation(run)

    def _drop_speculation(self, run: str) -> None:
        self._speculated.pop(run, None)
        self._agents.forget(run)

    # An input is answered

    def _answer(self, item: Item) -> None:
        run = item.run_id
        if item.letter:
            self._dead_letter(item, *item.letter)
            return
        if run in self.frozen:
            self._park(item, f"the run cannot be read by this version: {self.frozen[run]}")
            return
        state = self._speculated.get(run) or self.accepted.get(run)
        if item.what is None:
            verdict: Verdict = [] if state and not state.over else Ignore("nothing to drive")
        else:
            if state is None and item.record and self._forward(item):
                return
            what = (
                dataclasses.replace(item.what, seed=self._nonce().hex()) if isinstance(item.what, Start) else item.what
            )
            verdict = decide(state, what, self.now, self._rules)
        if isinstance(verdict, list):
            self._append(state, verdict, item)
        elif self._final(item):
            self._dismiss(state, item, verdict)

    def _final(self, item: Item) -> bool:
        """Whether a fold that changes nothing may be believed: it must have seen all that the log held at the time."""
        if item.record is None:
            return True
        if item.end is None:
            self._unasked.append(item)
            self.wants_end = True
            return False
        if self.position < item.end or item.run_id in self._speculated:
            self._unsure.append(item)
            return False
        return True

    def _settle_unsure(self) -> None:
        if self._unsure and not self._flying:
            ready = [item for item in self._unsure if item.end is not None and item.end <= self.position]
            self._unsure = [item for item in self._unsure if item.end is None or item.end > self.position]
            self._ready.extendleft(reversed(ready))

    def _dismiss(self, state: RunState | None, item: Item, verdict: Ignore | Park | Refuse) -> None:
        if isinstance(verdict, Park):
            self._park(item, verdict.reason)
        elif isinstance(verdict, Refuse):
            self._dead_letter(item, verdict.code, verdict.reason)
        else:
            item.done = True
            self._counts["input.ignored"] += 1
            if isinstance(item.what, ToolResult | Decided) and state is not None:
                self._close_again(state, item.what)

    def _close_again(self, state: RunState, what: ToolResult | Decided) -> None:
        """A second answer came: somebody may have asked a second time, so the request is closed a second time."""
        orders: list[Command] = []
        if isinstance(what, Decided):
            if opened_by(state, what.seq) is None:
                orders.append(Command(APPROVAL_REQUESTED, call_id(state.run_id, what.seq), None))
        else:
            step = state.step_of(int(what.call_id.rpartition("/")[2]))
            orders += [Command(tool_requested(pool), what.call_id, None) for pool in state.pools]
            if step and step not in state.open:
                orders.append(close(state, step))
        for order in orders:
            self._publish(self._command(state, order, 0, self.now), None)

    def _append(self, before: RunState | None, events: list[Event], item: Item) -> None:
        """Makes one entry of what the input and then the agent's code cause, and sends it on its way."""
        run = item.run_id
        after = before.copy() if before else RunState(run)
        seq = after.head.seq + 1
        if seq == 1:
            after.position = _cause(item)
        try:
            advance(after, events, seq=seq, at_ms=self.now)
            reaction = self._agents.react(after, events, self.now)
            if reaction:
                advance(after, reaction, seq=seq + len(events), at_ms=self.now)
        except FoldError as error:
            self._freeze(run, error.message)
            self._ready.appendleft(item)
            return
        events = events + reaction
        if not events:
            item.done = True
            return
        self._send(before, after, events, item)

    def _send(self, before: RunState | None, after: RunState, events: list[Event], item: Item) -> None:
        head = before.head if before else chain.Head()
        entry = Entry(
            run_id=item.run_id,
            seq=head.seq + 1,
            prev=head.id,
            at_ms=self.now,
            cause=_cause(item),
            actor=self._actor,
            nonce=self._nonce(),
            events=events,
        )
        name, value = codec.encode_entry(entry)
        if len(value) > self._limits.payload_bytes * 2:
            self._send_too_large(before, events, item)
            return
        after.head = chain.Head(name, entry.last_seq)
        self._speculated[item.run_id] = after
        self._flying += 1
        trace = after.request.traceparent if after.request else ""
        headers = cloud_event(RUN_LOG, item.run_id, id=name.hex(), source=self._actor, at_ms=self.now, trace=trace)
        token = self._token((self, Sent(name, entry, after, item)))
        key = log_key(item.run_id, entry.seq, name)
        self.appends.append(Outgoing(RUN_LOG, self.partition, key, value, headers, token))

    def _send_too_large(self, before: RunState | None, events: list[Event], item: Item) -> None:
        """The run fails with what it wanted to write as the reason; its input, if that is small, is kept."""
        self._agents.forget(item.run_id)
        limit = self._limits.payload_bytes
        failure = Failure("too_large", f"an entry is over the size limit; keep every value under {limit} bytes")
        kept = [event for event in events if isinstance(event, RunRequested) and len(event.input) <= limit]
        after = before.copy() if before else RunState(item.run_id)
        ending: list[Event] = [*kept, RunFailed(failure)]
        advance(after, ending, seq=after.head.seq + 1, at_ms=self.now)
        self._send(before, after, ending, item)

    # What does not belong into the log

    def _forward(self, item: Item) -> bool:
        """Sends a stray to its home partition; true if it was one."""
        target = home(item.run_id, self._partitions)
        record = item.record
        if target == self.partition or record is None or record.topic not in inputs.FROM_USERS:
            return False
        self._counts["input.forwarded"] += 1
        self._publish(outgoing.forward(record, item.run_id, target), item)
        return True

    def _dead_letter(self, item: Item, code: str, reason: str) -> None:
        assert item.record is not None, "only records become dead letters"
        if item.letter is None:
            self._counts["dead_letter"] += 1
            place = {"topic": item.record.topic, "partition": self.partition, "offset": item.record.offset}
            self._news.append(("input.dead", {**place, "code": code, "reason": reason}))
        item.letter = code, reason
        limit = self._limits.payload_bytes
        self._publish(outgoing.letter(item.record, item.letter, actor=self._actor, at_ms=self.now, limit=limit), item)

    def _park(self, item: Item, reason: str) -> None:
        item.parked_ms = item.parked_ms or self.now
        waited = self.now - item.parked_ms
        if item.record is None:
            item.done = True
        elif waited >= self._limits.park_ms or self._parked_count >= self._limits.parked:
            self._dead_letter(item, "unknown_run", f"{reason}, after {waited} ms of waiting")
        else:
            item.end = None
            self._parked.setdefault(item.run_id, []).append(item)
            self._parked_count += 1
            self._timers.wake(item.parked_ms + self._limits.park_ms)

    # Time

    def _expire_parked(self) -> None:
        """Nothing is parked longer than the limit: what is due is answered once more, and then for good."""
        if not self._parked:
            return
        limit = self.now - self._limits.park_ms
        self._unpark([run for run, items in self._parked.items() if items[0].parked_ms <= limit])

    def _unpark(self, runs: list[str]) -> None:
        for run in runs:
            items = self._parked.pop(run)
            self._parked_count -= len(items)
            self._ready.extend(items)

    def _go_live(self) -> None:
        """The fold has reached the end that was captured at the take-over: timers, then every live run's frontier."""
        self._live = True
        self._counts["lane.live"] += 1
        for run, state in self.accepted.items():
            if state.over:
                continue
            self.now = max(self.now, state.at_ms)
            self._timers.rebuild(state)
            self._ready.append(Item(run, None))

    def _retry(self, item: Item) -> None:
        item.end = None
        self._ready.appendleft(item)


def _waits_for_people(state: RunState) -> bool:
    return all(opened.phase in ("approval", "doubt") for opened in state.open.values())


def _cause(item: Item) -> Cause | None:
    record = item.record
    return Cause(record.topic, record.partition, record.offset) if record else None
