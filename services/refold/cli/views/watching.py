"""`refold run watch`: a run as it goes on, drawn live on a terminal, line by line elsewhere."""

from __future__ import annotations

from datetime import timedelta

from rich.live import Live

from refold.cli import output
from refold.cli.views import records
from refold.cli.views import runs as run_views
from refold.client.streams import live_parts
from refold.core.ids import run_id
from refold.operations.runs import Runs, is_over
from refold.views.history import Run
from refold.views.run import events_of, info_of


def watch_live(runs: Runs, run: str, timeout_s: float | None) -> Run:
    """Draws the timeline over and over until the run is over."""
    hold = None
    with Live(console=output.console(), refresh_per_second=10, transient=False) as screen:
        for found, judged in runs.follow(run, timeout_s):
            if judged is not None or found.hold != hold:
                hold = found.hold
                screen.update(run_views.run_view(info_of(found)))
            if is_over(found, judged):
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
        if judged is None and is_over(found, judged):
            break
        if judged is None or judged.void:
            continue
        for row in events_of(found, told):
            told = row.seq
            if as_json:
                output.emit(row)
            else:
                output.say(records.event_line(row))
        if is_over(found, judged):
            break
    return found


def print_stream(runs: Runs, run: str, timeout_s: float | None, *, as_json: bool) -> None:
    """Prints what calls say while they run; a new try of a call says that what stands above counts no more."""
    most, call = None if timeout_s is None else timedelta(seconds=timeout_s), ""
    for part in live_parts(runs, run_id(run), most):
        if part is None:
            continue
        if as_json:
            output.emit(output.plain(part))
            continue
        if part.call_id != call or part.supersedes:
            call, again = part.call_id, ", again: what it has said before counts no more" if part.supersedes else ""
            output.say(f"\n[bold]{output.escape(call)}[/] attempt {part.attempt}{again}")
        text = part.data.get("text") or part.data.get("tool") or part.data.get("args") or ""
        output.console().print(output.escape(str(text)), end="", soft_wrap=True)
