"""Settings of an approval service: what it reads and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.core.approval import ballot
from refold.core.approval.signature import NOBODY, Trust
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG
from refold.ports.log import Membership
from refold.runtime import defaults

REPLAYED = (APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, CATALOG)


@dataclass(frozen=True, slots=True)
class ApprovalLimits:
    """Limits of a lane.

    **Units**: bytes. While votes take more than `waiting_bytes` that wait for an approval that is not known yet, or to
    be judged, no more are read. An approval keeps so many `votes`, up to `votes_bytes`; of what nobody can use a lane
    keeps `void_bytes`, because the key that signed it may come a moment later. `remember` is how many approvals
    that are over are known, so that a request that comes once more is not asked again. A turn counts about `turn_votes`
    anew and leaves the rest to the next: half a second if every signature has to be verified, as a new key in the
    catalog makes it for all that is open.
    """

    waiting_bytes: int = 4 << 20
    void_bytes: int = 1 << 20
    votes: int = 1_000
    votes_bytes: int = 4 << 20
    remember: int = 100_000
    turn_votes: int = 400
    payload_bytes: int = defaults.PAYLOAD_BYTES

    def said_bytes(self, quorum: int) -> int:
        """Bytes that a vote may bring into a decision that so many people make, as JSON."""
        return ballot.most_said(self.payload_bytes, quorum)


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """Settings of an approval service."""

    partitions: int
    member: str = "approval-1"
    environment: str = "dev"
    limits: ApprovalLimits = field(default_factory=ApprovalLimits)
    trust: Trust = field(default_factory=lambda: NOBODY)

    @property
    def membership(self) -> Membership:
        return Membership("refold-approval", self.member, REPLAYED)
