"""The runs below a run as a picture: who has started whom, and what each of them waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from refold.cli.output import counted, escape, say, styled
from refold.client.runs import Run
from refold.core.ids import depth_of

MOST = 40
"""Runs that are drawn; of more there are the counts, and those that go on come first."""


def print_family(run: Run, below: Sequence[Run]) -> None:
    """Draws the runs below one, if there are any."""
    if not below:
        return
    counts = Counter(each.status for each in below)
    told = ", ".join(f"{count} {styled(status)}" for status, count in counts.most_common())
    say(f"  {counted(len(below), 'run')} below it: {told}")
    live = [each for each in below if not each.state.over]
    drawn = below if len(below) <= MOST else live[:MOST]
    for each in drawn:
        say(_line(each, depth_of(each.state.run_id) - depth_of(run.state.run_id)))
    if len(drawn) < len(below):
        say(f"  [dim]{len(below) - len(drawn)} more: refold run list --json[/]")


def _line(run: Run, depth: int) -> str:
    asked = run.state.request
    agent = asked.agent if asked else "?"
    waits = [f"refold approval show {line.call_id}" for line in run.timeline.asking]
    why = f"  [bold yellow]{escape(waits[0])}[/]" if waits and not run.state.over else ""
    return f"  {'  ' * depth}[bold]{escape(run.state.run_id)}[/]  {escape(agent)}  {styled(run.status)}{why}"
