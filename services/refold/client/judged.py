"""Which records of the run log count, and what they make of the runs: the planner's rule, for readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from refold.core import chain
from refold.core.chain import Head, LogRecord, Unreadable
from refold.core.errors import FoldError
from refold.core.events import Entry
from refold.core.ids import EntryId, parse_log_key
from refold.core.state import RunState, apply
from refold.ports.log import LogReader, Record

RUN_LOG = "run-log"


@dataclass(frozen=True, slots=True)
class Judged:
    """A run-log record and what it is worth.

    `void` is empty for an accepted record. Otherwise: `raced` (another record extended the head first), `orphan` (it
    extends a record that is not there), `over` (the run had ended), `unreadable` (of a newer version, or after such
    a one), or what `chain.read` says of bytes that are no entry at all.
    """

    record: Record
    run_id: str
    id: EntryId
    entry: Entry | None
    void: str = ""

    @property
    def place(self) -> str:
        """Where it lies, for people."""
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"


class LogFold:
    """The fold of run-log records, fed in order of offset per partition."""

    def __init__(self) -> None:
        self.states: dict[str, RunState] = {}
        self.frozen: dict[str, str] = {}
        self.void: Counter[str] = Counter()
        self.accepted = 0
        self.events = 0
        self._seen: dict[str, set[bytes]] = {}

    def feed(self, record: Record) -> Judged:
        """Judges one record and, if it counts, applies it."""
        found = self._judge(record)
        if found.void:
            self.void[found.void] += 1
        else:
            self.accepted += 1
            self.events += len(found.entry.events) if found.entry else 0
        return found

    def _judge(self, record: Record) -> Judged:
        read = chain.read(record.key, record.value)
        if isinstance(read, Unreadable):
            self.frozen.setdefault(read.run, read.reason)
            return _void(record, "unreadable")
        if isinstance(read, str):
            return _void(record, read)
        return self._extend(record, read)

    def _extend(self, record: Record, read: LogRecord) -> Judged:
        run, entry = read.entry.run_id, read.entry
        state = self.states.get(run)
        seen = self._seen.setdefault(run, set())
        known = not entry.prev or entry.prev in seen
        seen.add(read.id)
        if run in self.frozen:
            return Judged(record, run, read.id, entry, "unreadable")
        if state is not None and state.over:
            return Judged(record, run, read.id, entry, "over")
        if not chain.extends(state.head if state else Head(), entry):
            return Judged(record, run, read.id, entry, "raced" if known else "orphan")
        try:
            self.states[run] = apply(state or RunState(run), entry, read.id)
        except FoldError as error:
            self.frozen[run] = error.message
            return Judged(record, run, read.id, entry, "unreadable")
        return Judged(record, run, read.id, entry)


def judge(reader: LogReader, *, partition: int | None = None) -> Iterator[tuple[LogFold, Judged]]:
    """Every record of the run log up to its end, judged, with the fold so far."""
    fold = LogFold()
    for record in reader.scan(RUN_LOG, partition):
        yield fold, fold.feed(record)


def _void(record: Record, reason: str) -> Judged:
    parts = parse_log_key(record.key)
    return Judged(record, parts[0] if parts else "", parts[2] if parts else EntryId(b""), None, reason)
