"""The claim chain of `probed` and `once` calls: Redis may lie, the log may not. A claim is valid if and only if it
names the last valid claim of its chain: first to extend wins, wherever the records lie. A chain belongs to an
idempotency key, so an effect meets its claims in any history that requests it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from refold.core.ids import RunId
from refold.core.messages import ToolClaim, ToolRequest
from refold.core.run.erased import erased_claims_key, is_erased_claims_key
from refold.core.wire import codec
from refold.engine.ports.log import Record

CLOCK_PROBE = b"beat/"
"""Prefix of the keys of clock probes."""


@dataclass(slots=True)
class ClaimChain:
    """The valid claims under a key (`links`), and those whose predecessor is not read yet (`aside`). `highest` is the
    highest attempt of each call. `open` is the last claim to act that was not taken back, and `open_ms` its log time:
    it stands for the claims before, which had no effect. `disturbed`: claims were out of order, so the order no longer
    shows which of two claims of one predecessor was first."""

    head: ToolClaim | None = None
    seen_ms: int = 0
    highest: dict[str, int] = field(default_factory=dict)
    open: ToolClaim | None = None
    open_ms: int = 0
    links: set[str] = field(default_factory=set)
    aside: dict[str, tuple[ToolClaim, int, int]] = field(default_factory=dict)
    disturbed: bool = False

    @property
    def last(self) -> str:
        """Claim id that the next link names."""
        return self.head.claim_id if self.head else ""

    def claimed(self, call: str, attempt: int) -> bool:
        """True if an owner may have acted on this attempt, or may yet."""
        if any((claim.call_id, claim.attempt) == (call, attempt) for claim, _, _ in self.aside.values()):
            return True
        free = self.head is not None and self.head.undone and self.head.handed_over
        return self.highest.get(call) == attempt and not (free and self.head and self.head.call_id == call)

    def reaches(self, call: str) -> int:
        """Highest attempt of a call with a claim."""
        asides = (claim.attempt for claim, _, _ in self.aside.values() if claim.call_id == call)
        return max(self.highest.get(call, 0), *asides, 0)

    def acted(self) -> list[tuple[ToolClaim, int]]:
        """Claims whose owners may have acted, with their log times."""
        # A doubt without a predecessor stands for a claim that the log has lost.
        claims = [(claim, at_ms) for claim, _, at_ms in self.aside.values() if not claim.undone]
        return [(self.open, self.open_ms), *claims] if self.open else claims

    def heads(self) -> dict[str, int]:
        """Claims whose owners may still act, and the time when this process first read each."""
        seen_by_id = {claim.claim_id: seen_ms for claim, seen_ms, _ in self.aside.values() if not claim.undone}
        return {self.head.claim_id: self.seen_ms, **seen_by_id} if self.head and not self.head.undone else seen_by_id

    def add(self, claim: ToolClaim, mono_ms: int, at_ms: int) -> None:
        """Read the next claim of the log: it extends the chain, waits aside, or is void."""
        # A copy is known already. Of two claims of the same head the log puts one first; the other names a claim that
        # is no longer the last: every reader ignores it, its writer too.
        passed_by = claim.prev != self.last and (not claim.prev or claim.prev in self.links)
        if claim.claim_id in self.links or (passed_by and not self.disturbed):
            return
        if claim.prev != self.last:
            # A copying tool may put a link behind its successors: those wait aside. Their owners may have acted
            # meanwhile. Of two claims of the same predecessor, the second then stays aside for good.
            self.disturbed = True
            self.aside.setdefault(claim.claim_id, (claim, mono_ms, at_ms))
            return
        self._extend(claim, mono_ms, at_ms)
        # Claims that waited for this link follow it. Each may be the predecessor of the next.
        while follower := next((aside for aside in self.aside.values() if aside[0].prev == self.last), None):
            del self.aside[follower[0].claim_id]
            self._extend(*follower)

    def _extend(self, claim: ToolClaim, mono_ms: int, at_ms: int) -> None:
        if claim.undone and not (self.head and _takes_back(claim, self.head)):
            return
        first, self.head, self.seen_ms = self.head is None, claim, mono_ms
        self.links.add(claim.claim_id)
        self.highest[claim.call_id] = max(claim.attempt, self.highest.get(claim.call_id, 0))
        if claim.doubt and not first:  # it changes nothing of earlier claims
            return
        self.open, self.open_ms = (None, 0) if claim.undone else (claim, at_ms)


@dataclass(frozen=True, slots=True)
class Lineage:
    """State of all chains of a request. **Shape**: the next claim extends `head`, empty before the first; `others` are
    heads of chains with the same call under another key, as arguments may be edited. **Units**: `seen_ms` is when this
    process first read each head that may still act. `claimed`: this very attempt was claimed, and not handed over;
    `shared`: so was another call with the same effect, in another life of the run. `open`: an earlier owner may have
    acted; `begun` is the highest such attempt of this call, `begun_ms` the log time of the last such claim. `passed`: a
    higher attempt is claimed. `erased`: claims of the run were erased."""

    head: str = ""
    others: tuple[str, ...] = ()
    seen_ms: Mapping[str, int] = field(default_factory=dict)
    claimed: bool = False
    shared: bool = False
    open: bool = False
    begun: int = 0
    begun_ms: int = 0
    passed: bool = False
    erased: bool = False


class Claims:
    """The chains of one partition, up to `position`; `fold_to` is the end captured at the take-over."""

    def __init__(self) -> None:
        self._chains: dict[str, ClaimChain] = {}
        self._by_call: dict[str, tuple[str, ...]] = {}
        self._erased: set[bytes] = set()
        self.fold_to = 0
        self.position = 0

    @property
    def ready(self) -> bool:
        return self.position >= self.fold_to

    def follow(self, record: Record, mono_ms: int) -> None:
        """Read a record in order of offset; one that extends no chain is void."""
        self.position = max(self.position, record.offset + 1)
        if is_erased_claims_key(record.key):
            (self._erased.add if record.value else self._erased.discard)(record.key)
            return
        claim = codec.decode_known(ToolClaim, record.value)
        if claim is None or record.key != record_key(claim):
            return
        self._chains.setdefault(claim.chain, ClaimChain()).add(claim, mono_ms, record.at_ms)
        names = self._by_call.get(claim.call_id, ())
        if claim.chain not in names:
            self._by_call[claim.call_id] = (*names, claim.chain)

    def reached(self, offset: int) -> None:
        self.position = max(self.position, offset)

    def has(self, key: str, claim: str) -> bool:
        """True if the chain of a key has a claim, even one aside."""
        chain = self._chains.get(key)
        return chain is not None and (claim in chain.links or claim in chain.aside)

    def of(self, request: ToolRequest) -> Lineage:
        """State of the chains of a request, by its key and its call."""
        own = self._chains.get(request.key)
        others = [self._chains[name] for name in self._by_call.get(request.call_id, ()) if name != request.key]
        linked = _lineage(request, own, others) if own or others else Lineage()
        # No one requests calls of an erased run, but a copy of an order may come behind the erasure.
        erased = bool(self._erased) and erased_claims_key(RunId(request.call_id.partition("/")[0])) in self._erased
        return replace(linked, erased=True) if erased else linked


def _lineage(request: ToolRequest, own: ClaimChain | None, others: list[ClaimChain]) -> Lineage:
    call, chains = request.call_id, [own, *others] if own else others
    highest = max(chain.reaches(call) for chain in chains)
    opened, begun, begun_ms = _begun(chains, call)
    return Lineage(
        own.last if own else "",
        tuple(chain.last for chain in others),
        {name: seen_ms for chain in chains for name, seen_ms in chain.heads().items()},
        claimed=highest == request.attempt and any(chain.claimed(call, highest) for chain in chains),
        # Attempts are counted per life of the run that made them: a claim of another life may be any of this.
        shared=own is not None and bool(own.highest.keys() - {call}),
        open=opened,
        begun=begun,
        begun_ms=begun_ms,
        passed=highest > request.attempt,
    )


def _begun(chains: list[ClaimChain], call: str) -> tuple[bool, int, int]:
    """If an owner may have acted, the highest such attempt of the call, and the last such log time."""
    acted = [claimed for chain in chains for claimed in chain.acted()]
    highest = max((claim.attempt for claim, _ in acted if claim.call_id == call), default=0)
    return bool(acted), highest, max((at_ms for _, at_ms in acted), default=0)


def record_key(claim: ToolClaim) -> bytes:
    # Unique, so that compaction keeps the whole chain: a command repeated by a zombie has to find it.
    return f"{claim.chain}/{claim.claim_id}".encode()


def _takes_back(undone: ToolClaim, claim: ToolClaim) -> bool:
    """True if the link `undone` may take back a claim: one of the same attempt, in force, neither in doubt."""
    same = (undone.call_id, undone.attempt) == (claim.call_id, claim.attempt)
    return same and not (undone.doubt or claim.doubt or claim.undone)
