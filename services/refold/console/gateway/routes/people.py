"""Questions to people, and their votes."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from refold.client.awaiting import State
from refold.client.operations.run import Settlement, settle_call
from refold.client.reading.api import CastVote, CursorFilter, DoubtPage, InputSent, ResolveDoubt
from refold.client.reading.approval import Question
from refold.client.reading.outcome import CommandResult, Voted
from refold.console.gateway.listing import doubt_page
from refold.console.gateway.roles import DOUBT_ROLES
from refold.console.gateway.routes.inputs import Sends
from refold.console.gateway.site import LONGEST_WAIT_S, AfterHeader, Key, Site
from refold.core.events import DOUBT
from refold.core.ids import asked_about
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.wire import canonical

MOST_WAIT = timedelta(seconds=LONGEST_WAIT_S)


def people_routes(site: APIRouter) -> None:
    @site.get("/api/approvals", summary="List questions to people")
    async def list_approvals(
        shared: Site, state: Annotated[State, Query(description="which of them")] = "open"
    ) -> list[Question]:
        """Return questions to people, the oldest first. They are read from Kafka; without Kafka the answer is 503."""
        with shared.place("reads"):
            return await shared.client.approvals(state)

    @site.post("/api/approvals/{approval:path}/votes", summary="Vote")
    async def vote(shared: Site, approval: str, body: CastVote, key: Key = "") -> Voted:
        """Vote on a question, by its whole id, signed in the actor's name. `Idempotency-Key` names the vote.

        409: the question is decided or closed. 422: the vote would be void, as of a person who may not decide;
        nothing is sent.
        """
        await run_in_threadpool(shared.writing.check)
        content = body.model_dump(include={"result", "message"})
        if body.args is not None:
            content["args"] = canonical.dumps(body.args)
        return await shared.client.vote(approval, body.action, key, content, timeout=MOST_WAIT)

    @site.get("/api/doubts", summary="List calls in doubt")
    def list_doubts(shared: Site, filters: Annotated[CursorFilter, Query()], after: AfterHeader = "") -> DoubtPage:
        """Return calls whose outcome is unknown, the oldest first."""
        with shared.view(after) as view:
            return doubt_page(view, filters)

    @site.post(
        "/api/doubts/{call:path}/resolve",
        summary="Resolve a call in doubt",
        responses={202: {"model": InputSent, "description": "Sent, and no outcome in time"}},
    )
    async def resolve_doubt(
        sender: Sends, call: str, body: ResolveDoubt, key: Key = ""
    ) -> Voted | CommandResult | InputSent:
        """Record the outcome of a call in doubt. The id of a question sends a vote, signed in the actor's name.

        The id of a call sends an operator's verdict. 409 if people are asked about the call.
        """
        shared, asks_people = sender.shared, call != asked_about(call)
        shared.check_role(DOUBT_ROLES[asks_people])
        if asks_people:
            content = {"result": body.result, "message": body.message, "about": DOUBT}
            return await shared.client.vote(call, VERDICTS_ON_DOUBT[body.verdict], key, content, timeout=MOST_WAIT)
        settled = Settlement(body.verdict, body.result, body.message)
        return await run_in_threadpool(lambda: sender.settle(settle_call(shared.writing, call, settled, shared.actor)))

    @site.get("/api/approvals/{approval:path}", summary="Show a question")
    async def show_approval(shared: Site, approval: str) -> Question:
        """Return a question by its id, or the open one about a call by `RUN/SEQ`. It is read from Kafka."""
        with shared.place("reads"):
            return await shared.client.approval(approval)
