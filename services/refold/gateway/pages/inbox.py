"""The questions to people: the inbox, and the votes that forms cast."""

from __future__ import annotations

from datetime import timedelta
from typing import cast, get_args

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from refold.client.awaiting import Action, Came
from refold.core.errors import MalformedError
from refold.core.ids import parse_approval_id
from refold.core.wire import canonical
from refold.gateway.pages.forms import form_of, one_of
from refold.gateway.pages.rendering import html_page
from refold.gateway.site import LONGEST_WAIT_S, Site
from refold.ports.tables import MOST_PAGE, Query, Where
from refold.projections.shipped.tables import APPROVALS


def inbox_pages(site: APIRouter) -> None:
    """Add the pages and the form."""

    @site.get("/inbox", response_class=HTMLResponse)
    def inbox_page(shared: Site) -> HTMLResponse:
        """The open questions, those that expire first, then the oldest."""
        with shared.view("") as view:
            rows = view.query(Query(APPROVALS, (Where("open", "=", 1),), order="asked_ms", limit=MOST_PAGE))
        asked = [*map(APPROVALS.named, rows)]
        asked.sort(key=lambda each: (int(each["expires_ms"]) or 2**62, int(each["asked_ms"])))
        return html_page("inbox.html", shared, place="/inbox", asked=asked, more=len(rows) == MOST_PAGE)

    @site.post("/approvals/{approval:path}/vote", response_class=HTMLResponse)
    async def vote_form(shared: Site, approval: str, request: Request) -> Response:
        """A decision on the question that the page has shown, by its whole id, and back to the run."""
        fields = await form_of(request, shared)
        action = one_of(fields, "action", get_args(Action))
        args = canonical.parse(fields["args"]) if action == "edit" else None
        if action == "edit" and not isinstance(args, dict):
            raise MalformedError("the arguments are no JSON object", hint="go back and correct them")
        await shared.client.decide(
            approval,
            cast(Action, action),
            args=args,
            message=fields.get("message", ""),
            timeout=timedelta(seconds=LONGEST_WAIT_S),
        )
        return _back(approval)

    @site.post("/approvals/{approval:path}/outcome", response_class=HTMLResponse)
    async def outcome_form(shared: Site, approval: str, request: Request) -> Response:
        """Say what came of a call in doubt, and go back to the run."""
        fields = await form_of(request, shared)
        outcome = one_of(fields, "outcome", get_args(Came))
        result = canonical.parse(fields["result"]) if outcome == "happened" and fields.get("result") else None
        await shared.client.resolve(
            approval,
            cast(Came, outcome),
            result=result,
            message=fields.get("message", ""),
            timeout=timedelta(seconds=LONGEST_WAIT_S),
        )
        return _back(approval)


def _back(approval: str) -> Response:
    """To the run that a question is of."""
    return RedirectResponse(f"/runs/{parse_approval_id(approval)[0]}", 303)
