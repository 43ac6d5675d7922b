"""Runs in progress and events as lines."""

import json
import sys
from collections.abc import Callable
from datetime import timedelta

from rich.live import Live

from refold.cli import output
from refold.cli.output import escape, moment, styled
from refold.cli.views import runs as run_views
from refold.client.operations.runs import Runs, is_over
from refold.client.reading.history import Run
from refold.client.reading.run import HoldChange, RawRecord, RunEvent, events_of, info_of
from refold.client.streams import live_parts
from refold.core.ids import run_id

CUT = 70
"""Characters of a value in an event's line, without --full."""


def event_line(row: RunEvent | HoldChange, *, limit: int = CUT) -> str:
    """Markup line for an event or a hold; `limit` 0 shows values in full."""
    if isinstance(row, HoldChange):
        return f"{styled(row.status)} {escape(row.hold.message) if row.hold else ''}"
    values = " ".join(f"[dim]{name}=[/]{escape(text, limit)}" for name, text in _shown_values(row).items())
    place = f"{row.partition}/{row.offset}" if row.offset >= 0 else "fork"
    return f"[dim]{row.seq:>4} {moment(row.at_ms)} {place:>8}[/]  [bold]{row.type:<18}[/] {values}"


def is_cut(row: RunEvent) -> bool:
    return any(len(text) > CUT for text in _shown_values(row).values())


def _shown_values(row: RunEvent) -> dict[str, str]:
    cause = row.cause
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in row.event.items()
        if value
    } | ({"cause": f"{cause.topic}/{cause.partition}/{cause.offset}"} if cause else {})


def raw_line(row: RawRecord) -> str:
    worth = f"[magenta]void: {row.void}[/]" if row.void else "[green]counts[/]"
    return f"[dim]{row.partition}/{row.offset}[/] {escape(row.key)} {worth} {row.bytes} bytes  {', '.join(row.events)}"


def watch(runs: Runs, run: str, timeout_s: float | None) -> Run:
    """Draw a run until it is over: redrawn on a terminal, else as changed lines."""
    if not sys.stdout.isatty():
        return _watch_lines(runs, run, timeout_s)
    hold = None
    with Live(console=output.console(), refresh_per_second=10, transient=False) as screen:
        for current, judged in runs.follow(run, timeout_s):
            if judged is not None or current.hold != hold:
                hold = current.hold
                screen.update(run_views.run_view(info_of(current)))
            if is_over(current, judged):
                break
    return current


def _watch_lines(runs: Runs, run: str, timeout_s: float | None) -> Run:
    drawn, hold = list[str](), None
    for current, judged in runs.follow(run, timeout_s):
        if judged is not None or current.hold != hold:
            hold = current.hold
            before, drawn = drawn, run_views.run_lines(info_of(current), where=False)
            for line in drawn:
                if line not in before:
                    output.say(line)
        if is_over(current, judged):
            break
    return current


def follow_events(runs: Runs, run: str, timeout_s: float | None, emit: Callable[[RunEvent | HoldChange], None]) -> Run:
    """Pass each new event and hold to `emit` until the run is over."""
    last_seq, hold = 0, None
    for current, judged in runs.follow(run, timeout_s):
        if current.hold != hold:
            hold = current.hold
            emit(HoldChange(run_id=run, status=current.status, hold=hold))
        if judged is None and is_over(current, judged):
            break
        if judged is None or judged.void:
            continue
        for row in events_of(current, last_seq):
            last_seq = row.seq
            emit(row)
        if is_over(current, judged):
            break
    return current


def print_stream(runs: Runs, run: str, timeout_s: float | None, *, as_json: bool) -> None:
    """Print live output of calls; a new attempt is marked, as it replaces the earlier output."""
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
