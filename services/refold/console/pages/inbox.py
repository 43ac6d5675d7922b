"""The inbox, the page of one question, and their forms for votes. A GET never decides."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.client.awaiting import Came
from refold.client.operations.run import Settlement
from refold.client.reading.api import ApiBody, CursorFilter
from refold.client.reading.approval import Approval
from refold.console.gateway.listing import doubt_page
from refold.console.gateway.reading import page_behind
from refold.console.gateway.roles import DOUBT_ROLES
from refold.console.gateway.selecting import ASKS
from refold.console.gateway.site import DEFAULT_WAIT_S, LONGEST_WAIT_S, Gateway, Site
from refold.console.pages import wording
from refold.console.pages.questions import (
    PageQuestion,
    checked_vote,
    informed,
    offers_of,
    question_in,
    topics_of,
    verdict_on,
)
from refold.console.pages.rendering import form_of, html_page, one_of
from refold.console.projections.shipped.tables import APPROVALS, RUNS
from refold.core.approval import ballot
from refold.core.errors import ConflictError, MalformedError, NotFoundError, RefoldError, TimedOutError, UsageError
from refold.core.events import DOUBT
from refold.core.ids import RunId, asked_about, parse_approval_id, parse_call_id
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.wire import canonical
from refold.engine.ports.tables import Query as TableQuery
from refold.engine.ports.tables import ViewReader, Where

MOST_LISTED = 200
DOUBTS_LISTED = 20
"""Calls in doubt on a page: each one's history is folded."""
PICK = "pick:"
MOST_PICKED = 40
MANY_WAIT_S = 10.0
"""Seconds that each of several votes waits for its outcome."""
VERBS = tuple(action for action in ballot.ACTIONS if action != "revoke-grant")
TABS = (("mine", "for you"), ("all", "all"), ("doubt", "in doubt"), ("decided", "decided"))


class InboxFilter(ApiBody):
    """Query of the inbox; by default questions for the reader."""

    show: Literal["", "mine", "all", "doubt", "decided"] = ""
    cursor: str = Field("", max_length=2_000)


class CameOf(NamedTuple):
    """Outcome of one of several votes. `good`: it was sent, and counts."""

    approval: str
    tool: str
    good: bool
    words: str


def inbox_pages(site: APIRouter) -> None:
    @site.get("/inbox", response_class=HTMLResponse)
    def inbox_page(shared: Site, filters: Annotated[InboxFilter, Query()]) -> HTMLResponse:
        """Show open questions, soon expiring ones first, or decided ones, or calls in doubt."""
        show = filters.show or "mine"
        with shared.view("") as view:
            counts = {"all": view.count(_questions_query("all")), "doubt": view.count(_questions_query("doubt"))}
            doubts, cursor = _doubts_with_questions(shared, view, filters.cursor) if show == "doubt" else ([], "")
            rows: list[dict[str, Any]] = []
            if show != "doubt":
                page, cursor = page_behind(view, filters.cursor, f"inbox-{show == 'decided'}", _questions_query(show))
                rows = [APPROVALS.named(row) for row in page]
            named = map(RUNS.named, view.rows(RUNS, {(row["run_id"],) for row in rows}).values())
            runs = {run["run_id"]: run for run in named}
        if show != "decided":
            rows.sort(key=lambda entry: (int(entry["expires_ms"]) or 2**62, int(entry["asked_ms"])))
        rows, away = _with_arguments(shared, rows, own=show == "mine") if show in ("mine", "all") else (rows, False)
        shown: dict[str, Any] = {"rows": rows, "runs": runs, "cursor": cursor, "counts": counts}
        shown |= {"doubts": _with_offers(shared, doubts), "unknown": away, "show": show, "tabs": TABS}
        return html_page("inbox.html", shared, place="/inbox", types=" ".join(ASKS), **shown)

    @site.post("/inbox", response_class=HTMLResponse)
    async def inbox_form(shared: Site, request: Request) -> Response:
        """Show the chosen questions; then decide each by a vote of its own."""
        fields = await form_of(request, shared)
        picked = {name.removeprefix(PICK): digest for name, digest in fields.items() if name.startswith(PICK)}
        if not 0 < len(picked) <= MOST_PICKED:
            raise MalformedError(f"{len(picked)} questions are chosen", hint=f"choose 1 to {MOST_PICKED} of the inbox")
        if "action" not in fields:
            questions = await run_in_threadpool(_chosen_questions, shared, list(picked))
            return html_page("chosen.html", shared, place="/inbox", questions=questions)
        action = one_of(fields, "action", ("approve", "reject"))
        content = {"message": fields.get("message", "")}
        came = [await _voted(shared, approval, picked[approval], action, content) for approval in picked]
        return html_page("came.html", shared, place="/inbox", came=came, action=action)

    @site.get("/approvals/{approval:path}", response_class=HTMLResponse)
    def approval_page(shared: Site, approval: str) -> HTMLResponse:
        q = _question_of(shared, approval)
        return html_page("approval.html", shared, place="/inbox", q=q, types=" ".join(ASKS))

    @site.post("/approvals/{approval:path}/vote", response_class=HTMLResponse)
    async def vote_form(shared: Site, approval: str, request: Request) -> Response:
        fields = await form_of(request, shared)
        action = one_of(fields, "action", VERBS)
        content = _vote_content(fields, action)
        written = {"action": action, "question": fields.get("question", ""), **content}
        try:
            shown = await run_in_threadpool(checked_vote, shared, approval, written["question"], action, content)
            if action == "edit" and not fields.get("sure"):
                return await run_in_threadpool(_edit_page, shared, shown, content)
            content["result"] = canonical.parse(content["result"]) if action == "answer" else None
            voted = await shared.client.vote(approval, action, "", content, timeout=timedelta(seconds=LONGEST_WAIT_S))
        except (ConflictError, UsageError, NotFoundError) as error:
            if isinstance(error, ConflictError) and await run_in_threadpool(_is_recorded, shared, approval, written):
                return RedirectResponse(f"/runs/{parse_approval_id(approval)[0]}", 303)
            return await run_in_threadpool(_refused_page, shared, approval, fields, error)
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
                await run_in_threadpool(shared.writing.settle, approval, settled, shared.actor, DEFAULT_WAIT_S)
        except (ConflictError, UsageError, NotFoundError) as error:
            return await run_in_threadpool(_refused_page, shared, approval, fields, error)
        return RedirectResponse(f"/runs/{run}", 303)


def _questions_query(show: str) -> TableQuery:
    if show == "doubt":
        return TableQuery(APPROVALS, (Where("open", "=", 1), Where("about", "=", DOUBT)))
    open_ = Where("open", "=", int(show != "decided"))
    return TableQuery(APPROVALS, (open_,), order="asked_ms", descending=show == "decided", limit=MOST_LISTED)


def _with_offers(shared: Gateway, doubts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    judged = iter(informed(shared, [doubt["q"] for doubt in doubts if doubt["q"]]))
    return [doubt | {"q": doubt["q"] and next(judged)} for doubt in doubts]


def _with_arguments(shared: Gateway, rows: list[dict[str, Any]], *, own: bool) -> tuple[list[dict[str, Any]], bool]:
    """Return questions with arguments and offers, those for the reader first, and True if Kafka is away."""
    if not rows or (index := topics_of(shared)) is None:
        return [row | {"args": "", "offers": (), "stand_ins": ()} for row in rows], bool(rows)
    pairs = [(row, index.find(str(row["approval_id"]))) for row in rows]
    known_rows = [row | {"args": of.request.args if of else ""} | offers_of(shared, index, of) for row, of in pairs]
    shown = [row for row in known_rows if "reject" in row["offers"] or row["stand_ins"] or not own]
    return sorted(shown, key=lambda row: "reject" not in row["offers"]), False


def _doubts_with_questions(shared: Gateway, view: ViewReader, cursor: str) -> tuple[list[dict[str, Any]], str]:
    page = doubt_page(view, CursorFilter(cursor=cursor, limit=DOUBTS_LISTED))
    doubts = []
    for row in page.doubts:
        run = shared.reading.run(view, RunId(row.run_id))
        question = question_in(view, run, row.approval) if row.approval else None
        doubts.append({"row": row, "step": run.timeline.steps[row.step - 1], "q": question})
    return doubts, page.cursor


def _chosen_questions(shared: Gateway, picked: list[str]) -> list[PageQuestion]:
    with shared.view("") as view:
        questions = [question_in(view, shared.reading.run(view, parse_approval_id(one)[0]), one) for one in picked]
    return informed(shared, questions)


async def _voted(shared: Gateway, approval: str, digest: str, action: str, content: dict[str, Any]) -> CameOf:
    """Vote on one of several questions; a refused vote does not stop the others."""
    try:
        with shared.room("writes"):
            question = await run_in_threadpool(checked_vote, shared, approval, digest, action, content)
    except RefoldError as error:
        return CameOf(approval, "", good=False, words=f"{error.message}. Nothing was sent.")
    tool = question.request.tool
    try:
        content = {"result": None} | content
        voted = await shared.client.vote(approval, action, "", content, timeout=timedelta(seconds=MANY_WAIT_S))
    except TimedOutError as error:
        return CameOf(approval, tool, good=True, words=error.message)
    except RefoldError as error:
        return CameOf(approval, tool, good=False, words=error.message)
    needed = f": {voted.leading} of {voted.quorum}" if voted.outcome == "counted" else ""
    return CameOf(approval, tool, good=True, words=f"{voted.outcome.replace('_', ' ')}{needed}")


def _question_of(shared: Gateway, approval: str) -> PageQuestion:
    with shared.view("") as view:
        run = shared.reading.run(view, RunId(parse_approval_id(approval)[0]))
        question = question_in(view, run, approval, alone=True)
    return informed(shared, [question])[0]


def _vote_content(fields: Mapping[str, str], action: str) -> dict[str, Any]:
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


def _is_recorded(shared: Gateway, approval: str, written: Mapping[str, object]) -> bool:
    """True if this very vote is recorded: a form may arrive twice."""
    question = index.find(approval) if (index := topics_of(shared, approval)) else None
    own = [vote for vote in question.said if vote.actor == shared.actor] if question else []
    return any(all(getattr(vote, name) == value for name, value in written.items()) for vote in own)


def _edit_page(shared: Gateway, question: Approval, content: Mapping[str, Any]) -> HTMLResponse:
    request = question.request
    change = wording.changed_args(request.args, content["args"])
    effect = verdict_on(question, content["args"])
    return html_page("edit.html", shared, place="/inbox", request=request, change=change, said=effect, words=content)


def _refused_page(shared: Gateway, approval: str, fields: Mapping[str, str], error: RefoldError) -> HTMLResponse:
    was = now = None
    with suppress(RefoldError):  # the id was made up, or the view is behind: the error suffices
        was = _question_of(shared, approval)
        now = _question_of(shared, was.waits) if was.waits and not was.open else None
    values = {"error": error, "was": was, "now": now, "fields": fields, "sent": "void" in error.fields}
    return html_page("refused.html", shared, 409, place="/inbox", **values)
