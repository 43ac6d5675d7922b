"""The page of one question, and its forms for votes. A GET never decides."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from refold.client.awaiting import Came
from refold.client.operations.run import Settlement, settle_call
from refold.client.reading.approval import Approval
from refold.console.gateway.roles import DOUBT_ROLES
from refold.console.gateway.selecting import ASKS
from refold.console.gateway.site import DEFAULT_WAIT_S, LONGEST_WAIT_S, Gateway, Site
from refold.console.pages import wording
from refold.console.pages.forms import form_of, one_of
from refold.console.pages.questions import PageQuestion, checked_vote, informed, question_in, topics_of, verdict_on
from refold.console.pages.rendering import html_page
from refold.core.approval import ballot
from refold.core.errors import ConflictError, MalformedError, NotFoundError, RefoldError, UsageError
from refold.core.events import DOUBT
from refold.core.ids import RunId, asked_about, parse_approval_id, parse_call_id
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.wire import canonical

VERBS = tuple(action for action in ballot.ACTIONS if action != "revoke-grant")


def approval_pages(site: APIRouter) -> None:
    @site.get("/approvals/{approval:path}", response_class=HTMLResponse)
    def approval_page(shared: Site, approval: str) -> HTMLResponse:
        q = _shown(shared, approval)
        return html_page("approval.html", shared, place="/inbox", q=q, types=" ".join(ASKS))

    @site.post("/approvals/{approval:path}/vote", response_class=HTMLResponse)
    async def vote_form(shared: Site, approval: str, request: Request) -> Response:
        fields = await form_of(request, shared)
        action = one_of(fields, "action", VERBS)
        content = _words(fields, action)
        written = {"action": action, "question": fields.get("question", ""), **content}
        try:
            shown = await run_in_threadpool(checked_vote, shared, approval, written["question"], action, content)
            if action == "edit" and not fields.get("sure"):
                return await run_in_threadpool(_before_sending, shared, shown, content)
            content["result"] = canonical.parse(content["result"]) if action == "answer" else None
            voted = await shared.client.vote(approval, action, "", content, timeout=timedelta(seconds=LONGEST_WAIT_S))
        except (ConflictError, UsageError, NotFoundError) as error:
            if isinstance(error, ConflictError) and await run_in_threadpool(_said_already, shared, approval, written):
                return RedirectResponse(f"/runs/{parse_approval_id(approval)[0]}", 303)
            return await run_in_threadpool(_refused, shared, approval, fields, error)
        decided = voted.outcome.startswith("decided")
        return RedirectResponse(f"/runs/{parse_approval_id(approval)[0]}" if decided else f"/approvals/{approval}", 303)

    @site.post("/approvals/{approval:path}/outcome", response_class=HTMLResponse)
    async def outcome_form(shared: Site, approval: str, request: Request) -> Response:
        """Settle a call in doubt: a vote by a question's id, an operator's decision by a call's id."""
        fields = await form_of(request, shared)
        came = one_of(fields, "outcome", VERDICTS_ON_DOUBT)
        asks_people = approval != asked_about(approval)
        shared.check_role(DOUBT_ROLES[asks_people])
        run, result = parse_call_id(asked_about(approval))[0], None
        if came == "happened":
            result = canonical.parse(fields.get("result") or "null")
        message = fields.get("message", "")
        try:
            if asks_people:
                content = {"message": message, "about": DOUBT}
                content |= {"result": canonical.dumps(result)} if came == "happened" else {}
                question = fields.get("question", "")
                await run_in_threadpool(checked_vote, shared, approval, question, VERDICTS_ON_DOUBT[came], content)
                wait = timedelta(seconds=LONGEST_WAIT_S)
                await shared.client.resolve(approval, cast(Came, came), result=result, message=message, timeout=wait)
            else:
                settled = Settlement(came, result, message)
                await run_in_threadpool(_settle, shared, approval, settled)
        except (ConflictError, UsageError, NotFoundError) as error:
            return await run_in_threadpool(_refused, shared, approval, fields, error)
        return RedirectResponse(f"/runs/{run}", 303)


def _shown(shared: Gateway, approval: str) -> PageQuestion:
    with shared.view("") as view:
        run = shared.reading.run(view, RunId(parse_approval_id(approval)[0]))
        question = question_in(view, run, approval, alone=True)
    return informed(shared, [question])[0]


def _words(fields: Mapping[str, str], action: str) -> dict[str, Any]:
    content: dict[str, Any] = {"message": fields.get("message", "")}
    if action in ballot.HANDING:
        content["to"] = tuple(name.strip() for name in fields.get("to", "").split(",") if name.strip())
    for name, verb in (("args", "edit"), ("result", "answer")):
        if action == verb:
            value = canonical.parse(fields.get(name, ""))
            if verb == "edit" and not isinstance(value, dict):
                raise MalformedError("the arguments are no JSON object", hint="go back and correct them")
            content[name] = canonical.dumps(value)
    return content


def _said_already(shared: Gateway, approval: str, written: Mapping[str, object]) -> bool:
    """True if this very vote is recorded: a form may arrive twice."""
    question = index.find(approval) if (index := topics_of(shared, approval)) else None
    own = [vote for vote in question.said if vote.actor == shared.actor] if question else []
    return any(all(getattr(vote, name) == value for name, value in written.items()) for vote in own)


def _before_sending(shared: Gateway, question: Approval, content: Mapping[str, Any]) -> HTMLResponse:
    request = question.request
    change = wording.changed_args(request.args, content["args"])
    effect = verdict_on(question, content["args"])
    return html_page("edit.html", shared, place="/inbox", request=request, change=change, said=effect, words=content)


def _settle(shared: Gateway, call: str, settled: Settlement) -> None:
    shared.writing.perform(settle_call(shared.writing, call, settled, shared.actor), DEFAULT_WAIT_S)


def _refused(shared: Gateway, approval: str, fields: Mapping[str, str], error: RefoldError) -> HTMLResponse:
    was = now = None
    with suppress(RefoldError):  # the id was made up, or the view is behind: the error suffices
        was = _shown(shared, approval)
        now = _shown(shared, was.waits) if was.waits and not was.open else None
    values = {"error": error, "was": was, "now": now, "fields": fields, "sent": "void" in error.fields}
    return html_page("refused.html", shared, 409, place="/inbox", **values)
