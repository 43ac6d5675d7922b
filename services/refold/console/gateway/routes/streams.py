"""Streams of events."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from refold.console.gateway.reading import after_of
from refold.console.gateway.selecting import SelectionKind
from refold.console.gateway.site import AfterHeader, Gateway, SeqOption, Site
from refold.core.ids import run_id

Last = Annotated[str, Header(alias="Last-Event-ID", max_length=8_000, description="the id of the last event")]
PartsOption = Annotated[bool, Query(description="also send the live output of models, as messages `part`")]
FromNowOption = Annotated[bool, Query(description="begin with the next event, if there is no Last-Event-ID")]


def stream_routes(site: APIRouter) -> None:
    stream: dict[str, Any] = {
        "responses": {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
        "response_class": StreamingResponse,
    }
    ending = {**stream, "responses": {**stream["responses"], 204: {"description": "No more"}}}

    @site.get("/api/runs/{run}/stream", summary="Follow a run", **ending)
    async def stream_run(
        shared: Site,
        run: str,
        last: Last = "",
        after_seq: SeqOption = 0,
        after: AfterHeader = "",
        parts: PartsOption = False,
    ) -> Response:
        """Send the events of a run as server-sent events until the run is over. The id of each is its number.

        The stream of a run that this gateway has just requested waits ten seconds for it. Without it, or if the request
        is refused, the stream ends with a message `problem` (`code`, `detail`, `hint`).

        A client continues with `Last-Event-ID` at any gateway. After the last event of a completed or cancelled run
        the answer is 204, and browsers do not reconnect. After `RunFailed` the stream waits for the events of a retry.
        The stream of an erased run ends; a reconnect is answered with 410.
        """
        return await _followed(shared, "run", run_id(run), last or str(after_seq), after, parts=parts)

    @site.get("/api/runs/{run}/family/stream", summary="Follow a run and the runs below it", **stream)
    async def stream_family(
        shared: Site,
        run: str,
        last: Last = "",
        after: AfterHeader = "",
        parts: PartsOption = False,
        from_now: FromNowOption = False,
    ) -> Response:
        """Send the events of a run and all its descendants as server-sent events, from the beginning or from now.

        Runs that start later are included. Each event names its run. The stream ends when the run is erased.
        """
        return await _followed(shared, "family", run_id(run), last, after, parts=parts, from_now=from_now)

    @site.get("/api/sessions/{session}/stream", summary="Follow a session", **stream)
    async def stream_session(shared: Site, session: str, last: Last = "", after: AfterHeader = "") -> Response:
        """Send the events of all present and future runs of a session as server-sent events, from the beginning."""
        return await _followed(shared, "session", session, last, after)

    @site.get("/api/stream", summary="Follow all runs", **stream)
    async def stream_all(shared: Site, last: Last = "", after: AfterHeader = "") -> Response:
        """Send the events of all runs from now on (server-sent events). The first one, `begun`, has the current id."""
        return await _followed(shared, "all", "", last, after)

    @site.get("/api/inbox/stream", summary="Follow questions to people", **stream)
    async def stream_inbox(shared: Site, last: Last = "", after: AfterHeader = "") -> Response:
        """Send the events that open, decide or close questions to people, from now on, as server-sent events.

        The first message, `begun`, has the current id. List the open questions after it, so that none is missed.
        """
        return await _followed(shared, "inbox", "", last, after)


async def _followed(shared: Gateway, kind: SelectionKind, name: str, last: str, after: str, **more: bool) -> Response:
    streams = shared.streams
    streams.check_room(shared.actor)
    selection, at = await shared.wait(partial(streams.begin, kind, name, last, after_of(after), **more))
    if at is None:
        return Response(status_code=204)
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    body = streams.follow(selection, at, named=not last, actor=shared.actor)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)
