"""One try of one call, from its claim to its outcome, as a machine without I/O.

Phases in order; only `probed` and `once` calls (`chained`) pass those in brackets:

    claiming -> [waiting -> chaining -> reading -> probing] -> running -> [undoing] -> completing -> over

and `-> leaving -> over`, when another process is to go on with the call.

An attempt sends requests through the `outbox` and gets the answers by method.
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
from refold.engine.executor import outcome
from refold.engine.executor.gate import NestedPolicy
from refold.engine.executor.inputs import Requested
from refold.engine.executor.outbox import ExecutorOutbox
from refold.engine.ports import ledger
from refold.engine.ports.effects import StartTool, StopTool, ToolEnded
from refold.engine.runtime.clock import LogClock

_Before = Literal["claiming", "waiting", "chaining", "reading", "probing"]
Phase = _Before | Literal["running", "undoing", "completing", "leaving", "over"]


@dataclass(slots=True, eq=False)
class Attempt:
    """A claim under way, and the try that follows from it. `number` identifies it to the host. **Units**: milliseconds,
    monotonic. The right to act counts from `right_ms`, before the claim was sent; `asked_ms` is the last request for a
    lease, `began_ms` the wall time of `started_ms`. `after` is the token of the claim that was taken over. `busy`: the
    tool's code runs here, even if the call is settled. `left`: this process no longer reads the partition;
    `taken_back`: a ruling has withdrawn the order."""

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
        """Monotonic time at the start of this turn; `log_ms` is the time that processes share."""
        return self.outbox.now.mono_ms

    @property
    def log_ms(self) -> int:
        """Current time by the log's clock, which all processes share."""
        self.clock.tick(self.now)  # its lane may be asleep, so its clock may not have ticked
        return self.clock.now_ms

    @property
    def effect(self) -> str:
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
        """Claim the call under a fresh token; its right to act counts from before the request."""
        self.token, self.right_ms, self.asked_ms = self.outbox.fresh(), self.now, self.now
        self._request_lease(ledger.Claim)

    @property
    def _owner(self) -> str:
        """Name under which the next incarnation may end the lease; "": none may."""
        # The call is repeatable, and this process dead by then.
        return "" if self.left else self.outbox.owner

    def _request_lease(self, operation: type[ledger.Claim | ledger.Renew]) -> None:
        # A wiped ledger gets a new entry. A process that reaps it may not begin an order that was taken back.
        request, close = self.request, self.outbox.settings.seal.close_order
        order = b"" if self.taken_back else close(self.home, request.key, self.requested.place)
        of = request.call_id, request.attempt
        self._ask(operation(*self._place, *of, self.token, self.lease_ms, order, self._owner))

    def answered(self, operation: ledger.Operation, reply: ledger.Reply) -> None:
        if isinstance(operation, ledger.Claim):
            # From here on the ledger has the request, and so has any process that reaps its lease. So a long tool holds
            # up no partition; an offset committed before, and a crash, would lose the call until its deadline.
            self.requested.done = True
            self._claimed(reply)
        elif isinstance(operation, ledger.Renew):
            # While it completes, the ledger may have this attempt's own result, whose answer was lost.
            if isinstance(reply, ledger.Renewed) and reply.closed and self.phase != "completing":
                self.close()
        elif isinstance(operation, ledger.Complete):
            self._completed(reply)
        elif isinstance(operation, ledger.HandOver) and self.phase == "leaving":
            self.phase = "over"

    def _claimed(self, reply: ledger.Reply) -> None:
        """Act on the ledger's reply to the claim."""
        if self.phase in ("leaving", "over"):  # it left before the answer came
            self._hand_over()
        elif isinstance(reply, ledger.Claimed):
            self.after, self.takeover = reply.after, bool(reply.after)
            if self.now - self.right_ms <= self.outbox.settings.resend_ms or self.closed or self._is_within_lease():
                self._go_on_claimed()
            else:  # the ledger took no writes for a while: nothing has begun, so the call is claimed again at once
                self._hand_over()
        else:
            # Always safe: the planner dispatches unanswered calls again.
            self.phase = "over"
            self._not_claimed(reply)

    def _not_claimed(self, reply: ledger.Reply) -> None:
        if isinstance(reply, ledger.Stored):
            self.outbox.stored(self.home, self.request, reply)
        elif isinstance(reply, ledger.Superseded):
            # Past its tombstone, or behind an attempt that the planner's log has lost: the planner needs an answer.
            if reply.closed or self.outbox.overtaken(self.home, self.request, reply):
                failure = outcome.SETTLED if reply.closed else outcome.PASSED
                self._late(self._result("unknown", failure), late=reply.closed and not reply.done)
        else:
            assert isinstance(reply, ledger.Busy | ledger.Broken), f"not an answer to a claim: {reply}"

    def _go_on_claimed(self) -> None:
        self._run()

    def look(self) -> None:
        """Check the chain as read so far; only `chained` attempts have one."""

    def appended(self, offset: int | None) -> None:
        """Handle the delivery of a link of the chain."""

    def leave(self) -> None:
        """Stop following a partition that another member has; a running tool goes on."""
        self.left = True
        if self.phase == "claiming":
            # Its permission may be out of date: chain and catalog are no longer read here.
            self._hand_over()
        elif self.phase == "running":
            self._request_lease(ledger.Renew)

    def take_back(self) -> None:
        """Begin nothing more: a ruling has withdrawn the order. A running tool goes on."""
        self.taken_back = True
        if self.phase in get_args(_Before):
            self.leave()

    def cut(self) -> None:
        """End before the tool does: hand over a repeatable call, so that it begins at once elsewhere."""
        # The lease of any other runs out, as if the process had died: its outcome is unknown.
        if self.phase == "running" and self.effect not in CHAINED:
            self._stop("handed_over")
            self._hand_over(begun=True)

    def _hand_over(self, *, begun: bool = False) -> None:
        self.phase = "leaving"
        self._ask(ledger.HandOver(*self._place, self.token, begun))

    def _let_go(self) -> None:
        """End the attempt without a result, and release its claim in the ledger."""
        self.phase = "over"
        self._ask(ledger.Release(*self._place, self.token))

    # The effect

    def _run(self) -> None:
        """Run the tool, unless the lease is past its margin and another process may soon act."""
        # From here on it is one turn, and its host starts tools before it does anything that may wait. Later stalls (of
        # this process, or of the tool's way to the receiver) have the rest of the lease: until then no other acts.
        if self.closed or not self._is_within_lease():
            self._let_go()
            return
        if refused := self._refusal():
            self._refuse(refused)
            return
        # The check does not depend on an earlier try: a wiped ledger would deny one.
        if self.outbox.settings.gate.key_forgotten(self.request, self.catalog, self.log_ms):
            self._finish(self._result("doubt", outcome.KEY_FORGOTTEN))
            return
        self.phase = "running"
        self._start(probe=False)

    def _is_within_lease(self) -> bool:
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
        """Report that nothing was sent, unless an earlier owner may have acted."""
        place = {"call_id": self.request.call_id, "tool": self.request.tool, "partition": self.home}
        event = "call.refused" if refused.stale else "call.unauthorised"
        self.outbox.journal.tell(event, **place, code=refused.code, reason=refused.message)
        result = self._result(self._not_sent(), Failure(refused.code, refused.message))
        self._not_done(replace(result, retryable=refused.stale))

    def _not_sent(self) -> str:
        """Status of a call not sent here: `unknown` if an earlier owner of a `keyed` call may have sent it."""
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
        """Act on time: check the chain, a tool's timeout, and the lease."""
        self.look()
        if self.phase in ("running", "probing") and self.now - self.started_ms >= self.request.timeout_ms:
            self._stop("timeout")
            self.timed_out = True
            self._finish(self._result("unknown", outcome.timeout(self.request)))
        running = self.phase not in ("leaving", "over", "claiming") and not self.settled
        if running and self.now - self.asked_ms >= self.lease_ms // 3:
            self.asked_ms = self.now
            self._request_lease(ledger.Renew)

    def close(self) -> None:
        """Settle or cancel the call: it does not begin; a running tool is notified."""
        if self.phase == "running" and not self.settled:
            self._stop("cancelled")
        self.closed = self.settled = True

    def _not_done(self, result: ToolResult) -> None:
        self._finish(result)

    def _finish(self, result: ToolResult) -> None:
        """Record a result in the ledger, whose outbox publishes it."""
        self.phase, self.result = "completing", result
        done = self.token, result.status == "completed", self.outbox.sealed(self.home, self.request, result)
        self._ask(ledger.Complete(*self._place, self.request.call_id, self.request.attempt, *done))

    def _completed(self, reply: ledger.Reply) -> None:
        self.phase = "over"
        assert self.result is not None, "completing follows a result"
        if isinstance(reply, ledger.Completed):
            if self.settled:  # its tombstone has come, and the marker that it left may be gone already
                self.outbox.close(self.home, self.request.key, self.request.call_id)
            base = self.requested.base
            self.outbox.outlet.offer(self.home, field=reply.field, result=self.result, base=base)
        elif isinstance(reply, (ledger.Fenced, ledger.Broken)):
            self._late(self.result)

    def _late(self, result: ToolResult, *, late: bool = True) -> None:
        """Publish a result that the ledger refused, for the planner to judge."""
        self.outbox.journal.tell("result.late", call_id=result.call_id, status=result.status)
        self.outbox.outlet.late(self.home, replace(result, late=late))
