"""Sessions, and the runs that are part of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from refold.core.errors import NotFoundError
from refold.gateway.listing import session_page
from refold.gateway.reading import RunQuery
from refold.gateway.routes.runs import query_of
from refold.gateway.site import AfterHeader, Site
from refold.views.api import CursorFilter, RunFilter, RunPage, SessionPage


def add(site: APIRouter) -> None:
    """Add the routes."""

    @site.get("/api/sessions", summary="List sessions")
    def list_sessions(shared: Site, wanted: Annotated[CursorFilter, Query()], after: AfterHeader = "") -> SessionPage:
        """Sessions, those first in which a run was asked for last."""
        with shared.view(after) as view:
            return session_page(view, wanted)

    @site.get("/api/sessions/{session:path}", summary="List the runs of a session")
    def show_session(
        shared: Site, session: str, wanted: Annotated[RunFilter, Query()], after: AfterHeader = ""
    ) -> RunPage:
        """The runs that are part of a session, the newest first, with the filters of all runs."""
        inside = wanted.model_copy(update={"session": session})
        with shared.view(after) as view:
            found = shared.reading.runs(view, query_of(inside), wanted.cursor)
            if not found.runs and not shared.reading.runs(view, RunQuery(session=session, limit=1), "").runs:
                raise NotFoundError(f"no run is part of the session {session[:100]!r}")
        return found
