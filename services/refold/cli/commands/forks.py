"""`refold fork` and `refold replay`: local code on recorded runs, as an alternative history or as the same one."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import orjson

from refold.cli import options, output
from refold.cli.errors import ANOTHER, FAILED, STOPPED, fail
from refold.cli.operator import Operator, repeat_warning
from refold.cli.platform import Shell, agree, json_value, pair, since_ms, smaller_budget, source, writing
from refold.cli.recorded import BundleFile, from_archive, in_bundle, recorded_runs, store_of
from refold.client import policies
from refold.client.operations.copying import copy_values, edit_of, fork_id, fork_live, prefix_to, repeats
from refold.client.reading.history import Run
from refold.client.reading.words import with_ellipsis
from refold.client.values import values_of
from refold.core.errors import NotFoundError, UsageError
from refold.core.events import RunFailed, Spendable
from refold.core.ids import RunId, parents_of
from refold.core.run.intents import words_of
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.engine.planner.settings import bounds_of
from refold.engine.runtime.settings import load
from refold.lab.forks.engine import ForkChanges, PeopleSaid
from refold.lab.forks.report import CheckJob, ForkReport, ReplayCheck
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import checks, family_rows, family_values, fork_bundle, forks, stubs_of, verdict_of

ArchiveUrl = Annotated[str, "URL", "Read runs from this archive, not from Kafka."]
AppOption = Annotated[str, "MODULE:APP", "The app with its code."]
_EXIT_CODES = {"same": 0, "other": ANOTHER, "stopped": STOPPED}


@dataclass(frozen=True)
class Forking(Operator):
    """Options of `refold fork`: selected runs, changes, substitutes for calls, and files for the reports."""

    runs_: Annotated[str, "GLOB", "Only runs with such ids: 'order-*'."] = "*"
    agent: options.AgentOption = ""
    since: Annotated[str, "2h|TIME", "Only runs requested since then."] = ""
    failed: Annotated[bool, "Only runs that have failed."] = False
    jobs: Annotated[options.Positive, "Processes at once."] = 1
    input_: Annotated[str, "JSON|@FILE|-", "Another input; with --at 0."] = ""
    edit_call: Annotated[list[str] | None, "STEP=JSON", "Other arguments of a call; may be repeated."] = None
    result: Annotated[list[str] | None, "STEP=JSON", "Another result of a call; may be repeated."] = None
    decide: Annotated[list[str] | None, "APPROVAL=VERDICT", "Decision on an approval; may be repeated."] = None
    to: Annotated[
        str, "FILE", "Write the fork as a bundle; without RUN append each report, and skip runs that the file has."
    ] = ""
    page: Annotated[str, "FILE", "Also write the report as a page for browsers; of RUN with both timelines."] = ""
    live: Annotated[bool, "Start an ordinary run from there: its calls are made. For operators."] = False
    as_: Annotated[str, "--as ID", "Id of the run that --live starts.  \\[default: RUN-fork-...]"] = ""
    reason: options.ReasonOption = ""
    yes: Annotated[bool, "Do not ask before --live repeats calls that may have had their effect."] = False
    at: Annotated[options.Natural, "SEQ", "Keep the entries that end at this event or before; 0: none."] = 0
    policy: Annotated[list[str] | None, "FILE", "Judge its calls by these policy files; may be repeated."] = None
    model: Annotated[str, "NAME", "Have its agents of pydantic-ai ask this model."] = ""
    stub: Annotated[str, "FILE", "Results by tool, as YAML or JSON, where the record has none."] = ""
    allow_pure: Annotated[bool, "Run `pure` calls and ask models here, where nothing else answers. Costs."] = False
    budget: Annotated[str, "usd=2.50,calls=9", "Budget of all calls that --allow-pure runs."] = ""
    archive: ArchiveUrl = ""

    @property
    def changes(self) -> ForkChanges:
        return ForkChanges(stubs=stubs_of(source(f"@{self.stub}"), self.stub) if self.stub else {})

    @cached_property
    def draft(self) -> dict[str, Any] | None:
        """Policy merged from the --policy files, which judges the fork's calls; None without such files."""
        return policies.merged_policy(policies.load_files(self.policy)).content if self.policy else None

    @property
    def spendable(self) -> Spendable | None:
        budget = smaller_budget(self.budget)
        if self.allow_pure != (budget is not None):
            raise UsageError("--allow-pure and --budget go together", hint="--allow-pure --budget usd=0.50")
        return budget

    def setup(self, app: str) -> ForkSetup:
        settings = load() if self.archive else self.platform.settings
        # An archive has no policies.
        in_force = () if self.archive else self.platform.catalog.whole.policies.values()
        return ForkSetup(app, settings.environment, [row.content for row in in_force], self.model, bounds_of(settings))

    def families(self) -> Iterator[list[Run]]:
        """Families of the recorded runs: for each run, also a child, a list of it and its descendants."""
        runs = list(recorded_runs(self.archive, self))
        descendants = defaultdict[str, list[Run]](list)
        for run in runs:
            for name in parents_of(run.state.run_id):
                descendants[name].append(run)
        yield from ([run, *descendants[run.state.run_id]] for run in runs)

    def family(self, run: str) -> list[Run]:
        if not self.archive:
            return [self.runs.get(run), *self.runs.family(run)]
        matching = next((candidate for candidate in self.families() if candidate[0].state.run_id == run), None)
        if matching is None:
            raise NotFoundError(f"there is no run {run} in {self.archive}")
        return matching

    def fork_job(self, family: Sequence[Run], changes: ForkChanges) -> ForkJob:
        name, values = family[0].state.run_id, family_values(family, store_of(self.archive, self))
        return ForkJob(name, family_rows(family), self.at, changes, self.draft, values)

    def start_live(self, run: str) -> None:
        isolated_only = "input_ result decide policy model stub allow_pure archive to page"
        self.refuse(isolated_only, "is for a fork that nothing comes of")
        if not self.at:
            raise UsageError("a run that is begun has to begin somewhere", hint=f"refold fork {run} --at SEQ --live")
        source = self.runs.get(run)
        prefix = prefix_to(source, self.at)
        edit = edit_of(prefix, source.state, _json_by_step(self.edit_call, "--edit-call"))
        name = fork_id(source.state.run_id, self.runs.partitions, self.as_)
        if again := repeats(prefix.state, source.state):
            keeps = f"The fork keeps {run} up to event {prefix.state.head.seq}. "
            agree(keeps + repeat_warning(again), "nothing was forked", yes=self.yes)
        copy_values(prefix, name, lambda: store_of(self.archive, self))
        text = f"run [bold]{name}[/] goes on from event {prefix.state.head.seq} of {output.escape(run)}, it"
        self.print_answer(self.perform(fork_live(prefix, name, self.who, edit=edit, reason=self.reason)), text)

    def matches(self, state: RunState) -> bool:
        request, after_ms = state.request, since_ms(self.since)
        if request is None or not fnmatchcase(state.run_id, self.runs_) or self.agent not in ("", request.agent):
            return False
        return state.asked_ms >= after_ms and (not self.failed or isinstance(state.end, RunFailed))

    def check(self, run: str) -> None:
        """Refuse options of another kind of fork. **Raises** UsageError."""
        if run:
            self.refuse("runs_ agent since failed jobs", "selects among all runs, and RUN is one")
        else:
            self.refuse("input_ edit_call result decide live", "is for one run: name its RUN")
        if not self.live:
            self.refuse("as_ reason yes actor timeout", "is for --live")


def fork(
    run: Annotated[str, "The run's id. Omit it to fork all runs, or select some with filters."] = "",
    *,
    app: AppOption = "",
    forking: Forking,
) -> None:
    """Fork runs: run today's code from one of their events, with changes, in a process without effects.

    The log answers its calls. A call without an answer ends the fork, and is shown with the judgement of the policy.
    VERDICT is approve, reject, reject:WHY, edit:JSON or answer:JSON. Exit code 0: the fork equals the run. 7: it
    differs. 4: it stopped. 1: the code does not agree with the history before SEQ.

    Without RUN, all runs that match are forked, with other code, another policy or model. Exit code 0: all forks equal
    their runs. 7: a fork differs or stopped. 1: the code does not agree with a history. 3: no run matches. With --to,
    an interrupted command continues.

    With --live the fork is a new run on the deployed code, which begins with the kept history.
    """
    forking.check(run)
    if forking.live and app:
        raise UsageError("--app is for a fork that nothing comes of", hint="--live runs on the deployed code")
    if forking.live:
        forking.start_live(run)
    elif not app:
        raise UsageError("a fork needs code", hint=f"refold fork {run or 'RUN'} --at {forking.at} --app MODULE:APP")
    elif run:
        _fork_run(run, app, forking)
    else:
        _fork_runs(app, forking)


def _fork_run(run: str, app: str, one: Forking) -> None:
    changes = replace(
        one.changes,
        input=canonical.dumps(json_value(one.input_, "--input")) if one.input_ else "",
        edits=_json_by_step(one.edit_call, "--edit-call"),
        results=_json_by_step(one.result, "--result"),
        decisions=dict(map(_verdict_on_approval, one.decide or ())),
    )
    budget, family = one.spendable, one.family(run)
    (report,) = forks([one.fork_job(family, changes)], one.setup(app), budget=budget)
    if one.to:
        with writing(one.to) as file:
            file.write_bytes(b"".join(fork_bundle(family, report).lines()))
    if one.page:
        _write_page(one.page, [report], family)
    one.print(report, "\n".join(map(output.escape, _report_lines(report))))
    if code := _EXIT_CODES.get(report.verdict, FAILED):
        fail(code)


def _fork_runs(app: str, chosen: Forking) -> None:
    rows = sorted(_fork_reports(app, chosen), key=lambda row: row.run_id)
    counts = dict(sorted(Counter(row.verdict for row in rows).items()))
    tokens = [sum(row.tokens[side] for row in rows) for side in (0, 1)]
    if chosen.page:
        _write_page(chosen.page, rows)
    chosen.print({"runs": len(rows), "counts": counts, "tokens": tokens, "forks": rows}, lambda: _print_cohort(rows))
    if len(rows) > counts.get("same", 0):
        fail(FAILED if {"disagrees", "raises"} & counts.keys() else ANOTHER)


def _fork_reports(app: str, chosen: Forking) -> Iterator[ForkReport]:
    """Fork the selected runs, unless the file --to has their reports; yield all reports. **Raises** NotFoundError."""
    budget, setup, changes = chosen.spendable, chosen.setup(app), chosen.changes
    families = [family for family in chosen.families() if chosen.matches(family[0].state)]
    names = {family[0].state.run_id for family in families}  # a run forked with its parent is not forked again
    families = [family for family in families if names.isdisjoint(parents_of(family[0].state.run_id))]
    if not families:
        raise NotFoundError("there is no such run, so nothing was forked", hint="leave --runs, --agent, --since out")
    keys = {family[0].state.run_id: _report_key(family[0], chosen, setup, changes) for family in families}
    earlier = _earlier_reports(chosen.to, keys)
    yield from earlier.values()
    ahead = [family for family in families if family[0].state.run_id not in earlier]
    progress, jobs = output.progress(), (chosen.fork_job(family, changes) for family in ahead)
    for number, report in enumerate(forks(jobs, setup, at_once=chosen.jobs, budget=budget)):
        progress("fork runs", number, len(ahead))
        if chosen.to:
            # One by one: an interrupted command goes on after the last of them.
            with writing(chosen.to) as file, file.open("a") as more:
                more.write(json.dumps({"key": keys[RunId(report.run_id)], **report.model_dump(mode="json")}) + "\n")
        yield report


def _print_cohort(rows: Sequence[ForkReport]) -> None:
    others = [_report_cells(row) for row in rows if row.verdict != "same"]
    if others:
        output.print_rows(others, [*others[0]], "")
    output.say(f"forked {_verdict_counts(rows)}")


def _json_by_step(arguments: list[str] | None, option: str) -> dict[int, str]:
    values = {}
    for argument in arguments or ():
        step, text = pair(argument, "is no step with a value", hint=f"write {option} 3='{{\"amount\": 20}}'")
        if not step.isdecimal():
            raise UsageError(f"{option} {step}: that is no step", hint="`refold run show` numbers them")
        values[int(step)] = canonical.dumps(json_value(text, option))
    return values


def _verdict_on_approval(text: str) -> tuple[str, PeopleSaid]:
    return verdict_of(*pair(text, "is no approval with a verdict", hint="write --decide r-7/3=approve"))


def _report_key(run: Run, chosen: Forking, setup: ForkSetup, changes: ForkChanges) -> str:
    """Digest of all that a fork's report depends on; an earlier report with the same key is used again."""
    place = Path(setup.target.partition(":")[0])
    app = [setup.target, place.read_bytes().hex() if place.is_file() else "", setup.model]
    parts = [run.state.head.id.hex(), chosen.at, *app, chosen.draft, changes.stubs, chosen.budget]
    return blake2b(canonical.dumps(parts).encode(), digest_size=12).hexdigest()


def _earlier_reports(to: str, keys: dict[RunId, str]) -> dict[str, ForkReport]:
    """Reports of earlier commands in the file `to` with the same keys, by run. Ends a half-written last line."""
    reports = {}
    lines = Path(to).read_bytes().splitlines(keepends=True) if to and Path(to).is_file() else []
    for line in lines:
        try:
            row = orjson.loads(line)
            if row.pop("key") == keys.get(row["run_id"]):
                reports[row["run_id"]] = ForkReport.model_validate(row)
        except (ValueError, KeyError, AttributeError, TypeError):
            continue  # it was stopped while it wrote this
    # A next report would be lost behind the half line of an interrupted command.
    if lines and not lines[-1].endswith(b"\n"):
        with writing(to) as file, file.open("a") as more:
            more.write("\n")
    return reports


def _write_page(file: str, rows: Sequence[ForkReport], family: Sequence[Run] = ()) -> None:
    # The import needs the extra `gateway`.
    pages, title = import_module("refold.console.pages.fork_pages"), f"Forks of {_verdict_counts(rows)}"
    with writing(file) as path:
        path.write_text(pages.fork_file(title, rows, [*map(_report_cells, rows)], family))


def _verdict_counts(rows: Sequence[ForkReport]) -> str:
    open_ = ["not isolated" for row in rows if row.verdict != "raises" and not row.isolated]
    counts = sorted(Counter([*(row.verdict for row in rows), *open_]).items())
    return f"{output.counted(len(rows), 'run')}: " + ", ".join(f"{many} {verdict}" for verdict, many in counts)


def _report_lines(report: ForkReport) -> Iterator[str]:
    yield f"fork of {report.run_id} at {report.at}: {_VERDICTS.get(report.verdict, report.verdict)}"
    if report.verdict != "raises" and not report.isolated:
        yield "  not isolated: Python alone held the app, whose C code could reach sockets, files and processes"
    if report.message:
        yield f"  {report.message}"
    if report.verdict == "disagrees":
        yield f"  fork at or before {report.fork_at}"
    for name, (before, after) in (("status", report.status), ("result", report.result)):
        if before != after and report.verdict == "other":
            yield f"  {name} {_shortened(before)} -> {_shortened(after)}"
    for call in report.calls:
        shown = _shortened(call.args if call.after else call.were)
        were = f" (was {_shortened(call.were)})" if call.change == "changed" else ""
        yield f"  {call.change}: step {call.after or call.before} {call.tool} {shown}{were}"
    for judged in report.judgements:
        judgement = f"step {judged.step} {judged.tool}: {judged.before} -> {judged.after}"
        yield f"  judged otherwise: {judgement}{_by_rule(judged.rule)}"
    for want in report.stopped:
        does = {"dispatched": "would have fired", "approval": "would have asked people about"}
        yield f"  {does.get(want.phase, f'waits ({want.phase}) for')} {want.call_id} {want.tool} ({want.effect})"
        yield f"    args   {_shortened(want.args, 2_000)}"
        who = f" of {', '.join(want.approvers)}" if want.approvers else ""
        yield f"    policy {want.judgement}{who}{_by_rule(want.rule)} {want.message}".rstrip()


def _by_rule(rule: str) -> str:
    return f", rule {rule}" if rule else ""


_VERDICTS = {"same": "the same", "other": "another run", "disagrees": "the code does not agree with the history"}


def _shortened(value: Any, chars: int = 160) -> str:
    return with_ellipsis(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), chars)


def _report_cells(row: ForkReport) -> dict[str, str]:
    where = f"step {row.step}; fork at {row.fork_at}" if row.verdict == "disagrees" else row.message
    return {
        "run": row.run_id,
        "agent": row.agent,
        "verdict": row.verdict,
        "calls": str(len(row.calls) or ""),
        "policy": str(len(row.judgements) or ""),
        "where": ", ".join(f"{want.call_id} {want.tool}" for want in row.stopped) or where,
        "tokens": f"{row.tokens[0]:,} -> {row.tokens[1]:,}" if any(row.tokens) else "",
        "cost": f"${row.usd[0]:.4f} -> ${row.usd[1]:.4f}" if any(row.usd) else "",
    }


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Shell):
    app_: Annotated[str, "MODULE:APP", "App with the code to check."]
    runs_: Annotated[str, "GLOB", "Only runs whose id matches, such as 'order-*'."] = "*"
    agent: Annotated[str, "Only runs of this agent."] = ""
    live: Annotated[bool, "Only runs that have not ended."] = False
    archive: ArchiveUrl = ""
    bundle: BundleFile = ""
    jobs: Annotated[options.Positive, "Processes at once."] = 1

    def matches(self, state: RunState) -> bool:
        request = state.request
        selected = request is not None and self.agent in ("", request.agent) and fnmatchcase(state.run_id, self.runs_)
        return selected and not (self.live and state.over)


def replay(
    run: Annotated[str, "The run's id. Omit it to check all runs, or select some with filters."] = "",
    *,
    checking: ReplayOptions,
) -> None:
    """Replay recorded runs with local code. Prints the first step that differs in each, for CI.

    For one RUN, prints where it stands. The code runs where it can do nothing, as a fork does. Exit code 1 if a run
    would stall, 3 if no run matches. Warns of runs that began on another version of Python or of a framework.
    """
    if not run:
        checking.refuse("bundle", "has the copies of one family: name its RUN")
        _check_app(checking)
    elif checking.runs_ != "*" or checking.agent or checking.live:
        raise UsageError("a run and filters exclude each other", hint="give RUN, or --runs, --agent and --live")
    else:
        checking.refuse("jobs", "is for many runs")
        _replay_run(run, checking)


def _check_app(shell: ReplayOptions) -> None:
    blobs = store_of(shell.archive, shell)
    states = (run.state for run in recorded_runs(shell.archive, shell) if shell.matches(run.state))
    jobs = (CheckJob(state, values_of(state, blobs)) for state in states)
    rows = list(checks(jobs, shell.app_, at_once=shell.jobs))
    if not rows:
        raise NotFoundError("there is no such run, so nothing was checked", hint="leave --runs, --agent, --live out")
    bad = [row for row in rows if row.verdict != "agrees"]
    elsewhere = Counter(row.needs for row in rows if row.needs)
    for needs, runs_of in elsewhere.items():
        began = f"{output.counted(runs_of, 'run')} began on {needs}"
        output.warn(f"{began}: check with that, too; planners that lack it hold those that live (other_foundation)")
    counts = {"checked": len(rows), "differ": len(bad), "other_foundation": elsewhere.total()}
    text = "\n".join([*map(_differing_text, bad), _checked_text(len(rows), len(bad))])
    shell.print({"ok": not bad, **counts, "runs": rows}, text, ok=not bad)


def _replay_run(run: str, shell: ReplayOptions) -> None:
    bundle, archive = shell.bundle, shell.archive
    recorded = in_bundle(bundle, run)[run] if bundle else from_archive(archive, run) if archive else shell.runs.get(run)
    (row,) = checks([CheckJob(recorded.state, values_of(recorded.state, store_of(archive, shell)))], shell.app_)
    if row.needs:
        output.warn(f"the run began on {row.needs}: there its code may do otherwise than here")
    shell.print(row, "\n".join(_replay_lines(recorded, row)), ok=row.verdict == "agrees")


def _differing_text(row: ReplayCheck) -> str:
    return f"[bold]{output.escape(row.run_id)}[/] ({output.escape(row.agent)}): {output.escape(row.message)}"


def _checked_text(checked: int, bad: int) -> str:
    verdict = f"{bad} would stand still" if bad else "all go on with this code"
    return f"{output.counted(checked, 'run')} checked: {verdict}"


def _replay_lines(run: Run, row: ReplayCheck) -> Iterator[str]:
    state = run.state
    last = row.step - 1 if row.verdict == "differs" else len(state.steps)
    for number, step in enumerate(state.steps[:last], start=1):
        settled = state.outcomes.get(number)
        came = type(settled[1]).__name__ if settled else "given up" if number in state.given_up else ""
        yield output.escape(f"{number:4}  {words_of(step)}{f'  {came}' if came else ''}")
    if row.verdict != "agrees":
        yield output.escape(row.message)
    elif row.over or state.over:
        yield f"{len(state.steps)} steps, as recorded; the run is {output.styled(state.status)}"
        if row.message:
            yield f"[red]{output.escape(row.message)}[/]"
    else:
        waits = ", ".join(str(step) for step in sorted(state.open)) or "nothing"
        yield f"{len(state.steps)} steps, as recorded; it waits for step {waits}"
    if row.stack:
        yield from map(output.escape, row.stack.splitlines())
