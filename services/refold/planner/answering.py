"""How a lane answers an input: an entry on its way into the log, or wherever else the input belongs.

`decide` says what the input means, the agent's code what follows from that; both become one entry, so that an input is
applied whole or not at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from refold.core.errors import FoldError
from refold.core.events import Entry, Event, Failure, RunFailed, RunRequested
from refold.core.ids import home
from refold.core.messages import ToolResult
from refold.core.planning.decide import decide
from refold.core.planning.verdict import Decided, Ignore, Park, Refuse, Rules, Ruling, Start
from refold.core.run.chain import Head
from refold.core.run.fold import advance, link
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.planner import inputs
from refold.planner.acceptance import Acceptance, SentEntry
from refold.planner.hosting import Agents
from refold.planner.inbox import Inbox, Pending
from refold.planner.outbox import Outbox
from refold.planner.settings import PlannerSettings
from refold.runtime.lanes import Journal


@dataclass(frozen=True, slots=True)
class Shared:
    """What all lanes of a planner share. `nonce` gives 16 fresh random bytes."""

    settings: PlannerSettings
    nonce: Callable[[], bytes]
    journal: Journal


class Answering:
    """The answers of one lane. **Units**: `now` in milliseconds since 1970."""

    def __init__(
        self,
        partition: int,
        shared: Shared,
        inbox: Inbox,
        log: Acceptance,
        outbox: Outbox,
        agents: Agents,
        rules: Rules,
    ) -> None:
        self._partition, self._shared, self._journal = partition, shared, shared.journal
        self._inbox, self._log, self._outbox, self._agents, self._rules = inbox, log, outbox, agents, rules
        self._limits = shared.settings.limits

    def answer(self, item: Pending, now: int) -> None:
        """Decides what an item means, on the run's latest state, and sends what follows."""
        run = item.run_id
        if item.letter:
            self._outbox.bury(item, now, self._limits.payload_bytes)
            return
        if run in self._log.erased.runs:
            self._refuse_erased(item, now)
            return
        if reason := self._log.fold.frozen.get(run):
            self._park(item, f"the run cannot be read by this version: {reason}", now)
            return
        state = self._log.latest(run)
        # No input: a run whose code may be able to go on from what the log says, after a take-over, say.
        if item.input is None:
            verdict: Ruling = [] if state and not state.over else Ignore("nothing to drive")
        elif state is None and self._forward(item):
            return
        else:
            given = item.input
            if isinstance(given, Start):
                # Randomness enters here and is recorded: the run draws all its random numbers from this seed.
                given = dataclasses.replace(given, seed=self._shared.nonce().hex())
            verdict = decide(state, given, now, self._rules)
        if isinstance(verdict, list):
            self._append(state, verdict, item, now)
        # That nothing changes is said for good only on a log that is read to its end: a zombie's view may be old.
        elif self._inbox.unconfirmed.confirms(item, self._log.position, speculated=self._log.speculates(run)):
            self._leave(state, item, verdict, now)

    def _leave(self, state: RunState | None, item: Pending, verdict: Ignore | Park | Refuse, now: int) -> None:
        """An input that changes nothing."""
        if isinstance(verdict, Park):
            self._park(item, verdict.reason, now)
        elif isinstance(verdict, Refuse):
            self.bury(item, verdict.code, verdict.reason, now)
        else:
            item.done = True
            self._journal.counts["input.ignored"] += 1
            if isinstance(item.input, ToolResult | Decided) and state is not None:
                self._outbox.close_again(state, item.input, now)

    def _refuse_erased(self, item: Pending, now: int) -> None:
        """What people say of an erased run is answered; what services still had of it means nothing any more."""
        if item.record is not None and item.record.topic in inputs.FROM_USERS:
            self.bury(item, "erased", f"run {item.run_id} was erased: its id cannot be used again yet", now)
            return
        item.done = True
        self._journal.counts["input.ignored"] += 1

    def _append(self, before: RunState | None, events: list[Event], item: Pending, now: int) -> None:
        """Makes one entry of what the input and then the agent's code cause, and sends it on its way."""
        run = item.run_id
        after = before.copy() if before else RunState(run)
        seq = after.head.seq + 1
        if seq == 1:
            after.position = item.cause
        try:
            advance(after, events, seq=seq, at_ms=now)
            reaction = self._agents.react(after, events, now)
            if reaction:
                advance(after, reaction, seq=seq + len(events), at_ms=now)
        except FoldError as error:
            self._log.freeze(run, error.message)
            self._inbox.push_front(item)
            return
        events = events + reaction
        if not events:
            item.done = True
            return
        self._send(before, after, events, item, now)

    def _send(self, before: RunState | None, after: RunState, events: list[Event], item: Pending, now: int) -> None:
        head = before.head if before else Head()
        entry = Entry(
            run_id=item.run_id,
            seq=head.seq + 1,
            prev=head.id,
            at_ms=now,
            cause=item.cause,
            actor=self._shared.settings.member,
            nonce=self._shared.nonce(),
            events=events,
        )
        entry_id, value = codec.encode_entry(entry)
        if len(value) > self._limits.payload_bytes * 2:
            self.send_too_large(before, events, item, now)
            return
        link(after, Head(entry_id, entry.last_seq))
        sent = SentEntry(entry_id, entry, after, item)
        self._log.send(sent)
        self._outbox.append(sent, value)

    def send_too_large(self, before: RunState | None, events: list[Event], item: Pending, now: int) -> None:
        """The run fails with what it wanted to write as the reason; its input, if that is small, is kept."""
        self._agents.forget(item.run_id)
        limit = self._limits.payload_bytes
        failure = Failure("too_large", f"an entry is over the size limit; keep every value under {limit} bytes")
        kept = [event for event in events if isinstance(event, RunRequested) and len(event.input) <= limit]
        after = before.copy() if before else RunState(item.run_id)
        ending: list[Event] = [*kept, RunFailed(failure)]
        advance(after, ending, seq=after.head.seq + 1, at_ms=now)
        self._send(before, after, ending, item, now)

    # What does not belong into the log

    def _forward(self, item: Pending) -> bool:
        """Sends a stray to its home partition; true if it was one."""
        target, record = home(item.run_id, self._shared.settings.partitions), item.record
        if target == self._partition or record is None or record.topic not in inputs.FROM_USERS:
            return False
        self._journal.counts["input.forwarded"] += 1
        self._outbox.forward(item, target)
        return True

    def bury(self, item: Pending, code: str, reason: str, now: int) -> None:
        """Nobody can use the input: it becomes a dead letter, and is done when that is in the log."""
        record = item.record
        assert record is not None, "only records become dead letters"
        place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        self._journal.counts["dead_letter"] += 1
        self._journal.news.append(("input.dead", {**place, "code": code, "reason": reason}))
        item.letter = code, reason
        self._outbox.bury(item, now, self._limits.payload_bytes)

    def _park(self, item: Pending, reason: str, now: int) -> None:
        """Something about a run that is not known, or cannot be read: its request may be under way."""
        if item.record is None:
            item.done = True
        elif not self._inbox.park(item, now):
            waited = self._inbox.waited_ms(item, now)
            self.bury(item, "unknown_run", f"{reason}, after {waited} ms of waiting", now)
