"""What people are asked, and what they say."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from refold.client.awaiting import State
from refold.gateway.site import LONGEST_WAIT_S, Site
from refold.views.api import CastVote
from refold.views.approval import Question
from refold.views.outcome import Voted


def add(site: APIRouter) -> None:
    """Add the routes."""

    @site.get("/api/approvals", summary="List questions to people")
    async def list_approvals(
        shared: Site, state: Annotated[State, Query(description="which of them")] = "open"
    ) -> list[Question]:
        """What people are asked, the oldest first. It is read from Kafka: while that is away, the answer is 503."""
        return await shared.client.approvals(state)

    @site.post("/api/approvals/{approval:path}/votes", summary="Vote")
    async def vote(shared: Site, approval: str, body: CastVote) -> Voted:
        """A decision on a question, by its whole id, signed in the actor's name.

        A question that is decided already or closed: 409. A vote that would be void, such as that of somebody who may
        not decide, or of the requester where they may not: 422, and nothing is sent.
        """
        shared.check_rate()
        return await shared.client.decide(
            approval,
            body.action,
            args=body.args,
            result=body.result,
            message=body.message,
            timeout=timedelta(seconds=LONGEST_WAIT_S),
        )

    @site.get("/api/approvals/{approval:path}", summary="Show a question")
    async def show_approval(shared: Site, approval: str) -> Question:
        """A question by its id, or the open one about a call by `RUN/SEQ`. It is read from Kafka."""
        return await shared.client.approval(approval)
