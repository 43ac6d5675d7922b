"""Bugs on purpose, to prove that the checker sees them: each a small change to a service, never a switch in one.

Most are mistakes that somebody made before, or that a rule of the design was written against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from refold.core.events import Entry
from refold.core.ids import EntryId, entry_id
from refold.core.messages import ToolRequest, ToolResult
from refold.core.planning import commands
from refold.core.planning.commands import Command
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.executor import attempt as job_module
from refold.executor import service as executor_service
from refold.executor.attempt import Desk, Job
from refold.executor.service import Executor
from refold.planner import lane as lane_module
from refold.planner import service as planner_service
from refold.planner.lane import Lane, Ordered, Sent
from refold.planner.marks import Emitted, Item
from refold.ports.ledger import Claimed
from refold.ports.log import Outgoing
from refold.simulator.bugs.credulous import CREDULOUS
from refold.simulator.bugs.planting import Bug, Patch
from refold.simulator.world.crew import Kit

# The executor


class SkipsTheClaim(Job):
    """Acts without having asked the ledger."""

    def begin(self, desk: Desk, now: int) -> None:
        """See `Job`."""
        self.token, self.right_ms, self.asked_ms = desk.fresh(), now, now
        self._claimed(desk, Claimed(takeover=False), now)


class ActsBeforeTheClaim(Job):
    """Begins the effect while the claim is still under way."""

    def begin(self, desk: Desk, now: int) -> None:
        """See `Job`."""
        super().begin(desk, now)
        self.started_ms = now
        desk.start(self, probe=False)

    def _run(self, desk: Desk, now: int) -> None:
        self.phase = "running"


class DoubtsOutsideTheChain(Job):
    """Declares doubt without a claim that says so."""

    def _extend(self, desk: Desk, head: str, now: int) -> None:
        if self.request.effect == "once" and self._claimed_before():
            self._declare_doubt(desk)
        else:
            super()._extend(desk, head, now)


class TakesATimeoutForAFailure(Job):
    """Says that it did not happen when it does not know."""

    def _finish(self, desk: Desk, result: ToolResult) -> None:
        timed_out = result.failure is not None and result.failure.code == "timeout"
        super()._finish(desk, replace(result, status="failed") if timed_out else result)


class CommitsBeforeTheClaim(Executor):
    """Takes a request for done once it is read."""

    def _enqueue(self, command: executor_service.Command) -> None:
        super()._enqueue(command)
        if command.offset is not None:
            self.parts[command.home].offsets[command.offset] = True


class DropsItsDeadLetters(Executor):
    """Commits poison whether or not its dead letter has arrived."""

    def _put_away(self, letter: Outgoing, offset: int) -> None:
        self._publishes.append(letter._replace(token=self._token()))
        self.parts[letter.partition].offsets[offset] = True


class ClosesTooEarly(Executor):
    """Leaves a request in the queue whose tombstone has come."""

    def _withdraw(self, call: str) -> None:
        return


# The planner


class ActsBeforeAcceptance(Lane):
    """Sends out what an entry orders together with the entry."""

    def _send(self, before: RunState | None, after: RunState, events: list[Any], item: Item) -> None:
        super()._send(before, after, events, item)
        entry = Entry(item.run_id, 0, b"", self.now, None, "", b"", events)
        for order in commands.commands(after, entry, self.position):
            record = self._command(after, order, self.position, self.now)
            self._publish(record, Ordered(self.position, record))


class ResumesAtTheHighestCause(Lane):
    """Commits the position after the highest input that the log answers."""

    def _accept(self, after: RunState, entry: Entry, offset: int) -> None:
        super()._accept(after, entry, offset)
        if entry.cause and entry.cause.partition == self.partition:
            outstanding = self._inputs[entry.cause.topic]
            outstanding.position = max(outstanding.position or 0, entry.cause.offset + 1)


class SendsTheSameBytesAgain(Lane):
    """Sends a record again as it was when its outcome is unknown."""

    def _send(self, before: RunState | None, after: RunState, events: list[Any], item: Item) -> None:
        super()._send(before, after, events, item)
        self.last = self.appends[-1]

    def delivered(self, sent: Sent, offset: int | None) -> None:
        """See `Lane`."""
        super().delivered(sent, offset)
        if offset is None:
            self.appends.append(self.last._replace(token=self._token((self, None))))


class IgnoresForeignOrders(Lane):
    """Sends out only what its own entries order."""

    def _extend(self, judged: LogRecord, offset: int) -> None:
        before, self._emit_from = self._emit_from, 1 << 60 if self._live else self._emit_from
        super()._extend(judged, offset)
        self._emit_from = before


class DropsDeadLetters(Lane):
    """Counts poison and forgets it."""

    def _dead_letter(self, item: Item, code: str, reason: str) -> None:
        item.done = True


class ForgetsTimers(Lane):
    """Does not set the timers of the runs that it takes over."""

    def _go_live(self) -> None:
        super()._go_live()
        self._timers.clear()


class NeverReadsBack(Lane):
    """Takes an input for answered when nobody knows whether its entry was written."""

    def delivered(self, sent: Sent, offset: int | None) -> None:
        """See `Lane`."""
        if offset is None:
            self._flying -= 1
            self._drop_speculation(sent.entry.run_id)
            sent.item.done = True
        else:
            super().delivered(sent, offset)


def _last_wins(head: Head, entry: Entry) -> bool:
    return entry.seq <= head.seq + 1


def _key_without_id(run: str, seq: int, entry: bytes) -> bytes:
    return b"%s/%010d/%s" % (run.encode(), seq, b"0" * 32)


def _read_any_key(key: bytes | None, value: bytes | None) -> Any:
    if not value:
        return "tombstone"
    return LogRecord(EntryId(entry_id(codec.body(value))), codec.decode(Entry, value))


def _key_per_attempt(original: Callable[..., Command]) -> Callable[..., Command]:
    def request(state: RunState, event: Any, offset: int) -> Command:
        order = original(state, event, offset)
        assert isinstance(order.message, ToolRequest), "a dispatch orders a request"
        return replace(order, message=replace(order.message, key=f"{order.message.key}-{event.attempt}"))

    return request


def _whole_log(self: Emitted, position: int) -> int:
    return position


def _job(cls: type[Job]) -> tuple[Patch, ...]:
    return ((executor_service, "Job", cls),)


def _lane(cls: type[Lane]) -> tuple[Patch, ...]:
    return ((planner_service, "Lane", cls),)


def _executor(cls: type[Executor]) -> tuple[Patch, ...]:
    return ((Kit, "executor", cls),)


BUGS: dict[str, Bug] = {
    "skip-the-claim": Bug(("keyed",), _job(SkipsTheClaim)),
    "effect-before-claim": Bug(("once",), _job(ActsBeforeTheClaim)),
    "last-wins-fold": Bug(("keyed", "two-runs"), ((chain, "extends", _last_wins),)),
    "key-without-event-id": Bug(
        ("keyed",), ((lane_module, "log_key", _key_without_id), (chain, "read", _read_any_key))
    ),
    "act-before-acceptance": Bug(("keyed",), _lane(ActsBeforeAcceptance)),
    "resume-at-highest-cause": Bug(("two-runs-eager",), _lane(ResumesAtTheHighestCause), ("lost", "die-after")),
    "commit-before-claim": Bug(("keyed-eager",), _executor(CommitsBeforeTheClaim)),
    "same-bytes-twice": Bug(("keyed",), _lane(SendsTheSameBytesAgain)),
    "foreign-orders-ignored": Bug(("keyed",), _lane(IgnoresForeignOrders)),
    "claim-chain-skipped": Bug(("once",), ((job_module, "GUARDED", frozenset()),)),
    "doubt-outside-the-chain": Bug(("once",), _job(DoubtsOutsideTheChain)),
    "key-per-attempt": Bug(("keyed",), ((commands, "_request", _key_per_attempt(commands._request)),)),
    "timeout-is-failure": Bug(("once-late",), _job(TakesATimeoutForAFailure)),
    "dropped-dead-letter": Bug(("poison",), _lane(DropsDeadLetters)),
    "unacknowledged-dead-letter": Bug(("poison",), _executor(DropsItsDeadLetters)),
    "closed-too-early": Bug(("cancel-keyed",), _executor(ClosesTooEarly)),
    "timers-forgotten": Bug(("sleep",), _lane(ForgetsTimers)),
    "orders-forgotten": Bug(("keyed-eager",), ((Emitted, "low_water", _whole_log),), ("lost", "die-after")),
    "no-read-back": Bug(("keyed",), _lane(NeverReadsBack)),
    **CREDULOUS,
}
"""By name. The first fourteen were asked for; the others are more of their kind, some of them found in the product."""


@contextmanager
def planted(name: str) -> Iterator[Kit]:
    """What processes are made of, with a bug in it while the block lasts."""
    kit = Kit()
    undo = []
    for place, attribute, thing in BUGS[name].patches:
        if place is Kit:
            setattr(kit, attribute, thing)
        else:
            patcher = patch.object(place, attribute, thing)
            patcher.start()
            undo.append(patcher)
    try:
        yield kit
    finally:
        for patcher in undo:
            patcher.stop()
