"""`refold replay`: replay recorded runs with local code."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from refold.cli import options, output
from refold.cli.platform import Shell
from refold.cli.recorded import BundleFile, from_archive, in_bundle, recorded_runs, store_of
from refold.client.reading.history import Run
from refold.client.values import values_of
from refold.core.errors import NotFoundError, UsageError
from refold.core.run.intents import words_of
from refold.core.run.state import RunState
from refold.lab.forks.agreement import CheckJob, ReplayCheck
from refold.lab.processes import checks

ArchiveUrl = Annotated[str, "URL", "Read runs from this archive, not from Kafka."]


@dataclass(frozen=True, kw_only=True)
class Checking(Shell):
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
    checking: Checking,
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


def _check_app(shell: Checking) -> None:
    blobs = store_of(shell.archive, shell)
    states = (run.state for run in recorded_runs(shell.archive, shell) if shell.matches(run.state))
    jobs = (CheckJob(state, values_of(state, blobs)) for state in states)
    rows = list(checks(jobs, shell.app_, at_once=shell.jobs))
    if not rows:
        raise NotFoundError("there is no such run, so nothing was checked", hint="leave --runs, --agent, --live out")
    bad = [row for row in rows if row.verdict != "agrees"]
    elsewhere = Counter(row.needs for row in rows if row.needs)
    for needs, runs_of in elsewhere.items():
        output.warn(
            f"{output.counted(runs_of, 'run')} began on {needs}: check with that, too; "
            "planners that lack it hold those that live (other_foundation)"
        )
    counts = {"checked": len(rows), "differ": len(bad), "other_foundation": elsewhere.total()}
    shell.print(
        {"ok": not bad, **counts, "runs": rows}, "\n".join([*map(_line, bad), _sum(len(rows), len(bad))]), ok=not bad
    )


def _replay_run(run: str, shell: Checking) -> None:
    bundle, archive = shell.bundle, shell.archive
    recorded = in_bundle(bundle, run)[run] if bundle else from_archive(archive, run) if archive else shell.runs.get(run)
    (row,) = checks([CheckJob(recorded.state, values_of(recorded.state, store_of(archive, shell)))], shell.app_)
    if row.needs:
        output.warn(f"the run began on {row.needs}: there its code may do otherwise than here")
    shell.print(row, "\n".join(_story(recorded, row)), ok=row.verdict == "agrees")


def _line(row: ReplayCheck) -> str:
    return f"[bold]{output.escape(row.run_id)}[/] ({output.escape(row.agent)}): {output.escape(row.message)}"


def _sum(checked: int, bad: int) -> str:
    if not bad:
        return f"{output.counted(checked, 'run')} checked: all go on with this code"
    return f"{output.counted(checked, 'run')} checked: {bad} would stand still"


def _story(run: Run, row: ReplayCheck) -> Iterator[str]:
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
