"""Bugs on purpose, to prove that the checker sees them: each a small change to a service, never a switch in one.

Most are mistakes that somebody made before, or that a rule of the design was written against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from refold.core.events import Entry
from refold.core.ids import EntryId, entry_id
from refold.core.messages import ToolRequest, ToolResult
from refold.core.planning import commands
from refold.core.planning.commands import Command
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, anchor_name
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.executor import outcome
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.chained import ChainedAttempt
from refold.engine.executor.claim_chain import Lineage
from refold.engine.executor.inputs import CallQueue, Requested
from refold.engine.executor.lane import ExecutorLane
from refold.engine.executor.outbox import Burial, ExecutorOutbox
from refold.engine.planner.deciding.decide_loop import DecideLoop
from refold.engine.planner.intake.inbox import Emitted, Pending, SentEntry
from refold.engine.planner.lane import Lane
from refold.engine.planner.log.acceptance import Acceptance, Happened
from refold.engine.planner.log.outbox import Asker, Ordered, Outbox
from refold.engine.planner.snapshot import SentKept
from refold.engine.ports.ledger import Claimed
from refold.engine.ports.log import Delivery
from tests.sim.bugs.careless import CARELESS
from tests.sim.bugs.credulous import CREDULOUS
from tests.sim.bugs.deaf import DEAF
from tests.sim.bugs.faithless import FAITHLESS
from tests.sim.bugs.fleeting import FLEETING
from tests.sim.bugs.forgetful import FORGETFUL
from tests.sim.bugs.forked import FORKED
from tests.sim.bugs.gullible import GULLIBLE
from tests.sim.bugs.hasty import HASTY
from tests.sim.bugs.heartless import HEARTLESS
from tests.sim.bugs.neglectful import NEGLECTFUL
from tests.sim.bugs.planting import Bug, Patch, applied
from tests.sim.bugs.prodigal import PRODIGAL
from tests.sim.bugs.redone import REDONE
from tests.sim.bugs.restless import RESTLESS
from tests.sim.bugs.ruthless import RUTHLESS
from tests.sim.bugs.shortsighted import SHORTSIGHTED
from tests.sim.bugs.spendthrift import SPENDTHRIFT
from tests.sim.bugs.trusting import TRUSTING
from tests.sim.bugs.unheeding import UNHEEDING
from tests.sim.bugs.unruly import UNRULY
from tests.sim.bugs.untidy import UNTIDY
from tests.sim.bugs.wakeful import WAKEFUL

# The executor


class SkipsTheClaim(Attempt):
    """Acts without having asked the ledger."""

    def begin(self) -> None:
        """See `Attempt`."""
        self.token, self.right_ms, self.asked_ms = self.outbox.fresh(), self.now, self.now
        self._claimed(Claimed())


class ActsBeforeTheClaim(ChainedAttempt):
    """Begins the effect while the claim is still under way."""

    def begin(self) -> None:
        """See `Attempt`."""
        super().begin()
        self._start(probe=False)

    def _run(self) -> None:
        self.phase = "running"


class DoubtsOutsideTheChain(ChainedAttempt):
    """Declares doubt without a claim that says so."""

    def _extend(self, known: Lineage) -> None:
        if self.effect == "once" and (known.claimed or known.open):
            self._finish(self._result("doubt", outcome.IN_DOUBT))
        else:
            super()._extend(known)


class TakesATimeoutForAFailure(ChainedAttempt):
    """Says that it did not happen when it does not know."""

    def _finish(self, result: ToolResult) -> None:
        if result.status == "unknown" and result.failure and result.failure.code == "timeout":
            self._not_done(replace(result, status="failed"))
        else:
            super()._finish(result)


class CommitsBeforeTheClaim(ExecutorLane):
    """Takes a request for done once it is read."""

    def enqueue(self, requested: Requested) -> None:
        """See `ExecutorLane`."""
        super().enqueue(requested)
        requested.done = True


class DropsItsDeadLetters(ExecutorOutbox[Attempt]):
    """Commits poison whether or not its dead letter has arrived."""

    def _put(self, burial: Burial) -> None:
        super()._put(burial)
        burial.owed.done = True
        self._sent.take(self._publishes[-1].token)


def _leave(self: CallQueue, call: str, upto: int = 0) -> None:
    """Leave a request in the queue whose tombstone has come."""


# The planner


class ActsBeforeAcceptance(DecideLoop):
    """Sends out what an entry orders together with the entry."""

    def _send(self, before: RunState | None, after: RunState, events: list[Any], item: Pending, now: int) -> None:
        super()._send(before, after, events, item, now)
        entry, offset = Entry(item.run_id, 0, b"", now, None, "", b"", events), self._log.position
        for order in commands.commands(after, entry, offset):
            record = self._outbox._record(after, order, offset, now)
            self._outbox.publish(record, Ordered(offset, record))


class ResumesAtTheHighestCause(Lane):
    """Commits the position after the highest input that the log answers."""

    def accepted(self, after: RunState, entry: Entry, offset: int) -> None:
        """See `Lane`."""
        super().accepted(after, entry, offset)
        if entry.cause and entry.cause.partition == self.partition:
            outstanding = self.inbox._outstanding[entry.cause.topic]
            outstanding.position = max(outstanding.position or 0, entry.cause.offset + 1)


class KeepsTheBytes(Outbox):
    """Knows which entry it has sent last."""

    def append(self, sent: SentEntry, value: bytes) -> None:
        """See `Outbox`."""
        super().append(sent, value)
        self.last = self.appends[-1]

    def append_again(self) -> None:
        """Sends the same bytes."""
        self.appends.append(self.last._replace(token=self._tokens.give((self._partition, None))))


class SendsTheSameBytesAgain(Lane):
    """Sends a record again as it was when its outcome is unknown."""

    def delivered(self, asker: Asker, delivery: Delivery) -> None:
        """See `Lane`."""
        super().delivered(asker, delivery)
        if isinstance(asker, SentEntry) and delivery.offset is None:
            assert isinstance(self.outbox, KeepsTheBytes), "planted with it"
            self.outbox.append_again()


class IgnoresForeignOrders(Outbox):
    """Has only what its lane's own entries order sent out."""

    def add_accepted(self, after: RunState, entry: Entry, offset: int) -> None:
        """See `Outbox`."""


class DropsDeadLetters(DecideLoop):
    """Counts poison and forgets it."""

    def bury(self, item: Pending, code: str, reason: str, now: int) -> None:
        """See `DecideLoop`."""
        item.done = True


class ForgetsTimers(Lane):
    """Does not set the timers of the runs that it takes over."""

    def _go_live(self) -> None:
        super()._go_live()
        self._timers._heap.clear()


class TellsTheTimeBySnapshots(Lane):
    """Takes the clock of any broker that has taken a record for that of the log."""

    def delivered(self, asker: Asker, delivery: Delivery) -> None:
        """See `Lane`."""
        super().delivered(asker, delivery)
        if isinstance(asker, SentKept) and delivery.offset is not None:
            self.clock.delivered(delivery.at_ms)


class NeverReadsBack(Acceptance):
    """Takes an input for answered when nobody knows whether its entry was written."""

    def delivered(self, sent: SentEntry, offset: int | None) -> Iterator[Happened]:
        """See `Acceptance`."""
        if offset is None:
            self.flying -= 1
            self.drop(sent.entry.run_id)
            sent.item.done = True
        else:
            yield from super().delivered(sent, offset)


def _last_wins(head: Head, entry: Entry) -> bool:
    return entry.seq <= head.seq + 1


def _forgetful(*_: object) -> bool:
    return False


def _key_without_id(run: str, seq: int, entry: bytes) -> bytes:
    return b"%s/%010d/%s" % (run.encode(), seq, b"0" * 32)


_read_key = chain.read


def _read_any_key(key: bytes | None, value: bytes | None) -> Any:
    if not value or anchor_name(key):
        return _read_key(key, value)
    return LogRecord(EntryId(entry_id(value[codec.FRAME_BYTES :])), codec.decode(Entry, value))


def _key_per_attempt(original: Callable[..., Command]) -> Callable[..., Command]:
    def request(state: RunState, step: int, attempt: int, **more: Any) -> Command:
        order = original(state, step, attempt, **more)
        assert isinstance(order.message, ToolRequest), "a dispatch orders a request"
        return replace(order, message=replace(order.message, key=f"{order.message.key}-{attempt}"))

    return request


def _whole_log(self: Emitted, position: int) -> int:
    return position


def _lane(cls: type[Lane]) -> tuple[Patch, ...]:
    return (("planner.service.Lane", cls),)


def _part(cls: type[Acceptance | DecideLoop | Outbox]) -> tuple[Patch, ...]:
    """A part of a planner's lane, in the place of what it is a kind of."""
    return ((f"planner.lane.{cls.__mro__[1].__name__}", cls),)


def _executor(cls: type[Attempt | ExecutorLane | ExecutorOutbox[Attempt]]) -> tuple[Patch, ...]:
    return ((f"executor.service.{cls.__mro__[1].__name__}", cls),)


BUGS: dict[str, Bug] = {
    "skip-the-claim": Bug(("keyed",), _executor(SkipsTheClaim)),
    "effect-before-claim": Bug(("once",), _executor(ActsBeforeTheClaim)),
    "last-wins-fold": Bug(("keyed", "two-runs"), (("chain.extends", _last_wins), ("LogFold._is_copy", _forgetful))),
    "key-without-event-id": Bug(("keyed",), (("decide_loop.log_key", _key_without_id), ("chain.read", _read_any_key))),
    "act-before-acceptance": Bug(("keyed",), _part(ActsBeforeAcceptance)),
    "resume-at-highest-cause": Bug(("two-runs-eager",), _lane(ResumesAtTheHighestCause), ("lost", "die-after")),
    "commit-before-claim": Bug(("keyed-eager",), _executor(CommitsBeforeTheClaim)),
    "same-bytes-twice": Bug(("keyed",), _lane(SendsTheSameBytesAgain) + _part(KeepsTheBytes), ("unsure",)),
    "foreign-orders-ignored": Bug(("keyed",), _part(IgnoresForeignOrders)),
    "claim-chain-skipped": Bug(("once",), (("executor.service.CHAINED", frozenset()),)),
    "doubt-outside-the-chain": Bug(("once",), _executor(DoubtsOutsideTheChain)),
    "key-per-attempt": Bug(("keyed",), (("commands.request", _key_per_attempt(commands.request)),)),
    "timeout-is-failure": Bug(("once-late",), _executor(TakesATimeoutForAFailure)),
    "dropped-dead-letter": Bug(("poison",), _part(DropsDeadLetters)),
    "unacknowledged-dead-letter": Bug(("poison",), _executor(DropsItsDeadLetters), ("lost",)),
    "closed-too-early": Bug(("cancel-keyed",), (("CallQueue.withdraw", _leave),)),
    "timers-forgotten": Bug(("sleep",), _lane(ForgetsTimers)),
    "time-by-snapshots": Bug(("sleep", "keyed"), _lane(TellsTheTimeBySnapshots)),
    "orders-forgotten": Bug(("keyed-eager",), (("Emitted.low_water", _whole_log),), ("lost", "die-after")),
    "no-read-back": Bug(("keyed",), (("planner.lane.Acceptance", NeverReadsBack),), ("lost",)),
    **CREDULOUS,
    **CARELESS,
    **NEGLECTFUL,
    **WAKEFUL,
    **DEAF,
    **REDONE,
    **FORKED,
    **RESTLESS,
    **SPENDTHRIFT,
    **FLEETING,
    **UNHEEDING,
    **UNRULY,
    **UNTIDY,
    **FAITHLESS,
    **GULLIBLE,
    **FORGETFUL,
    **HASTY,
    **HEARTLESS,
    **TRUSTING,
    **PRODIGAL,
    **RUTHLESS,
    **SHORTSIGHTED,
}
"""By name. The first fourteen were asked for; the others are more of their kind, some of them found in the product."""


def planted(name: str) -> AbstractContextManager[None]:
    """The services have a bug in them while the block lasts."""
    return applied(BUGS[name].patches)
