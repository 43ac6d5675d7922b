"""One try of one call, from its claim to its outcome, as a machine without I/O.

The phases in order; `probed` and `once` calls pass those in brackets (`chained`), the others skip them:

    claiming -> [waiting -> chaining -> reading -> probing] -> running -> [undoing] -> completing -> over

and `-> leaving -> over`, when another process is to go on with the call.

An attempt asks through the `outbox` and is told the answers by name. Every answer that says "somebody else" ends it:
letting go is always safe, because the planner dispatches again what stays unanswered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Refusal
from refold.core.events import Failure
from refold.core.ids import AGENT_TOOL
from refold.core.messages import ToolRequest, ToolResult
from refold.core.run.state import CHAINED
from refold.executor import outcome
from refold.executor.inputs import Requested
from refold.executor.nested_calls import NestedPolicy
from refold.executor.outbox import ExecutorOutbox
from refold.ports import ledger
from refold.ports.effects import StartTool, StopTool, ToolEnded
from refold.runtime.clock import LogClock

_Before = Literal["claiming", "waiting", "chaining", "reading", "probing"]
Phase = _Before | Literal["running", "undoing", "completing", "leaving", "over"]


@dataclass(slots=True, eq=False)
class Attempt:
    """A claim under way, and the try that follows from it. `number` names it to the host.

    **Units**: milliseconds on the monotonic clock. `right_ms` is the time before the claim was sent that gives the
    right to act: the ledger's, or for chained classes the chain's. `asked_ms` is the last request for a lease, and
    `began_ms` the wall time of `started_ms`. `after` is the token of the claim that was taken over. `busy` while the
    tool's code runs here, whatever has been said of the call by then. `left`: nobody here reads its partition any more;
    `taken_back`: a later ruling has taken its order back.
    """

    number: int
    home: int
    requested: Requested
    catalog: Catalog
    clock: LogClock
    outbox: ExecutorOutbox[Attempt]
    phase: Phase = "claiming"
    token: str = ""
    right_ms: int = 0
    asked_ms: int = 0
    started_ms: int = 0
    began_ms: int = 0
    after: str = ""
    takeover: bool = False
    closed: bool = False
    settled: bool = False
    busy: bool = False
    timed_out: bool = False
    left: bool = False
    taken_back: bool = False
    result: ToolResult | None = None

    @property
    def request(self) -> ToolRequest:
        return self.requested.request

    @property
    def now(self) -> int:
        return self.outbox.now.mono_ms

    @property
    def log_ms(self) -> int:
        """The same by the log, whose time everybody has."""
        self.clock.tick(self.now)  # its lane may be asleep, and nobody else says so
        return self.clock.now_ms

    @property
    def effect(self) -> str:
        """Its class, which is not for a planner alone to say."""
        return self.outbox.settings.gate.effect(self.request)

    @property
    def lease_ms(self) -> int:
        return self.outbox.settings.times.lease(self.request.tool, self.effect)

    @property
    def _place(self) -> tuple[int, str, str]:
        return self.home, self.outbox.settings.pool, self.request.key

    def _ask(self, operation: ledger.Operation) -> None:
        self.outbox.ledger.ask(operation, self)

    # The ledger's claim

    def begin(self) -> None:
        """Claims the call under a fresh token; its right to act counts from before the question, not the answer."""
        self.token, self.right_ms, self.asked_ms = self.outbox.fresh(), self.now, self.now
        self._hold(ledger.Claim)

    @property
    def _owner(self) -> str:
        """Whose next incarnation may end the lease: repeating the call is safe, and this one is dead by then."""
        return "" if self.left else self.outbox.owner

    def _hold(self, operation: type[ledger.Claim | ledger.Renew]) -> None:
        # A ledger that was wiped makes the entry anew. Whoever reaps that may not begin an order that was taken back.
        order = b"" if self.taken_back else self.outbox.order_of(self.home, self.requested)
        of = self.request.call_id, self.request.attempt
        self._ask(operation(*self._place, *of, self.token, self.lease_ms, order, self._owner))

    def answered(self, operation: ledger.Operation, reply: ledger.Reply) -> None:
        if isinstance(operation, ledger.Claim):
            # From here on the ledger has the request, and whoever reaps its lease has it too. So a long tool holds up
            # no partition; had the offset been committed before, a crash would have lost the call until its deadline.
            self.requested.done = True
            self._claimed(reply)
        elif isinstance(operation, ledger.Renew):
            # While it completes, what the ledger has there may be this attempt's own result, whose answer was lost.
            if isinstance(reply, ledger.Renewed) and reply.closed and self.phase != "completing":
                self.close()
        elif isinstance(operation, ledger.Complete):
            self._completed(reply)
        elif isinstance(operation, ledger.HandOver) and self.phase == "leaving":
            self.phase = "over"

    def _claimed(self, reply: ledger.Reply) -> None:
        if self.phase in ("leaving", "over"):  # it left before the answer came
            self._hand_over()
        elif isinstance(reply, ledger.Claimed):
            self.after, self.takeover = reply.after, bool(reply.after)
            if self.now - self.right_ms <= self.outbox.settings.resend_ms or self.closed or self._in_time():
                self._granted()
            else:  # the ledger took no writes for a while: nothing has begun, so the call is claimed anew at once
                self._hand_over()
        else:
            self.phase = "over"
            if isinstance(reply, ledger.Stored):
                self.outbox.stored(self.home, self.request, reply)
            elif isinstance(reply, ledger.Superseded):
                # Past its tombstone, or behind an attempt that the planner's log has lost: it has to hear of it.
                if reply.closed or self.outbox.overtaken(self.home, self.request, reply):
                    self._late(self._result("unknown", outcome.superseded(reply)), late=reply.closed and not reply.done)
            else:
                assert isinstance(reply, ledger.Busy | ledger.Broken), f"not an answer to a claim: {reply}"

    def _granted(self) -> None:
        """The ledger knows of nobody else who acts on it."""
        self._run()

    def look(self) -> None:
        """Looks at what has been read of the chain by now; `chained` attempts have one."""

    def appended(self, offset: int | None) -> None:
        """The log's answer for a link of the chain."""

    def leave(self) -> None:
        """The partition is another member's, so neither its chain nor its catalog is read here any more.

        What has not begun is handed over: it would rest on what was in force once. What runs is nobody's to end.
        """
        self.left = True
        if self.phase == "claiming":
            self._hand_over()
        elif self.phase == "running":
            self._hold(ledger.Renew)

    def take_back(self) -> None:
        """A ruling has taken the order back: nothing begins by it. What runs goes on, and what came of it is heard."""
        self.taken_back = True
        if self.phase in get_args(_Before):
            self.leave()

    def cut(self) -> None:
        """This process ends before the tool does. What may be repeated is handed over, so that it begins at once
        elsewhere; of all else nobody knows what came of it: its lease runs out, as when the process had died.
        """
        if self.phase == "running" and self.effect not in CHAINED:
            self._stop("handed_over")
            self._hand_over(begun=True)

    def _hand_over(self, *, begun: bool = False) -> None:
        self.phase = "leaving"
        self._ask(ledger.HandOver(*self._place, self.token, begun))

    def _let_go(self) -> None:
        self.phase = "over"
        self._ask(ledger.Release(*self._place, self.token))

    # The effect

    def _run(self) -> None:
        """The last look at the clock: past the margin somebody else may soon act, so this one lets go."""
        # What follows is one turn, and its host starts tools before it does anything that may wait. What may stall yet
        # (this process, the tool's way to the receiver) has the rest of the lease, before which nobody else acts.
        if self.closed or not self._in_time():
            self._let_go()
            return
        if refused := self._refusal():
            self._refuse(refused)
            return
        # Whether there was an earlier try is not asked: a ledger that was wiped would say no.
        if self.outbox.settings.gate.key_forgotten(self.request, self.catalog, self.log_ms):
            self._finish(self._result("doubt", outcome.KEY_FORGOTTEN))
            return
        self.phase = "running"
        self._start(probe=False)

    def _in_time(self) -> bool:
        return self.now - self.right_ms <= self.lease_ms * self.outbox.settings.times.margin

    def _start(self, *, probe: bool) -> None:
        self.started_ms, self.began_ms, self.busy = self.now, self.outbox.now.wall_ms, True
        within = None
        if self.request.tool.startswith(AGENT_TOOL):
            within = NestedPolicy(self.outbox.settings.gate, self.request, self.catalog)
        self.outbox.orders.append(StartTool(self.number, self.request, probe, within))

    def _stop(self, reason: str) -> None:
        self.outbox.journal.tell(f"tool.{reason}", call_id=self.request.call_id, tool=self.request.tool)
        self.outbox.orders.append(StopTool(self.number, reason))

    def _refusal(self) -> Refusal | None:
        gate = self.outbox.settings.gate
        return gate.refusal(self.request, self.catalog, partition=self.home, now_ms=self.log_ms)

    def _refuse(self, refused: Refusal) -> None:
        """Nothing is sent. That is all there is to say, unless somebody before this one may have acted.

        The head of a chain knows that nobody else has: what it refuses, it refuses after it has asked.
        """
        place = {"call_id": self.request.call_id, "tool": self.request.tool, "partition": self.home}
        event = "call.refused" if refused.stale else "call.unauthorised"
        self.outbox.journal.tell(event, **place, code=refused.code, reason=refused.message)
        result = self._result(self._not_sent(), Failure(refused.code, refused.message))
        self._not_done(replace(result, retryable=refused.stale))

    def _not_sent(self) -> str:
        """What is to be said of a call when nothing of it was sent here."""
        return "unknown" if self.takeover and self.effect == "keyed" else "unauthorised"

    def ended(self, ended: ToolEnded) -> None:
        self.busy = False
        if self.phase == "probing":
            self._probed(ended)
        elif self.phase == "running":
            result = outcome.outcome_of(self.request, ended, self._tool_run(takeover=self.takeover))
            if result.status == "failed":
                self._not_done(result)
            else:
                self._finish(result)
        elif self.timed_out and ended.status == "completed":
            self._late(self._result("completed", result=ended.result))

    def _probed(self, ended: ToolEnded) -> None:
        if ended.status == "happened":
            self._finish(replace(self._result("completed", result=ended.result), how="probed"))
        elif ended.status == "did_not_happen":
            self._run()
        else:
            self._finish(self._result("unknown", Failure(ended.code, ended.message)))

    def _result(self, status: str, failure: Failure | None = None, *, result: str = "") -> ToolResult:
        run = self._tool_run(takeover=self.takeover and self.effect == "pure")
        return outcome.result_of(self.request, status, run, failure=failure, json=result)

    def _tool_run(self, *, takeover: bool) -> outcome.ToolRun:
        took_ms = self.now - self.started_ms if self.began_ms else 0
        return outcome.ToolRun(self.outbox.settings.member, takeover, self.began_ms, took_ms)

    # The lease and the record

    def tend(self) -> None:
        """What time makes due: a look at the chain, a timeout, a longer lease."""
        self.look()
        if self.phase in ("running", "probing") and self.now - self.started_ms >= self.request.timeout_ms:
            self._stop("timeout")
            self.timed_out = True
            self._finish(self._result("unknown", outcome.timeout(self.request)))
        holds = self.phase not in ("leaving", "over", "claiming") and not self.settled
        if holds and self.now - self.asked_ms >= self.lease_ms // 3:
            self.asked_ms = self.now
            self._hold(ledger.Renew)

    def close(self) -> None:
        """The call is settled or cancelled: nothing that has not begun begins, and what runs is told."""
        if self.phase == "running" and not self.settled:
            self._stop("cancelled")
        self.closed = self.settled = True

    def _not_done(self, result: ToolResult) -> None:
        self._finish(result)

    def _finish(self, result: ToolResult) -> None:
        self.phase, self.result = "completing", result
        done = self.token, result.status == "completed", self.outbox.sealed(self.home, self.request, result)
        self._ask(ledger.Complete(*self._place, self.request.call_id, self.request.attempt, *done))

    def _completed(self, reply: ledger.Reply) -> None:
        self.phase = "over"
        assert self.result is not None, "completing follows a result"
        if isinstance(reply, ledger.Completed):
            if self.settled:  # its tombstone has come, and perhaps the marker that it left is gone by now
                self.outbox.close(self.home, self.request.key, self.request.call_id)
            base = self.requested.base
            self.outbox.outlet.offer(self.home, field=reply.field, result=self.result, base=base)
        elif isinstance(reply, (ledger.Fenced, ledger.Broken)):
            self._late(self.result)

    def _late(self, result: ToolResult, *, late: bool = True) -> None:
        """What the ledger does not take is for the planner to judge."""
        self.outbox.journal.tell("result.late", call_id=result.call_id, status=result.status)
        self.outbox.outlet.late(self.home, replace(result, late=late))
