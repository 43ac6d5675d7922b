"""Decisions as the approval service makes them: of votes that people have signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refold.core.approval import ballot, decision, signature
from refold.core.approval.ballot import Vote
from refold.core.approval.catalog import Roles
from refold.core.approval.decision import Decision
from refold.core.approval.signature import SigningKey
from refold.core.messages import ApprovalRequest

VOTING = SigningKey("test-votes", "vote", bytes(range(1, 33)))


def votes_of(asked: ApprovalRequest, *actors: str, action: str = "approve", at: int, **more: Any) -> list[Vote]:
    """What people say of a question, the same of all."""
    return [
        Vote(
            approval=asked.approval_id,
            vote=f"{actor}-{action}",
            question=asked.question,
            environment=asked.environment,
            actor=actor,
            action=action,
            issued=at,
            **more,
        )
        for actor in actors
    ]


def signed(votes: Sequence[Vote], key: SigningKey = VOTING) -> dict[Vote, str]:
    """The votes with what their receiver makes of them."""
    return {vote: signature.sign(vote.payload(), key) for vote in votes}


def made(
    asked: ApprovalRequest, votes: Sequence[Vote], roles: Roles, *, now: int, key: SigningKey = VOTING
) -> Decision:
    """What the approval service decides by these votes."""
    settled = ballot.count(asked, votes, roles, now).settled
    assert settled, "the votes decide"
    tokens = signed(settled.said, key)
    content = {**settled._asdict(), "tokens": tuple(tokens.values()), "issued_ms": now, "nonce": "n0"}
    content.pop("said")
    return decision.build(asked, **content)


def use_of(given: Decision, token: str, asked: ApprovalRequest, *, use: int = 1, now: int) -> Decision:
    """The use of a grant for a question."""
    assert given.grant, "it gives one"
    grant = given.grant._replace(use=use)
    return decision.build(
        asked, "approve", votes=given.votes, issued_ms=now, nonce="n1", message=given.message, grant=grant, given=token
    )
