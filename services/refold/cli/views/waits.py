"""What a run waits for from others, and what it was told, in lines of markup."""

from __future__ import annotations

from refold.cli.output import Data, escape, moment
from refold.client.runs import Run
from refold.client.timeline import StepLine
from refold.core.ids import parent_of
from refold.core.run.pausing import PARENT

MOST_KEPT = 5
"""Signals that a view of a run shows: those of a flood are alike."""


def wait_lines(step: StepLine, *, over: bool) -> list[str]:
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


def paused_by(row: Data) -> list[str]:
    """Who keeps a run from going on, by its summary."""
    return [f"{pause['actor']} (paused)" for pause in row["paused"]]


def pause_lines(run: Run) -> list[str]:
    """Who has paused the run, or the one above it, and what lets it go on."""
    lines: list[str] = []
    for at_ms, pause in run.timeline.pauses:
        name = run.state.run_id if pause.role != PARENT else parent_of(run.state.run_id)[0]
        what = "paused" if pause.role != PARENT else f"paused with {name}"
        why = f": {escape(pause.reason, 200)}" if pause.reason else ""
        who = f" by {escape(pause.actor)}" if pause.role != PARENT else ""
        lines.append(f"  [bold yellow]{what}[/]{who} [dim]({pause.role}, {moment(at_ms)})[/]{why}")
        lines.append(f"    refold run resume {name}")
    return lines


def signal_lines(run: Run) -> list[str]:
    """What the run was told, and has not waited for."""
    kept, dropped = list(run.timeline.kept.values()), run.timeline.dropped
    lines = [f"  [dim]kept signal[/] {escape(each.name)} [dim]{escape(each.signal_id)}[/]" for each in kept[:MOST_KEPT]]
    if len(kept) > MOST_KEPT:
        lines.append(f"  [dim]and {len(kept) - MOST_KEPT} more[/]")
    for lost in dropped[-MOST_KEPT:]:
        what = f"signal {escape(lost.name)} of {lost.bytes:,} bytes"
        lines.append(f"  [yellow]dropped for want of room: {what}[/] {escape(lost.signal_id)}")
    return lines
