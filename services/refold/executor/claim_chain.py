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
class Chain:
    """The valid claims of a call: the last one, how many there are, and which attempts have one."""

    head: ToolClaim
    seen_ms: int
    attempts: frozenset[int]


class Claims:
    """The chains of one partition, up to `position`. `seen_ms` is when this process first saw a head (monotonic)."""

    def __init__(self, fold_to: int) -> None:
        self._chains: dict[str, Chain] = {}
        self._fold_to = fold_to
        self.position = 0
        self.void = 0

    @property
    def ready(self) -> bool:
        """Whether everything that was there at the take-over has been read."""
        return self.position >= self._fold_to

    def follow(self, record: Record, mono_ms: int) -> None:
        """Reads a record of `tool-claimed`, in order of offset. What is not a claim that extends its chain is void."""
        self.position = max(self.position, record.offset + 1)
        try:
            claim = codec.decode(ToolClaim, record.value or b"")
        except (MalformedError, FoldError):
            self.void += 1
            return
        known = self._chains.get(claim.call_id)
        if claim.prev != (known.head.claim_id if known else "") or record.key != key(claim):
            self.void += 1
            return
        attempts = (known.attempts if known else frozenset()) | {claim.attempt}
        self._chains[claim.call_id] = Chain(claim, mono_ms, attempts)

    def reached(self, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        self.position = max(self.position, offset)

    def of(self, call: str) -> Chain | None:
        """The chain of a call, or None before its first claim."""
        return self._chains.get(call)


def key(claim: ToolClaim) -> bytes:
    """The record key of a claim: unique, so that compaction keeps the whole chain."""
    return f"{claim.call_id}/{claim.claim_id}".encode()
