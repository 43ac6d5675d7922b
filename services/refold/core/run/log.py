"""The fold of a partition of the run log: which records count, and what they make of the runs.

The loop around `chain.extends`, once: planner, client and verifier feed it the same bytes and hold the same states.
"""

from __future__ import annotations

from dataclasses import dataclass

from refold.core.errors import FoldError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, parse_log_key
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, Unreadable
from refold.core.run.fold import apply, evolve
from refold.core.run.state import RunState


@dataclass(frozen=True, slots=True)
class Judged:
    """A run-log record and what it is worth.

    `void` is empty for an accepted record. Otherwise: `raced` (another record extended the head first), `orphan` (it
    extends a record that is not there; told only where the fold keeps the lineage), `over` (the run had ended),
    `unreadable` (of a newer version, or after such a one), or what `chain.read` says of bytes that are no entry at all.
    """

    run_id: RunId
    id: EntryId
    entry: Entry | None
    void: str


class LogFold:
    """The states of the runs of a partition, fed in order of offset.

    `frozen` holds the runs that have an entry which this version cannot read, with the reason: they stand still here,
    for their history goes on where this fold does not see it. With `lineage` every entry's id is remembered, so that
    orphans can be told from records that came too late.
    """

    def __init__(self, *, lineage: bool = False) -> None:
        self.states: dict[RunId, RunState] = {}
        self.frozen: dict[RunId, str] = {}
        self._lineage: dict[RunId, set[EntryId]] | None = {} if lineage else None

    def feed(self, key: bytes | None, value: bytes | None, *, shared: bool = False) -> Judged:
        """Judges one record and, if it counts, applies it. `shared`: somebody else may hold the state before it."""
        read = chain.read(key, value)
        if isinstance(read, LogRecord):
            return self._extend(read, shared=shared)
        void: str = "unreadable" if isinstance(read, Unreadable) else read
        if isinstance(read, Unreadable):
            self.frozen.setdefault(read.run, read.reason)
        parts = parse_log_key(key)
        return Judged(parts[0] if parts else RunId(""), parts[2] if parts else EntryId(b""), None, void)

    def extends(self, entry: Entry) -> bool:
        """Whether an entry counts for its run as folded so far."""
        state = self.states.get(entry.run_id)
        if entry.run_id in self.frozen or (state is not None and state.over):
            return False
        return chain.extends(state.head if state else Head(), entry)

    def _extend(self, record: LogRecord, *, shared: bool) -> Judged:
        run, entry = record.entry.run_id, record.entry
        void = self._void(record)
        if not void:
            transition = evolve if shared else apply
            try:
                self.states[run] = transition(self.states.get(run) or RunState(run), entry, record.id)
            except FoldError as error:
                self.frozen[run] = error.message
                void = "unreadable"
        return Judged(run, record.id, entry, void)

    def _void(self, record: LogRecord) -> str:
        """Why a record does not count; nothing if it does."""
        run, entry = record.entry.run_id, record.entry
        known = True
        if self._lineage is not None:
            seen = self._lineage.setdefault(run, set())
            known = not entry.prev or entry.prev in seen
            seen.add(record.id)
        if run in self.frozen:
            return "unreadable"
        if self.extends(entry):
            return ""
        state = self.states.get(run)
        if state is not None and state.over:
            return "over"
        return "raced" if known else "orphan"
