"""What a run waits for from others, and what it was told, in lines of markup."""

from __future__ import annotations

from refold.cli.output import escape, moment
from refold.core.ids import parent_of
from refold.core.run.pausing import PARENT
from refold.views.run import RunInfo
from refold.views.steps import RunStep

MOST_KEPT = 5
"""Signals that a view of a run shows: those of a flood are alike."""


def wait_lines(step: RunStep, *, over: bool) -> list[str]:
    """What a wait or a callback waits for, or who has answered."""
    if step.kind not in ("wait", "callback"):
        return []
    if step.status in ("completed", "failed"):
        said = f", {escape(step.key)}" if step.key else ""
        return [f"[dim]by {escape(step.actor) or 'somebody'}{said}[/]"]
    if step.status != "waiting" or over:
        return []
    until = f" until {moment(step.until_ms)}" if step.until_ms else ""
    what = "whoever has its token" if step.kind == "callback" else f"a signal {escape(step.name)}"
    where = f" where {escape(step.args, 200)}" if step.kind == "wait" and step.args else ""
    lines = [f"[bold yellow]waits for {what}{where}{until}[/]"]
    if step.failure:
        lines.append(f"[yellow]its match had no value for a signal: {escape(step.failure.message, 200)}[/]")
    return lines


def pause_lines(run: RunInfo) -> list[str]:
    """Who has paused the run, or the one above it, and what lets it go on."""
    lines: list[str] = []
    for pause in run.pauses:
        name = run.run_id if pause.role != PARENT else parent_of(run.run_id)[0]
        what = "paused" if pause.role != PARENT else f"paused with {name}"
        why = f": {escape(pause.reason, 200)}" if pause.reason else ""
        who = f" by {escape(pause.actor)}" if pause.role != PARENT else ""
        lines.append(f"  [bold yellow]{what}[/]{who} [dim]({pause.role}, {moment(pause.since_ms)})[/]{why}")
        lines.append(f"    refold run resume {name}")
    return lines


def signal_lines(run: RunInfo) -> list[str]:
    """The signals that no wait took, and those for which there was no room."""
    kept, dropped = run.signals, run.signals_dropped
    lines = [f"  [dim]kept signal[/] {escape(each.name)} [dim]{escape(each.signal_id)}[/]" for each in kept[:MOST_KEPT]]
    if len(kept) > MOST_KEPT:
        lines.append(f"  [dim]and {len(kept) - MOST_KEPT} more[/]")
    for lost in dropped[-MOST_KEPT:]:
        what = f"signal {escape(lost.name)} of {lost.bytes:,} bytes"
        lines.append(f"  [yellow]dropped for want of room: {what}[/] {escape(lost.signal_id)}")
    return lines
