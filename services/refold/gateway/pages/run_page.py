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
from refold.core.ids import parents_of, run_id
from refold.core.planning.pausing import PAUSE, RESUME
from refold.gateway.pages import wording
from refold.gateway.pages.chart import UNFINISHED, Chart, chart_of
from refold.gateway.pages.forms import form_of
from refold.gateway.pages.questions import open_questions
from refold.gateway.pages.rendering import html_page
from refold.gateway.reading import summary_of
from refold.gateway.site import DEFAULT_WAIT_S, Site
from refold.operations import run as operations
from refold.operations.operation import OperationRow
from refold.operations.run import By, Changes
from refold.projections.shipped.tables import RUNS
from refold.views.api import LARGEST_NUMBER, ApiBody
from refold.views.diff import run_diff
from refold.views.history import Run, at_seqs
from refold.views.run import event_at, events_of, info_of
from refold.views.words import with_ellipsis

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
MOST_CHANGED = 120
"""Characters of a value that an event has changed."""
NOT_AGAIN = ("stored", "probed", "late")
"""Ways in which calls were answered that were not executed again."""


class ShownOfRun(ApiBody):
    """The part of a run that is shown: its state after an event, an event beside it, and all events or steps."""

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
            summary, asked = view.rows(RUNS, [(run,)]).get((run,)), open_questions(view, found)
        last, now_ms = found.state.head.seq, int(time.time() * 1000)
        at, seq = min(wanted.at or last, last), wanted.seq
        points = _points(found, {at, *(range(max(1, seq - 1), seq + 1) if seq <= last else ())})
        words, chart = _words(found), chart_of(found, now_ms)
        chosen = {"at": 0 if at == last else at, "seq": seq, "show": wanted.show}
        return html_page(
            "run.html",
            shared,
            place="/",
            info=info_of(found),
            above=parents_of(run),
            title=_title(found),
            words=words,
            doing=wanted.do if wanted.do in words else "",
            says_of=SAYS,
            legend=LEGEND,
            asked=asked,
            summary=summary_of(summary) if summary else None,
            last=last,
            at=at,
            then=points[at].state,
            then_open=[step for step in points[at].timeline.steps if step.status in UNFINISHED][:6],
            link=partial(_link, run, chosen),
            words_of=wording,
            now_ms=now_ms,
            types=" ".join(EVENT_NAMES),
            base=str(request.base_url).rstrip("/"),
            **_counts(chart),
            seq=seq,
            show=wanted.show,
            events=events_of(found) if wanted.show == "events" else [],
            event=event_at(found, seq),
            changes=_changes(points[seq - 1], points[seq]) if 1 < seq <= last else [],
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

        await run_in_threadpool(lambda: shared.writing.perform(build(shared.writing.get(run_id(run))), DEFAULT_WAIT_S))
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


def _points(run: Run, seqs: set[int]) -> dict[int, Run]:
    """The run as it was after each of these events; as it is now after its last one, which needs no fold."""
    earlier = sorted(seqs - {run.state.head.seq})
    return {run.state.head.seq: run, **dict(zip(earlier, at_seqs(run, earlier), strict=True))}


def _words(run: Run) -> list[str]:
    """Words that the run can be told, in order."""
    if run.state.over:
        return ["retry"] if run.state.status == "failed" else []
    return [RESUME if run.timeline.pauses else PAUSE, "cancel"]


def _title(run: Run) -> str:
    """A line that tells a run from others."""
    if run.state.over and run.state.end is not None and getattr(run.state.end, "failure", None):
        return f"{run.state.run_id} failed"
    if run.timeline.in_doubt:
        return f"{run.state.run_id} needs the outcome of a call"
    if run.timeline.asking:
        return f"{run.state.run_id} waits for people"
    return run.state.says or str(run.state.run_id)


def _changes(before: Run, then: Run) -> list[tuple[str, str]]:
    """Changes by an event, by name: its value before and then."""
    diff = run_diff(before, then)
    found = [(each.name, f"{_short(each.left)} → {_short(each.right)}") for each in diff.fields]
    for step in diff.steps:
        if step.change == "changed":
            for each in step.fields:
                found.append((f"step {step.right} {each.name}", f"{_short(each.left)} → {_short(each.right)}"))
        else:
            found.append((f"step {step.right or step.left}", f"{step.name} {step.change}"))
    return found


def _short(value: object) -> str:
    return with_ellipsis(str(value) if value not in (None, "", [], {}) else "nothing", MOST_CHANGED)
