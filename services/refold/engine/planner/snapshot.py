"""Snapshot of a lane's runs in `run-snapshot`, which saves its successor reading the past. Every few seconds moved runs
are written, and when these are acknowledged, the marks that rely on them. Entries after the marks are read from the
log. A finished run becomes a row once all its commands are acknowledged."""

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
from refold.engine.ports.log import NEVER

TURN_RUNS = 1_000
"""Runs written in one turn, which takes 20 ms."""

APART_RUNS = 2_000
"""Most runs that marks name for a partial reading, 600 KiB; above that all are read."""

TURN_BYTES = 4 << 20
"""Bytes of full blocks written in one turn; more start the next round early."""


@dataclass(frozen=True, slots=True, eq=False)
class SentKept:
    """A published record of the snapshot; `marks` if it holds these."""

    key: bytes
    value: bytes | None
    marks: Marks | None = None


@dataclass(frozen=True, slots=True)
class Anchor:
    """Record by which this log is recognised at an offset: an accepted entry, or a record of no run."""

    run: RunId
    name: EntryId
    offset: int
    at_ms: int


class Anchors:
    """Records that distinguish this log from others, oldest first; marks name one below their offset."""

    _MOST = 256

    def __init__(self) -> None:
        self._anchors: deque[Anchor] = deque()

    def add(self, anchor: Anchor) -> None:
        """Add an accepted entry, or a record that no erasure removes."""
        if not anchor.run and any(other.name == anchor.name for other in self._anchors):
            self.leave(anchor.run)  # repeated: one of the two may be compacted away
            return
        self._anchors.append(anchor)
        if len(self._anchors) > self._MOST:
            self._anchors = deque(list(self._anchors)[::2])

    def __bool__(self) -> bool:
        return bool(self._anchors)

    def leave(self, run: RunId) -> None:
        """Drop the anchors of a run, whose entries may move."""
        self._anchors = deque(anchor for anchor in self._anchors if anchor.run != run)

    def below(self, log: int) -> Anchor | None:
        """The newest anchor below an offset; offsets only grow."""
        while len(self._anchors) > 1 and self._anchors[1].offset < log:
            self._anchors.popleft()
        return self._anchors[0] if self._anchors and self._anchors[0].offset < log else None


@dataclass(slots=True, eq=False)
class SnapshotRow:
    """Entries of a run: the number of full `blocks` (`full`: unwritten ones) and the `tail`; `first` and `last` are
    run-log offsets. `main` and `total` are the check parts of its main record and of all; `row` is set at its end."""

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
        """Add an entry; return the bytes of a block that it fills."""
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
    """Remaining work of a snapshot round: runs to write, and rows (`over`) of finished ones, before its marks."""

    emitted: int
    log: int
    inputs: dict[str, int]
    runs: deque[RunId]
    over: list[bytes]


class SnapshotWriter:
    """Writer of a lane's snapshot, in rounds. `orders` are records to publish; `opened`: its marks are in the log."""

    def __init__(self, finished: Finished, member: str, *, state: Callable[[RunId], RunState | None]) -> None:
        self._finished, self._member, self._state = finished, member, state
        self.orders: list[SentKept] = []
        self.marks = Marks(0, 0, bytes(16), {}, member)
        self.anchors = Anchors()
        self.opened = self._unwritten = False
        self._refused: list[SentKept] = []
        self._by_run: dict[RunId, SnapshotRow] = {}
        self._changed: dict[RunId, SnapshotRow] = {}
        self._over: dict[RunId, bytes] = {}
        self.apart: dict[RunId, int] = {}
        self._obsolete: dict[bytes, int] = {}
        self._rows: dict[bytes, tuple[bytes, int]] = {}
        self._check = self._flying = self._full = self.ended_at = 0
        self._round: SnapshotRound | None = None
        self._resting: dict[RunId, bytes] = {}
        self._next: Marks | None = None
        self._foreign: dict[bytes, None] = {}

    # Changes

    def woken(self, run: RunId, taken: KeptEntries) -> None:
        row = self._by_run[run] = SnapshotRow(0, blocks=taken.blocks, main=taken.main, total=taken.total)
        for key, value in taken.pairs[len(taken.pairs) - taken.tail :]:
            self._full += row.add(int(key.split(b"/")[1]), value)

    def add(self, run: RunId, entry: bytes, *, seq: int, offset: int) -> None:
        """Add an entry that counts, or may count for a newer version."""
        row = self._by_run.get(run)
        if row is None:
            row = self._by_run[run] = SnapshotRow(offset)
        self._full += row.add(seq, entry)
        row.last = offset
        self._changed[run] = row

    def rested(self) -> dict[RunId, bytes]:
        """Resting runs and their records, once those are acknowledged and covered by marks."""
        if self._next is not None or self._round is not None:
            return {}
        resting, self._resting = self._resting, {}
        return {run: value for run, value in resting.items() if run in self._by_run and run not in self._changed}

    def rest(self, run: RunId) -> None:
        """Drop the entries of a run put to sleep from memory: its published snapshot records have them."""
        del self._by_run[run]

    def over(self, run: RunId, row: bytes) -> None:
        """Note the row of a run that has ended, or a new row."""
        if (stored := self._by_run.get(run)) is not None:
            stored.row = row
        else:
            self._over[run] = row

    def follow(self, key: bytes, value: bytes | None) -> None:
        """Read a record written since the take-over: a foreign one goes once its run is over."""
        if value and key[:4] == b"run/":
            row = self._by_run.get(run := snapshot.kept_run(key))
            if not (row and row.main and key < snapshot.block_key(run, row.blocks - len(row.full))):
                self._foreign[key] = None

    def reopen(self, run: RunId, entries: Iterable[tuple[int, int, bytes]]) -> None:
        """Replace the entries (offset, seq, bytes) of a run that goes on after its end, or with another history."""
        self.apart.pop(run, None)
        self._over.pop(run, None)
        if (row := self._by_run.get(run)) is not None:
            self._drop_entries(run, row)
        for offset, seq, value in entries:
            self.add(run, value, seq=seq, offset=offset)

    def leave_out(self, run: RunId, offset: int, *, was_kept: bool) -> None:
        """Write no more of a run: a successor reads it from this log offset, or from 0 if its records were dropped."""
        self.apart[run] = 0 if was_kept and run not in self._by_run else offset
        self._over.pop(run, None)
        self._changed.pop(run, None)

    def rejoin(self, run: RunId) -> None:
        self.apart.pop(run, None)
        if (row := self._by_run.get(run)) is not None:
            self._changed[run] = row

    def erase(self, run: RunId) -> None:
        """Remove all records of an erased run but its row."""
        self.anchors.leave(run)
        self.apart.pop(run, None)
        if (row := self._by_run.get(run)) is not None:
            if row.row:
                self._over[run] = row.row
            self._drop_entries(run, row)

    def end(self, run: RunId, row: bytes, below: int = 0) -> None:
        """Write a row for a run that was over before the lane began; its entries lie `below` this offset."""
        # A row is enough: nothing is written before all commands of the run are out.
        self._over[run], self.ended_at = row, max(self.ended_at, below)
        self.apart.pop(run, None)
        if (stored := self._by_run.get(run)) is not None:
            self._drop_entries(run, stored)

    # Rounds

    def begin(self, prior: PartitionSnapshot, live: Iterable[RunId], inputs: dict[str, int], *, distrust: bool) -> None:
        """Go on from a predecessor's snapshot, under marks with this member's name; `distrust` its positions."""
        self._check ^= prior.check
        # Marks that came after rows may be lost: new records must not take their keys.
        rounds = [int(number) for number in (key.split(b"/")[1] for key in prior.ended) if number.isdigit()]
        self._obsolete |= prior.left(live if prior.whole else ()) | prior.forgotten()
        self._rows = {key: (rows, weight) for key, (rows, weight, _) in prior.ended.items() if rows}
        prior.ended.clear()  # the table has them all
        self._unwritten |= prior.unkept
        marks = prior.marks or self.marks
        self.marks = replace(marks, round=max([marks.round, *rounds]))
        if distrust:
            # Empty marks first, for a successor to read the whole log: one that has outgrown its loss does not show it.
            self._next = Marks(self.marks.round + 1, 0, bytes(16), {}, self._member)
            self._finish_round()
        elif prior.whole or prior.marks is None:
            self._next = self._marks(self.marks.log, inputs)
            self._finish_round()
        else:
            self.opened = True

    @property
    def heavy(self) -> bool:
        """True if so much is unwritten that the next round should begin early."""
        return self._full > TURN_BYTES and not (self._round or self._next or self._refused)

    @property
    def crowded(self) -> bool:
        """True if more runs are left out than marks can name."""
        return len(self.apart) > APART_RUNS

    @property
    def writing(self) -> bool:
        return self._round is not None

    def round(self, emitted: int, inputs: dict[str, int], *, log: int) -> None:
        """Begin a round, unless one is under way: commands below `emitted` are out, a successor reads from `log`."""
        self.send_refused()
        if self._round or self._next or not self.opened:
            return
        self._settle_foreign()
        changed = any((self._changed, self._over, self._obsolete, self._unwritten))
        marks = None if changed else self._marks(log, inputs)
        if marks and replace(marks, round=self.marks.round, check=self.marks.check) == self.marks:
            return
        self._delete_stale()
        self._round = SnapshotRound(emitted, log, inputs, deque(self._changed), [*self._over.values()])
        if self._unwritten:
            self._round.over.insert(0, self._finished.rows())
        self._over, self._unwritten = {}, False

    def _settle_foreign(self) -> None:
        for key in [key for key in self._foreign if snapshot.kept_run(key) not in self._by_run]:
            del self._foreign[key]
            if snapshot.kept_run(key) in self._finished:  # others have another owner
                self._obsolete.setdefault(key, 0)

    def _delete_stale(self) -> None:
        # Delete only what earlier rows replace, as any record of one round may get lost, and the older states of failed
        # runs that go on: a successor would begin from these.
        needed = self._by_run.keys() | (self._over.keys() - self.apart.keys())
        for key in [key for key in self._obsolete if snapshot.kept_run(key) not in needed]:
            self._check ^= self._obsolete.pop(key)
            self._publish(key, None)

    def write(self, log: int) -> None:
        """Write some runs of a round, after the last its marks; states are accepted up to `log`."""
        if self._round is None:
            return
        runs, least = self._round.runs, self._full - TURN_BYTES
        for _ in range(min(len(runs), TURN_RUNS)):
            if self._full < least:
                break
            run = runs.popleft()
            if (row := self._changed.get(run)) is not None:
                self._write_run(self._round, run, row, log)
        if not runs:
            self._add_rows(self._round.over)
            self._next = self._marks(self._round.log, self._round.inputs)
            self._round = None
            self._finish_round()

    def _write_run(self, this_round: SnapshotRound, run: RunId, row: SnapshotRow, log: int) -> None:
        if row.row and row.last < this_round.emitted:
            this_round.over.append(row.row)
            self._drop_entries(run, row)
        # Records of another history go before marks that would make a successor believe them.
        elif row.main or row.first < this_round.emitted or snapshot.run_key(run) in self._obsolete:
            self._publish_run(run, row, log, commands_sent=row.last < this_round.emitted)
            if not row.row:
                del self._changed[run]

    def delivered(self, sent: SentKept, offset: int | None) -> None:
        if offset is None:
            self.orders.append(sent)  # the same record again; nothing relies on it so far
            return
        self._flying -= 1
        if offset == NEVER:
            self._refused.append(sent)  # no marks rely on it so far: a successor reads on from the last ones
        elif sent.marks is not None:
            self.marks, self._next, self.opened = sent.marks, None, True
        self._finish_round()

    def send_refused(self) -> None:
        """Send refused records again: an operator may have fixed the cause."""
        refused, self._refused = self._refused, []
        self._flying += len(refused)
        self.orders += refused

    def _finish_round(self) -> None:
        # Marks go last: ahead of a record that they cover, their checksum fails, and a successor reads the whole log.
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

    def _publish(self, key: bytes, value: bytes | None) -> int:
        """Send a record; return its part of the check."""
        self._flying += 1
        self.orders.append(SentKept(key, value))
        if value is not None:
            self._check ^= self._obsolete.pop(key, 0)
        return snapshot.weight(key, value) if value is not None else 0

    def _publish_run(self, run: RunId, row: SnapshotRow, log: int, *, commands_sent: bool) -> None:
        state = self._state(run)
        idle = state if state is not None and not (state.unseen or state.mail.behind) else None
        waits = idle is not None and (idle.open or idle.status == "pending")
        status, due_ms = (idle.status, snapshot.due_ms(idle)) if idle and waits else ("", 0)
        before = row.total
        for number, entries in row.full:
            row.total ^= self._publish(snapshot.block_key(run, number), codec.encode(KeptBlock(run, number, entries)))
        self._full -= row.unwritten()
        row.full = []
        main = KeptRun(run, log, row.blocks, status, due_ms, b"".join(row.tail), row.seq)
        weight = self._publish(snapshot.run_key(run), value := codec.encode(main))
        if commands_sent and not row.blocks and idle and snapshot.rests(idle):
            self._resting[run] = value
        row.total ^= row.main ^ weight
        row.main = weight
        self._check ^= before ^ row.total

    def _drop_entries(self, run: RunId, row: SnapshotRow) -> None:
        """Drop the entries of a run; its written records become obsolete."""
        del self._by_run[run]
        self._full -= row.unwritten()
        self._changed.pop(run, None)
        if row.main:
            written = row.blocks - len(row.full)
            self._obsolete |= {snapshot.block_key(run, number): 0 for number in range(written)}
            self._obsolete[snapshot.run_key(run)] = row.total

    def _add_rows(self, rows: list[bytes]) -> None:
        """Write rows of finished runs under new keys, and merge small records."""
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
            weight = self._publish(key, codec.encode(EndedRuns(pools, some)))
            self._check ^= weight
            if len(some) < size:
                self._rows[key] = some, weight
        self._obsolete |= {key: weight for key, (_, weight) in gone.items()}
