"""Large values, which the log names by their digest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from refold.client.stores import blob_store
from refold.core.errors import BlobError, NotFoundError, UnreachableError
from refold.core.ids import RunId, run_id
from refold.core.run.handed import own_pointers
from refold.core.wire.blobs import MARK, size_of
from refold.gateway.site import AfterHeader, Gateway, Site
from refold.ports.tables import ViewReader
from refold.projections.runs import entry_of
from refold.projections.shipped.tables import ENTRIES


def add(site: APIRouter) -> None:
    """Add the routes."""
    octets: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    }

    @site.get("/api/blobs/{digest}", summary="Read a large value", responses=octets, response_class=StreamingResponse)
    def read_blob(
        shared: Site,
        digest: Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="the SHA-256 that the log has of it")],
        run: Annotated[str, Query(description="the run whose value it is")],
        after: AfterHeader = "",
    ) -> StreamingResponse:
        """A value that lies in the blob store, where an entry of this run names it. The run of a child has its own.

        The value is checked against its digest while it is sent: one that was altered breaks off before its end.
        """
        with shared.view(after) as view:
            shared.reading.check(view, run)
            pointer = _pointer(view, run_id(run), digest)
        parts = _parts(shared, run_id(run), pointer)
        try:
            first = next(parts)  # an error has to come before the status
        except BlobError as error:
            raise NotFoundError(error.message, hint=error.hint) from None
        headers = {"Content-Length": str(size_of(pointer)), "Content-Disposition": "attachment"}
        return StreamingResponse(chain((first,), parts), headers=headers, media_type="application/octet-stream")


def _pointer(view: ViewReader, run: RunId, digest: str) -> str:
    wanted = f"{MARK}{digest}:"
    for row in view.rows_of(ENTRIES, run):
        if wanted.encode() in row[ENTRIES.places["value"]]:  # type: ignore[operator]
            for pointer in own_pointers(entry_of(row)[1].events):
                if pointer.startswith(wanted):
                    return pointer
    raise NotFoundError(f"run {run} has no value {digest}", hint="a value of a child lies with the child")


def _parts(shared: Gateway, run: RunId, pointer: str) -> Iterator[bytes]:
    if (store := blob_store(shared.platform.settings)) is None:
        raise UnreachableError("the gateway has no blob store", hint="set REFOLD_BLOBS__URL to that of the services")
    with shared.sending():
        yield from store.stream(run, pointer)
