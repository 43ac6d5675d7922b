"""A fork as a page: its changes as a form, and its report with both timelines side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi import Query as Asked
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from refold.client.evidence import runs_in
from refold.client.forking import fork_bundle, stubs_of
from refold.client.policies import load_text
from refold.core.errors import FoldError, MalformedError, UsageError
from refold.core.ids import RunId
from refold.core.wire import canonical
from refold.forks.report import ForkReport
from refold.gateway.forking import FORK_S
from refold.gateway.pages import wording
from refold.gateway.pages.chart import begun_at, step_kind
from refold.gateway.pages.forms import form_of
from refold.gateway.pages.rendering import html_file, html_page, seen
from refold.gateway.pages.screen import SCREEN, AskField, AskForm, Cell, Grid, Passage
from refold.gateway.rates import BusyError
from refold.gateway.reading import number_of
from refold.gateway.roles import role_of
from refold.gateway.routes.forks import fork_of, known_policies
from refold.gateway.site import Gateway, Site
from refold.views.api import LARGEST_NUMBER, ForkBody
from refold.views.history import Run, at_seq
from refold.views.steps import RunStep

AS_RECORDED, NO_CALL, OWN_POLICY = "as recorded", "none", "the run's own"
VERDICTS = (AS_RECORDED, "approve", "reject", "edit", "answer")
MOST_OFFERED, MOST_ASKED = 100, 10
"""Calls that a form offers, and questions."""
MOST_ROWS, LEAST_EQUAL = 400, 6
"""Rows of a timeline that are shown; equal ones behind each other that become a count."""
EQUAL = ("kept", "same")


class ForkedStep(NamedTuple):
    """A row of both timelines: a step of the run, of the fork, or of both. `word` is the difference, `seq` its event.

    `equal` counts the rows that one stands for, `note` is how a policy has judged it otherwise.
    """

    before: RunStep | None
    after: RunStep | None
    word: str
    seq: int = 0
    equal: int = 0
    note: str = ""


class ForkShown(NamedTuple):
    """A report with the timelines of each run of it. `linked`: its rows lead to the pages of the run."""

    report: ForkReport
    timelines: Mapping[str, Sequence[ForkedStep]]
    linked: bool = True
    words: Any = wording
    kind_of: Any = step_kind
    part: str = "fork"


def fork_pages(site: APIRouter) -> None:
    """Add the page with its form."""

    @site.get("/runs/{run}/fork", response_class=HTMLResponse)
    def fork_page(shared: Site, run: str, at: Annotated[int, Asked(ge=0, le=LARGEST_NUMBER)] = 0) -> HTMLResponse:
        """The changes of a fork as a form; without an app, or the role, the command that forks."""
        return _page(shared, run, {"at": str(at)})

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
            return _page(shared, run, fields, parts=[*fork_parts(family, report)])

        return await run_in_threadpool(forked)


def _page(
    shared: Gateway,
    run: str,
    fields: Mapping[str, str],
    status: int = 200,
    parts: Sequence[object] = (),
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
        if parts
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
    over, seqs = at_seq(run, cut).state.outcomes if cut else {}, dict(begun_at(run))
    ahead = [step for step in run.timeline.steps if step.kind == "call" and step.step not in over][:MOST_OFFERED]
    calls = [NO_CALL, *map(_call, ahead)]
    asked = [NO_CALL, *(_call(step) for step in ahead if seqs.get(step.step, 0) > cut)]
    kept = f"events 1 to {cut} are kept" if cut else "no event is kept, the run begins anew"
    found: list[tuple[str, str, str, Sequence[str]]] = [
        ("at", f"From event; {kept}", "text", ()),
        ("policy", "Policy that judges it", "pick", (OWN_POLICY, *known_policies(shared))),
    ]
    for step in [step for step in ahead if any(not ask.about for ask in step.approvals)][:MOST_ASKED]:
        found.append((f"decide:{step.call_id}", f"People say of {_call(step)}", "pick", VERDICTS))
        found.append((f"words:{step.call_id}", "Their reason, or with edit and answer JSON", "text", ()))
    found += [
        ("edit", "Call with other arguments", "pick", asked),
        ("args", "Its arguments, as JSON", "area", ()),
        ("given", "Call with another result", "pick", calls),
        ("result", "Its result, as JSON", "area", ()),
        ("draft", "Another policy, as YAML or JSON", "area", ()),
        ("stubs", "Results by tool where the log has none, `tool: result` a line", "area", ()),
        ("model", "Another model of its agents of pydantic-ai", "text", ()),
        ("input", "Another input, as JSON", "hidden" if cut else "area", ()),
    ]
    says = (
        f"Nothing is written, and nothing can be fired. It takes {FORK_S:g} s at most. Models are asked by the command "
        "alone, refold run fork --allow-pure, under a budget."
    )
    title, action = "Fork it once more" if "draft" in fields else "Changes", f"/runs/{run.state.run_id}/fork"
    asks = [AskField(name, label, kind, fields.get(name, [*some, ""][0]), some) for name, label, kind, some in found]
    return AskForm("fork", title, action, asks, "Fork", says)


def _call(step: RunStep) -> str:
    return f"{step.step} {seen(f'{wording.name_of(step)} {wording.brief(step)}', 60)}"


def _body(shared: Gateway, fields: Mapping[str, str]) -> ForkBody:
    """The changes in a form. **Raises** MalformedError, UsageError."""
    found: dict[str, Any] = {"at": fields.get("at", "").strip() or 0, "model": fields.get("model", "").strip()}
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
    if text := fields.get("draft", "").strip():
        found["policy"] = load_text(text, "the policy", aliases=False)
    elif (digest := fields.get("policy", OWN_POLICY)) != OWN_POLICY:
        found["policy"] = policy.content if (policy := known_policies(shared).get(digest)) else digest
    try:
        return ForkBody(**found)
    except ValidationError as error:
        where = ", ".join(str(each["loc"][0]) for each in error.errors())
        raise MalformedError(f"the form has a value that no fork takes: {where}", hint="load the page again") from None


def fork_parts(family: Sequence[Run], report: ForkReport, *, linked: bool = True) -> Iterator[object]:
    """The parts of a page about a fork. Without the `family` they have no timelines."""
    known, timelines = {run.state.run_id: run for run in family}, dict[str, list[ForkedStep]]()
    try:
        forked = runs_in(BytesIO(b"".join(fork_bundle(family, report).lines()))) if family and report.steps else {}
        for name in sorted(forked, key=lambda each: (each != report.run_id, each)):
            rows = [*_counted(_rows(known.get(RunId(name)), forked[name], report))]
            more = ForkedStep(None, None, "more", equal=len(rows) - MOST_ROWS)
            timelines[name] = rows[:MOST_ROWS] + [more] * (len(rows) > MOST_ROWS)
    except (MalformedError, FoldError, ValueError) as error:  # the word of a process that has run foreign code
        yield Passage("untrue", "The fork has no timeline", str(error))
    yield ForkShown(report, timelines, linked)
    for side, status, result in zip(("run", "fork"), report.status, report.result, strict=True):
        if report.verdict == "other":
            yield Passage(f"end-{side}", f"End of the {side}: {status}", wording.json_lines(result))


def fork_file(title: str, reports: Sequence[ForkReport], cells: Sequence[Mapping[str, str]], family: Any = ()) -> str:
    """Return a page of reports for a file: `cells` of each in a table, then those that are not the same.

    With its `family` a report has its timelines.
    """
    table = Grid("forks", title, [*cells[0]], [[*map(Cell, each.values())] for each in cells], "")
    told = [report for report in reports if family or report.verdict != "same"]
    shown = [part for report in told for part in fork_parts(family, report, linked=False)]
    return html_file(SCREEN, title=title, parts=[table, *shown])


def _counted(rows: Iterable[ForkedStep]) -> Iterator[ForkedStep]:
    """Rows, of many equal ones the first, a count, and the last."""
    for word, group in groupby(rows, key=lambda row: row.word):
        some = [*group]
        many = len(some) >= LEAST_EQUAL and word in EQUAL
        yield from (some[0], some[1]._replace(equal=len(some) - 2), some[-1]) if many else some


def _rows(source: Run | None, fork: Run, report: ForkReport) -> Iterator[ForkedStep]:
    """The steps of both sides in order; a step of one side alone stands where it came."""
    name = fork.state.run_id
    cut = max((each.entry.last_seq for each in fork.records if each.entry and each.record.offset >= 0), default=0)
    mine = [call for call in report.calls if call.run_id == name]
    changed = {call.after: call.before for call in mine if call.change == "changed"}
    stopped = {want.step for want in report.stopped if want.run_id == name}
    judged = {other.step: other for other in report.judgements if other.run_id == name}
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
        other = judged.get(step.step)
        note = f"{other.before} → {other.after}{f', rule {other.rule}' if other.rule else ''}" if other else ""
        yield ForkedStep(then, step, word, seq, note=note)
    yield from map(alone, rest)
