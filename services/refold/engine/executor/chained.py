"""Attempts of `probed` and `once` calls, which act only under a claim at the head of the claim chain that they have
read back from the log. A `once` call with an earlier claim does not act, unless that was taken back, or people have
confirmed that it had no effect."""

from dataclasses import dataclass, field, replace

from refold.core.approval.decision import Refusal
from refold.core.messages import ToolClaim, ToolResult
from refold.engine.executor import outcome
from refold.engine.executor.attempt import Attempt
from refold.engine.executor.claim_chain import Claims, Lineage
from refold.engine.ports.effects import ToolEnded
from refold.engine.ports.log import NEVER


@dataclass(eq=False)
class ChainedAttempt(Attempt):
    """An attempt with a claim chain. `known` is the state of its chains before its claim, `link` its last record."""

    claims: Claims = field(kw_only=True)
    known: Lineage = field(default_factory=Lineage)
    waited_for: frozenset[str] = frozenset()
    claim: ToolClaim | None = None
    link: ToolClaim | None = None
    link_offset: int | None = None
    linked_ms: int = 0

    @property
    def _owner(self) -> str:
        return ""  # a successor waits for the lease

    def _go_on_claimed(self) -> None:
        self.phase = "waiting"
        self.look()

    def look(self) -> None:
        if self.phase in ("reading", "undoing"):
            self._read_back()
        if self.phase != "waiting" or not self.claims.ready:
            return
        if self.closed:
            self._let_go()
            return
        claims = self.claims.of(self.request)
        heads = frozenset(claims.seen_ms)
        if self.waited_for and not heads <= self.waited_for:  # a head that was taken back is no reason to let go
            self._let_go()
        elif claims.passed:
            # The planner has gone on and ignores this result; in another life of the run it waits for this attempt.
            self._late(self._result("doubt", outcome.PASSED))
            self._let_go()
        elif all(self._over(head, seen_ms) for head, seen_ms in claims.seen_ms.items()):
            self._extend(claims)
        else:
            self.waited_for = heads

    def _over(self, claim: str, seen_ms: int) -> bool:
        """True if no process may begin anything under a claim any more."""
        return claim in self.outbox.ended or self.now - seen_ms >= self.lease_ms

    def _extend(self, known: Lineage) -> None:
        """Append a claim at the head of the chain, unless a refusal is final."""
        self.known = known
        unsettled = self._unsettled()
        for refused in (self._refusal(), unsettled):
            if refused and not refused.stale:
                self._refuse(refused)  # before the chain has a record of it, and before a probe contacts a receiver
                return
        self.phase, self.right_ms = "chaining", self.now
        call, attempt, me = self.request.call_id, self.request.attempt, self.outbox.settings.member
        # The outcome of an earlier claim of a `once` call is unknown. A second claim of the same attempt is in doubt
        # whatever it comes with, for it may have come with that before.
        doubt = self.effect == "once" and (known.claimed or unsettled is not None or self._unheard)
        # Named by the token: after a take-over, the ledger's token shows whether the chain has this very claim.
        self.claim = ToolClaim(call, self.token, known.head, attempt, doubt, me, self.request.key)
        self._append(self.claim)

    def _unsettled(self) -> Refusal | None:
        """Reason why a `once` call may not go out, by earlier attempts with a claim."""
        if self.effect != "once" or self.known.claimed:
            return None
        begun = self.known.begun, self.known.begun_ms
        refusal = self.outbox.settings.gate.unsettled(self.request, self.catalog, begun=begun)
        # Without a doubt no confirmation is needed; but a forged one is reported.
        return None if refusal and refusal.stale and not (self.known.open or self._unclaimed) else refusal

    @property
    def _unheard(self) -> bool:
        """True if an earlier owner's claim may be missing in the chain."""
        # Older claims of the call prove nothing about that one, nor does what follows the erasure of a chain.
        return self.known.erased or (self.takeover and not self.claims.has(self.request.key, self.after))

    @property
    def _unclaimed(self) -> bool:
        """True if it may have gone out without a claim, under an earlier class of its tool."""
        return self._repeated and self.request.effect in ("pure", "keyed")

    @property
    def _repeated(self) -> bool:
        """True if an earlier order of the call is known or possible."""
        return self.request.attempt > 1 or self.request.again or self.takeover or self.known.erased

    def _append(self, link: ToolClaim) -> None:
        self.link, self.link_offset, self.linked_ms = link, None, self.now
        self.outbox.claim(link, self, home=self.home, trace=self.request.traceparent)

    def appended(self, offset: int | None) -> None:
        # A link that may be in the log, or was refused, is not acted upon: the planner sends its request again.
        unknown = offset is None or offset == NEVER
        if self.phase not in ("chaining", "undoing"):
            return
        if self.phase == "undoing" and (unknown or self.left):
            self._finish_taken_back(heard=not unknown)
        elif self.left:
            self._depart(claimed=not unknown)
        elif unknown:
            self._let_go()
        else:
            self.phase = "reading" if self.phase == "chaining" else "undoing"
            self.link_offset = offset
            self._read_back()

    def _read_back(self) -> None:
        """Go on once the link has been read back from the log."""
        shown = self.link_offset is not None and self.claims.position > self.link_offset
        # The log may have lost a link that it had acknowledged, and in a quiet topic no reader would ever get past it.
        if not shown and self.now - self.linked_ms < self.lease_ms:
            return
        assert self.claim is not None, "reading follows an append"
        assert self.link is not None, "reading follows an append"
        claims = self.claims.of(self.request)
        first = shown and claims.head == self.link.claim_id
        if self.phase == "undoing":
            self._finish_taken_back(heard=first)
        # Of two that claim the call under two keys, the one whose claim lies behind the other's lets go.
        elif not first or claims.others != self.known.others:
            self._let_go()
        elif self.claim.doubt:
            self._mark_claim_ended()
            self._finish(self._result("doubt", outcome.IN_DOUBT))
        elif self.effect == "probed" and self._maybe_sent:
            self.phase = "probing"
            self._start(probe=True)
        else:
            self._run()

    def leave(self) -> None:
        """Leave as `Attempt` does, but first take back a claim without an effect."""
        # Otherwise people would have to decide about the claim.
        self.left = True
        if self.phase in ("waiting", "reading", "probing"):
            self._depart(claimed=self.phase == "reading")
        elif self.phase == "undoing":
            self._finish_taken_back(heard=True)  # the next owner of the partition reads the link, or misses it
        elif self.phase != "chaining":  # a link that is on its way is answered soon
            super().leave()

    def _depart(self, *, claimed: bool) -> None:
        """Give the call to another owner: take back a claim without an effect, else end the lease."""
        if claimed and self._untouched:
            self._take_back(handed_over=True)
        else:
            self._hand_over()

    # The effect

    def _run(self) -> None:
        if self._unsettled():
            # The confirmation does not hold any more. So the claim is not taken back: it stands for those before.
            self._mark_claim_ended()
            self._finish(self._result("doubt", outcome.IN_DOUBT))
        else:
            super()._run()

    def _refuse(self, refused: Refusal) -> None:
        self._mark_claim_ended()
        super()._refuse(refused)

    def _not_sent(self) -> str:
        if self.claim is None and (claims := self.claims.of(self.request)) and (claims.claimed or claims.shared):
            return "doubt"
        return super()._not_sent()

    def ended(self, ended: ToolEnded) -> None:
        late = self.timed_out and self.phase == "over" and ended.status == "failed"
        super().ended(ended)
        if not self.busy:
            self._mark_claim_ended()
        if late and self.effect == "once":  # only this process has the result: people have been asked already
            self._not_done(outcome.outcome_of(self.request, ended, self._tool_run(takeover=self.takeover)))

    def _mark_claim_ended(self) -> None:
        """Mark the claim as ended: later attempts need not wait for it."""
        if self.claim:
            self.outbox.ended.add(self.claim.claim_id, None)

    # Claims that are taken back

    def _not_done(self, result: ToolResult) -> None:
        """Take the claim back before any process that may send the call again gets the result."""
        if self.effect != "once" or self.claim is None:
            super()._not_done(result)
            return
        # If this process dies first, the same attempt is claimed a second time, and in doubt.
        self.result = result
        self._take_back()

    @property
    def _untouched(self) -> bool:
        """True if the call had no effect so far."""
        assert self.claim is not None, "reading follows an append"
        if self.claim.doubt or self._unsettled():
            return False
        return self.effect == "once" or not self._maybe_sent

    @property
    def _maybe_sent(self) -> bool:
        """True if a `probed` call may have been sent before."""
        # Order and ledger may have a claim that the chain has lost, or one whose owner died before writing it.
        return bool(self.known.seen_ms) or self._repeated

    def _take_back(self, *, handed_over: bool = False) -> None:
        assert self.claim is not None, "what is taken back was claimed"
        self.phase, name, prev = "undoing", self.outbox.fresh(), self.claim.claim_id
        self._append(replace(self.claim, claim_id=name, prev=prev, undone=True, handed_over=handed_over))

    def _finish_taken_back(self, *, heard: bool) -> None:
        """Report the result after the claim was taken back; without the link in the chain it is unknown."""
        if self.result is None:
            self._mark_claim_ended()
            self._hand_over()
            return
        if not heard and self.result.status == "failed":
            self.result = replace(self.result, status="unknown")
        if self.timed_out:  # the ledger already has a result
            self.phase = "over"
            self._late(self.result)
        else:
            self._finish(self.result)
