"""A run's events and raw records as lines."""

from __future__ import annotations

import json

from refold.cli.output import escape, moment, styled
from refold.views.run import HoldChange, RawRecord, RunEvent

CUT = 70
"""Characters of a value that lines of events show, unless all of it is asked for."""


def event_line(row: RunEvent | HoldChange, *, limit: int = CUT) -> str:
    """An event, or what holds the run, in a line of markup, with values of so many characters; 0 for all of them."""
    if isinstance(row, HoldChange):
        return f"{styled(row.status)} {escape(row.hold.message) if row.hold else ''}"
    values = " ".join(f"[dim]{name}=[/]{escape(text, limit)}" for name, text in _texts(row).items())
    place = f"{row.partition}/{row.offset}"
    return f"[dim]{row.seq:>4} {moment(row.at_ms)} {place:>8}[/]  [bold]{row.type:<18}[/] {values}"


def is_cut(row: RunEvent) -> bool:
    """True if a line of this event does not show all of it."""
    return any(len(text) > CUT for text in _texts(row).values())


def _texts(row: RunEvent) -> dict[str, str]:
    """The values of an event as text, and which input caused it."""
    cause = row.cause
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in row.event.items()
        if value
    }
    return texts | ({"cause": f"{cause.topic}/{cause.partition}/{cause.offset}"} if cause else {})


def raw_line(row: RawRecord) -> str:
    """A record in a line of markup."""
    worth = f"[magenta]void: {row.void}[/]" if row.void else "[green]counts[/]"
    names = ", ".join(row.events)
    return f"[dim]{row.partition}/{row.offset}[/] {escape(row.key)} {worth} {row.bytes} bytes  {names}"
