"""The page of a run: what it does, what it asks people, its timeline, and its state at any event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.core.errors import MalformedError
from refold.core.events import Event
from refold.core.ids import parent_of, run_id
from refold.core.planning.pausing import PAUSE, RESUME
from refold.gateway.pages import wording
from refold.gateway.pages.chart import UNFINISHED, Chart, chart_of
from refold.gateway.pages.forms import form_of
from refold.gateway.pages.rendering import html_page
from refold.gateway.reading import summary_of
from refold.gateway.site import DEFAULT_WAIT_S, Site
from refold.operations import run as operations
from refold.operations.operation import OperationRow
from refold.operations.run import By, Changes
from refold.projections.shipped.tables import RUNS
from refold.views.api import LARGEST_NUMBER, ApiBody
from refold.views.diff import run_diff
from refold.views.history import Run, at_seq
from refold.views.run import events_of, info_of

LEGEND = (
    ("model", "model"),
    ("tool", "tool"),
    ("child", "agent in a run of its own"),
    ("wait", "waits for people or time"),
    ("bad", "failed or unknown"),
    ("fold", "folded: nothing worked"),
)
SAYS = {
    "cancel": "The run and the runs that it has started end as soon as they can. Calls that are under way are not "
    "taken back; no further call goes out.",
    PAUSE: "The run and the runs that it has started propose no further calls until they are resumed. Calls that are "
    "under way end.",
    RESUME: "The run goes on where it was paused.",
    "retry": "The failed run goes on where it failed. Finished calls keep their outcome and do not go out again; the "
    "call that failed goes out again under a new id.",
}
EVENT_NAMES = [kind.__name__ for kind in get_args(Event)]
NOT_AGAIN = ("stored", "probed", "late")
"""How calls were answered that were not executed again."""


class ShownOfRun(ApiBody):
    """What is shown of a run: its state after an event, an event beside the timeline, and all events or steps."""

    at: int = Field(0, ge=0, le=LARGEST_NUMBER)
    seq: int = Field(0, ge=0, le=LARGEST_NUMBER)
    show: str = Field("", max_length=20)
    do: str = Field("", max_length=20)


def run_pages(site: APIRouter) -> None:
    """Add the page and its forms."""

    @site.get("/runs/{run}", response_class=HTMLResponse)
    def run_page(shared: Site, run: str, request: Request, wanted: Annotated[ShownOfRun, Query()]) -> HTMLResponse:
        """A run whole, as it is now or after an event."""
        with shared.view("") as view:
            found = shared.reading.run(view, run)
            summary = view.rows(RUNS, [(run,)]).get((run,))
        last, now_ms = found.state.head.seq, int(time.time() * 1000)
        at = min(wanted.at or last, last)
        then = found if at == last else at_seq(found, at)
        words, chart = _words(found), chart_of(found, now_ms)
        chosen = {"at": 0 if at == last else at, "seq": wanted.seq, "show": wanted.show}
        return html_page(
            "run.html",
            shared,
            place="/",
            info=info_of(found),
            above=_above(run),
            title=_title(found),
            words=words,
            doing=wanted.do if wanted.do in words else "",
            says_of=SAYS,
            legend=LEGEND,
            asked=[(step, step.asked) for step in found.timeline.asking],
            summary=summary_of(summary) if summary else None,
            last=last,
            at=at,
            then=then.state,
            then_open=[step for step in then.timeline.steps if step.status in UNFINISHED][:6],
            link=partial(_link, run, chosen),
            words_of=wording,
            now_ms=now_ms,
            types=" ".join(EVENT_NAMES),
            base=str(request.base_url).rstrip("/"),
            **_counts(chart),
            **_event(found, wanted),
        )

    @site.post("/runs/{run}/{word}", response_class=HTMLResponse)
    async def run_form(shared: Site, run: str, word: str, request: Request) -> Response:
        """Cancel, pause, resume or retry a run, and go back to it."""
        if word not in SAYS:
            raise MalformedError(f"{word[:40]!r} is nothing that a run can be told")
        reason = (await form_of(request, shared)).get("reason", "")

        def build(found: Run) -> OperationRow:
            if word == "retry":
                return operations.redrive(found.state, shared.actor, Changes(reason=reason))
            return operations.word(found.state, word, By(shared.actor, reason, sign=shared.sign))

        perform = lambda: shared.writing.perform(build(shared.writing.get(run_id(run))), DEFAULT_WAIT_S)  # noqa: E731
        await run_in_threadpool(perform)
        return RedirectResponse(f"/runs/{run}", 303)


def _link(run: str, chosen: Mapping[str, object], **changes: object) -> str:
    """The same page with something else chosen."""
    told = {name: value for name, value in {**chosen, **changes}.items() if value}
    return f"?{urlencode(told)}" if told else f"/runs/{run}"


def _counts(chart: Chart) -> dict[str, Any]:
    """The timeline, and how many of its steps are over, are requests to a model, and were not executed again."""
    steps = [row.step for row in chart.rows]
    return {
        "chart": chart,
        "over": sum(step.status not in UNFINISHED for step in steps),
        "model_calls": sum(row.kind == "model" for row in chart.rows),
        "avoided": sum(step.how in NOT_AGAIN for step in steps),
    }


def _event(run: Run, wanted: ShownOfRun) -> dict[str, Any]:
    """The event that is shown beside the timeline, and all events where they are asked for."""
    seq = wanted.seq
    return {
        "seq": seq,
        "show": wanted.show,
        "events": events_of(run) if wanted.show == "events" else [],
        "event": next((each for each in events_of(run, seq - 1) if each.seq == seq), None) if seq else None,
        "changes": _changes(run, seq) if 1 <= seq <= run.state.head.seq else [],
    }


def _words(run: Run) -> list[str]:
    """What the run can be told, in order."""
    if run.state.over:
        return ["retry"] if run.state.status == "failed" else []
    return [RESUME if run.timeline.pauses else PAUSE, "cancel"]


def _above(run: str) -> list[str]:
    """The runs above a run, the root first."""
    found: list[str] = []
    while run:
        run, step = parent_of(run)
        if not step:
            break
        found.insert(0, run)
    return found


def _title(run: Run) -> str:
    """A line that tells a run from others."""
    if run.state.over and run.state.end is not None and getattr(run.state.end, "failure", None):
        return f"{run.state.run_id} failed"
    if run.timeline.in_doubt:
        return f"{run.state.run_id} needs the outcome of a call"
    if run.timeline.asking:
        return f"{run.state.run_id} waits for people"
    return run.state.says or str(run.state.run_id)


def _changes(run: Run, seq: int) -> list[tuple[str, str]]:
    """What an event has changed, by name: its value before and then."""
    if seq == 1:
        return []
    diff = run_diff(at_seq(run, seq - 1), at_seq(run, seq))
    found = [(each.name, f"{_short(each.left)} → {_short(each.right)}") for each in diff.fields]
    for step in diff.steps:
        if step.change == "changed":
            for each in step.fields:
                found.append((f"step {step.right} {each.name}", f"{_short(each.left)} → {_short(each.right)}"))
        else:
            found.append((f"step {step.right or step.left}", f"{step.name} {step.change}"))
    return found


def _short(value: object) -> str:
    text = str(value) if value not in (None, "", [], {}) else "nothing"
    return text if len(text) <= 120 else f"{text[:119]}…"
