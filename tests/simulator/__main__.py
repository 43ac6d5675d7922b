"""`make sim`: the whole platform in one process, with a fault at every boundary, at random, and beside a liar.

Random programs are judged by plain asyncio besides, and agents do what models say that err.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.simulator.campaign import (
    DRAWN,
    PAIRED,
    SCENARIOS,
    Named,
    Summary,
    backlogs,
    campaign,
    minds,
    pairs,
    programs,
    sampled,
    schedules,
    sieges,
    singles,
)
from tests.simulator.shrinking import shrink
from tests.simulator.world.faults import parse_fault

SHOWN = 5
TELL_S = 30.0
"""Between two lines of progress where there is no terminal."""


def _main() -> int:
    """Runs what is asked for; exit code 1 when something went wrong, or never happened in so many cases."""
    options = _options()
    console = Console(stderr=True)
    if options.scenario or options.one:
        return _one(options)
    summaries = {name: _run(name, cases, options.jobs, console) for name, cases in _campaigns(options)}
    if options.json:
        print(json.dumps({name: summary.as_json() for name, summary in summaries.items()}, indent=2))
    failed = [tell(name, summary, console) for name, summary in summaries.items()]
    return int(any(failed))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument(
        "--mode", choices=("all", "exhaustive", "random", "programs", "byzantine", "minds"), default="all"
    )
    parser.add_argument("--schedules", type=int, default=0, help="how many (random: 100,000; others: 20,000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--one", action="store_true", help="only the schedule of this seed, with its trace")
    parser.add_argument(
        "--scenario", choices=sorted((*SCENARIOS, "backlog")), help="only this scenario, with its trace"
    )
    parser.add_argument("--fault", action="append", default=[], help="NUMBER:MODE at a boundary; may be repeated")
    parser.add_argument("--less", action="append", default=[], help="a part that the seed's schedule is spared")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0 is one per core")
    parser.add_argument("--json", action="store_true", help="the summary as JSON on stdout")
    return parser.parse_args()


def _campaigns(options: argparse.Namespace) -> Iterable[tuple[str, list[Named]]]:
    if options.mode in ("all", "exhaustive"):
        drawn = sampled(DRAWN, PAIRED, seed=options.seed, faults=2)
        yield "exhaustive", [*backlogs(), *singles(), *pairs(), *drawn]
    if options.mode in ("all", "random"):
        yield "random", list(schedules(options.schedules or 100_000, seed=options.seed))
    if options.mode in ("all", "programs"):
        yield "programs", list(programs(options.schedules or 20_000, seed=options.seed))
    if options.mode in ("all", "byzantine"):
        yield "byzantine", list(sieges(options.schedules or 20_000, seed=options.seed))
    if options.mode in ("all", "minds"):
        yield "minds", list(minds(options.schedules or 20_000, seed=options.seed))


def _run(name: str, cases: list[Named], jobs: int, console: Console) -> Summary:
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[wrong]} wrong"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(name, total=len(cases), wrong=0)
        told = time.monotonic()
        for summary in campaign(cases, jobs=jobs):
            bar.update(task, completed=summary.cases, wrong=len(summary.wrong))
            # Elsewhere than on a terminal the bar is only seen when it is full.
            if not console.is_terminal and time.monotonic() - told > TELL_S:
                told = time.monotonic()
                again = "".join(f"; {case.command}" for case, _ in summary.wrong[:SHOWN])
                console.print(f"{name}: {summary.cases:,} of {len(cases):,} cases, {len(summary.wrong)} wrong{again}")
    return summary


def _one(options: argparse.Namespace) -> int:
    faults = tuple(parse_fault(text) for text in options.fault)
    name, less = options.scenario or "", tuple(options.less)
    lies, programmed, thinks = (not name and options.mode == mode for mode in ("byzantine", "programs", "minds"))
    case = Named(name, faults, options.seed, lies, less, programmed, thinks)
    outcome = case.run(traced=True)
    if options.json:
        print(json.dumps({"trace": outcome.trace, "struck": outcome.struck, "wrong": outcome.wrong}, indent=2))
    else:
        struck = ", ".join(outcome.struck) or "nothing"
        print(f"trace {outcome.trace}, {len(outcome.kinds)} boundaries, struck: {struck}")
        print(outcome.report or "nothing went wrong")
    return 1 if outcome.wrong else 0


def tell(name: str, summary: Summary, console: Console) -> bool:
    """Says how a campaign went, and how often it met what it is for; True: it has failed."""
    console.print(
        f"{name}: {summary.cases:,} cases with {summary.struck:,} faults in {summary.seconds:.0f} s, "
        f"{len(summary.wrong)} wrong"
    )
    if summary.lies:
        console.print(_lies(summary))
    for case, what in summary.wrong[:SHOWN]:
        again = f"again: {case.command}\n    least: {shrink(case).command}"
        console.print(f"  {what[0]}\n    {again}", style="red", markup=False)
    reached = ", ".join(f"{what} {times:,}" for what, times in summary.reached.items())
    console.print(f"  reached: {reached}", markup=False)
    if small := [name for name in summary.missing if name not in summary.unmet]:
        console.print(f"  too small to reach, and proves nothing of: {', '.join(small)}", style="yellow")
    if summary.unmet:
        console.print(f"  FAILED: {', '.join(summary.unmet)} never happened in {summary.cases:,} cases", style="red")
    return bool(summary.wrong or summary.unmet)


def _lies(summary: Summary) -> Table:
    table = Table("lie", "told", "refused", box=None)
    for name, told in summary.lies.items():
        table.add_row(name, f"{told.times:,}", f"{told.refused:,}")
    return table


if __name__ == "__main__":
    sys.exit(_main())
