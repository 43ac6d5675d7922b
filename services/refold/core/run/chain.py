"""Validity of records in run log and claim chain, for all readers: a record counts if and only if it extends the head
as folded so far. The first to extend wins: a compare-and-set, so safety needs no lock, lease or ownership."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from refold.core.errors import FoldError, MalformedError
from refold.core.events import LAST_MS, Entry
from refold.core.ids import NO_ENTRY, EntryId, RunId, entry_id, parse_log_key
from refold.core.wire import codec


class Head(NamedTuple):
    """End of a run's history: id of its last entry and seq of its last event."""

    id: EntryId = NO_ENTRY
    seq: int = 0


class LogRecord(NamedTuple):
    """Run-log record that matches its key; `extends` decides if it counts."""

    id: EntryId
    entry: Entry


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Run-log record of a newer version. It may count, so its run is frozen here."""

    run: RunId
    reason: str


VoidReason = Literal["key", "anchor", "tombstone", "hash", "body", "time"]

_ANCHOR = b"anchor/0000000000/"
"""Key prefix in three parts like an entry's key, for code that splits keys. No entry has the number 0."""

CLOCK_PROBE_KEY = b"beat/0000000000/00"
"""Key of a tombstone whose append time shows a planner the clock of the run log's broker."""


def read(key: bytes | None, value: bytes | None) -> LogRecord | Unreadable | VoidReason:
    """Entry in a raw run-log record, or the reason why it cannot be one."""
    parts = parse_log_key(key)
    if parts is None:
        return "anchor" if key == CLOCK_PROBE_KEY or anchor_name(key) is not None else "key"
    if value is None:
        return "tombstone"
    run, seq, name = parts
    # The key holds the hash of the body: a changed body, or one under another key, is void.
    if len(value) < codec.FRAME_BYTES or value[0] != 0 or entry_id(value[codec.FRAME_BYTES :]) != name:
        return "hash"
    try:
        entry = codec.decode(Entry, value)
    except FoldError as error:
        # It may count for a newer reader. To pass over it would split the history in two.
        return Unreadable(run, error.message)
    except MalformedError:
        return "body"
    if entry.run_id != run or entry.seq != seq or not entry.events:
        return "body"
    # Planners write no time before that of `prev`, but readers do not check it: rows of finished runs have whole
    # seconds and heads in views no time, so two readers would judge one entry differently and split the history of its
    # run. Readers allow for time that goes back.
    if not 0 < entry.at_ms <= LAST_MS:
        return "time"
    return LogRecord(name, entry)


def anchor_key(name: EntryId) -> bytes:
    # It belongs to no run: no erasure removes it, so a snapshot can be checked against it.
    return _ANCHOR + name.hex().encode()


def anchor_name(key: bytes | None) -> EntryId | None:
    """Entry id in an anchor's key; None for any other key."""
    if key is None or not key.startswith(_ANCHOR):
        return None
    try:
        name = bytes.fromhex(key[len(_ANCHOR) :].decode())
    except ValueError:
        return None
    return EntryId(name) if name else None


def extends(head: Head, entry: Entry) -> bool:
    """True if an entry counts for a run with this head."""
    # `prev` is the compare-and-set: after a lost race it is no longer the head. `seq` keeps the numbering dense, so
    # that ids of calls and approvals, which are made of it, are unique.
    return entry.prev == head.id and entry.seq == head.seq + 1
