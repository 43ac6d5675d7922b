"""What is followed as it happens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from refold.core.errors import MalformedError
from refold.core.ids import run_id
from refold.gateway.reading import after_of, number_of
from refold.gateway.site import AfterHeader, SeqOption, Site


def add(site: APIRouter) -> None:
    """Add the routes."""
    stream: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "No more"},
    }

    @site.get("/api/runs/{run}/stream", responses=stream, summary="Follow a run", response_class=StreamingResponse)
    async def stream_run(
        shared: Site,
        run: str,
        last: Annotated[str, Header(alias="Last-Event-ID", max_length=100)] = "",
        after_seq: SeqOption = 0,
        after: AfterHeader = "",
    ) -> Response:
        """Server-sent events: the events of a run as they come, until it is over. The id of each is its number.

        A client that comes back with `Last-Event-ID` goes on behind it, through any gateway. Behind the last event of
        a run that is completed or cancelled the answer is 204: browsers do not come back after it. Behind `RunFailed`
        the stream waits for the events of a retry. The stream of a run that is erased ends, and coming back is 410.
        """
        seq = number_of(last) if last else after_seq
        if seq is None:
            raise MalformedError(f"Last-Event-ID {last[:40]!r} is no number of an event")
        shared.streams.check_room()
        name = run_id(run)
        if not await run_in_threadpool(shared.reading.check_seq, name, seq, after_of(after)):
            return Response(status_code=204)
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        return StreamingResponse(shared.streams.run(name, seq), media_type="text/event-stream", headers=headers)
