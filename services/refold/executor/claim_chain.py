"""The claim chain of `probed` and `once` calls: Redis may lie, the log may not.

A claim is valid if and only if it names the call's last valid claim; first to extend wins, the same rule as the run
log's. The chain is read from `tool-claimed` and kept as long as its run is: a command that a zombie sends again must
find it.
"""

from __future__ import annotations

from dataclasses import dataclass

from refold.core.errors import FoldError, MalformedError
from refold.core.messages import ToolClaim
from refold.core.wire import codec
from refold.ports.log import Record


@dataclass(slots=True)
class ClaimChain:
    """The valid claims of a call: the last one, when this process first saw it (monotonic), and whose attempts."""

    head: ToolClaim
    seen_ms: int
    attempts: frozenset[int]


class Claims:
    """The chains of one partition, up to `position`; `fold_to` is the end that was captured at the last take-over."""

    def __init__(self) -> None:
        self._chains: dict[str, ClaimChain] = {}
        self.fold_to = 0
        self.position = 0

    @property
    def ready(self) -> bool:
        """Whether everything that was there at the take-over has been read."""
        return self.position >= self.fold_to

    def follow(self, record: Record, mono_ms: int) -> None:
        """Reads a record of `tool-claimed`, in order of offset. What is not a claim that extends its chain is void."""
        self.position = max(self.position, record.offset + 1)
        try:
            claim = codec.decode(ToolClaim, record.value or b"")
        except (MalformedError, FoldError):
            return
        chain = self._chains.get(claim.call_id)
        # Two executors may have claimed at the same head. The log puts one of them first; the other names a claim that
        # is the last one no more, so every reader leaves it out, its writer too: reading back tells who may act.
        if claim.prev != (chain.head.claim_id if chain else "") or record.key != record_key(claim):
            return
        attempts = (chain.attempts if chain else frozenset()) | {claim.attempt}
        self._chains[claim.call_id] = ClaimChain(claim, mono_ms, attempts)

    def reached(self, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        self.position = max(self.position, offset)

    def of(self, call: str) -> ClaimChain | None:
        """The chain of a call, or None before its first claim."""
        return self._chains.get(call)


def record_key(claim: ToolClaim) -> bytes:
    """The record key of a claim: unique, so that compaction keeps the whole chain."""
    return f"{claim.call_id}/{claim.claim_id}".encode()
