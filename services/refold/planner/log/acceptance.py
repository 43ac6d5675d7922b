"""What the log has accepted: a lane's own entries as soon as their offset is the next one, all others as they are read.

Nothing is acted upon before that. A lane keeps two states of a run: as accepted (the fold of the log up to `position`)
and as speculated (what the entries of this turn will make of it if they are accepted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from refold.core.errors import FoldError, MalformedError
from refold.core.events import Entry
from refold.core.ids import EntryId, RunId, parents_of, parse_log_key
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord
from refold.core.run.disorder import Held
from refold.core.run.erased import Markers, erased_run
from refold.core.run.finished import Finished
from refold.core.run.log import NOTHING_LOST, Judged, LogFold, Lost
from refold.core.run.redrive import reopens
from refold.core.run.snapshot import Asleep, PartitionSnapshot
from refold.core.run.state import RunState
from refold.core.topics import RUN_LOG
from refold.planner.agents.stalls import LiveCode
from refold.planner.intake.inbox import Inbox, Pending, SentEntry, WaitsFor
from refold.planner.log.windows import Windows
from refold.planner.snapshot import Anchor, SnapshotWriter
from refold.ports.log import NEVER, Record
from refold.runtime.lanes import Journal


@dataclass(frozen=True, slots=True)
class RedrivenRun:
    """A run that is over, with its history: `entries` are offset, seq and bytes of each.

    Of one that goes on by somebody else's word, `news` are the entries that nobody here has heard of.
    """

    state: RunState
    entries: list[tuple[int, int, bytes]]
    news: list[Entry]


class RedrivenRuns:
    """Of one lane. `reread` were read again, `unknown` go on, and nothing of their history is here but a row.

    Of those it has the head that the row names: nobody here has heard of what counts after that.
    """

    def __init__(
        self,
        fold: LogFold,
        finished: Finished,
        snapshot_writer: SnapshotWriter,
        *,
        freeze: Callable[[RunId, str], None],
    ) -> None:
        self._fold, self._finished, self._snapshot_writer, self._freeze = fold, finished, snapshot_writer, freeze
        self.reread: dict[RunId, RedrivenRun] = {}
        self.unknown: dict[RunId, Head] = {}

    def state(self, run: RunId) -> RunState | None:
        """A run that is over as far as anybody knows: all of it if it was read again."""
        reread = self.reread.get(run)
        return reread.state if reread else self._finished.state(run)

    def finds(self, record: Record, run: RunId, seq: int) -> bool:
        """True if a record that nobody here has written lets a run go on of which nothing is here but a row."""
        row = self._finished.get(run)
        if row is None or row.status != "failed" or seq != row.head.seq + 1:
            return False
        read = chain.read(record.key, record.value)
        return isinstance(read, LogRecord) and not self.reopen(read.entry) and self.goes_on(read.entry, record.offset)

    def goes_on(self, entry: Entry, offset: int) -> bool:
        """True if an entry that counts lets a run go on whose history is not here: it is read again then.

        Until then the run stands still, and a successor has to read of it what the log has from this `offset` on.
        """
        run = entry.run_id
        row = self._finished.get(run)
        if row is None or not reopens(row.head, row.status, entry):
            return False
        self.forget(run)
        self.unknown[run] = row.head
        self._snapshot_writer.apart[run] = offset
        self._freeze(run, "retried: its history is being read again")
        return True

    def reopen(self, entry: Entry) -> bool:
        """Makes a failed run one that lives, if this entry lets it go on and its history is here; whether it did."""
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
        """Drops all that is known of a run but its row."""
        self._fold.forget(run)
        self.reread.pop(run, None)
        self.unknown.pop(run, None)


class AcceptedEntry(NamedTuple):
    """An entry counts, and `after` is the state that it makes. In the order of the log."""

    after: RunState
    entry: Entry
    offset: int


class RefusedEntry(NamedTuple):
    """The log will never take an entry."""

    sent: SentEntry


class Repaired(NamedTuple):
    """A run that was stalled goes on, by the record at `offset`, and all that counts of it was accepted."""

    state: RunState
    offset: int


Happened = AcceptedEntry | RefusedEntry | Repaired


class Acceptance:
    """The accepted and the speculated states of the runs of one lane.

    `speculated` has the runs of which entries are on their way, as those will make them.
    `seen` is how far the log goes, `asked_at` how far it was read when that was asked. `fold` has the runs that live,
    `finished` those that are over, `erased` those of which nothing counts, `asleep` those that are in the `snapshot`.
    The log is read from `began` on, and of the runs that are `apart` from an earlier offset.
    """

    def __init__(
        self,
        inbox: Inbox,
        live: LiveCode,
        journal: Journal,
        *,
        windows: Windows,
        member: str,
        lost: Lost = NOTHING_LOST,
    ) -> None:
        self._inbox, self._live, self.journal, self.windows = inbox, live, journal, windows
        self.fold, self.finished, self.erased = LogFold(lost), Finished(), Markers()
        self.snapshot = PartitionSnapshot(self.finished)
        self.asleep: dict[RunId, Asleep] = {}
        self.apart: dict[RunId, int] = {}
        self.snapshot_writer = SnapshotWriter(self.finished, member, state=self.fold.states.get)
        self.woken: list[RunState] = []
        self.redriven_runs = RedrivenRuns(self.fold, self.finished, self.snapshot_writer, freeze=self.freeze)
        self._known: dict[RunId, int] = {}
        self.position = self.seen = self.flying = self._awaited = self._missed = self._read_back = self.asked_at = 0
        self.began = 0
        self.shrunk = self.live = self.lost = False
        self.unread: set[EntryId] = set()
        self.speculated: dict[RunId, RunState] = {}
        self._own: dict[int, SentEntry] = {}
        self._placed: dict[int, EntryId] = {}
        self._linked: dict[int, int] = {}
        self._read = (-1, b"", 0)

    @property
    def blocked(self) -> bool:
        """True if the log holds something that was not read so far. Nothing is decided on a state known to be old."""
        return self.lost or bool(self._own) or self.position < self._read_back

    def latest(self, run: RunId) -> RunState | None:
        """A run as it will be if what is on its way is accepted; None if nothing is known of it."""
        return self.speculated.get(run) or self.stands(run)

    def stands(self, run: RunId) -> RunState | None:
        """A run as the log has it; of one that is over what is known of it."""
        return self.accepted(run) or self.redriven_runs.state(run)

    def accepted(self, run: RunId) -> RunState | None:
        """A run that lives, as the log has it."""
        if run in self.asleep:
            self._wake(run)
        return self.fold.states.get(run)

    def known(self, run: RunId) -> RunState | None:
        """A run as it will be, or one that stands still at what was read of it."""
        return self.latest(run) or self.fold.ended(run)

    def forkable(self, run: RunId) -> bool:
        """True if a history may be copied under this id: it is not closed, and its run does not stand still."""
        return run not in self.erased.runs and run not in self.fold.frozen

    def send(self, sent: SentEntry) -> None:
        """An entry is on its way: from now on its state is the run's latest."""
        self.speculated[sent.entry.run_id] = sent.after
        self.unread.add(sent.id)
        self.flying += 1

    def delivered(self, sent: SentEntry, offset: int | None) -> Iterator[Happened]:
        """The log's answer for an own entry. None: it may be there or come; the next end tells how far to read.

        What happened is known as it is gone through: all of it has to be.
        """
        self.flying -= 1
        if offset is None:
            self.journal.counts["append.unknown"] += 1
            self.drop(sent.entry.run_id)
            self.lost = True
            # Answered at once, it could get a second entry while the first still comes. Only the log can tell.
            sent.item.begins_again()
            self._inbox.waiting.put(sent.item, WaitsFor.LOG)
        elif offset == NEVER:
            self.unread.discard(sent.id)
            self.drop(sent.entry.run_id)
            yield RefusedEntry(sent)
        elif offset < self.position:
            # Read and judged before its delivery was reported; if it was not, something else was read in its place.
            self.shrunk |= sent.id in self.unread
            (Pending.finish if _counts(sent, self.stands(sent.entry.run_id)) else self._inbox.retry)(sent.item)
        else:
            self.shrunk |= offset in self._own  # the log took two of ours there, so it has lost the first
            self._own[offset], self._placed[offset] = sent, sent.id
            yield from self._advance()

    def follow(self, record: Record) -> Iterator[Happened]:
        """A record of the run log, in order of offset; own ones that are accepted already are passed over undecoded.

        What happened is known as it is gone through: all of it has to be.
        """
        place = (record.offset, record.key or b"", record.at_ms)
        own_id = self._placed.pop(record.offset, b"").hex().encode()
        if not place[1].endswith(own_id) or (place[0] == self._read[0] and place != self._read):
            self.shrunk = True  # what the log had there is lost
        last, self._read = self._read, max(self._read, place)
        if self.shrunk or record.offset < self.position:
            if self.apart and place > last and self._is_apart(record):
                yield from self._accept_read(record)
            return
        # Offsets between the last record and this one hold nothing to read (compaction): what lies there is ours.
        for offset in sorted(offset for offset in self._own if offset < record.offset):
            yield from self._accept_own(self._own.pop(offset), offset)
        own = self._own.pop(record.offset, None)
        yield from self._accept_own(own, record.offset) if own else self._accept_read(record)
        self.position = record.offset + 1
        yield from self._advance()

    def reached(self, offset: int) -> None:
        """Reading has come to this offset, though the records before it may be gone by compaction."""
        if not self._own:
            self.position = max(self.position, offset)

    @property
    def wants_end(self) -> bool:
        return self.lost or self.seen < self._missed

    def reached_end(self, end: int) -> None:
        """The high watermark that was asked for: what is lost lies below it, or will be void."""
        if self.lost:
            self._read_back = max(self._read_back, end)
            self.lost = False
        self.seen = max(self.seen, end)
        self.shrunk |= self.seen < self._missed

    def go_live(self) -> dict[RunId, str]:
        """The fold has reached the end that was captured at the take-over: what it reads from now on is new.

        The runs of which the log has no history that could be told from another, and why: they stand still.
        """
        self.live, stalled = True, self.fold.settle()
        for run in stalled:
            self.drop(run)
            self.finished.forget(run)
            # Nothing was kept of a run without a beginning: what is held aside of it is read again, and that will do.
            if self.fold.states.get(run) or self.fold.ended(run):
                offset = self._apart_from(run, self.began)
                self.snapshot_writer.leave_out(run, offset, was_kept=run in self._known)
        return stalled

    def round(self, emitted: int, inputs: dict[str, int]) -> None:
        """Begins to keep what has moved; all that is ordered below `emitted` is out.

        A successor reads from the first record on that may still count though it was read. Own entries that were not
        seen since the round before may be lost: where nobody writes, only the end tells.
        """
        self._missed, self._awaited = self._awaited, self.position
        aside = self.fold.oldest_aside
        self._linked = {offset: first for offset, first in self._linked.items() if offset >= emitted}
        emitted = self.linked_from(emitted)
        # That an input is answered rests on all that was read: of a log that ends below it nothing of that holds.
        inputs = inputs | {RUN_LOG: self.position}
        if self.snapshot_writer.crowded:
            self.journal.tell("snapshot.crowded", runs=len(self.snapshot_writer.apart))
        self.snapshot_writer.round(emitted, inputs, log=emitted if aside is None else min(emitted, aside))

    def linked_from(self, emitted: int) -> int:
        """From where a successor has to read the log, so as to tell all that was not told below `emitted`.

        What a record has linked lies before it, and is told again only if it is read again. A round asks for the lowest
        position of all, so a round alone forgets what is told: commits run ahead of what others are told of limits.
        """
        return min([emitted, *(first for offset, first in self._linked.items() if offset >= emitted)])

    def swept(self) -> list[bytes]:
        """The keys of records that can never count, once: a tombstone each, before copies and cleaning move them."""
        keys, self.fold.sweep = self.fold.sweep, []
        return keys

    def drop(self, run: RunId) -> None:
        """Forgets what is speculated about a run; the agent's code is made again from what the log says."""
        self.speculated.pop(run, None)
        self._live.drop(run)

    def finish(self, after: RunState) -> None:
        """A run that was over before the lane began: a row will do."""
        self.fold.states.pop(after.run_id, None)
        self.snapshot_writer.end(after.run_id, self._row(after), self.position)

    def _row(self, after: RunState) -> bytes:
        """The row of a run that is over now.

        Those that have started it are known for as long as it is: begun anew, one would find its child over, and
        nothing left of its result.
        """
        for above in parents_of(after.run_id):
            if row := self.finished.extend(above, after.at_ms):
                self.snapshot_writer.over(above, row)
        return self.finished.add(after)

    def erase(self, record: Record) -> None:
        """Takes note of a marker: its run is closed and unknown from now on, whatever the log has of it.

        One that goes on was over when an archivist looked, and was retried since: that takes its marker back.
        """
        run = erased_run(record.key)
        if run is None:
            return
        state = self.accepted(run)
        if self.live and state is not None and not state.over:
            return
        self.erased.follow(record.key, record.value)
        self.drop(run)
        # Its row stays: by that the same request, repeated later, changes nothing, here and in a successor.
        self.snapshot_writer.erase(run)
        self.redriven_runs.drop(run)

    def freeze(self, run: RunId, reason: str) -> None:
        """A run that this version cannot fold stands still here until a version that can takes over."""
        self.fold.frozen[run] = reason
        self.drop(run)
        self.journal.tell("run.frozen", run_id=run, reason=reason)

    def _advance(self) -> Iterator[Happened]:
        # A gap before an own record means that somebody else's lies there: it has to be read before ours can count.
        while self.position in self._own:
            yield from self._accept_own(self._own.pop(self.position), self.position)
            self.position += 1

    def _accept_own(self, sent: SentEntry, offset: int) -> list[Happened]:
        run = sent.entry.run_id
        self.unread.discard(sent.id)
        if not self.redriven_runs.reopen(sent.entry) and self._is_over(run):
            if self.redriven_runs.goes_on(sent.entry, offset):  # it counts, as everybody who reads the log sees
                sent.item.finish()
                return []
            judged = Judged(run, sent.id, sent.entry, "over")
        else:
            judged = self.fold.accept(Held(LogRecord(sent.id, sent.entry), offset, sent.value), sent.after)
        if judged.void:
            self._count_void(judged)
            self.drop(run)
            self._inbox.retry(sent.item)
            return []
        sent.item.finish()
        # Later entries of the same run may be on their way: then the latest state is theirs, and stays.
        if self.speculated.get(run) is sent.after:
            del self.speculated[run]
        self.snapshot_writer.anchors.add(Anchor(run, sent.id, offset, sent.at_ms))
        return self._take(judged, offset, sent.value)

    def _accept_read(self, record: Record) -> list[Happened]:
        """A record that somebody else wrote, or that is read for the first time since the take-over."""
        if self.erased.hides(record.key):
            return []
        if (anchor := chain.anchor_name(record.key)) is not None and record.value is not None:
            self.snapshot_writer.anchors.add(Anchor(RunId(""), anchor, record.offset, record.at_ms))
        parts = parse_log_key(record.key)
        if parts is not None:
            self.unread.discard(parts[2])
            if self.redriven_runs.finds(record, *parts[:2]):
                return []
            if (passed := self._passed(record, parts[0])) is not None:
                return passed
        frozen = len(self.fold.frozen)
        judged = self.fold.feed(record.key, record.value, shared=self.live, offset=record.offset, at_ms=record.at_ms)
        if judged.void and not (judged.mended or judged.held):
            if parts is not None:
                self._keep_unreadable(judged, record, parts[1])
            if len(self.fold.frozen) > frozen:
                self.freeze(judged.run_id, self.fold.frozen[judged.run_id])
            else:
                self._count_void(judged)
            return []
        self.drop(judged.run_id)
        if not judged.void:
            self.snapshot_writer.anchors.add(Anchor(judged.run_id, judged.id, record.offset, record.at_ms))
        happened = self._take(judged, record.offset, record.value or b"")
        if self.live:  # the agent's code has to catch up with somebody else's entry
            self.journal.counts["record.foreign"] += 1
            self._inbox.push_front(Pending(judged.run_id, None))
        return happened

    def begin(self, position: int, apart: dict[RunId, int]) -> None:
        """The log is read from here on, of the runs that are apart from an earlier offset."""
        self.began = self.position = position
        self.apart = apart

    def _is_apart(self, record: Record) -> bool:
        """True if a record lies before all that is read of other runs, and has to be read for its run."""
        parts = parse_log_key(record.key) if not (self.live or self.shrunk) else None
        return parts is not None and self._apart_from(parts[0], self.position) <= record.offset

    def _apart_from(self, run: RunId, other: int) -> int:
        return self.apart.get(run, self.apart.get(RunId(""), other))

    def _keep_unreadable(self, judged: Judged, record: Record, seq: int) -> None:
        # It may count for a version that can read it, and that will find it among the entries of its run.
        apart = judged.run_id in self.snapshot_writer.apart
        if record.value is not None and judged.void == "unreadable" and not apart:
            self.snapshot_writer.keep(judged.run_id, record.value, seq=seq, offset=record.offset)

    def _is_over(self, run: RunId) -> bool:
        """True if nothing counts for a run any more. While a fold may still find that order has lied, it goes on."""
        if self.accepted(run) is not None:  # cheapest first
            return False
        return run in self.erased.runs or (run in self.finished and not self.fold.remembers(run))

    def _passed(self, record: Record, run: RunId) -> list[Happened] | None:
        """What still follows from a record whose run is over, or known to a point beyond it; None: it is news."""
        if self._is_over(run):
            self.journal.counts["record.void"] += self.live and record.value is not None
            return []
        if (state := self.accepted(run)) is None or record.offset >= self._known.get(run, 0):
            return None
        read = chain.read(record.key, record.value)
        # Beyond all that is known of its run it was held aside, and may count when its predecessor comes.
        if isinstance(read, LogRecord) and read.entry.seq > state.head.seq:
            return None
        # What it orders may not be out, though what it says is known.
        if isinstance(read, LogRecord) and state.entry_at(read.entry.seq) == read.id:
            return [AcceptedEntry(state, read.entry, record.offset)]
        return []

    def _take(self, judged: Judged, offset: int, value: bytes) -> list[Happened]:
        """What counts by a record: itself, and what was held aside for it. Of a run that was stalled all is news."""
        run, happened = judged.run_id, list[Happened]()
        if judged.mended:
            self.journal.tell("run.mended", run_id=run)
            self.snapshot_writer.rejoin(run)
        if judged.held:
            # From 0 on: its new copies lie behind the marks, but older records, which do not count, before them.
            self.snapshot_writer.reopen(run, [(0, held.record.entry.seq, held.value) for held in judged.held])
            self.finished.forget(run)
        for each in (judged, *judged.linked):
            if each.entry is not None and each.state is not None:
                kept = value if each is judged else each.held[0].value
                self.snapshot_writer.keep(run, kept, seq=each.entry.seq, offset=offset)
                happened.append(AcceptedEntry(each.state, each.entry, offset))
        if judged.mended:
            happened.append(Repaired(self.fold.states[run], offset))
        if judged.linked:
            self._linked[offset] = min(each.held[0].offset for each in judged.linked)
            self.drop(run)
        if (state := self.fold.states.get(run)) is not None and state.over:
            row = self._row(state)
            if self.live and not judged.mended:
                self.snapshot_writer.over(run, row)
            else:
                self.snapshot_writer.end(run, row, offset + 1)
            del self.fold.states[run]
        return happened

    def _count_void(self, judged: Judged) -> None:
        if judged.void == "copy":
            self.snapshot_writer.anchors.leave(judged.run_id)
            self.journal.counts["record.copy"] += 1
            # Whoever repeats records repeats many: of them the first is told, the second, the fourth and so on.
            if (count := self.journal.counts["record.copy"]) & (count - 1) == 0:
                self.journal.news.append(("record.copied", {"run_id": judged.run_id, "records": count}))
        else:
            self.journal.counts["record.void"] += judged.void not in ("anchor", "tombstone", "unreadable")

    def rest(self) -> Iterator[tuple[RunState, Asleep]]:
        """Lets go of runs that sleep for long: they are as at a take-over, entries that are folded when one is due."""
        for run, value in self.snapshot_writer.rested().items():
            if self.fold.tangled(run):
                continue
            self.snapshot_writer.rest(run)
            self.asleep[run] = self.snapshot.put(run, value)
            self.journal.counts["run.rested"] += 1
            yield self.fold.states.pop(run), self.asleep[run]

    def _wake(self, run: RunId) -> None:
        """Folds what was kept of a run."""
        self._known[run] = self.asleep.pop(run).log
        try:
            taken = self.snapshot.take(run)
        except (FoldError, MalformedError) as error:
            self.freeze(run, error.message)
            return
        self.snapshot_writer.woken(run, taken)
        judged = [self.fold.feed(key, value) for key, value in taken.pairs]
        if any(each.void for each in judged) and run not in self.fold.frozen:
            self.freeze(run, "the entries that were kept of it are no history")
        if (state := self.fold.states.get(run)) is not None:
            self.woken.append(state)


def _counts(sent: SentEntry, known: RunState | None) -> bool:
    """True if an entry is in the history of its run; of one that is over only the last may be known."""
    return known is not None and sent.id in (known.head.id, known.entry_at(sent.entry.seq))
