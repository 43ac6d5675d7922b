"""The list of runs, and the form that starts one."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from refold.client.operations import run as operations
from refold.client.operations.runs import STALLED, STATES, RunQuery, one_state
from refold.client.reading.api import RunBody, RunFilter
from refold.console.gateway.routes.inputs import run_request
from refold.console.gateway.routes.lists import served_of
from refold.console.gateway.routes.runs import label_of, query_of
from refold.console.gateway.site import DEFAULT_WAIT_S, Site
from refold.console.pages.rendering import form_of, html_page, view_page
from refold.console.pages.screen import SCREEN, AskField, AskForm, Passage, url
from refold.console.projections.runs import entry_of, runs_query
from refold.console.projections.shipped.tables import ENTRIES, FAMILIES, HOLDS
from refold.core.errors import FoldError, MalformedError
from refold.core.events import Cause, RunRequested
from refold.core.ids import run_id
from refold.core.run.state import ENDED
from refold.core.wire import canonical
from refold.engine.ports.tables import ViewReader, Where

LISTED_STATES = ("running", *STATES, STALLED, "suspended", "pending", "failed", "completed", "cancelled", "continued")
"""States of runs; each run has exactly one."""
MOST_PREVIEWED = 4 << 20
"""Bytes of first entries that are read for the inputs of a list."""
SEARCHED = (
    ("text", "In the id or the status line"),
    ("agent", "Agent"),
    ("label", "Label, NAME=VALUE"),
    ("session", "Session"),
    ("tool", "Calls this tool"),
    ("code", "Failed with this code"),
)
COMMANDED = {"agent": "--agent", "session": "--session", "label": "--label", "state": "--status"}
"""Option of `refold run list` for each filter."""
FAMILY_COUNTS = FAMILIES.names[FAMILIES.keys :]


def run_list_pages(site: APIRouter) -> None:
    @site.get("/", response_class=HTMLResponse)
    def runs_page(shared: Site, request: Request, filters: Annotated[RunFilter, Query()]) -> Response:
        # An empty field of a form that is sent without JavaScript is no filter.
        labels = [label for label in filters.label if label]
        used = {
            name: value
            for name, value in filters.model_copy(update={"label": labels}).model_dump(exclude_defaults=True).items()
            if name not in ("cursor", "sort", "limit")
        }
        listing = replace(query_of(filters.model_copy(update={"label": labels, "top": not used})), alone=True)

        def link(**changes: object) -> str:
            chosen = {name: value for name, value in {**used, **changes}.items() if value}
            return url("/", **chosen)

        def page_values(view: ViewReader) -> dict[str, Any]:
            page = shared.reading.runs(view, listing, filters.cursor)
            stalled = view.rows(HOLDS, [(run.run_id,) for run in page.runs if not run.ended_ms])
            return {
                "place": "/",
                "wanted": filters,
                "runs": [(run, one_state(run.dump(), stalled=(run.run_id,) in stalled)) for run in page.runs],
                "inputs": dict(_inputs(view, [run.run_id for run in page.runs])),
                "families": dict(_family_sums(view, [run.root for run in page.runs])),
                "alone": dict.fromkeys(FAMILY_COUNTS, 0),
                "cursor": page.cursor,
                "link": link,
                "filtered": used,
                "searched": [(name, text, ", ".join(_values(used.get(name)))) for name, text in SEARCHED],
                "states": LISTED_STATES,
                "counts": _counts_by_state(view, listing),
                "command": _list_command(used),
            }

        return view_page("runs.html", shared, request, page_values)

    @site.get("/start", response_class=HTMLResponse)
    def start_page(shared: Site, agent: str = "") -> HTMLResponse:
        agents = sorted({label.agent for label in served_of(shared).agents})
        note = "The agent's arguments by name, as JSON. The same id with the same agent and input is one run."
        fresh = operations.fresh_run_id("run")
        fields = (
            AskField("agent", "Agent", "pick", agent, agents),
            AskField("input", "Input", "area", "{}"),
            AskField("id", "Id of the run", "text", fresh),
            AskField("label", "Labels, NAME=VALUE with spaces between them"),
        )
        form = AskForm("start", "What should it do?", "/start", fields, "Start", note, back="/")
        wait = "A planner reports its agents some seconds after it starts. This page looks again by itself."
        more = "" if shared.dev else " If none runs: refold serve planner --app app.py"
        part = form if agents else Passage("again", "No planner has reported an agent so far", wait + more)
        if not shared.may_use("start_form"):
            part = Passage("nobody", "Starting a run needs the role operator", "GET /api/login shows what you have.")
        return html_page(SCREEN, shared, place="/", title="Start a run", parts=[part])

    @site.post("/start", response_class=HTMLResponse)
    async def start_form(shared: Site, request: Request) -> Response:
        fields = await form_of(request, shared)
        # The form has the id of the run: sent twice it starts one.
        data, name = canonical.parse(fields.get("input") or "null"), run_id(fields.get("id", "").strip())
        labels = dict(label_of(label) for label in fields.get("label", "").split())
        if not (agent := fields.get("agent", "")):
            raise MalformedError("the form names no agent", hint="choose one")
        body = RunBody(agent=agent, input=data, id=name, labels=labels)

        def start_in_time() -> bool:
            operation = operations.start_run(run_request(shared, body))
            return not isinstance(shared.writing.perform(operation, DEFAULT_WAIT_S), Cause)

        started = await run_in_threadpool(start_in_time)
        return RedirectResponse(f"/runs/{name}" if started else url("/", text=name), 303)


def _values(value: object) -> Iterator[str]:
    yield from map(str, value if isinstance(value, list) else [value] if value else [])


def _counts_by_state(view: ViewReader, listing: RunQuery) -> Counter[str]:
    # Statuses are counted by their index, other states in one pass over the few runs that have one.
    every = replace(listing, state="", top=False)
    query, columns = runs_query(every), ("status", *STATES)
    counts = Counter({str(status): number for (status,), number in view.counts(query, ("status",)).items()})
    beside = replace(query, where=(*query.where, Where(" ".join(STATES), ">", 0)))
    stalls = runs_query(replace(every, state=STALLED, alone=False))
    for some, stalled in ((beside, False), (stalls, True)):
        for values, number in view.counts(some, columns).items():
            row = dict(zip(columns, values, strict=True))
            counts[one_state(row, stalled=False) if stalled else str(values[0])] -= number
            counts[one_state(row, stalled=stalled)] += number
    return counts


def _inputs(view: ViewReader, runs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the inputs of runs, up to a total size of entries."""
    left = MOST_PREVIEWED
    for run in runs:
        if left < 0 or (row := view.rows(ENTRIES, [(run, 1)]).get((run, 1))) is None:
            continue
        left -= len(row[ENTRIES.places["value"]])  # type: ignore[arg-type]
        with suppress(FoldError):  # an invalid entry is reported on the page of its run
            first = entry_of(row)[1].events[0]
            yield run, first.input if isinstance(first, RunRequested) else ""


def _list_command(used: dict[str, Any]) -> str:
    """Return the command that lists the same; empty if it lacks a filter."""
    if not COMMANDED.keys() >= used.keys() or used.get("state", "doubt") not in ("doubt", STALLED, "pending", *ENDED):
        return ""
    parts = [part for name, texts in used.items() for value in _values(texts) for part in (COMMANDED[name], value)]
    return shlex.join(["refold", "run", "list", *parts])


def _family_sums(view: ViewReader, roots: Iterable[str]) -> Iterator[tuple[str, dict[str, int]]]:
    for row in view.rows(FAMILIES, [(root, 0) for root in set(roots)]).values():
        yield str(row[0]), {name: int(value) for name, value in zip(FAMILY_COUNTS, row[FAMILIES.keys :], strict=True)}
