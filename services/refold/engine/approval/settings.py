"""Settings of an approval service."""

from dataclasses import dataclass, field

from refold.core import defaults
from refold.core.approval.signature import NOBODY, Trust
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED, CATALOG
from refold.engine.ports.log import Membership

REPLAYED = (APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, CATALOG)


@dataclass(frozen=True, slots=True)
class ApprovalLimits:
    """Limits of a lane, in numbers and bytes: of votes that wait (beyond `waiting_bytes` none is read), of the `votes`
    of an approval and their `votes_bytes`, of unusable ones (`void_bytes`), of closed approvals to `remember`, of votes
    counted in a turn."""

    waiting_bytes: int = 4 << 20
    void_bytes: int = 1 << 20
    votes: int = 1_000
    votes_bytes: int = 4 << 20
    # A repeated request for one of these is not asked again.
    remember: int = 100_000
    # Half a second, if every signature has to be verified.
    turn_votes: int = 400
    payload_bytes: int = defaults.PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    partitions: int
    member: str = "approval-1"
    environment: str = "dev"
    limits: ApprovalLimits = field(default_factory=ApprovalLimits)
    trust: Trust = field(default_factory=lambda: NOBODY)

    @property
    def membership(self) -> Membership:
        return Membership("refold-approval", self.member, REPLAYED)
