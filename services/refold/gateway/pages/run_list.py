"""The list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from refold.gateway.pages.rendering import html_page
from refold.gateway.reading import RunQuery
from refold.gateway.routes.runs import query_of
from refold.gateway.site import Site
from refold.ports.tables import ViewReader
from refold.projections.shipped.tables import FAMILIES
from refold.views.api import RunFilter

LISTED_STATES = (
    ("running", "running"),
    ("waiting_for_people", "waiting for people"),
    ("doubt", "in doubt"),
    ("on_hold", "on hold"),
    ("stalled", "stalled"),
    ("paused", "paused"),
    ("failed", "failed"),
    ("completed", "completed"),
)
"""Filters of the list: the name of a state, and its words."""

FAMILY_COUNTS = FAMILIES.names[FAMILIES.keys :]


def run_list_pages(site: APIRouter) -> None:
    """Add the page."""

    @site.get("/", response_class=HTMLResponse)
    def runs_page(shared: Site, wanted: Annotated[RunFilter, Query()]) -> HTMLResponse:
        """The runs, the newest first."""
        asked = wanted.model_dump(exclude_defaults=True, exclude={"cursor", "sort", "limit"})
        with shared.view("") as view:
            found = shared.reading.runs(view, query_of(wanted.model_copy(update={"top": not asked})), wanted.cursor)
            families = dict(_families(view, [run.root for run in found.runs]))
            counts = {name: view.count(RunQuery(state=name).query()) for name, _ in LISTED_STATES}

        def link(**changes: str) -> str:
            chosen = {name: value for name, value in {**asked, "cursor": "", **changes}.items() if value}
            return f"/?{urlencode(chosen, doseq=True)}" if chosen else "/"

        return html_page(
            "runs.html",
            shared,
            place="/",
            wanted=wanted,
            runs=found.runs,
            families=families,
            alone=dict.fromkeys(FAMILY_COUNTS, 0),
            cursor=found.cursor,
            link=link,
            filtered=asked,
            states=LISTED_STATES,
            counts=counts,
        )


def _families(view: ViewReader, roots: Iterable[str]) -> Iterator[tuple[str, dict[str, int]]]:
    """Counts of the families of some roots: live runs, questions, doubts, holds, failures, tokens, cost."""
    for row in view.rows(FAMILIES, [(root, 0) for root in set(roots)]).values():
        yield str(row[0]), {name: int(value) for name, value in zip(FAMILY_COUNTS, row[FAMILIES.keys :], strict=True)}
