"""One claim of one call, from its command to its outcome, as a machine without I/O.

The phases in order; `probed` and `once` calls pass the guarded ones, the others skip them:

    claiming -> [waiting -> chaining -> reading -> [probing]] -> running -> completing -> over

A job asks through the `desk` that the service gives it and is told the answers by name. Every answer that says
"somebody else" ends it: letting go is always safe, because the planner dispatches again what stays unanswered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from refold.core.approval.catalog import Catalog
from refold.core.approval.decision import Refusal
from refold.core.events import Failure
from refold.core.messages import ToolClaim, ToolRequest, ToolResult
from refold.core.wire import codec
from refold.executor.claim_chain import Claims
from refold.ports.effects import ToolEnded
from refold.ports.ledger import (
    Busy,
    Claim,
    Claimed,
    Complete,
    Completed,
    Fenced,
    Operation,
    Release,
    Renew,
    Renewed,
    Reply,
    Stored,
    Superseded,
)

Phase = Literal["claiming", "waiting", "chaining", "reading", "probing", "running", "completing", "over"]
GUARDED = frozenset({"probed", "once"})


@dataclass(frozen=True, slots=True)
class Times:
    """How long things may take.

    **Units**: milliseconds. A lease of a guarded class is long, because a take-over of such a call costs a human or a
    status query; that of the others is short, because it costs nothing but a repeated call. `margin` is the part of
    the lease in which an effect may begin: what is left covers a stall between the last look at the clock and the
    receiver.
    """

    lease_ms: int = 1_000
    guarded_lease_ms: int = 10_000
    margin: float = 0.5

    by_tool: Mapping[str, int] = field(default_factory=dict)

    def lease(self, request: ToolRequest) -> int:
        """The lease of a call: what its tool declares, else that of its class."""
        by_class = self.guarded_lease_ms if request.effect in GUARDED else self.lease_ms
        return self.by_tool.get(request.tool) or by_class


class Desk(Protocol):
    """What a job asks for."""

    def ledger(self, job: Job, operation: Operation) -> None: ...

    def append(self, job: Job, claim: ToolClaim) -> None: ...

    def start(self, job: Job, *, probe: bool) -> None: ...

    def stop(self, job: Job, reason: str) -> None: ...

    def outbox(self, job: Job, field: str, result: bytes) -> None: ...

    def late(self, job: Job, result: ToolResult) -> None: ...

    def fresh(self) -> str: ...

    def ended_here(self, claim_id: str) -> bool: ...

    def key_forgotten(self, job: Job) -> bool: ...

    def refusal(self, job: Job) -> Refusal | None: ...

    def refused(self, job: Job, refused: Refusal) -> None: ...


@dataclass(slots=True, eq=False)
class Job:
    """A claim under way. `number` names it to the host.

    **Units**: milliseconds on the monotonic clock. `right_ms` is the time before the claim was sent that gives the
    right to act: the ledger's, or for guarded classes the chain's. `asked_ms` is the last request for a lease.
    """

    number: int
    home: int
    pool: str
    request: ToolRequest
    raw: bytes
    claims: Claims
    catalog: Catalog
    times: Times
    executor: str
    phase: Phase = "claiming"
    token: str = ""
    right_ms: int = 0
    asked_ms: int = 0
    started_ms: int = 0
    takeover: bool = False
    closed: bool = False
    timed_out: bool = False
    head_seen: str = ""
    claim: ToolClaim | None = None
    claim_offset: int | None = None
    result: ToolResult | None = None
    stopped: bool = False

    @property
    def guarded(self) -> bool:
        """Whether the claim chain has a say."""
        return self.request.effect in GUARDED

    @property
    def lease_ms(self) -> int:
        """The lease that this job asks for."""
        return self.times.lease(self.request)

    # The ledger's claim

    def begin(self, desk: Desk, now: int) -> None:
        """Claims the call under a fresh token."""
        self.token, self.right_ms, self.asked_ms = desk.fresh(), now, now
        desk.ledger(self, self.claim_operation())

    def claim_operation(self) -> Claim:
        """The claim; sent again with the same token when its answer was lost."""
        call = self.request.call_id
        return Claim(self.home, self.pool, call, self.request.attempt, self.token, self.lease_ms, self.raw)

    def answered(self, desk: Desk, operation: Operation, reply: Reply, now: int) -> None:
        """The ledger's answer to one of this job's operations."""
        if isinstance(operation, Claim):
            self._claimed(desk, reply, now)
        elif isinstance(operation, Renew):
            self._renewed(desk, reply)
        elif isinstance(operation, Complete):
            self._completed(desk, reply)

    def _claimed(self, desk: Desk, reply: Reply, now: int) -> None:
        if self.phase == "over":  # it left before the answer came
            self._let_go(desk)
            return
        if isinstance(reply, Claimed):
            self.takeover = reply.takeover
            if self.guarded:
                self.phase = "waiting"
                self.look(desk, now)
            else:
                self._run(desk, now)
        else:
            self.phase = "over"
            if isinstance(reply, Stored):
                desk.outbox(self, reply.field, reply.result)
            else:
                assert isinstance(reply, Busy | Superseded), f"not an answer to a claim: {reply}"

    # The claim chain

    def look(self, desk: Desk, now: int) -> None:
        """Looks at the chain: act on it, wait for it, or let go. Called whenever it or the time has moved on."""
        if self.phase == "reading":
            self._read_back(desk, now)
        if self.phase != "waiting" or not self.claims.ready:
            return
        if self.closed:
            self._let_go(desk)
            return
        chain = self.claims.of(self.request.call_id)
        head = chain.head.claim_id if chain else ""
        if self.head_seen and head != self.head_seen:
            self._let_go(desk)
        elif chain is None or desk.ended_here(head):
            self._extend(desk, head, now)
        elif chain.head.attempt > self.request.attempt:
            self._let_go(desk)
        elif now - chain.seen_ms >= self.lease_ms:
            self._extend(desk, head, now)
        else:
            self.head_seen = head

    def _claimed_before(self) -> bool:
        """Whether the chain has a claim of this attempt: whoever made it may have acted."""
        chain = self.claims.of(self.request.call_id)
        return chain is not None and self.request.attempt in chain.attempts

    def _extend(self, desk: Desk, head: str, now: int) -> None:
        if (refused := desk.refusal(self)) and not refused.stale:
            self._refuse(desk, refused)  # before the chain hears of it, and before a probe tells anybody
            return
        self.phase, self.right_ms = "chaining", now
        call, attempt = self.request.call_id, self.request.attempt
        # Nobody can know what became of a `once` call that was claimed before.
        doubt = self.request.effect == "once" and self._claimed_before()
        self.claim = ToolClaim(call, desk.fresh(), head, attempt, doubt, self.executor)
        desk.append(self, self.claim)

    def appended(self, desk: Desk, offset: int | None, now: int) -> None:
        """The log's answer for the claim. None: unknown, so it may stand there, and it may not be acted upon."""
        if self.phase != "chaining":
            return
        if offset is None:
            self._let_go(desk)
        else:
            self.phase, self.claim_offset = "reading", offset
            self._read_back(desk, now)

    def _read_back(self, desk: Desk, now: int) -> None:
        assert self.claim is not None, "reading follows an append"
        assert self.claim_offset is not None, "reading follows an append"
        if self.claims.position <= self.claim_offset:
            return
        chain = self.claims.of(self.request.call_id)
        if chain is None or chain.head.claim_id != self.claim.claim_id:
            self._let_go(desk)
        elif self.claim.doubt:
            self._declare_doubt(desk)
        elif self.request.effect == "probed" and self.claim.prev:
            self.phase = "probing"
            self.started_ms = now
            desk.start(self, probe=True)
        else:
            self._run(desk, now)

    def _declare_doubt(self, desk: Desk) -> None:
        message = "an earlier claim of this attempt may have had its effect, and the tool cannot be asked"
        self._finish(desk, self._result("doubt", failure=Failure("in_doubt", message)))

    def leave(self, desk: Desk) -> None:
        """The partition is another member's, so its chain is not read here any more: what still needs it lets go."""
        if self.guarded and self.phase in ("claiming", "waiting", "chaining", "reading"):
            self._let_go(desk)

    def _let_go(self, desk: Desk) -> None:
        self.phase = "over"
        desk.ledger(self, Release(self.home, self.pool, self.request.call_id, self.token))

    # The effect

    def _run(self, desk: Desk, now: int) -> None:
        """The last look at the clock: past the margin somebody else may soon act, so this one lets go."""
        if self.closed or now - self.right_ms > self.lease_ms * self.times.margin:
            self._let_go(desk)
            return
        if refused := desk.refusal(self):
            self._refuse(desk, refused)
            return
        # Whether there was an earlier try is not asked: a ledger that was wiped would say no.
        if desk.key_forgotten(self):
            message = "an earlier try may have had its effect, and the receiver may have forgotten its key by now"
            self._finish(desk, self._result("doubt", failure=Failure("key_window", message)))
            return
        self.phase, self.started_ms = "running", now
        desk.start(self, probe=False)

    def _refuse(self, desk: Desk, refused: Refusal) -> None:
        """Nothing is sent. That is all there is to say, unless somebody before this one may have acted.

        The head of a chain knows that nobody else has: what it refuses, it refuses after it has asked.
        """
        desk.refused(self, refused)
        failure, status = Failure(refused.code, refused.message), "unauthorised"
        if self.takeover and self.request.effect == "keyed":
            status = "unknown"
        elif self.guarded and self.claim is None and self._claimed_before():
            status = "doubt"
        self._finish(desk, self._result(status, failure=failure, retryable=refused.stale))

    def ended(self, desk: Desk, ended: ToolEnded, now: int) -> None:
        """The tool's or the probe's run is over."""
        if self.phase == "probing":
            self._probed(desk, ended, now)
        elif self.phase == "running":
            self._finish(desk, self._outcome(ended))
        elif self.timed_out and ended.status == "completed":
            late = self._result("completed", result=ended.result, late=True)
            desk.late(self, late)

    def _probed(self, desk: Desk, ended: ToolEnded, now: int) -> None:
        if ended.status == "happened":
            self._finish(desk, self._result("completed", result=ended.result))
        elif ended.status == "did_not_happen":
            self._run(desk, now)
        else:
            self._finish(desk, self._result("unknown", failure=Failure(ended.code, ended.message)))

    def _outcome(self, ended: ToolEnded) -> ToolResult:
        if ended.status == "completed":
            return self._result("completed", result=ended.result)
        failure = Failure(ended.code, ended.message)
        if ended.status == "broken":
            return self._result("broken", failure=failure)
        if ended.status == "failed":
            # somebody's attempt before this one may have happened, whatever this one says of itself
            unknown = self.takeover and self.request.effect == "keyed"
            result = self._result("unknown" if unknown else "failed", failure=failure, retryable=ended.retryable)
        else:
            result = self._result("unknown", failure=failure)
        return replace(result, retry_after_ms=ended.retry_after_ms)

    def _result(
        self,
        status: str,
        *,
        result: str = "",
        failure: Failure | None = None,
        retryable: bool = True,
        late: bool = False,
    ) -> ToolResult:
        ask = self.request
        return ToolResult(
            call_id=ask.call_id,
            run_id=ask.run_id,
            step=ask.step,
            attempt=ask.attempt,
            status=status,
            result=result,
            failure=failure,
            retryable=retryable,
            late=late,
            executor=self.executor,
            traceparent=ask.traceparent,
        )

    # The lease and the record

    def tend(self, desk: Desk, now: int) -> None:
        """What time makes due: a look at the chain, a timeout, a longer lease."""
        self.look(desk, now)
        if self.phase in ("running", "probing") and now - self.started_ms >= self.request.timeout_ms:
            desk.stop(self, "timeout")
            self.timed_out = True
            message = f"no answer within {self.request.timeout_ms} ms: the effect may have happened"
            self._finish(desk, self._result("unknown", failure=Failure("timeout", message)))
        if self.phase not in ("over", "claiming") and now - self.asked_ms >= self.lease_ms // 3:
            self.asked_ms = now
            call, attempt = self.request.call_id, self.request.attempt
            desk.ledger(self, Renew(self.home, self.pool, call, attempt, self.token, self.lease_ms, self.raw))

    def _renewed(self, desk: Desk, reply: Reply) -> None:
        if isinstance(reply, Renewed) and reply.closed:
            self.close(desk)

    def close(self, desk: Desk) -> None:
        """The call is settled or cancelled: nothing that has not begun begins, and what runs is told."""
        self.closed = True
        if self.phase == "running" and not self.stopped:
            self.stopped = True
            desk.stop(self, "cancelled")

    def _finish(self, desk: Desk, result: ToolResult) -> None:
        self.phase, self.result = "completing", result
        desk.ledger(self, self.complete_operation())

    def complete_operation(self) -> Complete:
        """The result for ledger and outbox; sent again as it is when its answer was lost."""
        assert self.result is not None, "completing follows a result"
        success = self.result.status == "completed"
        call, value = self.request.call_id, codec.encode(self.result)
        return Complete(self.home, self.pool, call, self.request.attempt, self.token, success, value)

    def _completed(self, desk: Desk, reply: Reply) -> None:
        self.phase = "over"
        assert self.result is not None, "completing follows a result"
        if isinstance(reply, Completed):
            desk.outbox(self, reply.field, codec.encode(self.result))
        elif isinstance(reply, Fenced):
            desk.late(self, replace(self.result, late=True))
