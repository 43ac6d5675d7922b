"""A fork as a page: its changes as a form, and its report with both timelines."""

import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi import Query as Asked
from fastapi.responses import HTMLResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from refold.client.policies import load_text
from refold.client.reading.api import LARGEST_NUMBER, ForkBody
from refold.client.reading.history import JudgedRecord, Run, at_seq
from refold.client.reading.steps import RunStep
from refold.console.gateway.rates import BusyError
from refold.console.gateway.reading import number_of
from refold.console.gateway.routes.forks import fork_of, known_policies
from refold.console.gateway.site import Gateway, Site
from refold.console.pages import wording
from refold.console.pages.chart import begun_at, step_kind
from refold.console.pages.rendering import form_of, html_file, html_page, seen
from refold.console.pages.screen import SCREEN, AskField, AskForm, Cell, Grid, Passage, url
from refold.core.errors import FoldError, MalformedError, UsageError
from refold.core.ids import RunId
from refold.core.wire import canonical
from refold.lab.evidence.gathering import runs_in
from refold.lab.forks.report import ForkReport
from refold.lab.processes import fork_bundle, stubs_of

AS_RECORDED, NO_CALL, OWN_POLICY = "as recorded", "none", "the run's own"
SAID_OF_CALLS = (AS_RECORDED, "approve", "reject", "edit", "answer")
MOST_OFFERED, MOST_DECIDED = 100, 10
"""Calls and questions that a form offers."""
MOST_ROWS, LEAST_EQUAL = 400, 6
"""Rows shown of a timeline; consecutive equal rows that become a count."""
EQUAL = ("kept", "same")
LEAD = (
    "The code of today goes on from an event, where nothing can happen. The log answers its calls; the first call that "
    "the log does not have ends the fork, and you see what would have been fired."
)


class ForkedStep(NamedTuple):
    """A row of both timelines: a step of the run, of the fork, or of both. `word`: the difference; `equal`: number of
    counted rows; `note`: a policy's changed verdict."""

    before: RunStep | None
    after: RunStep | None
    word: str
    seq: int = 0
    equal: int = 0
    note: str = ""


class ForkShown(NamedTuple):
    """A report with its runs' timelines. `linked`: with links to the run."""

    report: ForkReport
    timelines: Mapping[str, Sequence[ForkedStep]]
    linked: bool = True
    words: Any = wording
    kind_of: Any = step_kind
    part: str = "fork"


def fork_pages(site: APIRouter) -> None:
    @site.get("/runs/{run}/fork", response_class=HTMLResponse)
    def fork_page(shared: Site, run: str, at: Annotated[int, Asked(ge=0, le=LARGEST_NUMBER)] = 0) -> HTMLResponse:
        return _page(shared, run, {"at": str(at)}, 200, ())

    @site.post("/runs/{run}/fork", response_class=HTMLResponse)
    async def fork_form(shared: Site, run: str, request: Request) -> HTMLResponse:
        fields = await form_of(request, shared)

        def forked() -> HTMLResponse:
            try:
                family, report = fork_of(shared, run, _fork_body(shared, fields))
            except (UsageError, MalformedError, BusyError) as error:
                status = 429 if isinstance(error, BusyError) else 422
                refused = Passage("refused", "Nothing was forked", error.message, note=error.hint or "")
                return _page(shared, run, fields, status, [refused])
            return _page(shared, run, fields, 200, [*fork_parts(family, report)])

        return await run_in_threadpool(forked)


def fork_from(run: Run, at: int) -> int:
    """Return the event to fork from; 0 if a finished run is shown at its end."""
    return 0 if run.state.over and at == run.state.head.seq else at


def _page(shared: Gateway, run: str, fields: Mapping[str, str], status: int, parts: Sequence[object]) -> HTMLResponse:
    with shared.view_of(run, "") as view:
        source = shared.reading.run(view, run)
    at = number_of(fields.get("at", "")) or 0
    may = shared.may_use("fork_form")
    form = _form(shared, source, fields, at) if shared.forks.app and may else _command(shared, run, at, may=may)
    heading, back = f"Fork of {run} from event {at}", ("Back to the run", url(f"/runs/{run}", at=at))
    about = {"title": f"Fork of {run}", "heading": heading, "lead": "" if parts else LEAD, "actions": [back]}
    return html_page(SCREEN, shared, status, place="/", parts=[*parts, form], **about)


def _command(shared: Gateway, run: str, at: int, *, may: bool) -> Passage:
    why = "this gateway has no code: it was started without --app" if may else "forks on this page need an operator"
    app = shared.forks.app or "MODULE:APP"
    command = shlex.join(["refold", "fork", run, "--at", str(at), "--app", app])
    return Passage("command", "Fork it where its code is", command, note=why)


def _form(shared: Gateway, run: Run, fields: Mapping[str, str], at: int) -> AskForm:
    note = (
        f"Nothing is written, and nothing can be fired. It takes {shared.forks.limit_s:g} s at most. Models are asked "
        "by the command alone, refold fork --allow-pure, under a budget. A run that goes on for real is started by "
        f"refold fork {run.state.run_id} --at {at} --live."
    )
    title, action = "Fork it once more" if "draft" in fields else "Changes", f"/runs/{run.state.run_id}/fork"
    rows = _change_fields(run, at, [*known_policies(shared)])
    inputs = [AskField(name, label, kind, fields.get(name, [*some, ""][0]), some) for name, label, kind, some in rows]
    return AskForm("fork", title, action, inputs, "Fork", note)


def _change_fields(run: Run, at: int, policies: Sequence[str]) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Yield the fields of possible changes: name, label, kind and choices."""
    cut = _last_seq(record for record in run.records if record.entry and record.entry.last_seq <= at)
    ahead, seqs = _calls_after(run, cut)[:MOST_OFFERED], dict(begun_at(run))
    note = f"events 1 to {cut} are kept" if cut else "no event is kept, the run begins anew"
    yield "at", f"From event; {note}", "text", ()
    yield "policy", "Policy that judges it", "pick", (OWN_POLICY, *policies)
    asking = [step for step in ahead if any(not ask.about for ask in step.approvals)]
    for step in asking[:MOST_DECIDED]:
        yield f"decide:{step.call_id}", f"People say of {_call_label(step)}", "pick", SAID_OF_CALLS
        yield f"words:{step.call_id}", "Their reason, or with edit and answer JSON", "text", ()
    steps = [step for step in ahead if seqs.get(step.step, 0) > cut]
    yield "edit", "Call with other arguments", "pick", (NO_CALL, *map(_call_label, steps))
    yield "args", "Its arguments, as JSON", "area", ()
    yield "given", "Call with another result", "pick", (NO_CALL, *map(_call_label, ahead))
    yield "result", "Its result, as JSON", "area", ()
    yield "draft", "Another policy, as YAML or JSON", "area", ()
    yield "stubs", "Results by tool where the log has none, `tool: result` a line", "area", ()
    yield "model", "Another model of its agents of pydantic-ai", "text", ()
    yield "input", "Another input, as JSON", "hidden" if cut else "area", ()


def _calls_after(run: Run, cut: int) -> list[RunStep]:
    over = at_seq(run, cut).state.outcomes if cut else {}
    return [step for step in run.timeline.steps if step.kind == "call" and step.step not in over]


def _call_label(step: RunStep) -> str:
    return f"{step.step} {seen(f'{wording.name_of(step)} {wording.brief(step)}', 60)}"


def _fork_body(shared: Gateway, fields: Mapping[str, str]) -> ForkBody:
    filled = {name: text for name, text in fields.items() if text.strip()}
    body: dict[str, Any] = {"at": filled.get("at", "0").strip(), "model": filled.get("model", "").strip()}
    body |= {"edits": _value_by_step(filled, "edit", "args"), "results": _value_by_step(filled, "given", "result")}
    body |= {"input": canonical.parse(filled["input"])} if "input" in filled else {}
    body["stubs"] = {tool: canonical.parse(text) for tool, text in stubs_of(filled.get("stubs", ""), "stubs").items()}
    body["decisions"] = _decisions_in(filled)
    if "draft" in filled:
        body["policy"] = load_text(filled["draft"], "the policy", aliases=False)
    elif (digest := filled.get("policy", OWN_POLICY)) != OWN_POLICY:
        body["policy"] = policy.content if (policy := known_policies(shared).get(digest)) else digest
    try:
        return ForkBody(**body)
    except ValidationError as error:
        where = ", ".join(str(fault["loc"][0]) for fault in error.errors())
        raise MalformedError(f"the form has a value that no fork takes: {where}", hint="load the page again") from None


def _decisions_in(filled: Mapping[str, str]) -> dict[str, str]:
    return {
        name.partition(":")[2]: ":".join(filter(None, (verdict, filled.get(name.replace("decide", "words", 1)))))
        for name, verdict in filled.items()
        if name.startswith("decide:") and verdict != AS_RECORDED
    }


def _value_by_step(filled: Mapping[str, str], pick: str, name: str) -> dict[int, Any]:
    step = number_of(filled.get(pick, "").partition(" ")[0])
    if (step is None) != (name not in filled):
        raise MalformedError(f"a call has no {name}, or {name} no call", hint="choose the call, and write JSON")
    return {step: canonical.parse(filled[name])} if step is not None else {}


def fork_parts(family: Sequence[Run], report: ForkReport, *, linked: bool = True) -> Iterator[object]:
    """Yield the parts of a page about a fork; without `family`, no timelines."""
    sources, timelines = {run.state.run_id: run for run in family}, dict[str, list[ForkedStep]]()
    try:
        forked = runs_in(BytesIO(b"".join(fork_bundle(family, report).lines()))) if family and report.steps else {}
        for name in sorted(forked, key=lambda run_name: (run_name != report.run_id, run_name)):
            rows = [*_shortened(_paired_rows(sources.get(RunId(name)), forked[name], report))]
            more = ForkedStep(None, None, "more", equal=len(rows) - MOST_ROWS)
            timelines[name] = rows[:MOST_ROWS] + [more] * (len(rows) > MOST_ROWS)
    # The report comes from a process that has run code of users: it may contain anything.
    except (MalformedError, FoldError, ValueError) as error:
        yield Passage("untrue", "The fork has no timeline", str(error))
    yield ForkShown(report, timelines, linked)


def fork_file(title: str, reports: Sequence[ForkReport], cells: Sequence[Mapping[str, str]], family: Any = ()) -> str:
    """Return a page of reports for a file: a table, then the reports that differ, or all with `family`."""
    table = Grid("forks", title, [*cells[0]], [[*map(Cell, row.values())] for row in cells], "")
    listed = [report for report in reports if family or report.verdict != "same"]
    shown = [part for report in listed for part in fork_parts(family, report, linked=False)]
    return html_file(SCREEN, title=title, parts=[table, *shown])


def _shortened(rows: Iterable[ForkedStep]) -> Iterator[ForkedStep]:
    """Shorten long series of equal rows to the first, a count, and the last."""
    for verdict, group in groupby(rows, key=lambda row: row.word):
        some = [*group]
        many = len(some) >= LEAST_EQUAL and verdict in EQUAL
        yield from (some[0], some[1]._replace(equal=len(some) - 2), some[-1]) if many else some


def _paired_rows(source: Run | None, fork: Run, report: ForkReport) -> Iterator[ForkedStep]:
    """Yield each step of a fork beside that of its source, and between them the source's steps without a partner."""
    source = source or Run.empty(RunId(""))
    cut = _last_seq(record for record in fork.records if record.record.offset >= 0)
    before, seqs = {step.step: step for step in source.timeline.steps}, dict(begun_at(source))
    partners, verdicts, notes = _step_facts(report, fork.state.run_id)
    rest = deque(sorted(before.keys() - set(partners.values())))
    alone = "left out" if fork.state.over else "not reached"
    for step in fork.timeline.steps:
        partner = partners.get(step.step, 0)
        then, seq = before.get(partner), seqs.get(partner, 0)
        while then and rest and rest[0] < partner:
            yield ForkedStep(before[rest[0]], None, alone, seqs.get(rest.popleft(), 0))
        verdict = verdicts.get(step.step) or _outcome_difference(then, step, copied=0 < seq <= cut)
        yield ForkedStep(then, step, verdict, seq, note=notes.get(step.step, ""))
    for number in rest:
        yield ForkedStep(before[number], None, alone, seqs.get(number, 0))


def _step_facts(report: ForkReport, name: str) -> tuple[dict[int, int], dict[int, str], dict[int, str]]:
    """Return a run's recorded steps, verdicts, and notes on policies, each by the number of the fork's step."""
    changed = {call.after: call.before for call in report.calls if (call.run_id, call.change) == (name, "changed")}
    notes = {
        call.step: f"{call.before} → {call.after}{call.rule and f', rule {call.rule}'}"
        for call in report.judgements
        if call.run_id == name
    }
    verdicts = dict.fromkeys(notes, "judged otherwise") | dict.fromkeys(changed, "changed")
    verdicts |= {step.step: "stops here" for step in report.stopped if step.run_id == name}
    return {**dict(enumerate(report.steps.get(name, ()), 1)), **changed}, verdicts, notes


def _last_seq(records: Iterable[JudgedRecord]) -> int:
    return max((record.entry.last_seq for record in records if record.entry), default=0)


def _outcome_difference(before: RunStep | None, after: RunStep, *, copied: bool) -> str:
    if before is None:
        return "added"
    if (before.status, before.result, before.failure) != (after.status, after.result, after.failure):
        return "another outcome"
    return "kept" if copied else "same"
