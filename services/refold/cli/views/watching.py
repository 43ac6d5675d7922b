"""`refold run watch`: a run as it goes on, drawn live on a terminal, line by line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.live import Live

from refold.cli import output
from refold.cli.views import runs as run_views
from refold.client.runs import JudgedRecord, Run, Runs
from refold.core.errors import TimedOutError


def watch_live(runs: Runs, run: str, timeout_s: float | None) -> Run:
    """Draws the timeline over and over until the run is over."""
    with Live(console=output.console(), refresh_per_second=10, transient=False) as screen:
        for found, judged in _until_over(runs, run, timeout_s):
            if judged is not None:
                screen.update(run_views.run_view(found))
    return found


def watch_lines(runs: Runs, run: str, timeout_s: float | None, *, as_json: bool) -> Run:
    """Prints every event once."""
    told = 0
    for found, judged in _until_over(runs, run, timeout_s):
        if judged is None or judged.void:
            continue
        for row in run_views.event_rows(found)[told:]:
            told += 1
            if as_json:
                output.emit(row)
            else:
                output.say(run_views.event_line(row))
    return found


def _until_over(runs: Runs, run: str, timeout_s: float | None) -> Iterator[tuple[Run, JudgedRecord | None]]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for found, judged in runs.follow(run):
        yield found, judged
        if found.state.over:
            return
        if deadline is not None and time.monotonic() > deadline:
            raise TimedOutError(f"run {run} is {found.state.status} after {timeout_s:g} s", hint="watch it again")
