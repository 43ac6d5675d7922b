"""`refold run watch`: a run as it goes on, drawn live on a terminal, line by line elsewhere."""

from __future__ import annotations

from rich.live import Live

from refold.cli import output
from refold.cli.views import runs as run_views
from refold.client.runs import Run, Runs


def watch_live(runs: Runs, run: str, timeout_s: float | None) -> Run:
    """Draws the timeline over and over until the run is over."""
    hold = None
    with Live(console=output.console(), refresh_per_second=10, transient=False) as screen:
        for found, judged in runs.follow(run, timeout_s):
            if judged is not None or found.hold != hold:
                hold = found.hold
                screen.update(run_views.run_view(found))
            if found.state.over:
                break
    return found


def watch_lines(runs: Runs, run: str, timeout_s: float | None, *, as_json: bool) -> Run:
    """Prints every event once."""
    told, hold = 0, None
    for found, judged in runs.follow(run, timeout_s):
        if found.hold != hold:
            hold = found.hold
            if as_json:
                output.emit({"run_id": run, "type": "hold", "status": found.status, "hold": output.plain(hold)})
            else:
                output.say(f"{output.styled(found.status)} {output.escape(hold.message) if hold else ''}")
        if judged is None or judged.void:
            continue
        for row in run_views.event_rows(found)[told:]:
            told += 1
            if as_json:
                output.emit(row)
            else:
                output.say(run_views.event_line(row))
        if found.state.over:
            break
    return found
