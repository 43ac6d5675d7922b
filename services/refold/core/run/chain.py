"""Which record counts: the one rule of the run log and of the claim chain.

A record counts if and only if it extends the head as folded so far; every other is void: ignored, and counted.
First to extend wins, so the log itself is a compare-and-set and no lock, lease or ownership is needed for safety.
Planner, executor, projections, client and verifier all ask here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from refold.core.errors import FoldError, MalformedError
from refold.core.events import LAST_MS, Entry
from refold.core.ids import NO_ENTRY, EntryId, RunId, entry_id, parse_log_key
from refold.core.wire import codec


class Head(NamedTuple):
    """Where a run's history ends: the id of its last entry and the seq of its last event."""

    id: EntryId = NO_ENTRY
    seq: int = 0


class LogRecord(NamedTuple):
    """A run-log record that is what its key says it is; whether it counts is for `extends` to tell."""

    id: EntryId
    entry: Entry


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run-log record of a version that this one cannot read. It may count: its run must stand still here."""

    run: RunId
    reason: str


VoidReason = Literal["key", "anchor", "tombstone", "hash", "body", "time"]

_ANCHOR = b"anchor/0000000000/"
"""In three parts, as the key of an entry is, for who takes keys apart. No entry has the number 0."""

CLOCK_PROBE_KEY = b"beat/0000000000/00"
"""The key of a tombstone by whose delivery a planner learns what time it is where the run log lies."""


def read(key: bytes | None, value: bytes | None) -> LogRecord | Unreadable | VoidReason:
    """A raw run-log record, judged by itself: the entry, or why it is nothing that anybody could have appended."""
    parts = parse_log_key(key)
    if parts is None:
        return "anchor" if key == CLOCK_PROBE_KEY or anchor_name(key) is not None else "key"
    if value is None:
        return "tombstone"
    run, seq, name = parts
    # The key holds the hash of the body: a body that was changed, or lies under the key of another, is none of ours.
    if len(value) < codec.FRAME_BYTES or value[0] != 0 or entry_id(value[codec.FRAME_BYTES :]) != name:
        return "hash"
    try:
        entry = codec.decode(Entry, value)
    except FoldError as error:
        # To a newer reader it may count. Passed over here, it would split the history in two.
        return Unreadable(run, error.message)
    except MalformedError:
        return "body"
    if entry.run_id != run or entry.seq != seq or not entry.events:
        return "body"
    # That it is not before the time of `prev` is judged by no reader, though every planner writes so: rows of finished
    # runs have whole seconds, heads in views have no time, so two readers would judge one entry differently and split
    # the history of its run. Readers allow for time that goes back.
    if not 0 < entry.at_ms <= LAST_MS:
        return "time"
    return LogRecord(name, entry)


def anchor_key(name: EntryId) -> bytes:
    """The key of a record that is of no run, so nothing erases it: what a snapshot stands on can be told by it."""
    return _ANCHOR + name.hex().encode()


def anchor_name(key: bytes | None) -> EntryId | None:
    """The name of an anchor; None for the key of anything else."""
    if key is None or not key.startswith(_ANCHOR):
        return None
    try:
        name = bytes.fromhex(key[len(_ANCHOR) :].decode())
    except ValueError:
        return None
    return EntryId(name) if name else None


def extends(head: Head, entry: Entry) -> bool:
    """True if an entry counts for a run with this head."""
    # `prev` is the compare-and-set: whoever lost the race names a head that is no head any more. `seq` keeps the
    # numbering dense, so that the ids of calls and approvals, which are made of it, are never given twice.
    return entry.prev == head.id and entry.seq == head.seq + 1
