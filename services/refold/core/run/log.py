"""Fold of a partition of the run log, the same for planner, client and verifier. The judgement of a record depends only
on those before it. Only copies in a cleaned log may break the order; `settle` reports the runs affected."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from refold.core.errors import FoldError
from refold.core.events import Entry, ForkedFrom, RunForked, RunRequested
from refold.core.ids import EntryId, RunId, log_key, parse_log_key
from refold.core.run import chain
from refold.core.run.chain import Head, LogRecord, Unreadable
from refold.core.run.disorder import Aside, Disorder
from refold.core.run.fold import apply, evolve
from refold.core.run.persistent import PersistentList
from refold.core.run.redrive import reopens
from refold.core.run.state import BY_SEQ, RunState, Status

LATE_MS = 60_000
"""Milliseconds between an entry's time and its append that indicate a copy or a delay, so its position proves no age.
Cleaning spares younger records (`min.compaction.lag.ms`)."""

ASIDE_BYTES = 64 << 20
"""Cap of the records held aside by a fold. With 1 % of records repeated about a twentieth of a log is aside."""

FORKED = "forked: two histories of the run are in the log, in an order that was lost; `refold run repair` chooses"
GAP = "gap: the beginning of its history is not in the log"


class Lost(NamedTuple):
    """Reader's data from before the log lost its end: its entries sent but not read, and the living runs."""

    unread: AbstractSet[EntryId]
    runs: AbstractSet[RunId]

    def has_beginning(self, run: RunId, disorder: Disorder) -> bool:
        """True if the beginning of a run with remaining entries was in the lost part."""
        # A living run was read from its beginning; entries written on a lost beginning were never acted upon.
        return run in self.runs or {aside.record.id for aside in disorder.asides()} <= self.unread


NOTHING_LOST = Lost(frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class Judged:
    """Run-log record and its judgement. `void` is empty for an accepted record. Else `raced` (another record extended
    the head first), `orphan` (predecessor not read so far), `copy`, `over` (the run had ended), `stalled` (order would
    have to decide), `unreadable` (of a newer version, or after such a one), `buried` (tombstone of a record that
    counted), or the reason from `chain.read`."""

    run_id: RunId
    id: EntryId
    entry: Entry | None
    void: str
    state: RunState | None = None  # the run after a record that counts
    linked: tuple[Judged, ...] = ()  # records held aside for this one, which count from here on
    mended: bool = False  # the run was stalled, and goes on
    held: tuple[Aside, ...] = ()  # original records of `linked`, or the history that replaces the previous one


class _Over(NamedTuple):
    """Run that seems over, packed because a log has many. `heads` has one head per entry."""

    status: Status
    request_digest: str
    at_ms: int
    pools: tuple[str, ...]
    forked: ForkedFrom | None
    heads: bytes

    @classmethod
    def packed(cls, state: RunState) -> _Over:
        digest, forked = (state.request.request_digest, state.request.forked) if state.request else ("", None)
        heads = b"".join([_HEAD.pack(head.seq, head.id) for head in state.heads])
        return cls(state.status, digest, state.at_ms, state.called_pools(), forked, heads)

    def state(self, run: RunId) -> RunState:
        heads = PersistentList(Head(EntryId(name), seq) for seq, name in _HEAD.iter_unpack(self.heads))
        request = RunRequested("", "", self.request_digest, seed="", forked=self.forked)
        return RunState(run, heads[-1], self.status, request, at_ms=self.at_ms, heads=heads, pools=self.pools)


class LogFold:
    """States of the runs of a partition, fed in order of offset. A caller may remove finished states; it gets no
    judgement of their later records."""

    def __init__(self, lost: Lost = NOTHING_LOST) -> None:
        self.states: dict[RunId, RunState] = {}
        self.frozen: dict[RunId, str] = {}  # reason by run: a newer version's entry, or an ambiguous history
        self.sweep: list[bytes] = []  # after `settle`: keys of records that can never count
        self.lost = lost
        self._live, self._aside = False, 0
        self._over: dict[RunId, _Over] = {}
        self._disorders: dict[RunId, Disorder] = {}

    def feed(
        self, key: bytes | None, value: bytes | None, *, shared: bool = False, offset: int = 0, at_ms: int = 0
    ) -> Judged:
        """Judge a record and apply it if it counts. `shared`: others may own the state. `at_ms`: append time or 0."""
        read = chain.read(key, value)
        if isinstance(read, LogRecord):
            late = at_ms - read.entry.at_ms > LATE_MS and not self._copied(read.entry)
            return self._judge(Aside(read, offset, value or b""), None, shared=shared, late=late)
        parts = parse_log_key(key)
        run, seq, name = parts or (RunId(""), 0, EntryId(b""))
        if isinstance(read, Unreadable):
            self.frozen.setdefault(run, read.reason)
            self._drop(run)
            return Judged(run, name, None, "unreadable")
        return self._bury(run, seq, name) if read == "tombstone" else Judged(run, name, None, read)

    def _copied(self, entry: Entry) -> bool:
        """True for an entry copied by a fork, or written behind its copy: it has the times of its source."""
        state, first = self._state(entry.run_id), entry.events[0]
        if isinstance(first, RunRequested):  # any run may begin so
            return first.forked is not None
        # A zombie planner may go on copying after a fork was cancelled.
        return state is not None and state.copied(entry.seq - (not isinstance(first, RunForked)))

    def accept(self, aside: Aside, after: RunState) -> Judged:
        """Judge an own record at a known offset; if it counts, `after` is the run's state."""
        return self._judge(aside, after, shared=True, late=False)

    def extends(self, entry: Entry) -> bool:
        state = self.states.get(entry.run_id)
        if entry.run_id in self.frozen:
            return False
        if state is not None and state.over:
            return reopens(state.head, state.status, entry)
        return chain.extends(state.head if state else Head(), entry)

    def remembers(self, run: RunId) -> bool:
        """True if a finished run is still tracked: until `settle` its order may prove to be wrong."""
        return run in self._over

    def ended(self, run: RunId) -> RunState | None:
        """State of a run that seemed over, without its input and its steps."""
        over = self._over.get(run)
        return over.state(run) if over else None

    def tangled(self, run: RunId) -> bool:
        """True if the records of a run do not simply follow each other, or the run is frozen."""
        return run in self._disorders or run in self.frozen

    def has_all(self, run: RunId) -> bool:
        """True if no entry that counts for a run has a tombstone."""
        disorder = self._disorders.get(run)
        return disorder is None or not disorder.buried

    def forget(self, run: RunId) -> None:
        for runs in (self.states, self.frozen, self._over):
            runs.pop(run, None)
        self._drop(run)

    def _drop(self, run: RunId) -> None:
        if (disorder := self._disorders.pop(run, None)) is not None:
            self._aside -= sum(len(aside.value) for aside in disorder.asides())

    def settle(self) -> dict[RunId, str]:
        """End the initial read of the log; return the runs that stall, with the reason. All later records are new."""
        self._live = True
        stalled: dict[RunId, str] = {}
        for run, disorder in list(self._disorders.items()):
            if disorder.aside and self._state(run) is None and self.lost.has_beginning(run, disorder):
                self._take_back(run, disorder)
            elif disorder.contested:
                stalled[run] = FORKED
            elif self._state(run) is None and disorder.aside:
                stalled[run] = GAP
            elif not disorder.aside:
                del self._disorders[run]
            disorder.stalled = run in stalled
        self.frozen |= stalled
        self._over = {run: over for run, over in self._over.items() if run in stalled}
        self.lost = NOTHING_LOST
        return stalled

    def _take_back(self, run: RunId, disorder: Disorder) -> None:
        """Drop the remainder of a run whose beginning is lost: the run counts as never begun."""
        for aside in disorder.asides():
            self._sweep(aside)
        self._drop(run)

    @property
    def oldest_aside(self) -> int | None:
        """Lowest offset of a record that may still count: a later reader must begin there."""
        return min((aside.offset for disorder in self._disorders.values() for aside in disorder.asides()), default=None)

    def _judge(self, aside: Aside, after: RunState | None, *, shared: bool, late: bool) -> Judged:
        record, entry = aside.record, aside.record.entry
        run = entry.run_id
        disorder, state = self._disorders.get(run), self._state(run)
        stalled = disorder is not None and disorder.stalled
        if disorder is not None and disorder.disordered:
            disorder.rebuild(aside)
        if run in self.frozen and not stalled:
            return Judged(run, record.id, entry, "unreadable")
        if self._is_copy(record):
            return self._note_copy(aside)
        follows = _follows(state, entry)
        if state is not None and state.over and (ended := self._after_end(aside, state, follows=follows, late=late)):
            return ended
        if disorder is not None and stalled and state is not None:
            self._set_aside(aside, None)
            return Judged(run, record.id, entry, "stalled")
        if chain.extends(state.head if state else Head(), entry):
            return self._grow(aside, after, shared=shared)
        return self._leave_out(aside, state, follows=follows, late=late)

    def _after_end(self, aside: Aside, state: RunState, *, follows: bool, late: bool) -> Judged | None:
        """Judgement of a record of a finished run; None if it retries the run, or may belong before its end."""
        run, entry = aside.record.entry.run_id, aside.record.entry
        if run in self.states and reopens(state.head, state.status, entry):
            return None
        # A record without a predecessor may follow the retry of a failed run, moved behind it by copies.
        if not follows and state.status == "failed":
            return None
        if not self._live and follows and entry.prev != state.head.id:
            self._compete(aside, late=late)
        return Judged(run, aside.record.id, entry, "over")

    def _leave_out(self, aside: Aside, state: RunState | None, *, follows: bool, late: bool) -> Judged:
        run, entry = aside.record.entry.run_id, aside.record.entry
        if follows:
            self._compete(aside, late=late)
            return Judged(run, aside.record.id, entry, "raced")
        self._set_aside(aside, state)
        return Judged(run, aside.record.id, entry, "orphan" if run not in self.frozen or state is None else "stalled")

    def _state(self, run: RunId) -> RunState | None:
        return self.states.get(run) or self.ended(run)

    def _is_copy(self, record: LogRecord) -> bool:
        run = record.entry.run_id
        disorder, state = self._disorders.get(run), self._state(run)
        if disorder is not None and (record.id in disorder.branches or disorder.contains(record.id)):
            return True
        return state is not None and state.entry_at(record.entry.seq) == record.id

    def _grow(self, aside: Aside, after: RunState | None, *, shared: bool) -> Judged:
        """Apply a record that extends its run, and those held for it."""
        run, disorder = aside.record.entry.run_id, self._disorders.get(aside.record.entry.run_id)
        judged = self._apply(aside.record, after, shared=shared)
        if judged.void or disorder is None:
            self._end(run)
            return judged
        mended, disorder.stalled = disorder.stalled, False
        if mended:
            self.frozen.pop(run, None)
        linked = self._link(disorder, judged.id)
        self._pass_by(run, disorder)
        self._end(run)
        return replace(judged, linked=linked, mended=mended)

    def _link(self, disorder: Disorder, last: EntryId) -> tuple[Judged, ...]:
        """Apply records held for entry `last`, and in turn for those."""
        linked: list[Judged] = []
        while waiting := disorder.aside.pop(last, None):
            disorder.disturbed = True
            for child in waiting:
                self._aside -= len(child.value)
                if not self.extends(child.record.entry):
                    self._compete(child, late=False)
                elif not (judged := self._apply(child.record, None, shared=True)).void:
                    linked.append(replace(judged, held=(child,)))
            last = linked[-1].id if linked else last
        return tuple(linked)

    def _end(self, run: RunId) -> None:
        """Stop tracking a finished run."""
        state = self.states.get(run)
        if state is None or not state.over:
            return
        if self._live:
            self._drop(run)
        else:
            # Records of the initial read may still revise its end.
            self._over[run] = _Over.packed(state)

    def _apply(self, record: LogRecord, after: RunState | None, *, shared: bool) -> Judged:
        run = record.entry.run_id
        try:
            before = self.states.get(run) or RunState(run)
            state = after or (evolve if shared else apply)(before, record.entry, record.id)
        except FoldError as error:
            self.frozen[run] = error.message
            return Judged(run, record.id, record.entry, "unreadable")
        self.states[run] = state
        self._over.pop(run, None)
        return Judged(run, record.id, record.entry, "", state)

    def _set_aside(self, aside: Aside, state: RunState | None) -> None:
        """Hold a record for its predecessor, which may be late, or moved behind it by copies and cleaning."""
        run = aside.record.entry.run_id
        disorder = self._disorders.setdefault(run, Disorder())
        if self._aside + len(aside.value) > ASIDE_BYTES:
            self.frozen[run] = "forked: too much of it stands before its beginning to be held"
            self._drop(run)
            return
        disorder.add(aside)
        self._aside += len(aside.value)
        if state is not None:
            self._pass_by(run, disorder)

    def _pass_by(self, run: RunId, disorder: Disorder) -> None:
        state = self._state(run)
        for aside in disorder.pass_by(state.head.seq if state else 0):
            self._aside -= len(aside.value)
            self._sweep(aside)

    def _compete(self, aside: Aside, *, late: bool) -> None:
        """Void a record whose predecessor has another successor, if order is reliable."""
        run, name = aside.record.entry.run_id, aside.record.id
        self._sweep(aside)
        disorder = self._disorders.get(run)
        if self._live and (disorder is None or not disorder.stalled):
            return
        disorder = disorder or self._disorders.setdefault(run, Disorder())
        disorder.branches.add(name)
        disorder.disturbed |= late or name in disorder.passed or name in disorder.aside

    def _sweep(self, aside: Aside) -> None:
        run, entry = aside.record.entry.run_id, aside.record.entry
        if self._live and run not in self.frozen:
            self.sweep.append(log_key(run, entry.seq, aside.record.id))

    def _note_copy(self, aside: Aside) -> Judged:
        run = aside.record.entry.run_id
        if not self._live:
            self._disorders.setdefault(run, Disorder()).disturbed = True
        return self._mended(Judged(run, aside.record.id, aside.record.entry, "copy"))

    def _bury(self, run: RunId, seq: int, name: EntryId) -> Judged:
        """Drop the record of a tombstone; if it counted, the tombstone proves that order is wrong."""
        state = self._state(run)
        counted = state is not None and state.entry_at(seq) == name
        disorder = self._disorders.setdefault(run, Disorder()) if counted else self._disorders.get(run)
        if disorder is not None:
            if counted:
                disorder.buried.add(name)
            self._aside -= disorder.discard(name)
            disorder.branches.discard(name)
            if name in disorder.copies:
                disorder.rebuilt = None
        return self._mended(Judged(run, name, None, "buried" if counted else "tombstone"))

    def _mended(self, judged: Judged) -> Judged:
        """Judgement of a copy or tombstone, with the history that it restores."""
        run = judged.run_id
        disorder, state = self._disorders.get(run), self._state(run)
        if disorder is None or state is None:
            return judged
        stalled, copies = disorder.stalled, tuple[Aside, ...]()
        if disorder.contested:
            state = disorder.settles({head.id for head in state.heads})
            if state is None:
                return judged
            disorder.branches.clear()
            disorder.buried.clear()
            copies = tuple(disorder.copies.values())
            self._aside -= sum(map(disorder.discard, disorder.copies))  # their copies count: never swept
        elif not stalled:
            return judged
        self.states[run] = state
        self._over.pop(run, None)
        disorder.stalled, disorder.rebuilt = False, None
        self.frozen.pop(run, None)
        linked = self._link(disorder, state.head.id)
        self._pass_by(run, disorder)
        self._end(run)
        return replace(judged, linked=linked, mended=stalled, held=copies)


def _follows(state: RunState | None, entry: Entry) -> bool:
    """True if the predecessor of an entry is in the run."""
    if state is None or not entry.prev:
        return not entry.prev
    head = Head(EntryId(entry.prev), entry.seq - 1)
    place = state.heads.place(head.seq, key=BY_SEQ)
    return place < len(state.heads) and state.heads[place] == head


_HEAD = Struct(">Q16s")
