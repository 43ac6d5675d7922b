"""The claim chain of `probed` and `once` calls: Redis may lie, the log may not.

A claim is valid if and only if it names the last valid claim of its chain; first to extend wins, the same rule as the
run log's. A chain is that of an idempotency key, so an effect meets its claims in whatever history it is asked for
again. It is kept as long as its run is: a command that a zombie sends again must find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refold.core.errors import FoldError, MalformedError
from refold.core.messages import ToolClaim, ToolRequest
from refold.core.wire import codec
from refold.ports.log import Record

BEAT = b"beat/"
"""What the keys of records begin with that no chain has: their writers want to know the time."""


@dataclass(slots=True)
class ClaimChain:
    """The valid claims under a key: the last one, when this process first saw it, which attempts of which call."""

    head: ToolClaim
    seen_ms: int
    attempts: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Lineage:
    """All that the chains say of a request.

    **Shape**: `head` is the claim id that the next claim under the request's key extends, empty before the first;
    `others` are the heads of chains which have the same call under another key: people may have edited its arguments,
    and claims had no key once. **Units**: `seen_ms` is when this process first saw each of these heads. `claimed`:
    somebody may have acted on just this, in this life of the run or another. `passed`: a higher attempt of the call
    has been claimed.
    """

    head: str = ""
    others: tuple[str, ...] = ()
    seen_ms: Mapping[str, int] = field(default_factory=dict)
    claimed: bool = False
    passed: bool = False


class Claims:
    """The chains of one partition, up to `position`; `fold_to` is the end that was captured at the last take-over."""

    def __init__(self) -> None:
        self._chains: dict[str, ClaimChain] = {}
        self._by_call: dict[str, tuple[str, ...]] = {}
        self.fold_to = 0
        self.position = 0

    @property
    def ready(self) -> bool:
        """Whether everything that was there at the take-over has been read."""
        return self.position >= self.fold_to

    def follow(self, record: Record, mono_ms: int) -> None:
        """Reads a record of the topic, in order of offset. What is not a claim that extends its chain is void."""
        self.position = max(self.position, record.offset + 1)
        try:
            claim = codec.decode(ToolClaim, record.value or b"")
        except (MalformedError, FoldError):
            return
        chain = self._chains.get(claim.chain)
        # Two executors may have claimed at the same head. The log puts one of them first; the other names a claim that
        # is the last one no more, so every reader leaves it out, its writer too: reading back tells who may act.
        if claim.prev != (chain.head.claim_id if chain else "") or record.key != record_key(claim):
            return
        attempts = (chain.attempts if chain else frozenset()) | {(claim.call_id, claim.attempt)}
        self._chains[claim.chain] = ClaimChain(claim, mono_ms, attempts)
        names = self._by_call.get(claim.call_id, ())
        if claim.chain not in names:
            self._by_call[claim.call_id] = (*names, claim.chain)

    def reached(self, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        self.position = max(self.position, offset)

    def of(self, request: ToolRequest) -> Lineage:
        """What the chains say of a request."""
        call, own = request.call_id, self._chains.get(request.key)
        names = [name for name in self._by_call.get(call, ()) if name != request.key]
        if own is None and not names:
            return Lineage()
        others = [self._chains[name] for name in names]
        chains = [own, *others] if own else others
        known = {pair for chain in chains for pair in chain.attempts if pair[0] == call}
        return Lineage(
            own.head.claim_id if own else "",
            tuple(chain.head.claim_id for chain in others),
            {chain.head.claim_id: chain.seen_ms for chain in chains},
            # Attempts are counted by the life of a run that made them: a claim of another one may be any of this.
            claimed=(call, request.attempt) in known or (own is not None and any(c != call for c, _ in own.attempts)),
            passed=any(attempt > request.attempt for _, attempt in known),
        )


def record_key(claim: ToolClaim) -> bytes:
    """The record key of a claim: unique, so that compaction keeps the whole chain."""
    return f"{claim.chain}/{claim.claim_id}".encode()
