"""A run's events and raw records as data, and as lines."""

from __future__ import annotations

import json

from refold.cli.output import Data, escape, moment, plain, styled
from refold.client.rows import event_rows as event_rows
from refold.client.rows import place_of
from refold.client.runs import Run

CUT = 70
"""Characters of a value that lines of events show, unless all of it is asked for."""


def raw_records(run: Run) -> list[Data]:
    """The records of a run as they lie in the log, with those that do not count."""
    rows = []
    for judged in sorted([*run.records, *run.void], key=lambda found: found.record.offset):
        entry = judged.entry
        rows.append(
            {
                **place_of(judged),
                "void": judged.void,
                "id": judged.id.hex(),
                "prev": entry.prev.hex() if entry else "",
                "seq": entry.seq if entry else 0,
                "at_ms": entry.at_ms if entry else 0,
                "events": [type(event).__name__ for event in entry.events] if entry else [],
                "cause": plain(entry.cause) if entry else None,
                "actor": entry.actor if entry else "",
                "nonce": entry.nonce.hex() if entry else "",
                "bytes": len(judged.record.value or b""),
            }
        )
    return rows


def event_line(row: Data, *, limit: int = CUT) -> str:
    """An event, or what holds the run, in a line of markup, with values of so many characters; 0 for all of them."""
    if row["type"] == "hold":
        why = escape(row["hold"]["message"]) if row["hold"] else ""
        return f"{styled(row['status'])} {why}"
    values = " ".join(f"[dim]{name}=[/]{escape(text, limit)}" for name, text in _texts(row).items())
    place = f"{row['partition']}/{row['offset']}"
    return f"[dim]{row['seq']:>4} {moment(row['at_ms'])} {place:>8}[/]  [bold]{row['type']:<18}[/] {values}"


def is_cut(row: Data) -> bool:
    """Whether a line of this event does not show all of it."""
    return any(len(text) > CUT for text in _texts(row).values())


def _texts(row: Data) -> dict[str, str]:
    """The values of an event as text, and which input caused it."""
    cause = row["cause"]
    caused = {"cause": f"{cause['topic']}/{cause['partition']}/{cause['offset']}"} if cause else {}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in row["event"].items()
        if value
    }
    return texts | caused


def raw_line(row: Data) -> str:
    """A record in a line of markup."""
    worth = f"[magenta]void: {row['void']}[/]" if row["void"] else "[green]counts[/]"
    names = ", ".join(row["events"])
    return f"[dim]{row['partition']}/{row['offset']}[/] {escape(row['key'])} {worth} {row['bytes']} bytes  {names}"
