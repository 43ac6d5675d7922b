"""Acceptance of entries: own ones once their offset is the next, others when they are read; none has consequences
before. A lane has two states of a run: accepted (the fold of the log up to `position`) and speculated (with those on
their way)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from refold.core.errors import FoldError, MalformedError
from refold.core.events import Entry
from refold.core.ids import (
    RunId,
    generation_id,
    generation_of,
    next_generation,
    parents_of,
    parse_log_key,
    root_of,
)
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord
from refold.core.run.disorder import Aside
from refold.core.run.erased import Markers, erased_run
from refold.core.run.finished import Finished
from refold.core.run.log import Judged, LogFold, Lost
from refold.core.run.redrive import reopens
from refold.core.run.snapshot import Asleep, PartitionSnapshot
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG
from refold.engine.planner.agents.stalls import LiveCode
from refold.engine.planner.intake.inbox import Inbox, Pending, SentEntry, WaitsFor
from refold.engine.planner.log.windows import Windows
from refold.engine.planner.snapshot import Anchor, SnapshotWriter
from refold.engine.ports.log import NEVER, Record
from refold.engine.runtime.lanes import Journal


@dataclass(frozen=True, slots=True)
class RedrivenRun:
    """A finished run with its history (offset, seq, bytes per entry); `news`: entries new to this lane."""

    state: RunState
    entries: list[tuple[int, int, bytes]]
    news: list[Entry]


class RedrivenRuns:
    """Finished runs of one lane that go on: `reread` with their history, `unknown` by the head in their row."""

    def __init__(
        self, fold: LogFold, finished: Finished, writer: SnapshotWriter, *, freeze: Callable[[RunId, str], None]
    ) -> None:
        self._fold, self._finished, self._snapshot_writer, self._freeze = fold, finished, writer, freeze
        self.reread: dict[RunId, RedrivenRun] = {}
        self.unknown: dict[RunId, Head] = {}

    def state(self, run: RunId) -> RunState | None:
        """State of a finished run, with its history if that is here."""
        reread = self.reread.get(run)
        return reread.state if reread else self._finished.state(run)

    def finds(self, record: Record, run: RunId, seq: int) -> bool:
        """True if a record resumes a finished run that has only a row here; the run then waits for its history."""
        row = self._finished.get(run)
        if row is None or row.status != "failed" or seq != row.head.seq + 1:
            return False
        read = chain.read(record.key, record.value)
        return isinstance(read, LogRecord) and not self.reopen(read.entry) and self.continues(read.entry, record.offset)

    def continues(self, entry: Entry, offset: int) -> bool:
        """Freeze a finished run that an entry resumes while its history is not here; True if so."""
        run = entry.run_id
        row = self._finished.get(run)
        if row is None or not reopens(row.head, row.status, entry):
            return False
        self.forget(run)
        self.unknown[run] = row.head
        # A successor has to read the run's records from this offset on.
        self._snapshot_writer.apart[run] = offset
        self._freeze(run, "retried: its history is being read again")
        return True

    def reopen(self, entry: Entry) -> bool:
        """Make a failed run live again if this entry retries it; True if so."""
        reread = self.reread.get(entry.run_id)
        if reread is None or not reopens(reread.state.head, reread.state.status, entry):
            return False
        del self.reread[entry.run_id]
        self.take_back(reread)
        return True

    def take_back(self, reread: RedrivenRun) -> None:
        run = reread.state.run_id
        self.forget(run)
        self._fold.states[run] = reread.state
        self._snapshot_writer.reopen(run, reread.entries)

    def forget(self, run: RunId) -> None:
        self._finished.forget(run)
        self.drop(run)

    def drop(self, run: RunId) -> None:
        """Drop all data of a run but its row."""
        self._fold.forget(run)
        self.reread.pop(run, None)
        self.unknown.pop(run, None)


class AcceptedEntry(NamedTuple):
    """An entry that counts, and the state after it."""

    after: RunState
    entry: Entry
    offset: int


class Repaired(NamedTuple):
    """A stalled run whose history the record at `offset` has repaired."""

    state: RunState
    offset: int


Happened = AcceptedEntry | SentEntry | Repaired
"""Consequences of a record or delivery; a SentEntry is one that the log will never take."""


class Acceptance:
    """Accepted and speculated states of the runs of one lane. `fold` has live runs, `finished` rows of runs that are
    over, `erased` closed ids, `asleep` runs that only the `snapshot` has. `end_seen` is the known end of the log,
    `requested_at` the position when an end was requested. Records before `began` count for runs `apart` only. `unread`
    has own entries not read or accepted so far, by record key; None: the outcome is unknown. `beginning` are
    generations that are to begin here."""

    def __init__(
        self, inbox: Inbox, live: LiveCode, journal: Journal, *, windows: Windows, member: str, lost: Lost
    ) -> None:
        self._inbox, self._live, self.journal, self.windows = inbox, live, journal, windows
        self.fold, self.finished, self.erased = LogFold(lost), Finished(), Markers()
        self.snapshot = PartitionSnapshot(self.finished)
        self.asleep: dict[RunId, Asleep] = {}
        self._generations: dict[str, int] = {}
        self.beginning: set[RunId] = set()
        self.apart: dict[RunId, int] = {}
        self.snapshot_writer = SnapshotWriter(self.finished, member, state=self.fold.states.get)
        self.woken: list[RunState] = []
        self.redriven_runs = RedrivenRuns(self.fold, self.finished, self.snapshot_writer, freeze=self.freeze)
        self._woken_at: dict[RunId, int] = {}
        self.position = self.end_seen = self._next_least_end = self._least_end = self._read_back = 0
        self.began = self.requested_at = self.flying = self._slots = 0
        self._slot_bytes = inbox.limits.topic_bytes // inbox.limits.flying_entries
        self.shrunk = self.live = self.lost = False
        self.unread: dict[bytes, SentEntry | None] = {}
        self.speculated: dict[RunId, RunState] = {}
        self._own: dict[int, SentEntry] = {}
        self._placed: dict[int, bytes] = {}
        self._first_linked: dict[int, int] = {}
        self._read = (-1, b"", 0)

    @property
    def blocked(self) -> bool:
        """True if the log has unread records, so that states are known to be old."""
        return self.lost or bool(self._own) or self.position < self._read_back

    def latest(self, run: RunId) -> RunState | None:
        """State of a run including entries on their way."""
        return self.speculated.get(run) or self.stands(run)

    def stands(self, run: RunId) -> RunState | None:
        """State of a run by its accepted entries; of a finished one by its history if that is here, else its row."""
        return self.accepted(run) or self.redriven_runs.state(run)

    def accepted(self, run: RunId) -> RunState | None:
        """State of a live run in the log; a sleeping one is folded."""
        if run in self.asleep:
            self._wake(run)
        return self.fold.states.get(run)

    def known(self, run: RunId) -> RunState | None:
        """As `latest`, also for a run that stands still."""
        return self.speculated.get(run) or self.stands(run) or self.fold.ended(run)

    # Generations of a run, by its plain name

    def addressed(self, run: RunId) -> RunId:
        """The latest generation of a run, perhaps one that is to begin; ids of children are returned unchanged."""
        root, latest = root_of(run), run
        if "." in run:
            return run
        if (number := self._generations.get(root)) is not None:
            return generation_id(root, number)
        while latest not in self.fold.states and (row := self.finished.get(latest)) and row.status == "continued":
            if (later := next_generation(latest)) not in self.finished:
                break
            latest = later
        return latest

    def before(self, run: RunId) -> RunId:
        """The generation before this one; a first one is returned unchanged."""
        return generation_id(root_of(run), generation_of(run) - 1)

    def count_generations(self, runs: Iterable[RunId]) -> None:
        """Note the latest generation of these live runs."""
        for run in runs:
            if "+" in run and "." not in run:
                root = root_of(run)
                self._generations[root] = max(generation_of(run), self._generations.get(root, 1))

    def forkable(self, run: RunId) -> bool:
        """True if a history may be copied under this id: neither erased nor frozen."""
        return run not in self.erased.runs and run not in self.fold.frozen

    @property
    def has_room(self) -> bool:
        """True if the log is read, and takes more entries before the outcome of earlier ones is known."""
        return self._slots < self._inbox.limits.flying_entries and not self.blocked

    def send(self, sent: SentEntry) -> None:
        self.speculated[sent.entry.run_id] = sent.after
        self.unread[sent.key] = sent
        self.flying += 1
        self._slots += 1 + len(sent.value) // self._slot_bytes

    def delivered(self, sent: SentEntry, offset: int | None) -> Iterable[Happened]:
        """Handle the delivery of an own entry; consume the result. None: unknown, so the log is read to its end."""
        self.flying -= 1
        self._slots -= 1 + len(sent.value) // self._slot_bytes
        if self.unread.get(sent.key) is not sent:
            return ()  # its record was read, and judged, before this report
        if offset is None:
            self.journal.counts["append.unknown"] += 1
            self.unread[sent.key] = None
            self._undo(sent)
            self.lost = True
            # Answered now, it could get a second entry while the first still comes. Only the log can tell.
            sent.item.forget_log_end()
            self._inbox.waiting.put(sent.item, WaitsFor.LOG)
        elif offset == NEVER:
            del self.unread[sent.key]
            self.drop(sent.entry.run_id)
            return (sent,)
        elif offset < self.position:
            self.shrunk = True  # another record was read in its place
        else:
            self.shrunk |= offset in self._own  # the log took two of ours there, so it has lost the first
            self._own[offset], self._placed[offset] = sent, sent.key
            return self._advance()
        return ()

    def follow(self, record: Record) -> Iterator[Happened]:
        """Read the next record of the run log, skipping accepted own ones; consume the generator."""
        is_new = self._is_new(record)
        if self.shrunk or record.offset < self.position:
            if self.apart and is_new and self._is_apart(record):
                yield from self._accept_read(record)
            return
        own = None
        if self._own:
            # Offsets between the last record and this one have nothing to read (compaction): own entries lie there.
            for offset in sorted(offset for offset in self._own if offset < record.offset):
                yield from self._accept_own(sent := self._own.pop(offset), offset, sent.at_ms)
            own = self._own.pop(record.offset, None)
        own = own or self._recognise(record)
        yield from self._accept_own(own, record.offset, record.at_ms) if own else self._accept_read(record)
        self.position = record.offset + 1
        if self._own:
            yield from self._advance()

    def _recognise(self, record: Record) -> SentEntry | None:
        """Own entry in this record that is read before its delivery is reported, if any."""
        sent = self.unread.get(record.key or b"")
        # The key alone proves nothing: whoever may write to the topic may write it.
        return sent if sent is not None and sent.value == record.value else None

    def _is_new(self, record: Record) -> bool:
        """True if a record lies beyond all that were read; another one at a known offset: the log has lost its end."""
        place = (record.offset, record.key or b"", record.at_ms)
        if self._placed.pop(place[0], place[1]) != place[1] or (place[0] == self._read[0] and place != self._read):
            self.shrunk = True
        if is_new := place > self._read:
            self._read = place
        return is_new

    def reached(self, offset: int) -> None:
        """Note that reading has reached this offset; records before it may be compacted."""
        if not self._own:
            self.position = max(self.position, offset)

    @property
    def needs_log_end(self) -> bool:
        return self.lost or self.end_seen < self._least_end

    def reached_end(self, end: int) -> None:
        # An entry without an answer lies below this end, or will be void.
        if self.lost:
            self._read_back = max(self._read_back, end)
            self.lost = False
        self.end_seen = max(self.end_seen, end)
        self.shrunk |= self.end_seen < self._least_end

    def go_live(self) -> dict[RunId, str]:
        """Go live at the end captured by the take-over; return runs with an ambiguous history, and the reason."""
        self.live, stalled = True, self.fold.settle()
        for run in stalled:
            self.drop(run)
            self.finished.forget(run)
            # A run without a beginning has no snapshot records: reading its held-aside records again is enough.
            if self.fold.states.get(run) or self.fold.ended(run):
                offset = self._apart_from(run, self.began)
                self.snapshot_writer.leave_out(run, offset, was_kept=run in self._woken_at)
        return stalled

    def round(self, emitted: int, inputs: dict[str, int]) -> None:
        """Begin a snapshot round; all commands below `emitted` are out."""
        # Own entries unseen since the last round may be lost: without other writers only the log's end shows that.
        self._least_end, self._next_least_end = self._next_least_end, self.position
        aside = self.fold.oldest_aside
        # Only a round drops links: it has the lowest position, as commits run ahead of the sums of limits.
        self._first_linked = {offset: first for offset, first in self._first_linked.items() if offset >= emitted}
        emitted = self.linked_from(emitted)
        # Answers to inputs rest on all that was read: if the log ends below it, none of them holds.
        inputs = inputs | {RUN_LOG: self.position}
        if self.snapshot_writer.crowded:
            self.journal.tell("snapshot.crowded", runs=len(self.snapshot_writer.apart))
        self.snapshot_writer.round(emitted, inputs, log=emitted if aside is None else min(emitted, aside))

    def linked_from(self, emitted: int) -> int:
        """Position from which a successor has to read to send all remaining commands."""
        # Records that a later record links lie before it: their commands are repeated only if they are read again.
        return min([emitted, *(first for offset, first in self._first_linked.items() if offset >= emitted)])

    def drop(self, run: RunId) -> None:
        self.speculated.pop(run, None)
        self._live.drop(run)

    def _undo(self, sent: SentEntry) -> None:
        """Drop the latest state of a run if it includes an own entry that does not count."""
        # Later entries of the run may be on their way that stand on another writer's: they and the code go on.
        latest = self.speculated.get(sent.entry.run_id)
        if latest is not None and latest.entry_at(sent.entry.seq) == sent.id:
            self.drop(sent.entry.run_id)

    def finish(self, after: RunState) -> None:
        """Replace a run that was over before the lane began by its row."""
        self.fold.states.pop(after.run_id, None)
        self.snapshot_writer.end(after.run_id, self._row(after), self.position)

    def _row(self, after: RunState) -> bytes:
        """Add the row of a run that is over now."""
        run = after.run_id
        if after.status == "continued":
            self.count_generations([next_generation(run)])
        elif self._generations.get(root_of(run)) == generation_of(run) and "." not in run:
            del self._generations[root_of(run)]  # its row is found by the rows of the earlier ones
        # Rows of ancestors are kept as long: one that began again would find its child over, without a result. The same
        # holds for the row of a first generation, by which a repeated request has no effect.
        for above in (*parents_of(run), *([RunId(root_of(run))] if "+" in run else ())):
            if row := self.finished.extend(above, after.at_ms):
                self.snapshot_writer.over(above, row)
        return self.finished.add(after)

    def erase(self, record: Record) -> None:
        """Read an erasure marker: its run is closed and unknown from now on."""
        run = erased_run(record.key)
        if run is None:
            return
        state = self.accepted(run)
        # A live run was retried after the archivist's check, which cancels the marker.
        if self.live and state is not None and not state.over:
            return
        self.erased.follow(record.key, record.value)
        self.drop(run)
        # Its row stays: it makes the same request, repeated later, have no effect, here and in a successor.
        self.snapshot_writer.erase(run)
        self.redriven_runs.drop(run)

    def freeze(self, run: RunId, reason: str) -> None:
        """Stop a run whose history cannot be folded here."""
        self.fold.frozen[run] = reason
        self.drop(run)
        self.journal.tell("run.frozen", run_id=run, reason=reason)

    def _advance(self) -> Iterator[Happened]:
        # A gap before an own record is another writer's: it has to be read before the own one can count.
        while self.position in self._own:
            yield from self._accept_own(sent := self._own.pop(self.position), self.position, sent.at_ms)
            self.position += 1

    def _accept_own(self, sent: SentEntry, offset: int, at_ms: int) -> list[Happened]:
        run = sent.entry.run_id
        self.unread.pop(sent.key, None)
        if not self.redriven_runs.reopen(sent.entry) and self._is_over(run):
            if self.redriven_runs.continues(sent.entry, offset):  # it counts, as for every reader of the log
                sent.item.finish()
                return []
            judged = Judged(run, sent.id, sent.entry, "over")
        else:
            judged = self.fold.accept(Aside(LogRecord(sent.id, sent.entry), offset, sent.value), sent.after)
        if judged.void:
            self._count_void(judged)
            self._undo(sent)
            self._inbox.retry(sent.item)
            return []
        sent.item.finish()
        # Later entries of the same run may be on their way: then the latest state is theirs, and stays.
        if self.speculated.get(run) is sent.after:
            del self.speculated[run]
        self.snapshot_writer.anchors.add(Anchor(run, sent.id, offset, at_ms))
        return self._accept_judged(judged, offset, sent.value)

    def _accept_read(self, record: Record) -> list[Happened]:
        if self.erased.hides(record.key):
            return []
        if (anchor := chain.anchor_name(record.key)) is not None and record.value is not None:
            self.snapshot_writer.anchors.add(Anchor(RunId(""), anchor, record.offset, record.at_ms))
        key, parts = record.key or b"", parse_log_key(record.key)
        if parts is not None:
            if self.unread.get(key) is None:
                self.unread.pop(key, None)
            if self.redriven_runs.finds(record, *parts[:2]):
                return []
            if (passed := self._known_already(record, parts[0])) is not None:
                return passed
        frozen = len(self.fold.frozen)
        judged = self.fold.feed(record.key, record.value, shared=self.live, offset=record.offset, at_ms=record.at_ms)
        if judged.void and not (judged.mended or judged.held):
            self._leave_void(judged, record, freezes=len(self.fold.frozen) > frozen)
            return []
        self.drop(judged.run_id)
        if not judged.void:
            self.snapshot_writer.anchors.add(Anchor(judged.run_id, judged.id, record.offset, record.at_ms))
        happened = self._accept_judged(judged, record.offset, record.value or b"")
        if self.live:  # the agent's code has to catch up with another writer's entry
            self.journal.counts["record.foreign"] += 1
            self._inbox.push_front(Pending(judged.run_id, None))
        return happened

    def begin(self, position: int, apart: dict[RunId, int]) -> None:
        self.began = self.position = position
        self.apart = apart

    def _is_apart(self, record: Record) -> bool:
        """True if a record before the common start has to be read for its run."""
        parts = parse_log_key(record.key) if not (self.live or self.shrunk) else None
        return parts is not None and self._apart_from(parts[0], self.position) <= record.offset

    def _apart_from(self, run: RunId, other: int) -> int:
        return self.apart.get(run, self.apart.get(RunId(""), other))

    def _leave_void(self, judged: Judged, record: Record, *, freezes: bool) -> None:
        run, parts = judged.run_id, parse_log_key(record.key)
        # A version that can read it will look for it among the entries of its run.
        wanted = judged.void == "unreadable" and run not in self.snapshot_writer.apart
        if wanted and parts is not None and record.value is not None:
            self.snapshot_writer.add(run, record.value, seq=parts[1], offset=record.offset)
        if freezes:
            self.freeze(run, self.fold.frozen[run])
        else:
            self._count_void(judged)

    def _is_over(self, run: RunId) -> bool:
        """True if no more entries can count for a run."""
        if self.accepted(run) is not None:  # cheapest first
            return False
        return run in self.erased.runs or (run in self.finished and not self.fold.remembers(run))

    def _known_already(self, record: Record, run: RunId) -> list[Happened] | None:
        """Consequences of a record whose run is over or known beyond it; None: it is new."""
        if self._is_over(run):
            self.journal.counts["record.void"] += self.live and record.value is not None
            return []
        if (state := self.accepted(run)) is None or record.offset >= self._woken_at.get(run, 0):
            return None
        read = chain.read(record.key, record.value)
        # Beyond the known state of its run it was held aside, and may count when its predecessor comes.
        if isinstance(read, LogRecord) and read.entry.seq > state.head.seq:
            return None
        # Its commands may not be out, though its state is known.
        if isinstance(read, LogRecord) and state.entry_at(read.entry.seq) == read.id:
            return [AcceptedEntry(state, read.entry, record.offset)]
        return []

    def _accept_judged(self, judged: Judged, offset: int, value: bytes) -> list[Happened]:
        """Entries that count by a record: itself and those held aside for it, or all of a repaired run."""
        run, happened = judged.run_id, list[Happened]()
        self._rewrite(judged)
        for link in (judged, *judged.linked):
            if link.entry is not None and link.state is not None:
                record_value = value if link is judged else link.held[0].value
                self.snapshot_writer.add(run, record_value, seq=link.entry.seq, offset=offset)
                if "+" in run and not link.state.over:
                    self.count_generations([run])
                    self.beginning.discard(run)
                happened.append(AcceptedEntry(link.state, link.entry, offset))
        if judged.mended:
            happened.append(Repaired(self.fold.states[run], offset))
        if judged.linked:
            self._first_linked[offset] = min(link.held[0].offset for link in judged.linked)
            self.drop(run)
        if (state := self.fold.states.get(run)) is not None and state.over:
            row = self._row(state)
            if self.live and not judged.mended:
                self.snapshot_writer.over(run, row)
            else:
                self.snapshot_writer.end(run, row, offset + 1)
            del self.fold.states[run]
        return happened

    def _rewrite(self, judged: Judged) -> None:
        """Have the snapshot written again of a run whose history a record has repaired, or replaced by another."""
        run = judged.run_id
        if judged.mended:
            self.journal.tell("run.mended", run_id=run)
            self.snapshot_writer.rejoin(run)
        if judged.held:
            # From 0 on: its new copies lie behind the marks, but older records, which do not count, before them.
            self.snapshot_writer.reopen(run, [(0, record.record.entry.seq, record.value) for record in judged.held])
            self.finished.forget(run)

    def _count_void(self, judged: Judged) -> None:
        if judged.void == "copy":
            self.snapshot_writer.anchors.leave(judged.run_id)
            self.journal.counts["record.copy"] += 1
            # A repeated log has many copies: the first is journaled, the second, the fourth and so on.
            if (count := self.journal.counts["record.copy"]) & (count - 1) == 0:
                self.journal.news.append(("record.copied", {"run_id": judged.run_id, "records": count}))
        else:
            self.journal.counts["record.void"] += judged.void not in ("anchor", "tombstone", "unreadable")

    def rest(self) -> Iterator[tuple[RunState, Asleep]]:
        """Put runs to sleep that rest for long: their entries are folded again when one is due."""
        for run, value in self.snapshot_writer.rested().items():
            if self.fold.tangled(run):
                continue
            self.snapshot_writer.rest(run)
            self.asleep[run] = self.snapshot.put(run, value)
            self.journal.counts["run.rested"] += 1
            yield self.fold.states.pop(run), self.asleep[run]

    def _wake(self, run: RunId) -> None:
        self._woken_at[run] = self.asleep.pop(run).log
        try:
            snapshot = self.snapshot.take(run)
        except (FoldError, MalformedError) as error:
            self.freeze(run, error.message)
            return
        self.snapshot_writer.woken(run, snapshot)
        judged = [self.fold.feed(key, value) for key, value in snapshot.pairs]
        if any(link.void for link in judged) and run not in self.fold.frozen:
            self.freeze(run, "the entries that were kept of it are no history")
        if (state := self.fold.states.get(run)) is not None:
            self.woken.append(state)
