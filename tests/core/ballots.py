"""Questions to people, and what votes on them add up to."""

from __future__ import annotations

from refold.core.approval.ballot import BallotResult, Vote, count
from refold.core.approval.catalog import Roles
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from tests.approval.questions import NOW, ROLES, request

SOON = NOW + 1_000
TWO = request(needs=Requirement(["role:lead", "role:owner"], quorum=2, remember_ms=90_000, remember_uses=3))


ONE = request(needs=Requirement(["role:lead"], remember_ms=90_000, remember_uses=3))


def reservation(asked: ApprovalRequest, votes: list[Vote], roles: Roles) -> BallotResult | None:
    return count(asked, votes, roles, SOON).settled


def verdict(asked: ApprovalRequest, *votes: Vote, roles: Roles = ROLES) -> str:
    found = reservation(asked, list(votes), roles)
    return found.verdict if found else "open"


def why(asked: ApprovalRequest, *votes: Vote) -> dict[str, str]:
    return {vote.actor: void.code for vote, void in count(asked, votes, ROLES, SOON).void.items()}
