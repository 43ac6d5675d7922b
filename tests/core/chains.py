"""Entries of a run, each of which extends the one before it, as the records of a log."""

from __future__ import annotations

from collections.abc import Sequence

from refold.core.events import Cause, Entry, Event
from refold.core.ids import NO_ENTRY, EntryId, RunId, log_key
from refold.core.wire import codec

AT = 1_700_000_000_000


def chained(
    run: RunId, entries: Sequence[Sequence[Event]], *, at_ms: int = AT, held: bool = False
) -> list[tuple[bytes, bytes]]:
    """The keys and values of a history. `held`: what the agent's code does then is not in it."""
    prev, seq, found = EntryId(NO_ENTRY), 1, []
    for number, events in enumerate(entries):
        cause = Cause("run-requested", 0, number)
        entry = Entry(run, seq, prev, at_ms + number, cause, "planner", number.to_bytes(16), list(events), held)
        name, value = codec.encode_entry(entry)
        found.append((log_key(run, seq, name), value))
        prev, seq = name, entry.last_seq + 1
    return found
