"""A fork as a page: its changes as a form, and its report with both timelines side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi import Query as Asked
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from refold.client.forking import forked_run, stubs_of
from refold.client.policies import load_text
from refold.core.errors import FoldError, MalformedError, UsageError
from refold.core.wire import canonical
from refold.forks.report import ForkReport
from refold.gateway.forking import FORK_S
from refold.gateway.pages import wording
from refold.gateway.pages.chart import begun_at, step_kind
from refold.gateway.pages.forms import form_of
from refold.gateway.pages.rendering import html_page, seen
from refold.gateway.pages.screen import SCREEN, AskField, AskForm, Cell, Grid, Passage, grid_of
from refold.gateway.rates import BusyError
from refold.gateway.reading import number_of
from refold.gateway.roles import role_of
from refold.gateway.routes.forks import fork_of, known_policies
from refold.gateway.site import Gateway, Site
from refold.views.api import LARGEST_NUMBER, ApiBody, ForkBody
from refold.views.history import Run, at_seq
from refold.views.steps import RunStep

AS_RECORDED, NO_CALL, OWN_POLICY = "as recorded", "none", "the run's own"
VERDICTS = (AS_RECORDED, "approve", "reject", "edit", "answer")
MOST_OFFERED = 100
"""Calls that a form offers; of them at most `MOST_ASKED` questions."""
MOST_ASKED = 10
MOST_RUNS = 20
"""Runs of a fork whose timelines are shown."""
MOST_ROWS = 400
"""Rows of a timeline; the JSON has all."""
LEAST_EQUAL = 6
"""Equal rows behind each other that become a count."""


class ShownFork(ApiBody):
    """The event that a fork begins from."""

    at: int = Field(0, ge=0, le=LARGEST_NUMBER)


class ForkedStep(NamedTuple):
    """A row of both timelines: a step of the run, of the fork, or of both. `word` is the difference, `seq` its event.

    `equal` counts the rows that one stands for.
    """

    before: RunStep | None
    after: RunStep | None
    word: str
    seq: int = 0
    equal: int = 0


class BothTimelines(NamedTuple):
    """A run and its fork, step by step. `left` counts rows that are not shown; `problem`: why there are none."""

    run: str
    rows: Sequence[ForkedStep] = ()
    left: int = 0
    problem: str = ""


class ForkShown(NamedTuple):
    """A report with its timelines. `linked`: its rows lead to the pages of the run."""

    report: ForkReport
    timelines: Sequence[BothTimelines]
    linked: bool = True
    words: Any = wording
    kind_of: Any = step_kind
    part: str = "fork"


def fork_pages(site: APIRouter) -> None:
    """Add the page with its form."""

    @site.get("/runs/{run}/fork", response_class=HTMLResponse)
    def fork_page(shared: Site, run: str, wanted: Annotated[ShownFork, Asked()]) -> HTMLResponse:
        """The changes of a fork as a form; without an app, or the role, the command that forks."""
        return _page(shared, run, {"at": str(wanted.at)})

    @site.post("/runs/{run}/fork", response_class=HTMLResponse)
    async def fork_form(shared: Site, run: str, request: Request) -> HTMLResponse:
        """Fork a run and show what came of it. Nothing is written."""
        fields = await form_of(request, shared)

        def forked() -> HTMLResponse:
            try:
                family, report = fork_of(shared, run, _body(shared, fields))
            except (UsageError, MalformedError, BusyError) as error:
                status = 429 if isinstance(error, BusyError) else 422
                refused = Passage("refused", "Nothing was forked", error.message, note=error.hint or "")
                return _page(shared, run, fields, status, [refused])
            return _page(shared, run, fields, parts=[*fork_parts(family, report)], report=report)

        return await run_in_threadpool(forked)


def _page(
    shared: Gateway,
    run: str,
    fields: Mapping[str, str],
    status: int = 200,
    parts: Sequence[object] = (),
    report: ForkReport | None = None,
) -> HTMLResponse:
    with shared.view_of(run, "") as view:
        found = shared.reading.run(view, run)
    at = number_of(fields.get("at", "")) or 0
    may = shared.login is None or shared.login.may(role_of("fork_form", ["POST"]))
    form = _form(shared, found, fields, at) if shared.forks.app and may else _command(shared, run, at, may=may)
    return html_page(
        SCREEN,
        shared,
        status,
        place="/",
        title=f"Fork of {run}",
        heading=f"Fork of {run} from event {at}",
        lead=""
        if report
        else "The code of today goes on from an event, where nothing can happen. The log answers its "
        "calls; the first call that the log does not have ends the fork, and you see what would have been fired.",
        actions=[("Back to the run", f"/runs/{run}?at={at}" if at else f"/runs/{run}")],
        parts=[*parts, form],
    )


def _command(shared: Gateway, run: str, at: int, *, may: bool) -> Passage:
    why = "this gateway has no code: it was started without --app" if may else "forks on this page need an operator"
    app = shared.forks.app or "MODULE:APP"
    command = shlex.join(["refold", "run", "fork", run, "--at", str(at), "--app", app])
    return Passage("command", "Fork it where its code is", command, note=why)


def _form(shared: Gateway, run: Run, fields: Mapping[str, str], at: int) -> AskForm:
    """The changes that a fork of this run may have from an event on."""
    cut = max((each.entry.last_seq for each in run.records if each.entry and each.entry.last_seq <= at), default=0)
    decided = at_seq(run, cut).state.outcomes if cut else {}
    open_calls = [step for step in run.timeline.steps if step.kind == "call" and step.step not in decided]
    seqs, calls = dict(begun_at(run)), [NO_CALL, *(_call(step) for step in open_calls[:MOST_OFFERED])]
    ahead = [NO_CALL, *(_call(step) for step in open_calls if seqs.get(step.step, 0) > cut)][: MOST_OFFERED + 1]
    people = [step for step in open_calls if any(not ask.about for ask in step.approvals)][:MOST_ASKED]

    def field(name: str, label: str, kind: str = "text", choices: Sequence[str] = (), value: str = "") -> AskField:
        return AskField(name, label, kind, fields.get(name, value or (choices[0] if choices else "")), choices)

    kept = f"events 1 to {cut} are kept" if cut else "no event is kept, the run begins anew"
    asked = [
        each
        for step in people
        for each in (
            field(f"decide:{step.call_id}", f"People say of {_call(step)}", "pick", VERDICTS),
            field(f"words:{step.call_id}", "Their reason, or with edit and answer JSON"),
        )
    ]
    own = [
        field("at", f"From event; {kept}"),
        field("policy", "Policy that judges it", "pick", (OWN_POLICY, *known_policies(shared))),
    ]
    of_calls = [
        field("edit", "Call with other arguments", "pick", ahead),
        field("args", "Its arguments, as JSON", "area"),
        field("given", "Call with another result", "pick", calls),
        field("result", "Its result, as JSON", "area"),
    ]
    more = [
        field("input", "Another input, as JSON", "area") if not cut else AskField("input", "", "hidden"),
        field("draft", "Another policy, as YAML or JSON", "area"),
        field("stubs", "Results by tool where the log has none, `tool: result` a line", "area"),
        field("model", "Another model of its agents of pydantic-ai"),
    ]
    says = (
        f"Nothing is written, and nothing can be fired. It takes {FORK_S:g} s at most. Models are asked by the command "
        "alone, refold run fork --allow-pure, under a budget."
    )
    title = "Fork it once more" if "draft" in fields else "What is otherwise?"
    return AskForm("fork", title, f"/runs/{run.state.run_id}/fork", [*own, *asked, *of_calls, *more], "Fork", says)


def _call(step: RunStep) -> str:
    return f"{step.step} {seen(f'{wording.name_of(step)} {wording.brief(step)}', 60)}"


def _body(shared: Gateway, fields: Mapping[str, str]) -> ForkBody:
    """The changes in a form. **Raises** MalformedError, UsageError."""
    at = number_of(fields.get("at", "").strip() or "0")
    if at is None or at > LARGEST_NUMBER:
        raise MalformedError(f"{fields['at'][:40]!r} is no event", hint="write its number")
    found: dict[str, Any] = {"at": at, "model": fields.get("model", "").strip()}
    for pick, name, many in (("edit", "args", "edits"), ("given", "result", "results")):
        step, text = number_of(fields.get(pick, "").partition(" ")[0]), fields.get(name, "").strip()
        if text and not step:
            raise MalformedError(f"the form has {name}, and no call that they are of", hint="choose the call")
        found[many] = {step: canonical.parse(text)} if step else {}
    if text := fields.get("input", "").strip():
        found["input"] = canonical.parse(text)
    found["stubs"] = {tool: canonical.parse(text) for tool, text in stubs_of(fields.get("stubs", ""), "stubs").items()}
    found["decisions"] = {
        name.partition(":")[2]: f"{said}:{fields.get(name.replace('decide', 'words', 1), '')}".removesuffix(":")
        for name, said in fields.items()
        if name.startswith("decide:") and said != AS_RECORDED
    }
    digest = fields.get("policy", OWN_POLICY)
    if text := fields.get("draft", "").strip():
        found["policy"] = load_text(text, "the policy", aliases=False)
    elif digest != OWN_POLICY:
        if (policy := known_policies(shared).get(digest)) is None:
            raise MalformedError(f"the catalog has no policy {digest[:80]}", hint="/policies has all")
        found["policy"] = policy.content
    return ForkBody(**found)


def fork_parts(family: Sequence[Run], report: ForkReport, *, linked: bool = True) -> Iterator[object]:
    """The parts of a page about a fork."""
    names = list(dict.fromkeys((report.run_id, *sorted({*report.kept, *report.rows}))))[:MOST_RUNS]
    timelines = [_both(family, report, name) for name in names if report.kept or report.rows]
    yield ForkShown(report, timelines, linked)
    if report.calls:
        yield grid_of(
            "calls",
            "Calls of one side alone, or with other arguments",
            report.calls[:MOST_ROWS],
            "Change text change; Step; Tool; Was; Is",
            {
                "Step": lambda row: Cell(f"{row.run_id} step {row.after or row.before}"),
                "Tool": lambda row: Cell(wording.called_name(row.tool)),
                "Was": lambda row: Cell(_line(row.were) if row.before else "none", "code"),
                "Is": lambda row: Cell(_line(row.args) if row.after else "none", "code"),
            },
        )
    if report.judgements:
        yield grid_of(
            "judged",
            "Judged otherwise",
            report.judgements[:MOST_ROWS],
            "Step; Tool; Was text before; Is text after; Rule text rule",
            {
                "Step": lambda row: Cell(f"{row.run_id} step {row.step}"),
                "Tool": lambda row: Cell(wording.called_name(row.tool)),
            },
        )
    if report.refused:
        rows = [[Cell(what, "code"), Cell(times, "num")] for what, times in report.refused.items()]
        yield Grid("refused", "What the app wanted to do, and was refused", ("Python's name", "Times"), rows, "")
    for side, status, result in zip(("the run", "the fork"), report.status, report.result, strict=True):
        if report.verdict == "other":
            yield Passage(f"end-{side[4:]}", f"End of {side}: {status}", wording.json_lines(result))


def _line(value: Any) -> str:
    return " ".join(wording.json_lines(value)[:1_000].split())


def _both(family: Sequence[Run], report: ForkReport, name: str) -> BothTimelines:
    """Both timelines of a run, aligned by the steps that they share."""
    source = next((run for run in family if run.state.run_id == name), None)
    try:
        fork = forked_run(family, report, name)
    except (MalformedError, FoldError) as error:
        return BothTimelines(name, problem=error.message)
    kept = [each.entry.last_seq for each in fork.records if each.entry and each.record.partition >= 0]
    rows = [*_rows(source, fork, report, max(kept, default=0))]
    shown: list[ForkedStep] = []
    equal: list[ForkedStep] = []
    for row in (*rows, None):
        if row is not None and row.word in ("kept", "same") and (not equal or equal[0].word == row.word):
            equal.append(row)
            continue
        few = len(equal) < LEAST_EQUAL
        shown += equal if few else [equal[0], equal[1]._replace(equal=len(equal) - 2), equal[-1]]
        equal = [row] if row is not None and row.word in ("kept", "same") else []
        shown += [row] if row is not None and not equal else []
    return BothTimelines(name, shown[:MOST_ROWS], max(0, len(shown) - MOST_ROWS))


def _rows(source: Run | None, fork: Run, report: ForkReport, cut: int) -> Iterator[ForkedStep]:
    """The steps of both sides in order; a step of one side alone stands where it came."""
    name = fork.state.run_id
    mine = [call for call in report.calls if call.run_id == name]
    changed = {call.after: call.before for call in mine if call.change == "changed"}
    stopped = {want.step for want in report.stopped if want.run_id == name}
    judged = {other.step for other in report.judgements if other.run_id == name}
    before = {step.step: step for step in source.timeline.steps} if source else {}
    seqs = dict(begun_at(source)) if source else {}
    found = dict(enumerate(report.steps.get(name, ()), 1))
    partners = {step.step: changed.get(step.step) or found.get(step.step) or 0 for step in fork.timeline.steps}
    rest = [number for number in before if number not in set(partners.values())]

    def alone(number: int) -> ForkedStep:
        over = fork.state.over or report.verdict == "same"
        return ForkedStep(before[number], None, "left out" if over else "not reached", seqs.get(number, 0))

    for step in fork.timeline.steps:
        then = before.get(partners[step.step])
        while then and rest and rest[0] < then.step:
            yield alone(rest.pop(0))
        seq = seqs.get(then.step, 0) if then else 0
        word = "kept" if then and 0 < seq <= cut else "same"
        if step.step in stopped:
            word = "stops here"
        elif then is None:
            word = "added"
        elif step.step in changed:
            word = "changed"
        elif step.step in judged:
            word = "judged otherwise"
        elif (then.status, then.result, then.failure) != (step.status, step.result, step.failure):
            word = "another outcome"
        yield ForkedStep(then, step, word, seq)
    yield from map(alone, rest)
