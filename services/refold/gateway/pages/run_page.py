"""The page of a run: what it does, what it asks people, its timeline, and its state at any event."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from refold.core.errors import MalformedError
from refold.core.events import Event
from refold.core.ids import parent_of, run_id
from refold.core.planning.pausing import PAUSE, RESUME
from refold.gateway.pages.chart import LIVE, chart_of
from refold.gateway.pages.forms import form_of
from refold.gateway.pages.rendering import page
from refold.gateway.pages.wording import brief, diff_of, name_of
from refold.gateway.reading import summary_of
from refold.gateway.site import DEFAULT_WAIT_S, Site
from refold.operations import run as operations
from refold.operations.operation import OperationRow
from refold.operations.run import By, Changes
from refold.projections.shipped.tables import RUNS
from refold.views.api import LARGEST_NUMBER
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
AVOIDED = ("stored", "probed", "late")
"""How calls were answered that were not executed again."""


def run_pages(site: APIRouter) -> None:
    """Add the page and its forms."""

    @site.get("/runs/{run}", response_class=HTMLResponse)
    def run_page(
        shared: Site,
        run: str,
        request: Request,
        at: Annotated[int, Query(ge=0, le=LARGEST_NUMBER)] = 0,
        seq: Annotated[int, Query(ge=0, le=LARGEST_NUMBER)] = 0,
        show: Annotated[str, Query(max_length=20)] = "",
        do: Annotated[str, Query(max_length=20)] = "",
        after: Annotated[str, Query(max_length=200)] = "",
    ) -> HTMLResponse:
        """A run whole, as it is now or after an event."""
        with shared.view(after) as view:
            found = shared.reading.run(view, run)
            summary = view.rows(RUNS, [(run,)]).get((run,))
        last, now_ms = found.state.head.seq, int(time.time() * 1000)
        at = min(at or last, last)
        then = found if at == last else at_seq(found, at)
        info, words = info_of(found), _words(found)
        chart = chart_of(found, now_ms)
        asked = [(step, step.asked) for step in found.timeline.asking]
        chosen = {
            name: value for name, value in (("at", at % last if last else 0), ("seq", seq), ("show", show)) if value
        }

        def link(**changes: object) -> str:
            told = {name: value for name, value in {**chosen, **changes}.items() if value}
            return f"?{urlencode(told)}" if told else f"/runs/{run}"

        return page(
            "run.html",
            shared,
            place="/",
            info=info,
            above=_above(run),
            title=_title(found, asked),
            words=words,
            doing=do if do in words else "",
            says_of=SAYS,
            chart=chart,
            legend=LEGEND,
            asked=asked,
            over=sum(step.status not in LIVE for step in info.timeline),
            model_calls=sum(row.kind == "model" for row in chart.rows),
            avoided=sum(step.how in AVOIDED for step in info.timeline),
            summary=summary_of(summary) if summary else None,
            last=last,
            at=at,
            then=then.state,
            then_open=[step for step in then.timeline.steps if step.status in LIVE][:6],
            seq=seq,
            show=show,
            events=events_of(found) if show == "events" else [],
            event=next((each for each in events_of(found, seq - 1) if each.seq == seq), None) if seq else None,
            changes=_changes(found, seq) if 1 <= seq <= last else [],
            link=link,
            brief=brief,
            name_of=name_of,
            diff_of=diff_of,
            now_ms=now_ms,
            types=" ".join(EVENT_NAMES),
            base=str(request.base_url).rstrip("/"),
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


def _title(run: Run, asked: Sequence[object]) -> str:
    """A line that tells a run from others."""
    if run.state.over and run.state.end is not None and getattr(run.state.end, "failure", None):
        return f"{run.state.run_id} failed"
    if run.timeline.in_doubt:
        return f"{run.state.run_id} needs the outcome of a call"
    if asked:
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
