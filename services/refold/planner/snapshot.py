"""What a lane keeps of its runs in `run-snapshot`, so that its successor need not read the past.

Every few seconds the runs that have moved are written, then, when all of that is acknowledged, the marks that rely on
it. Nothing is written of a run that began after the marks: its entries are all in the tail. A run that is over becomes
a row only when all that it ordered is acknowledged; until then it is kept like one that lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from refold.core.ids import EntryId, RunId
from refold.core.messages import EndedRuns, KeptBlock, KeptRun, Marks
from refold.core.run import snapshot
from refold.core.run.finished import Finished
from refold.core.run.snapshot import BLOCK_BYTES, ENDED_BYTES, MARKS_KEY, KeptEntries, PartitionSnapshot
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.ports.log import NEVER

TURN_RUNS = 1_000
"""Runs written in one turn, which takes 20 ms. The first snapshot of a large partition takes many."""

APART_RUNS = 2_000
"""Runs that marks name at most because a successor has to read of them, in 600 KiB. With more it reads of all runs."""

TURN_BYTES = 4 << 20
"""So much of full blocks is written in one turn, and calls for the next round before its time."""


@dataclass(frozen=True, slots=True, eq=False)
class SentKept:
    """A record of the snapshot that was published. `marks`: these are what it says."""

    key: bytes
    value: bytes | None
    marks: Marks | None = None


@dataclass(frozen=True, slots=True)
class Anchor:
    """An entry that counts, or a record that is of no run, and where and since when the log has it."""

    run: RunId
    name: EntryId
    offset: int
    at_ms: int


class Anchors:
    """Records by which marks can be told from those of another log, oldest first; the marks name one below them.

    Of many between two rounds every other will do. One of a run that was erased, or repeated, may be cleaned away.
    """

    _MOST = 256

    def __init__(self) -> None:
        self._anchors: deque[Anchor] = deque()

    def add(self, anchor: Anchor) -> None:
        """One more entry counts, or another record of which nothing is erased."""
        if not anchor.run and any(each.name == anchor.name for each in self._anchors):
            self.leave(anchor.run)  # repeated, one of the two may be cleaned away
            return
        self._anchors.append(anchor)
        if len(self._anchors) > self._MOST:
            self._anchors = deque(list(self._anchors)[::2])

    def __bool__(self) -> bool:
        return bool(self._anchors)

    def leave(self, run: RunId) -> None:
        """The entries of a run need not stay where they are."""
        self._anchors = deque(anchor for anchor in self._anchors if anchor.run != run)

    def below(self, log: int) -> Anchor | None:
        """The newest one below an offset, which only grows."""
        while len(self._anchors) > 1 and self._anchors[1].offset < log:
            self._anchors.popleft()
        return self._anchors[0] if self._anchors and self._anchors[0].offset < log else None


@dataclass(slots=True, eq=False)
class Kept:
    """The entries of a run: `blocks` full ones (of which `full` are not written) and the `tail`.

    `first` and `last` are offsets in the run log. `main` is what its record adds to the check (0: there is none),
    `total` what all of its records do. `row` is what stays of it when it is over. `seq` is that of the last entry.
    """

    first: int
    last: int = 0
    seq: int = 0
    blocks: int = 0
    size: int = 0
    main: int = 0
    total: int = 0
    tail: list[bytes] = field(default_factory=list)
    full: list[tuple[int, bytes]] = field(default_factory=list)
    row: bytes = b""

    def add(self, seq: int, value: bytes) -> int:
        """One more entry. The bytes of the block that is full now, if one is."""
        self.seq = seq
        self.tail.append(snapshot.pack_entry(seq, value))
        self.size += len(value)
        if self.size < BLOCK_BYTES:
            return 0
        block = b"".join(self.tail)
        self.full.append((self.blocks, block))
        self.blocks += 1
        self.tail, self.size = [], 0
        return len(block)

    def unwritten(self) -> int:
        return sum(len(block) for _, block in self.full)


class SnapshotRound(NamedTuple):
    """What a round still has to write, and what its marks will say. `over` has the rows of runs that are over."""

    emitted: int
    log: int
    inputs: dict[str, int]
    runs: deque[RunId]
    over: list[bytes]


class SnapshotWriter:
    """The snapshot of one lane, round by round.

    `orders` are records to be published, of which `delivered` wants to know; `state` gives the accepted state of a run
    that lives. `opened`: the log has marks of ours.
    """

    def __init__(
        self,
        finished: Finished,
        member: str,
        *,
        state: Callable[[RunId], RunState | None],
    ) -> None:
        self._finished, self._member, self._state = finished, member, state
        self.orders: list[SentKept] = []
        self.marks = Marks(0, 0, bytes(16), {}, member)
        self.anchors = Anchors()
        self.opened = False
        self._refused: list[SentKept] = []
        self._kept: dict[RunId, Kept] = {}
        self._moved: dict[RunId, Kept] = {}
        self._over: dict[RunId, bytes] = {}
        self.apart: dict[RunId, int] = {}
        self._unkept = False
        self._check = 0
        self._stale: dict[bytes, int] = {}
        self._rows: dict[bytes, tuple[bytes, int]] = {}
        self._flying = self._full = self.ended_at = 0
        self._round: SnapshotRound | None = None
        self._resting: dict[RunId, bytes] = {}
        self._next: Marks | None = None

    # What happens

    def woken(self, run: RunId, taken: KeptEntries) -> None:
        """A run is known by its entries again."""
        kept = self._kept[run] = Kept(0, blocks=taken.blocks, main=taken.main, total=taken.total)
        for key, value in taken.pairs[len(taken.pairs) - taken.tail :]:
            self._full += kept.add(int(key.split(b"/")[1]), value)

    def keep(self, run: RunId, entry: bytes, *, seq: int, offset: int) -> None:
        """An entry of a run counts, or may count for a version that can read it."""
        kept = self._kept.get(run)
        if kept is None:
            kept = self._kept[run] = Kept(offset)
        self._full += kept.add(seq, entry)
        kept.last = offset
        self._moved[run] = kept

    def rested(self) -> dict[RunId, bytes]:
        """The runs that rest, with all that is kept of them, once it is written for sure and marks rely on it."""
        if self._next is not None or self._round is not None:
            return {}
        found, self._resting = self._resting, {}
        return {run: value for run, value in found.items() if run in self._kept and run not in self._moved}

    def rest(self, run: RunId) -> None:
        """A run is asleep: its records say what is kept of it."""
        del self._kept[run]

    def over(self, run: RunId, row: bytes) -> None:
        """The last entry that was kept of a run has ended it, or it is over and has another row."""
        if (kept := self._kept.get(run)) is not None:
            kept.row = row
        else:
            self._over[run] = row

    def follow(self, key: bytes, value: bytes | None) -> None:
        """A record of the snapshot, while the lane is live: one of a run that is over was written late, and goes."""
        if value and key[:4] == b"run/":
            run = RunId(key.split(b"/")[1].decode(errors="replace"))
            if run not in self._kept and run in self._finished:
                self._stale.setdefault(key, 0)

    def reopen(self, run: RunId, entries: Iterable[tuple[int, int, bytes]]) -> None:
        """All that counts of a run is this (offset, seq and bytes), whatever was kept of it: it was repaired, or over.

        Of one that was over the last entry is not the retry.
        """
        self.apart.pop(run, None)
        self._over.pop(run, None)
        if (kept := self._kept.get(run)) is not None:
            self._drop(run, kept)
        for offset, seq, value in entries:
            self.keep(run, value, seq=seq, offset=offset)

    def leave_out(self, run: RunId, offset: int, *, was_kept: bool) -> None:
        """Writes nothing more of a run: a successor reads its records from this offset of the log on.

        If it `was_kept` and seemed to be over, what the snapshot has of it goes, and all of the log is read.
        """
        self.apart[run] = 0 if was_kept and run not in self._kept else offset
        self._over.pop(run, None)
        self._moved.pop(run, None)

    def rejoin(self, run: RunId) -> None:
        """A run that was left out goes on as it was."""
        self.apart.pop(run, None)
        if (kept := self._kept.get(run)) is not None:
            self._moved[run] = kept

    def erase(self, run: RunId) -> None:
        """A run is erased: of what is kept of it nothing stays but its row."""
        self.anchors.leave(run)
        self.apart.pop(run, None)
        if (kept := self._kept.get(run)) is not None:
            if kept.row:
                self._over[run] = kept.row
            self._drop(run, kept)

    def end(self, run: RunId, row: bytes, below: int = 0) -> None:
        """A run was over before the lane began: a row will do, as nothing is written before what it ordered is out.

        Its entries lie `below` this offset.
        """
        self._over[run], self.ended_at = row, max(self.ended_at, below)
        self.apart.pop(run, None)
        if (kept := self._kept.get(run)) is not None:
            self._drop(run, kept)

    # Rounds

    def begin(
        self, snapshot: PartitionSnapshot, live: Iterable[RunId], inputs: dict[str, int], *, distrust: bool
    ) -> None:
        """The lane is live. Says that the partition is ours, by marks that say what they said.

        Where the snapshot does not hold together all of it is written anew before there are marks again. With
        `distrust` marks that say nothing come first: once the log has grown beyond where it was lost nobody can tell.
        """
        self._check ^= snapshot.check
        # Marks may be lost that came after rows: what is written now must not take their keys.
        rounds = [int(number) for number in (key.split(b"/")[1] for key in snapshot.ended) if number.isdigit()]
        self._stale |= snapshot.left(live if snapshot.whole else ()) | snapshot.forgotten()
        self._rows = {key: (rows, weight) for key, (rows, weight, _) in snapshot.ended.items() if rows}
        snapshot.ended.clear()  # the table has them all
        self._unkept |= snapshot.unkept
        marks = snapshot.marks or self.marks
        self.marks = replace(marks, round=max([marks.round, *rounds]))
        if distrust:
            self._next = Marks(self.marks.round + 1, 0, bytes(16), {}, self._member)
            self._finish_round()
        elif snapshot.whole or snapshot.marks is None:
            self._next = self._marks(self.marks.log, inputs)
            self._finish_round()
        else:
            self.opened = True

    @property
    def heavy(self) -> bool:
        """True if so much waits for the next round that it should begin now: histories may come by the megabyte."""
        return self._full > TURN_BYTES and not (self._round or self._next or self._refused)

    @property
    def crowded(self) -> bool:
        """True if more runs are left out than marks can name."""
        return len(self.apart) > APART_RUNS

    @property
    def writing(self) -> bool:
        return self._round is not None

    def round(self, emitted: int, inputs: dict[str, int], *, log: int) -> None:
        """Begins to write what has moved, unless that is under way; `write` goes on with it.

        `emitted` is up to where all that was ordered is acknowledged, `log` from where a successor has to read: earlier
        while a record is held aside, for which the runs that are over in between do not wait.
        """
        self.send_refused()
        if self._round or self._next or not self.opened:
            return
        moved = self._moved or self._over or self._stale or self._unkept
        marks = None if moved else self._marks(log, inputs)
        if marks and replace(marks, round=self.marks.round, check=self.marks.check) == self.marks:
            return
        # Only what a row of an earlier round stands for goes: of the records of one round any may get lost.
        needed = self._kept.keys() | self._over.keys()
        for key in [key for key in self._stale if key.split(b"/")[1].decode() not in needed]:
            self._check ^= self._stale.pop(key)
            self._put(key, None)
        self._round = SnapshotRound(emitted, log, inputs, deque(self._moved), [*self._over.values()])
        if self._unkept:
            self._round.over.insert(0, self._finished.rows())
        self._over, self._unkept = {}, False

    def write(self, log: int) -> None:
        """Writes some of the runs of a round, and after the last one its marks. `log`: how far accepted states hold."""
        if self._round is None:
            return
        emitted, below, inputs, runs, over = self._round
        least = self._full - TURN_BYTES
        for _ in range(min(len(runs), TURN_RUNS)):
            if self._full < least:
                break
            run = runs.popleft()
            if (kept := self._moved.get(run)) is None:
                continue
            if kept.row and kept.last < emitted:
                over.append(kept.row)
                self._drop(run, kept)
            # What lies there of another history goes before marks that a successor would believe it by.
            elif kept.main or kept.first < emitted or snapshot.run_key(run) in self._stale:
                self._write(run, kept, log, told=kept.last < emitted)
                if not kept.row:
                    del self._moved[run]
        if not runs:
            self._add_rows(over)
            self._round, self._next = None, self._marks(below, inputs)
            self._finish_round()

    def delivered(self, sent: SentKept, offset: int | None) -> None:
        if offset is None:
            self.orders.append(sent)  # the same again: it says what it said, and nothing relies on it so far
            return
        self._flying -= 1
        if offset == NEVER:
            self._refused.append(sent)  # no marks rely on it so far: a successor reads on from the last ones
        elif sent.marks is not None:
            self.marks, self._next, self.opened = sent.marks, None, True
        self._finish_round()

    def send_refused(self) -> None:
        """Sends what the log did not take once more: whoever looks after it was told, and may have seen to it."""
        refused, self._refused = self._refused, []
        self._flying += len(refused)
        for sent in refused:
            self.orders.append(sent)

    def _finish_round(self) -> None:
        if self._flying == 0 and self._next is not None and not self._refused:
            self._flying = 1
            self.orders.append(SentKept(MARKS_KEY, codec.encode(self._next), self._next))

    def _marks(self, log: int, inputs: dict[str, int]) -> Marks:
        anchor = self.anchors.below(log) or Anchor(RunId(""), EntryId(b""), 0, 0)
        runs = {RunId(""): min(self.apart.values())} if self.crowded else self.apart
        apart, name = {str(run): str(offset) for run, offset in sorted(runs.items())}, anchor.name.hex()
        return Marks(
            round=self.marks.round + 1,
            log=log,
            check=self._check.to_bytes(16),
            inputs={topic: str(position) for topic, position in inputs.items()},
            member=self._member,
            anchor="" if apart else name,
            anchor_offset=anchor.offset,
            anchor_ms=anchor.at_ms,
            apart=apart,
            apart_anchor=name if apart else "",
        )

    def _put(self, key: bytes, value: bytes | None) -> int:
        """Sends a record; what it adds to the check."""
        self._flying += 1
        self.orders.append(SentKept(key, value))
        if value is not None:
            self._check ^= self._stale.pop(key, 0)
        return snapshot.weight(key, value) if value is not None else 0

    def _write(self, run: RunId, kept: Kept, log: int, *, told: bool) -> None:
        state = self._state(run)
        goes_on = state is None or state.unseen or state.mail.behind
        waits = state is not None and not goes_on and (state.open or state.status == "pending")
        status, due_ms = (state.status, snapshot.due_ms(state)) if state and waits else ("", 0)
        before = kept.total
        for number, entries in kept.full:
            kept.total ^= self._put(snapshot.block_key(run, number), codec.encode(KeptBlock(run, number, entries)))
        self._full -= kept.unwritten()
        kept.full = []
        main = KeptRun(run, log, kept.blocks, status, due_ms, b"".join(kept.tail), kept.seq)
        weight = self._put(snapshot.run_key(run), value := codec.encode(main))
        if told and not kept.blocks and state is not None and not goes_on and snapshot.rests(state):
            self._resting[run] = value
        kept.total ^= kept.main ^ weight
        kept.main = weight
        self._check ^= before ^ kept.total

    def _drop(self, run: RunId, kept: Kept) -> None:
        del self._kept[run]
        self._full -= kept.unwritten()
        self._moved.pop(run, None)
        if kept.main:
            written = kept.blocks - len(kept.full)
            self._stale |= {snapshot.block_key(run, number): 0 for number in range(written)}
            self._stale[snapshot.run_key(run)] = kept.total

    def _add_rows(self, rows: list[bytes]) -> None:
        """Runs that are over, under keys that are new. Small records are put together, now and then."""
        fresh = b"".join(rows)
        if not fresh:
            return
        gone: dict[bytes, tuple[bytes, int]] = {}
        if sum(len(rows) for rows, _ in self._rows.values()) + len(fresh) >= ENDED_BYTES:
            gone, self._rows = self._rows, {}
            fresh = b"".join(rows for rows, _ in gone.values()) + fresh
        pools, size = self._finished.pools(), ENDED_BYTES
        for part, at in enumerate(range(0, len(fresh), size)):
            some = fresh[at : at + size]
            key = snapshot.over_key(self.marks.round + 1, part, some)
            weight = self._put(key, codec.encode(EndedRuns(pools, some)))
            self._check ^= weight
            if len(some) < size:
                self._rows[key] = some, weight
        self._stale |= {key: weight for key, (_, weight) in gone.items()}
