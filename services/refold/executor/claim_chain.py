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
    """The valid claims under a key: the last one, when this process first saw it, the highest attempt of each call.

    `open` is the last claim to act, unless it was taken back, and `open_ms` when the log took it. Whoever claims to act
    has made sure that nothing came of the claims before, so it stands for all of them.
    """

    head: ToolClaim
    seen_ms: int
    highest: Mapping[str, int]
    open: ToolClaim | None
    open_ms: int

    def claimed(self, call: str, attempt: int) -> bool:
        """Whether somebody may have acted on this attempt, or may yet, by the claims of this chain."""
        free = self.head.undone and self.head.handed_over
        return self.highest.get(call) == attempt and not (free and self.head.call_id == call)


@dataclass(frozen=True, slots=True)
class Lineage:
    """All that the chains say of a request.

    **Shape**: `head` is the claim id that the next claim under the request's key extends, empty before the first;
    `others` are the heads of chains which have the same call under another key: people may have edited its arguments,
    and claims had no key once. **Units**: `seen_ms` is when this process first saw each of these heads, but for those
    under which nobody acts any more. `claimed`: just this attempt was claimed before, and not handed over. `shared`: so
    was another call's with the same effect, in another life of the run. `open`: somebody may have acted on what was
    claimed before, and has not said since that nothing came of it; `begun` is the highest such attempt of this call,
    and `begun_ms` when the log took the last such claim, of whatever call. `passed`: a higher attempt of the call has
    been claimed.
    """

    head: str = ""
    others: tuple[str, ...] = ()
    seen_ms: Mapping[str, int] = field(default_factory=dict)
    claimed: bool = False
    shared: bool = False
    open: bool = False
    begun: int = 0
    begun_ms: int = 0
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
        if claim.undone and not (chain and _takes_back(claim, chain.head)):
            return
        known = chain.highest if chain else {}
        highest = {**known, claim.call_id: max(claim.attempt, known.get(claim.call_id, 0))}
        acts, acts_ms = (claim, record.at_ms) if not claim.undone else (None, 0)
        if claim.doubt:  # it changes nothing of what was claimed before
            acts, acts_ms = (chain.open, chain.open_ms) if chain else (None, 0)
        self._chains[claim.chain] = ClaimChain(claim, mono_ms, highest, acts, acts_ms)
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
        highest = max(chain.highest.get(call, 0) for chain in chains)
        acted = [(chain.open, chain.open_ms) for chain in chains if chain.open]
        return Lineage(
            own.head.claim_id if own else "",
            tuple(chain.head.claim_id for chain in others),
            {chain.head.claim_id: chain.seen_ms for chain in chains if not chain.head.undone},
            claimed=highest == request.attempt and any(chain.claimed(call, highest) for chain in chains),
            # Attempts are counted by the life of a run that made them: a claim of another one may be any of this.
            shared=own is not None and any(name != call for name in own.highest),
            open=bool(acted),
            begun=max((claim.attempt for claim, _ in acted if claim.call_id == call), default=0),
            begun_ms=max((at_ms for _, at_ms in acted), default=0),
            passed=highest > request.attempt,
        )


def record_key(claim: ToolClaim) -> bytes:
    """The record key of a claim: unique, so that compaction keeps the whole chain."""
    return f"{claim.chain}/{claim.claim_id}".encode()


def _takes_back(undone: ToolClaim, claim: ToolClaim) -> bool:
    """Whether it says of this claim, under which somebody was to act, that nothing came of it."""
    same = (undone.call_id, undone.attempt) == (claim.call_id, claim.attempt)
    return same and not (undone.doubt or claim.doubt or claim.undone)
