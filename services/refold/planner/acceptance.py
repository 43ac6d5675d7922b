"""What the log has accepted: a lane's own entries as soon as their offset is the next one, all others as they are read.

Nothing is acted upon before that. A lane keeps two states of a run: as accepted (the fold of the log up to `position`)
and as speculated (what the entries of this turn will make of it if they are accepted).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from refold.core.events import Entry
from refold.core.ids import EntryId, RunId
from refold.core.run.log import LogFold
from refold.core.run.state import RunState
from refold.planner.inbox import Pending
from refold.ports.log import NEVER, Record
from refold.runtime.lanes import Journal


@dataclass(slots=True, eq=False)
class SentEntry:
    """An entry on its way into the log: the input that it answers and the state that it makes."""

    id: EntryId
    entry: Entry
    after: RunState
    item: Pending


class Listener(Protocol):
    """Who is told what became of entries, in the order of the log."""

    def accepted(self, after: RunState, entry: Entry, offset: int) -> None:
        """An entry counts, whoever wrote it."""
        ...

    def overtaken(self, item: Pending) -> None:
        """The entry that answers this input does not count, or may not: it has to be answered again."""
        ...

    def unknown(self, item: Pending) -> None:
        """Nobody knows whether the entry that answers this input is in the log."""
        ...

    def refused(self, sent: SentEntry) -> None:
        """The log will never take this entry."""
        ...

    def dropped(self, run: RunId) -> None:
        """The speculation about a run is void."""
        ...

    def foreign(self, run: RunId) -> None:
        """The entry that was just accepted is somebody else's."""
        ...

    def frozen(self, run: RunId, reason: str) -> None:
        """The log has something of this run that this version cannot read."""
        ...


class Acceptance:
    """The accepted and the speculated states of the runs of one lane."""

    def __init__(self, listener: Listener, journal: Journal) -> None:
        self._listener, self._journal = listener, journal
        self.fold = LogFold()
        self.position = 0
        self.live = False
        self.flying = 0
        self.lost = False
        self._speculated: dict[RunId, RunState] = {}
        self._own: dict[int, SentEntry] = {}
        self._read_back = 0

    @property
    def blocked(self) -> bool:
        """Whether the log holds something that was not read so far. Nothing is decided on a state known to be old."""
        return self.lost or bool(self._own) or self.position < self._read_back

    def latest(self, run: RunId) -> RunState | None:
        """A run as it will be if what is on its way is accepted; None if nothing is known of it."""
        return self._speculated.get(run) or self.fold.states.get(run)

    def speculates(self, run: RunId) -> bool:
        """Whether entries of a run are on their way."""
        return run in self._speculated

    def send(self, sent: SentEntry) -> None:
        """An entry is on its way: from now on its state is the run's latest."""
        self._speculated[sent.entry.run_id] = sent.after
        self.flying += 1

    def delivered(self, sent: SentEntry, offset: int | None) -> None:
        """The log's answer for an own entry. None: it may be there or come; the next end tells how far to read."""
        self.flying -= 1
        if offset is None:
            self._journal.counts["append.unknown"] += 1
            self.drop(sent.entry.run_id)
            self.lost = True
            self._listener.unknown(sent.item)
        elif offset == NEVER:
            self.drop(sent.entry.run_id)
            self._listener.refused(sent)
        elif offset < self.position:
            self._listener.overtaken(sent.item)  # read and judged before its delivery was reported
        else:
            self._own[offset] = sent
            self._advance()

    def follow(self, record: Record) -> None:
        """A record of the run log, in order of offset; own ones that are accepted already are passed over undecoded."""
        if record.offset < self.position:
            return
        # Offsets between the last record and this one hold nothing to read (compaction): what lies there is ours.
        for offset in sorted(offset for offset in self._own if offset < record.offset):
            self._accept_own(self._own.pop(offset), offset)
        own = self._own.pop(record.offset, None)
        if own:
            self._accept_own(own, record.offset)
        else:
            self._accept_read(record)
        self.position = record.offset + 1
        self._advance()

    def reached(self, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        if not self._own:
            self.position = max(self.position, offset)

    def reached_end(self, end: int) -> None:
        """The high watermark that was asked for: what is lost lies below it, or will be void."""
        if self.lost:
            self._read_back = max(self._read_back, end)
            self.lost = False

    def drop(self, run: RunId) -> None:
        """Forgets what is speculated about a run."""
        self._speculated.pop(run, None)
        self._listener.dropped(run)

    def freeze(self, run: RunId, reason: str) -> None:
        """A run that this version cannot fold stands still here until a version that can takes over."""
        self.fold.frozen[run] = reason
        self.drop(run)
        self._listener.frozen(run, reason)

    def _advance(self) -> None:
        # A gap before an own record means that somebody else's lies there: it has to be read before ours can count.
        while self.position in self._own:
            self._accept_own(self._own.pop(self.position), self.position)
            self.position += 1

    def _accept_own(self, sent: SentEntry, offset: int) -> None:
        run = sent.entry.run_id
        if not self.fold.extends(sent.entry):
            self._journal.counts["record.void"] += 1
            self.drop(run)
            self._listener.overtaken(sent.item)
            return
        sent.item.done = True
        if self._speculated.get(run) is sent.after:
            del self._speculated[run]
        self.fold.states[run] = sent.after
        self._listener.accepted(sent.after, sent.entry, offset)

    def _accept_read(self, record: Record) -> None:
        """A record that somebody else wrote, or that is read for the first time since the take-over."""
        frozen = len(self.fold.frozen)
        judged = self.fold.feed(record.key, record.value, shared=self.live)
        if judged.entry is not None and not judged.void:
            self.drop(judged.run_id)
            self._listener.accepted(self.fold.states[judged.run_id], judged.entry, record.offset)
            if self.live:
                self._journal.counts["record.foreign"] += 1
                self._listener.foreign(judged.run_id)
        elif len(self.fold.frozen) > frozen:
            self.freeze(judged.run_id, self.fold.frozen[judged.run_id])
        else:
            self._journal.counts["record.void"] += judged.void not in ("tombstone", "unreadable")
