"""Questions to people, and their votes."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from refold.client.awaiting import State
from refold.core.events import DOUBT
from refold.core.ids import asked_about
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.wire import canonical
from refold.gateway.listing import doubt_page
from refold.gateway.roles import DOUBT_ROLES
from refold.gateway.routes.inputs import perform, said_of
from refold.gateway.site import DEFAULT_WAIT_S, LONGEST_WAIT_S, AfterHeader, Key, Site, WaitOption
from refold.operations.run import Settlement, settle_call
from refold.views.api import CastVote, CursorFilter, DoubtPage, InputSent, ResolveDoubt
from refold.views.approval import Question
from refold.views.outcome import CommandResult, Voted

MOST_WAIT = timedelta(seconds=LONGEST_WAIT_S)


def people_routes(site: APIRouter) -> None:
    @site.get("/api/approvals", summary="List questions to people")
    async def list_approvals(
        shared: Site, state: Annotated[State, Query(description="which of them")] = "open"
    ) -> list[Question]:
        """Questions to people, the oldest first. It is read from Kafka: while that is away, the answer is 503."""
        with shared.place("reads"):
            return await shared.client.approvals(state)

    @site.post("/api/approvals/{approval:path}/votes", summary="Vote")
    async def vote(shared: Site, approval: str, body: CastVote, key: Key = "") -> Voted:
        """A decision on a question, by its whole id, signed in the actor's name. `Idempotency-Key` names the vote.

        A question that is decided already or closed: 409. A vote that would be void, such as that of somebody who may
        not decide, or of the requester where they may not: 422, and nothing is sent.
        """
        words = body.model_dump(include={"result", "message"})
        if body.args is not None:
            words["args"] = canonical.dumps(body.args)
        return await shared.client.vote(approval, body.action, key, words, timeout=MOST_WAIT)

    @site.get("/api/doubts", summary="List calls in doubt")
    def list_doubts(shared: Site, wanted: Annotated[CursorFilter, Query()], after: AfterHeader = "") -> DoubtPage:
        """Calls whose outcome nobody knows, those first that went out first."""
        with shared.view(after) as view:
            return doubt_page(view, wanted)

    @site.post(
        "/api/doubts/{call:path}/resolve",
        summary="Resolve a call in doubt",
        responses={202: {"model": InputSent, "description": "Sent, and no outcome in time"}},
    )
    async def resolve_doubt(
        shared: Site,
        call: str,
        body: ResolveDoubt,
        response: Response,
        key: Key = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> Voted | CommandResult | InputSent:
        """The outcome of a call in doubt: by the whole id of the question about it, a vote, signed in the actor's name.

        By the id of the call itself, where nobody is asked, the word of an operator. Where people are asked: 409.
        """
        asks_people = call != asked_about(call)
        shared.check_role(DOUBT_ROLES[asks_people])
        if asks_people:
            words = {"result": body.result, "message": body.message, "about": DOUBT}
            return await shared.client.vote(call, VERDICTS_ON_DOUBT[body.verdict], key, words, timeout=MOST_WAIT)
        settled = Settlement(body.verdict, body.result, body.message)

        def settle() -> CommandResult | InputSent:
            row = settle_call(shared.writing, call, settled, shared.actor)
            return said_of(perform(shared, response, row, wait))

        return await run_in_threadpool(settle)

    @site.get("/api/approvals/{approval:path}", summary="Show a question")
    async def show_approval(shared: Site, approval: str) -> Question:
        """A question by its id, or the open one about a call by `RUN/SEQ`. It is read from Kafka."""
        with shared.place("reads"):
            return await shared.client.approval(approval)
