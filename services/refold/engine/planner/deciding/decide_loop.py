"""Answers of a lane to inputs: an entry for the log, or the destination of an unusable input. Events of `decide` and of
the agent's code become one entry, so that an input is applied whole or not at all."""

import dataclasses
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from refold.core import events
from refold.core.errors import FoldError, MalformedError, UsageError, text_of
from refold.core.events import Entry, Event, Failure, RunFailed, RunRequested, RunRetried
from refold.core.ids import CallId, RunId, call_id, child_id, home, log_key, parse_call_id
from refold.core.messages import RunOperation, RunSignal, ToolResult
from refold.core.planning import copying, verdict
from refold.core.planning.budgets import answer_ms
from refold.core.planning.copying import ForkAsked
from refold.core.planning.decide import decide
from refold.core.planning.pausing import RequestedAt
from refold.core.run import pausing
from refold.core.run.chain import Head
from refold.core.run.fold import advance, evolve, extended, wakes
from refold.core.run.handed import Lacks, Pointed, Values, pointers
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG
from refold.core.wire import blobs, canonical, codec
from refold.engine.planner.agents.agent_host import MIGRATE, Agents
from refold.engine.planner.agents.stalls import JUDGED, Holds, LiveRoom, Stall, retries
from refold.engine.planner.deciding.admission import Admission
from refold.engine.planner.deciding.family import Family
from refold.engine.planner.intake import inputs
from refold.engine.planner.intake.inbox import Inbox, Pending, SentEntry, UnknownRuns, WaitsFor
from refold.engine.planner.intake.inputs import of_other_pool
from refold.engine.planner.intake.timers import Timers
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.planner.log.outbox import AskerAt, Outbox, SentRequest
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.effects import BlobLoaded, BlobSaved, LoadBlob, SaveBlob
from refold.engine.runtime import letters
from refold.engine.runtime.clock import LogClock
from refold.engine.runtime.lanes import Journal, Tokens
from refold.engine.runtime.watchdog import Mark
from refold.sdk.app import App


@dataclass(frozen=True, slots=True)
class LaneParts:
    """Parts of one lane that several others need."""

    partition: int
    clock: LogClock
    inbox: Inbox
    log: Acceptance
    outbox: Outbox
    timers: Timers
    stalls: Holds
    agents: Agents
    rules: verdict.Rules


TEXTS: dict[type, str] = {events.RunCompleted: "result", events.NoteRecorded: "data", events.ChildStarted: "input"}
"""Texts of events that go to the blob store if large."""

LOADING_BYTES = 32 << 20
"""Bytes loaded at a time, for all lanes of a planner."""

_REPLAYED = frozenset({MIGRATE, "retry"})

_OF_ONE_HISTORY = frozenset({"callback", "repair", copying.FORK})
"""Kinds of inputs that name one generation of a run, not its latest."""


class BlobOrders:
    """Loads and saves of a planner's lanes in the blob store; up to `LOADING_BYTES`, or one value, load at a time."""

    def __init__(self) -> None:
        self.orders: list[LoadBlob | SaveBlob] = []
        self._loads: deque[LoadBlob] = deque()
        self._loading: dict[int, int] = {}
        self._callbacks: dict[int, Callable[[str | Failure], None]] = {}
        self._number = 0

    def load(self, place: Pointed, then: Callable[[str | Failure], None], *, stored: bool) -> None:
        """Request a value; for `stored` see `LoadBlob`."""
        self._number += 1
        self._callbacks[self._number] = then
        self._loads.append(LoadBlob(self._number, *place, stored))
        self._load()

    def save(self, value: tuple[RunId, str], then: Callable[[str | Failure], None]) -> None:
        self._number += 1
        self._callbacks[self._number] = then
        self.orders.append(SaveBlob(self._number, *value))

    def answered(self, answer: BlobLoaded | BlobSaved) -> None:
        if self._loading.pop(answer.number, None) is not None:
            self._load()
        if then := self._callbacks.pop(answer.number, None):
            then(answer.value if isinstance(answer, BlobLoaded) else "")

    def _load(self) -> None:
        while self._loads and (under_way := sum(self._loading.values())) < LOADING_BYTES:
            size = blobs.size_of(self._loads[0].pointer)
            if under_way and under_way + size > LOADING_BYTES:
                return
            self._loading[self._loads[0].number] = size
            self.orders.append(self._loads.popleft())


class LargeValues:
    """Large values of one lane: loaded before an input is answered, saved before its entry is sent. **Units**: `most`
    is bytes of one value; 0 without a blob store."""

    def __init__(self, orders: BlobOrders, parts: LaneParts, most: int) -> None:
        self._orders, self._inbox, self._log, self._outbox = orders, parts.inbox, parts.log, parts.outbox
        self._agents, self._most = parts.agents, most
        self._driven: set[RunId] = set()
        self._away: list[tuple[RunId, str]] = []
        self._saving: set[RunId] = set()

    # Input

    def awaits(self, item: Pending, *, loads: bool) -> bool:
        """True if an input waits for large values (only with `loads`), or behind an entry of its run."""
        message = item.input
        if self._saving:
            run = message.parent if isinstance(message, verdict.ParentEnded) else item.run_id
            if run in self._saving:
                self._inbox.waiting.put(item, WaitsFor.VALUE, run)
                return True
        if isinstance(message, ToolResult) and not message.result.startswith(blobs.MARK):  # most inputs
            return False
        if not loads:
            return False
        missing = [place for place in self._pointers_in(message) if place not in item.values]
        self._load(item, missing)
        return bool(missing)

    def drive(self, run: RunId, places: Iterable[Pointed], values: Values) -> None:
        """Load these values, then drive the run's code with all values."""
        if run not in self._driven:
            self._driven.add(run)
            self._load(Pending(run, None, values=values), places)

    def _pointers_in(self, message: verdict.Input | None) -> Iterator[Pointed]:
        """Large values to load before an input is answered."""
        if isinstance(message, ToolResult):
            yield message.run_id, message.result
        elif isinstance(message, verdict.Start) and blobs.is_pointer(message.request.input):
            yield message.request.run_id, message.request.input
        elif isinstance(message, verdict.ChildEnded) and blobs.is_pointer(message.result):
            yield child_id(message.run_id, message.step), message.result
        # An order to retry or migrate is answered by a replay from the top, which needs all values of the run.
        elif isinstance(message, RunOperation) and message.kind in _REPLAYED:
            run = self._log.addressed(message.run_id)
            yield from pointers(self._log.known(run) or RunState(run))

    def _load(self, item: Pending, places: Iterable[Pointed]) -> None:
        left = set(places)
        if left:
            self._inbox.waiting.put(item, WaitsFor.VALUE, item)

        def loaded(place: Pointed, value: str | Failure) -> None:
            item.values = {**item.values, place: value}
            if isinstance(value, Failure) and isinstance(item.input, ToolResult):
                # The effect happened but its result is lost. A result in the log cannot become `broken` any more.
                item.input = dataclasses.replace(item.input, status="broken", result="", failure=value, retryable=False)
            left.discard(place)
            if not left:
                self._driven.discard(item.run_id)
                self._inbox.push(self._inbox.waiting.take(WaitsFor.VALUE, item))

        # A user's input may claim any pointer: without a store it fails instead of waiting.
        stored = not isinstance(item.input, verdict.Start) or item.input.origin is not None
        for place in list(left):
            self._orders.load(place, partial(loaded, place), stored=stored)

    # Output

    def put_away(self, run: RunId, added: list[events.Event]) -> list[events.Event]:
        """Replace large values in added events by pointers; `send` saves them."""
        self._away = []
        if self._most:
            for place, event in enumerate(added):
                if (name := TEXTS.get(type(event))) and blobs.is_large(text := getattr(event, name)):
                    # A child's input is stored with the child, which may outlive its parent.
                    owner = child_id(run, event.step) if isinstance(event, events.ChildStarted) else run
                    added[place] = dataclasses.replace(event, **{name: self._pointer_to(owner, text)})  # type: ignore[arg-type]
        return added

    def _pointer_to(self, run: RunId, text: str) -> str:
        try:
            data = text.encode()
        except UnicodeEncodeError:  # made without its context: its entry cannot be written
            return text
        if len(data) > self._most:
            return text  # its entry will be too large
        self._away.append((run, text))
        return blobs.pointer_of(data)

    def send(self, sent: SentEntry) -> None:
        """Send an entry once its large values are saved; later inputs of its run wait."""
        away, self._away = self._away, []
        if not away:
            self._send(sent)
            return
        run, left = sent.entry.run_id, len(away)
        self._saving.add(run)

        def saved(_: str | Failure) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._saving.discard(run)
                behind, state = self._inbox.waiting.take(WaitsFor.VALUE, run), self._log.known(run)
                if (state.head if state else Head()).id == sent.entry.prev:
                    self._send(sent)
                else:  # another planner has extended the run meanwhile
                    self._agents.forget(run)
                    behind.insert(0, sent.item)
                self._inbox.push(behind)

        for owner, text in away:
            self._orders.save((owner, text), saved)

    def _send(self, sent: SentEntry) -> None:
        self._log.send(sent)
        self._outbox.append(sent, sent.value)


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that all lanes of a planner share."""

    app: App
    settings: PlannerSettings
    nonce: Callable[[], bytes]
    journal: Journal
    unknown_runs: UnknownRuns
    actor: str
    blobs: BlobOrders
    tokens: Tokens[AskerAt]
    room: LiveRoom
    mark: Mark


class DecideLoop:
    """Answers of one lane to its inputs. **Units**: `now` in milliseconds since 1970."""

    def __init__(self, parts: LaneParts, shared: Shared, admission: Admission, family: Family) -> None:
        self._admission, self._family, self._shared, self._journal = admission, family, shared, shared.journal
        self._inbox, self._log, self._outbox, self._partition = parts.inbox, parts.log, parts.outbox, parts.partition
        self._stalls, self._timers, self._agents, self._rules = parts.stalls, parts.timers, parts.agents, parts.rules
        self._limits = limits = shared.settings.limits
        self._large = LargeValues(shared.blobs, parts, limits.blob_bytes)

    def reads(self, item: Pending, now: int) -> bool:
        """Decode an input; True if it can be answered now."""
        # Not before its turn: decoded, an input takes much more memory.
        if item.input is None and (record := item.record) is not None:
            try:
                item.run_id, item.input = inputs.read(record, self._limits.payload_bytes)
            except MalformedError as error:
                item.input = unreadable = inputs.unreadable_result(record, error)
                item.run_id = unreadable.run_id if unreadable else RunId("")
                self.bury(item, error.code, str(error), now)
                return False
            if isinstance(item.input, ToolResult):
                self._outbox.bases.answered(item.input, record)
        message = item.input
        if item.record is not None:
            self._address(item, message)
        loads = not isinstance(message, verdict.Start) or self._needs_input(item, message, now)
        return not self._large.awaits(item, loads=loads)

    def _address(self, item: Pending, message: verdict.Input | None) -> None:
        """Address an input of people by a run's plain name to its latest generation."""
        if isinstance(message, verdict.Start):
            latest = self._log.addressed(message.request.run_id)
            # A repeated request means the run: before the next generation has begun, the one that is over answers.
            item.redirect(self._log.before(latest) if self._log.known(latest) is None else latest, message)
        elif isinstance(message, RunSignal | RunOperation) and message.kind not in _OF_ONE_HISTORY:
            item.redirect(self._log.addressed(message.run_id), message)

    def _needs_input(self, item: Pending, message: verdict.Start, now: int) -> bool:
        """True if a request is for a known run, or starts one now: others need no values."""
        if not blobs.is_pointer(message.request.input):
            return True
        exists = item.run_id in self._log.erased.runs or self._log.known(item.run_id) is not None
        stray = message.origin is None and home(item.run_id, self._shared.settings.partitions) != self._partition
        waits = message.request.not_before_ms <= now and self._admission.room(message.request.agent) <= 0
        return not (exists or stray or waits)

    def answer(self, item: Pending, now: int) -> None:
        """Answer an input by an entry, a dead letter or nothing, or have it wait."""
        if type(item.input) is verdict.ChildEnded:
            self._family.addressed(item)
        run = item.run_id
        if run in self._log.erased.runs:
            if item.from_people:
                self.bury(item, "erased", f"run {run} was erased: its id cannot be used again yet", now)
            else:
                item.finish()
                self._journal.counts["input.ignored"] += 1
            return
        state = self._log.known(run)
        if run in self._log.fold.frozen and not (isinstance(item.input, verdict.Start) and state):
            self._defer(item, now)  # this version cannot see the rest of its history: another will read on
        elif (ruling := self._ruling(state, item, now)) is not None:
            self._carry_out(state, ruling, item, now)

    def _carry_out(self, state: RunState | None, ruling: verdict.Ruling, item: Pending, now: int) -> None:
        run = item.run_id
        if isinstance(ruling, list):
            if run in self._log.fold.frozen:
                self._defer(item, now)
            else:
                self._append(state, ruling, item, now)
        elif isinstance(ruling, verdict.Again):
            assert state is not None, "a call that is open is of a run that is known"
            self._ask_again(state, ruling, item, now)
        elif isinstance(ruling, verdict.Park) and not item.waited_for_subject:
            self._park(item, ruling, now)
        # An answer without an entry is final only on a log that is read to its end: a zombie's view may be old.
        elif self._inbox.confirms(item, self._log.position, speculated=run in self._log.speculated):
            self._settle_without_entry(state, item, ruling, now)

    def _ruling(self, state: RunState | None, item: Pending, now: int) -> verdict.Ruling | None:
        """Ruling on an input; None if it was forwarded, buried or made to wait."""
        message = item.input
        # No input: a run whose code may be able to go on, for example after a take-over.
        if message is None:
            return [] if state and not (state.over or state.copying) else verdict.Ignore("nothing to drive")
        if isinstance(message, (verdict.Start, verdict.ParentEnded)) and not self._family.allows(message):
            return verdict.Ignore("its parent has seen to that")
        if state is None:
            away = self._forward(item) or not self._is_admitted(item, now)
            return None if away else self._decide(state, item, now)
        if item.record and (why := of_other_pool(item.record, state, message)):
            unreadable = isinstance(message, verdict.UnreadableResult)
            return verdict.Ignore(why) if unreadable else verdict.Refuse("wrong_pool", why)
        return self._decide(state, item, now)

    def _decide(self, state: RunState | None, item: Pending, now: int) -> verdict.Ruling:
        if state is not None and (judged := self._rule_by_lane(state, item, now)) is not None:
            return judged
        sent = RequestedAt(item.record.at_ms, item.record.offset) if item.record else None
        ruling = decide(state, self._completed(item), now, self._rules, sent=sent, values=item.values)
        if isinstance(item.input, RunSignal):
            return self._admission.limit_signals(ruling, state, item.input)
        return ruling

    def _rule_by_lane(self, state: RunState, item: Pending, now: int) -> verdict.Ruling | None:
        """Ruling on an input that depends on this lane's copies, code or catalog, if any."""
        request, message = state.request, item.input
        if request and request.forked and state.copying and not copying.may_come(message):
            return verdict.Park("the run is not known")
        if isinstance(message, RunOperation):
            return self._rule_on(state, message, item, now)
        # A lane whose catalog lags would accept a decision of people whose right was revoked.
        if isinstance(message, verdict.Decided) and item.until(WaitsFor.CATALOG) is None:
            return verdict.Park("the catalog is not read up to an end after the decision", code="unauthorised")
        return None

    def _rule_on(self, state: RunState, operation: RunOperation, item: Pending, now: int) -> verdict.Ruling | None:
        if operation.kind in JUDGED and not retries(operation, state):
            ruling = self._stalls.judge(operation, state, sent_ms=item.record.at_ms if item.record else now)
            if isinstance(ruling, verdict.Ignore) and not state.over:
                # It has gone on, but its entry may be lost: driven once more, it comes to the same point.
                self._inbox.push([Pending(item.run_id, None)])
            return ruling
        return self._agents.migrate(state, operation, item.values) if operation.kind == MIGRATE else None

    def _completed(self, item: Pending) -> verdict.Input:
        """The input with facts of this lane: a seed, and a pause from its parent."""
        message = item.input
        assert message is not None, "what has no input is driven"
        if isinstance(message, verdict.Start):
            # Randomness enters here and is recorded: the run draws all its random numbers from this seed.
            waits, pause = item.run_id in self._inbox.waiting.at(WaitsFor.RUN), self._family.pause(message)
            return dataclasses.replace(message, seed=self._shared.nonce().hex(), waits=waits, pause=pause)
        if isinstance(message, verdict.PauseAbove):
            return dataclasses.replace(message, pause=self._family.pause(message))
        return message

    def _is_admitted(self, item: Pending, now: int) -> bool:
        """True if there is room for another run; if not, its request waits or is refused."""
        message = item.input
        if not isinstance(message, verdict.Start) or message.before is not None:  # it takes the room of that one
            return True
        if message.origin is None and (why := self._admission.refuses(message.request, now)):
            self.bury(item, "no_room", why, now)
            return False
        if self._admission.room(message.request.agent) > 0 or message.request.not_before_ms > now:
            return True
        self._inbox.wait(item, WaitsFor.ROOM, message.request.agent)
        return False

    def late(self, calls: Iterable[CallId], now: int, *, passed: bool = False) -> None:
        """Queue unanswered calls for a decision. `passed`: executors have passed their requests."""
        waited = {WaitsFor.EXECUTORS: 1} if passed else None
        for call in calls:
            run, seq = parse_call_id(call)
            if (state := self._log.fold.states.get(run)) and (step := state.step_of(seq)) is not None:
                self._inbox.push([Pending(run, verdict.Due(run, step, now), waited=waited)])

    def _settle_without_entry(self, state: RunState | None, item: Pending, ruling: verdict.Ruling, now: int) -> None:
        if isinstance(ruling, verdict.Park):
            self._park(item, ruling, now)
        elif isinstance(ruling, verdict.Refuse):
            self.bury(item, ruling.code, ruling.reason, now)
        else:
            self._journal.counts["input.ignored"] += 1
            if isinstance(item.input, ToolResult | verdict.Decided) and state is not None:
                self._outbox.close_again(state, item.input, now)
            elif isinstance(item.input, verdict.Due) and state is not None:
                self._timers.again(state, item.input, now)
            self._outbox.close(item)

    def _append(self, before: RunState | None, events: list[Event], item: Pending, now: int) -> None:
        """Write the entry of an input, with the events that the agent's code adds."""
        run = item.run_id
        after = before.copy() if before else RunState(run)
        # Time stands still for a run whose history is ahead of the log's clock, which may have been corrected.
        seq, now = after.head.seq + 1, max(now, after.at_ms)
        if seq == 1:
            after.position = item.cause
        try:
            advance(after, events, seq=seq, at_ms=now)
            reaction, stalled = self._react(after, events, item, now)
            reaction = self._large.put_away(run, reaction)
            fresh = extended(after, events, reaction, seq=seq, at_ms=now)
            fresh = extended(after, fresh, pausing.status_change(before, after, fresh), seq=seq, at_ms=now)
        except FoldError as error:
            self._log.freeze(run, error.message)
            self._inbox.push_front(item)
            return
        after.unseen = after.unseen + wakes(events) if stalled else 0
        if fresh:
            self._send(before, after, fresh, item, now)
        else:
            self._outbox.close(item)

    def _react(self, after: RunState, events: list[Event], item: Pending, now: int) -> tuple[list[Event], bool]:
        """Events of the agent's code, and whether it is held, so that its wake-ups stay unseen."""
        run = after.run_id
        if after.over:
            return [], False
        if after.paused:
            self._agents.forget(run)  # inputs during a pause are not fed to it
            return [], True
        if self._stalls.bars(run) and not self._stalls.review(run, self._agents.code_of(after)):
            return [], True
        tried = self._stalls.tries(run)
        reaction = self._agents.react(after, events, now, values=item.values, verify=tried)
        if isinstance(reaction, Lacks):
            self._large.drive(run, reaction.places, item.values)
            return [], True
        if isinstance(reaction, Stall):
            self._stalls.stall(run, reaction, now)
            return [], True
        if tried:
            self._stalls.lift(run)
        return reaction, False

    def _send(self, before: RunState | None, after: RunState, events: list[Event], item: Pending, now: int) -> None:
        """Send the entry of these events, or fail the run if it cannot be written."""
        head = before.head if before else Head()
        entry = Entry(
            run_id=item.run_id,
            seq=head.seq + 1,
            prev=head.id,
            at_ms=now,
            cause=item.cause,
            actor=self._shared.actor,
            nonce=self._shared.nonce(),
            events=events,
            held=after.unseen > 0,
        )
        try:
            entry_id, value = codec.encode_entry(entry)
        except (AttributeError, TypeError, ValueError, OverflowError, struct.error, MalformedError) as error:
            # Events made without their context may contain anything.
            failure = Failure("unwritable", f"an event cannot be written: {text_of(error)}")
            self._fail(before, events, item, failure, now)
            return
        if len(value) > self._limits.entry_bytes:
            self.send_too_large(before, events, item, now)
            return
        after.link(Head(entry_id, entry.last_seq))
        key = log_key(item.run_id, entry.seq, entry_id)
        self._large.send(SentEntry(entry_id, key, entry, after, value, item))

    def copy(self, item: Pending, fork: ForkAsked, history: Sequence[Entry], now: int) -> bool:
        """Write a turn's share of a fork's missing history; True once its input can be answered."""
        run, before = item.run_id, self._log.known(item.run_id)
        if before is None and self._forward(item):
            return True
        # While the history was read, another planner may have begun that run, or closed its id.
        if not self._log.forkable(run) or not copying.lacks_history(before, fork):
            self._inbox.push([item])
            return True
        try:
            copying.fitting(fork, self._rules)
        except (MalformedError, UsageError) as error:
            self.bury(item, "malformed", error.message, now)
            return True
        has = len(before.heads) if before else 0
        for entry in history[has : has + self._limits.flying_entries]:
            copied = dataclasses.replace(
                copying.copy_of(entry, fork, run, before),
                actor=self._shared.actor,
                nonce=self._shared.nonce(),
                cause=entry.cause if before else item.cause,
            )
            name, value = codec.encode_entry(copied)
            before = evolve(before, copied, name)
            sent = SentEntry(name, log_key(run, copied.seq, name), copied, before, value, Pending(run, None))
            self._log.send(sent)
            self._outbox.append(sent, value)
        if not has:  # a cancel that has waited for the run comes before any cost; all else waits on
            self._inbox.unpark(run)
        return False

    def send_too_large(self, before: RunState | None, events: list[Event], item: Pending, now: int) -> None:
        """Fail a run instead of writing these events, whose entry is too large for the log."""
        limit = self._limits.payload_bytes
        message = f"an entry is over its limit: values under {limit} bytes, and less at once (asyncio.Semaphore)"
        self._fail(before, events, item, Failure("too_large", message), now)

    def _fail(self, before: RunState | None, events: list[Event], item: Pending, failure: Failure, now: int) -> None:
        """Fail the run instead of writing these events; its input, if small, is kept."""
        self._agents.forget(item.run_id)
        limit = self._limits.payload_bytes
        # Only a retry can follow a terminal event. The same failure again means that the log refused even this entry:
        # then the request is dropped too, and at last the input.
        beginnings = [event for event in events if _opens_run(event, limit)]
        if isinstance(events[-1], RunFailed) and events[-1].failure == failure:
            if not beginnings or (before and before.over):
                self._give_up(item, now)
                return
            beginnings = []
        after = before.copy() if before else RunState(item.run_id)
        # A fork that fails within its copy may be retried: never under the keys of its source.
        cut = copying.cut_short(before, self._shared.actor, self._rules) if before else []
        ending: list[Event] = [*beginnings, *cut, RunFailed(failure)]
        advance(after, ending, seq=after.head.seq + 1, at_ms=now)
        after.unseen = 0
        self._send(before, after, ending, item, now)

    # Repeated requests for calls

    def _ask_again(self, state: RunState, again: verdict.Again, item: Pending, now: int) -> None:
        """Send a request again: after its time, if executors have passed it, or at once if one needs it `whole`."""
        step = again.step
        if again.whole:
            self._journal.counts["request.whole"] += 1
            self._outbox.go_on(state, step, now, pending=item)
            return
        unanswered, opened, proposed = self._outbox.unanswered, state.open[step], state.call(step)
        call = call_id(state.run_id, opened.seq)
        passed = item.until(WaitsFor.EXECUTORS)
        item.finish()
        sent = unanswered.last(call)
        if sent is None or sent.attempt != opened.attempt:
            # A predecessor has sent it, to an unknown offset.
            sent = SentRequest(opened.attempt, "", 0, now, 0)
        elif now < (due := sent.at_ms + answer_ms(proposed, sent.times, self._rules)):
            unanswered.watch(call, due)
            return
        elif not passed:
            unanswered.wait(call)
            return
        self._journal.counts["request.again"] += 1
        self._outbox.ask_again(state, step, issued=sent.issued, now=now)
        unanswered.watch(call, now + answer_ms(proposed, sent.times + 1, self._rules))

    def go_on(self, state: RunState, step: int, now: int) -> None:
        """Send the request of a call that was held back; its time to answer begins now."""
        self._outbox.go_on(state, step, now)
        self._timers.set(state.run_id, step, 0)
        call = call_id(state.run_id, state.open[step].seq)
        self._outbox.unanswered.watch(call, now + answer_ms(state.call(step), 0, self._rules))

    # Inputs that do not belong into the log

    def _forward(self, item: Pending) -> bool:
        """Send a stray to its home; True if it was one."""
        target = home(item.run_id, self._shared.settings.partitions)
        if target == self._partition or not item.from_people:
            return False
        self._journal.counts["input.forwarded"] += 1
        self._outbox.forward(item, target)
        return True

    def bury(self, item: Pending, code: str, reason: str, now: int) -> None:
        assert item.record is not None, "only records become dead letters"
        self._journal.counts["dead_letter"] += 1
        self._journal.news.append(("input.dead", {**letters.place(item.record), "code": code, "reason": reason}))
        self._outbox.bury(item, (code, reason), now, self._limits.payload_bytes)

    def _give_up(self, item: Pending, now: int) -> None:
        """Give up an input of a run whose entries the log refuses at any size."""
        self._journal.tell("publish.refused", topic=RUN_LOG, partition=self._partition, run_id=item.run_id)
        if item.record is None:
            item.finish()
        else:
            self.bury(item, "too_large", "the run log takes no entry for it", now)

    def _park(self, item: Pending, ruling: verdict.Park, now: int) -> None:
        """Park an input whose subject is unknown and may be under way."""
        if item.record is None or isinstance(item.input, verdict.UnreadableResult):
            item.finish()
        elif item.waited_for_subject and item.run_id not in self._log.beginning:
            self.bury(item, ruling.code, f"{ruling.reason}, and nothing is under way that would tell", now)
        elif ruling.code == "unknown_run" and not self._inbox.parkable(item):
            reason = f"{ruling.reason}, and too much waits for such runs: say it again when it has begun"
            self.bury(item, ruling.code, reason, now)
        elif ruling.code == "unknown_run":
            self._inbox.park(item)
            if item.run_id not in self._log.beginning:  # a generation begins for certain
                self._shared.unknown_runs.add(self._partition, item)
        else:
            item.forget_log_end()
            item.has_waited(WaitsFor.CATALOG)
            self._inbox.waiting.put(item, WaitsFor.CATALOG)

    def _defer(self, item: Pending, now: int) -> None:
        """Keep an input for a run that stands still: any of services, limited ones of users."""
        if item.cause is None:
            item.finish()
        elif not self._inbox.keeps(item):
            reason = f"run {item.run_id} stands still: {self._log.fold.frozen[item.run_id]}"
            self.bury(item, "stalled", f"{reason}; too much waits for such runs: say it again when it goes on", now)


def _opens_run(event: Event, most: int) -> bool:
    """True if an event creates a run with a small input, or reopens one."""
    return isinstance(event, RunRetried) or (
        isinstance(event, RunRequested) and not event.forked and canonical.utf8_bytes(event.input) <= most
    )
