"""The runs below a run as a picture: who has started whom, and what each of them waits for."""

from __future__ import annotations

from collections import Counter

from refold.cli.output import counted, escape, say, styled
from refold.core.ids import asked_about, depth_of
from refold.views.run import RunRow, RunShown

MOST = 40
"""Runs that are drawn; of more there are the counts, and those that go on come first."""


def print_family(run: RunShown) -> None:
    """Draws the runs below one, if there are any."""
    below = run.family
    if not below:
        return
    counts = Counter(each.status for each in below)
    told = ", ".join(f"{count} {styled(status)}" for status, count in counts.most_common())
    say(f"  {counted(len(below), 'run')} below it: {told}")
    live = [each for each in below if not each.over]
    drawn = below if len(below) <= MOST else live[:MOST]
    for each in drawn:
        say(_line(each, depth_of(each.run_id) - depth_of(run.run_id)))
    if len(drawn) < len(below):
        say(f"  [dim]{len(below) - len(drawn)} more: refold run list --json[/]")


def _line(run: RunRow, depth: int) -> str:
    waits = [f"refold approval show {asked_about(name)}" for name in run.approvals]
    why = f"  [bold yellow]{escape(waits[0])}[/]" if waits and not run.over else ""
    return f"  {'  ' * depth}[bold]{escape(run.run_id)}[/]  {escape(run.agent or '?')}  {styled(run.status)}{why}"
