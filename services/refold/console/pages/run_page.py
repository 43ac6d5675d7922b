"""The page of a run: its activity, questions, timeline, and state at any event."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi import Query as Asked
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.client.operations import run as operations
from refold.client.operations.operation import OperationRow
from refold.client.operations.run import By, Changes, Settlement
from refold.client.reading.api import LARGEST_NUMBER, ApiBody
from refold.client.reading.diff import run_diff
from refold.client.reading.history import Run, at_seqs
from refold.client.reading.member import AgentServed
from refold.client.reading.model import json_text
from refold.client.reading.run import event_at, events_of, exposed_values, first_request, info_of
from refold.client.reading.steps import Ask, CallAttempt, RunStep
from refold.client.reading.why import Why, entry_with, why
from refold.client.values import texts_of
from refold.console.gateway.reading import number_of, summary_of
from refold.console.gateway.routes.inputs import refuse_effects
from refold.console.gateway.routes.lists import served_of
from refold.console.gateway.site import DEFAULT_WAIT_S, Gateway, Seq, Site
from refold.console.pages import wording
from refold.console.pages.chart import UNFINISHED, Below, chart_of, step_kind
from refold.console.pages.fork_pages import fork_from
from refold.console.pages.panel import MOST_LINES, EventPanel, changes_of, conversation, record_of, saw_model
from refold.console.pages.questions import PageQuestion, informed, open_questions
from refold.console.pages.rendering import form_of, html_page, one_of
from refold.console.projections.runs import ViewedRuns
from refold.console.projections.shipped.tables import FAMILIES, HOLDS, RUNS, STEPS
from refold.core.errors import ConflictError, MalformedError, UnreachableError
from refold.core.events import Event
from refold.core.ids import (
    RunId,
    child_id,
    is_below,
    next_generation,
    parent_of,
    parents_of,
    parse_call_id,
    root_of,
    run_id,
)
from refold.core.messages import Hold
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.engine.ports.tables import MOST_PAGE, Query, ViewReader, Where

BUTTONS = ("cancel", PAUSE, RESUME, "retry")
EVENT_NAMES = [kind.__name__ for kind in get_args(Event)]
MOST_CAUSES = 30
"""Links back to the request in one panel."""
MOST_PANELS = 6
"""Events that are open beside each other."""
MOST_BELOW = 1_000
"""Steps of descendants that are read for a page."""
MOST_ASKING = 5
"""Descendants whose questions are on the page."""
NOT_AGAIN = ("stored", "probed", "late")
"""Answers of calls that were not executed again."""


class ShownOfRun(ApiBody):
    """Query of a run's page. `part`: without rows, which the requesting page has."""

    at: int = Field(0, ge=0, le=LARGEST_NUMBER)
    seq: list[Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]] = Field(default_factory=list, max_length=100)
    show: str = Field("", max_length=20)
    do: str = Field("", max_length=20)
    other: int = Field(0, ge=0, le=LARGEST_NUMBER, alias="with")
    opened: list[Annotated[str, Field(max_length=300)]] = Field(default_factory=list, max_length=200, alias="open")
    part: bool = False


def run_pages(site: APIRouter) -> None:
    @site.get("/runs/{run}", response_class=HTMLResponse)
    def run_page(shared: Site, run: str, request: Request, query: Annotated[ShownOfRun, Asked()]) -> HTMLResponse:
        with shared.view_of(run, "") as view:
            history = shared.reading.run(view, run)
            name = history.state.run_id  # of the latest generation
            history.stall(_hold_of(view, name))
            last, texts = history.state.head.seq, texts_of(name, shared.blobs)
            at, seqs = min(query.at or last, last), [seq for seq in dict.fromkeys(query.seq) if 1 <= seq <= last]
            summary = view.rows(RUNS, [(name,)]).get((name,))
            opened = list(dict.fromkeys(query.opened))
            below = _descendants(view, history, frozenset({*opened, *map(str, seqs)}))
            questions = _questions_of_family(shared, view, history, below, now=at == last)
            family = view.rows(FAMILIES, [(name, 0)]).get((name, 0))
            reasons = {seq: why(history, seq, ViewedRuns(view).find, most=MOST_CAUSES) for seq in seqs[:MOST_PANELS]}
        seqs, other = seqs[:MOST_PANELS], min(query.other, last)
        beside = {place for seq in seqs for place in (seq - 1, seq)}
        live = all((at == last, not shared.writing.deaf))  # a Kafka that hangs would hold back each page for 20 s
        history.mark(shared.platform.idle_pools, now=live)
        points, now_ms = _runs_at(history, {at, *beside, other} - {0}), int(time.time() * 1000)
        info, actions = info_of(history), _offered_actions(shared, history)
        chosen = {"at": at % last, "seq": seqs, "show": query.show, "with": other, "open": opened}
        base, prefix = str(request.base_url).rstrip("/"), shared.platform.settings.kafka.prefix
        lines = conversation(points[at], texts) if query.show == "conversation" else []
        return html_page(
            "run.html",
            shared,
            place="/",
            info=info,
            above=parents_of(name),
            title=name,
            words=actions,
            doing=query.do if query.do in actions else "",
            parent=parent_of(name),
            following=next_generation(name) * (info.status == "continued"),
            **_waits_of_run(shared, history, informed(shared, questions), now=live),
            summary=summary_of(summary) if summary else None,
            last=last,
            at=at,
            then=points[at].state,
            exposed=exposed_values(points[at].state.values.items()),
            then_open=[step for step in points[at].timeline.steps if step.status in UNFINISHED][:6],
            link=partial(_page_link, run, chosen),
            opens=lambda name: [place for place in opened if place != name] if name in opened else [*opened, name],
            below=below.runs,
            family=FAMILIES.named(family) if family else None,
            toggled=lambda seq: [place for place in seqs if place != seq] if seq in seqs else [seq, *seqs],
            words_of=wording,
            now_ms=now_ms,
            types=" ".join(EVENT_NAMES),
            part=query.part,
            fork_from=fork_from(history, at),
            **({} if query.part else _timeline_values(history, query.show, now_ms, below)),
            pick=_panel_links(partial(_page_link, run, chosen), seqs),
            seqs=seqs,
            show=query.show,
            said=lines[-MOST_LINES:],
            unsaid=len(lines) - MOST_LINES,
            panels=list(_panels(history, points, reasons, texts, (prefix, base))),
            other=other,
            differs=changes_of(run_diff(points[min(at, other)], points[max(at, other)])) if other else [],
        )

    @site.get("/runs/{run}/records/{seq}")
    def record_file(shared: Site, run: str, seq: Seq) -> Response:
        with shared.view_of(run, "") as view:
            judged, _ = entry_with(shared.reading.run(view, run), seq)
        headers = {"Content-Disposition": f'attachment; filename="{RUN_LOG}-{judged.record.offset}.avro"'}
        return Response(judged.record.value or b"", media_type="application/octet-stream", headers=headers)

    @site.post("/runs/{run}/{word}", response_class=HTMLResponse)
    async def run_form(shared: Site, run: str, word: str, request: Request) -> Response:
        if word not in BUTTONS:
            raise MalformedError(f"{word[:40]!r} is nothing that a run can be told")
        fields = await form_of(request, shared)
        build = partial(_operation_of, shared, word, fields)

        def perform() -> None:
            history = shared.writing.get(run_id(run))
            # Only the log has the reason of a stall.
            if word == "retry" and not history.state.over:
                shared.writing.perform_by_log(run, build, DEFAULT_WAIT_S)
            else:
                shared.writing.perform(build(history), DEFAULT_WAIT_S)

        await run_in_threadpool(perform)
        return RedirectResponse(f"/runs/{run}", 303)

    @site.post("/calls/{call:path}/settle", response_class=HTMLResponse)
    async def settle_form(shared: Site, call: str, request: Request) -> Response:
        fields = await form_of(request, shared)
        verdict = one_of(fields, "verdict", ("did_not_happen", "happened", "give_up"))
        result = canonical.parse(fields["result"]) if verdict == "happened" and fields.get("result") else None
        settled = Settlement(verdict, result, fields.get("message", ""))
        await run_in_threadpool(shared.writing.settle, call, settled, shared.actor, DEFAULT_WAIT_S)
        return RedirectResponse(f"/runs/{parse_call_id(call)[0]}", 303)


def _operation_of(shared: Gateway, action: str, fields: Mapping[str, str], run: Run) -> OperationRow:
    if action != "retry":
        return operations.word(run.state, action, By(shared.actor, fields.get("reason", ""), sign=shared.sign))
    if not run.state.over:
        return operations.retry_code(run, shared.actor)
    changes = _changes_in(run, fields)
    if changes.from_step and "repeat" not in fields:
        refuse_effects(operations.left_behind(run.state, changes.from_step))
    return operations.redrive(run.state, shared.actor, changes)


def _changes_in(run: Run, fields: Mapping[str, str]) -> Changes:
    step = number_of(fields.get("from", "0")) or 0
    edit = canonical.parse(fields["args"]) if step and fields.get("args") else None
    if not 1 <= step <= len(run.state.steps) or edit == json_text(run.timeline.steps[step - 1].args):
        edit = None
    return Changes(from_step=step, edit="" if edit is None else canonical.dumps(edit), reason=fields.get("reason", ""))


def _hold_of(view: ViewReader, run: str) -> Hold | None:
    row = view.rows(HOLDS, [(run,)]).get((run,))
    return Hold(**HOLDS.named(row)) if row else None


def _serving(shared: Gateway, agent: str) -> list[AgentServed]:
    with suppress(UnreachableError):
        return [row for row in served_of(shared).agents if row.agent == agent]
    return []


def _page_link(run: str, chosen: Mapping[str, object], **changes: object) -> str:
    filled = {name: value for name, value in {**chosen, **changes}.items() if value}
    return f"?{urlencode(filled, doseq=True)}" if filled else f"/runs/{run}"


def _panel_links(link: Callable[..., str], seqs: list[int]) -> Callable[[int], str]:
    """Return a function of links that open or close an event's panel: from one template, as a page has thousands."""
    before, after = link(seq=[0]).split("seq=0", 1)
    others = "".join(f"&seq={place}" for place in seqs)

    def pick(seq: int) -> str:
        if seq in seqs:
            return link(seq=[place for place in seqs if place != seq])
        return f"{before}seq={seq}{others}{after}"

    return pick


def _panels(
    run: Run, points: Mapping[int, Run], reasons: Mapping[int, Why], texts: Any, at: tuple[str, str]
) -> Iterator[EventPanel]:
    """Yield panels of the open events; `at` is the topics' prefix and the gateway's address."""
    for seq, because in reasons.items():
        if (event := event_at(run, seq)) is not None:
            changes = changes_of(run_diff(points[seq - 1], points[seq])) if seq > 1 else []
            yield EventPanel(event, changes, because, record_of(run, event, *at), *saw_model(run, event, texts))


def _waits_of_run(shared: Gateway, run: Run, questions: list[PageQuestion], *, now: bool) -> dict[str, Any]:
    agent = first_request(run).agent
    return {
        "asked": questions,
        "settles": shared.may_write("settle_form"),
        "asks": len(run.timeline.asking),
        "held": [] if run.state.over else run.timeline.in_status("held"),
        "serving": _serving(shared, agent) if run.status == "stalled" and now else [],
        "without_topics": shared.platform.without_topics(run.state) if now else [],
        "left": partial(operations.left_behind, run.state),
        "behind": shared.writing.behind_s,
    }


def _questions_of_family(shared: Gateway, view: ViewReader, run: Run, below: Below, *, now: bool) -> list[PageQuestion]:
    """Return open questions of a run and its first descendants; empty unless `now`."""
    if not now:
        return []
    waiting = (row.run_id for row in below.runs.values() if row.waiting_for_people or row.doubt)
    runs = [shared.reading.run(view, child) for child in islice(waiting, MOST_ASKING)]
    children = [question for child in runs for question in open_questions(view, child, child=True)]
    return open_questions(view, run) + children


def _descendants(view: ViewReader, run: Run, opened: frozenset[str]) -> Below:
    name = run.state.run_id
    if not run.state.children:
        return Below({}, {}, opened)
    rows = view.query(Query(RUNS, (Where("root", "=", root_of(name)),), limit=MOST_PAGE))
    runs = {row.run_id: row for row in map(summary_of, rows) if row.run_id != name and is_below(row.run_id, name)}
    steps, left = dict[str, list[tuple[int, RunStep]]](), MOST_BELOW
    for child in sorted(runs, key=lambda run_name: (run_name not in opened, runs[run_name].requested_ms)):
        if left <= 0:
            break
        steps[child] = [_step_from_row(STEPS.named(row)) for row in islice(view.rows_of(STEPS, RunId(child)), left)]
        left -= len(steps[child])
    return Below(runs, steps, opened)


def _step_from_row(row: Mapping[str, Any]) -> tuple[int, RunStep]:
    tried = CallAttempt(
        number=row["attempt"], started_ms=row["sent_ms"], ended_ms=row["ended_ms"], status=row["status"]
    )
    name, step, call = RunId(row["run_id"]), row["step"], row["kind"] == "call"
    about = {field: row[field] for field in ("step", "kind", "name", "status", "effect", "label")}
    begun = {"started_ms": row["started_ms"], "ended_ms": row["ended_ms"], "call_id": row["call_id"]}
    since = row["sent_ms"] or row["ended_ms"]
    ask = Ask(approval_id=row["approval_id"], rule="", approvers=[], quorum=0, message="", asked_ms=row["started_ms"])
    return row["seq"], RunStep(
        **about,
        **begun,
        attempts=[tried] * row["attempts"] if call and row["sent_ms"] else [],
        approvals=[ask.model_copy(update={"ended_ms": since})] if row["approvals"] else [],
        runs=[child_id(name, step)] if row["kind"] == "run" else [],
    )


def _timeline_values(run: Run, show: str, now_ms: int, below: Below) -> dict[str, Any]:
    steps = run.timeline.steps
    return {
        "chart": chart_of(run, now_ms, below),
        "events": events_of(run) if show == "events" else [],
        "over": sum(step.status not in UNFINISHED for step in steps),
        "model_calls": sum(step_kind(step) == "model" for step in steps),
        "avoided": sum(step.how in NOT_AGAIN for step in steps),
    }


def _runs_at(run: Run, seqs: set[int]) -> dict[int, Run]:
    earlier = sorted(seqs - {run.state.head.seq})
    return {run.state.head.seq: run, **dict(zip(earlier, at_seqs(run, earlier), strict=True))}


def _offered_actions(shared: Gateway, run: Run) -> list[str]:
    """Return the buttons that state and role allow, the way out first."""
    if shared.archived or not shared.may_write("run_form"):
        return []
    actions = ["retry"]
    if not run.state.over:
        actions += ["cancel"] if run.status == "stalled" else [RESUME if run.timeline.pauses else PAUSE, "cancel"]
    offered = []
    for action in actions:
        with suppress(ConflictError):
            _operation_of(shared, action, {}, run)
            offered.append(action)
    return offered
