"""Snapshot of a partition: accepted entries of living runs, a row per finished run, and marks. Entries instead of a
version's folded state: `fold(snapshot + tail)` equals `fold(all)` for every version. Blocks are cut by the size of the
history alone, so all writers cut the same. Two planners may write at once, and a mirror may repeat records: rows are
true from any writer; for the rest the marks have a checksum, and if it differs, the log is folded from its start."""

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from refold.core.errors import MalformedError
from refold.core.ids import EntryId, RunId, entry_id, log_key
from refold.core.messages import EndedRuns, KeptBlock, KeptRun, Marks, RunErased
from refold.core.run.erased import HORIZON_KEY
from refold.core.run.finished import ROW_BYTES, Finished, ended_by
from refold.core.run.state import RunState
from refold.core.wire import codec

MARKS_KEY = b"marks"
OVER_PREFIX = b"over/"
BLOCK_BYTES = 16_384
"""Size at which a block of entries is full. An open block is rewritten whenever its run has moved."""

ENDED_BYTES = 4_096 * ROW_BYTES
"""Most rows in one record of finished runs: 240 KiB. Smaller records are merged."""

REST_MS = 600_000
"""Shortest sleep for which a run is evicted: to fold it and restart its code takes milliseconds."""

_LENGTH = struct.Struct(">II")

LogPair = tuple[bytes, bytes]


def run_key(run: RunId) -> bytes:
    return b"run/" + run.encode()


def block_key(run: RunId, number: int) -> bytes:
    return b"run/%s/%06d" % (run.encode(), number)


def kept_run(key: bytes) -> RunId:
    return RunId(key.split(b"/")[1].decode(errors="replace"))


def over_key(round_: int, part: int, rows: bytes) -> bytes:
    """Key of a part of the finished runs' rows. By the digest, another planner at the same round has another key."""
    return OVER_PREFIX + b"%012d/%04d/%s" % (round_, part, blake2b(rows, digest_size=8).hexdigest().encode())


def weight(key: bytes, value: bytes) -> int:
    """Contribution of a record to the checksum of all runs, added and removed by exclusive or."""
    return int.from_bytes(blake2b(key + b"\0" + value, digest_size=16).digest())


def pack_entry(seq: int, value: bytes) -> bytes:
    return _LENGTH.pack(seq, len(value)) + value


def unpack_entries(run: RunId, entries: bytes) -> Iterator[LogPair]:
    """Run-log records of packed entries. **Raises** MalformedError if they end within one."""
    at, end = 0, len(entries)
    while at < end:
        if at + _LENGTH.size > end:
            raise MalformedError("kept entries end within one")
        seq, length = _LENGTH.unpack_from(entries, at)
        at += _LENGTH.size + length
        if at > end:
            raise MalformedError("kept entries end within one")
        value = entries[at - length : at]
        yield log_key(run, seq, EntryId(entry_id(value[codec.FRAME_BYTES :]))), value


def due_ms(state: RunState) -> int:
    """Next time at which a waiting run is due; 0: never."""
    if state.paused:
        return 0
    due = [next_moment(state), *(opened.due_ms for opened in state.open.values())]
    return min((moment for moment in due if moment), default=0)


def rests(state: RunState) -> bool:
    """True if a run only sleeps, long enough to keep nothing but its entries."""
    sleeps = state.status == "suspended" and all(opened.phase == "sleep" for opened in state.open.values())
    return sleeps and due_ms(state) - state.at_ms >= REST_MS


def next_moment(state: RunState) -> int:
    """Time of the run's start or deadline; 0: never."""
    ends = state.deadline_ms
    if state.status != "pending" or state.request is None:
        return ends
    # A run that was not started with its request is due at once: 0 would be no timer.
    starts = max(1, state.request.not_before_ms)
    return min(starts, ends) if ends else starts


class Asleep(NamedTuple):
    """Run of which only the entries are loaded, as bytes; `begins`: size of the first. **Units**: as in `KeptRun`."""

    status: str
    due_ms: int
    log: int
    begins: int = 0


class KeptEntries(NamedTuple):
    """Entries of a sleeping run, as `take` returns them."""

    pairs: list[LogPair]
    blocks: int
    tail: int  # number of records outside the full `blocks`
    main: int  # checksum of the run's own record
    total: int  # checksum of all its records


class PartitionSnapshot:
    """Reader of `run-snapshot` in order of offset. Finished runs are added to `finished` at once."""

    def __init__(self, finished: Finished) -> None:
        self.marks: Marks | None = None  # of the highest round
        self.finished = finished
        # The rows that may be merged, the checksum, and a time by which all had ended.
        self.ended: dict[bytes, tuple[bytes, int, int]] = {}
        self.check = 0  # checksum of all records but the marks
        self.whole = True  # the living runs are valid, see `close`
        self.unkept = False  # the record of some rows was replaced by an unreadable one
        self.horizon_ms = 0  # runs that ended earlier are dropped
        self._raw: dict[bytes, bytes] = {}
        self._since: dict[bytes, bytes | None] = {}  # values at the marks
        self._readable = True

    def feed(self, key: bytes, value: bytes | None) -> None:
        if key == MARKS_KEY:
            self._mark(value)
        elif key.startswith(b"run/") and _readable(key):
            before = self._raw.pop(key, None)
            if before is not None:
                self.check ^= weight(key, before)
            if value is not None:
                self._raw[key] = value
                self.check ^= weight(key, value)
            self._since.setdefault(key, before)
        elif key.startswith(OVER_PREFIX):
            self._end(key, value)
        elif key == HORIZON_KEY and value is not None:
            erased = codec.decode_known(RunErased, value)
            self.horizon_ms = max(self.horizon_ms, erased.at_ms if erased else 0)

    def close(self) -> dict[RunId, Asleep]:
        """End the read; return the living runs, none unless the snapshot is `whole`."""
        if self.horizon_ms:
            self.finished.drop(self.horizon_ms)
        runs: dict[RunId, Asleep] = {}
        log = self.marks.log if self.marks else 0
        self.whole = self.whole and self._readable and self.marks is not None
        for key in [key for key in self._raw if key.count(b"/") == 1]:
            record = codec.decode_known(KeptRun, self._raw[key])
            # Written after the marks, by a planner that was further behind: it may lack data that the marks rely on.
            if record is None or (key in self._since and record.log < log):
                self.whole = False
            elif self._lives(record):
                runs[record.run_id] = Asleep(record.status, record.due_ms, record.log, self._begins(record))
                self.whole &= all(block_key(record.run_id, number) in self._raw for number in range(record.blocks))
        self.whole = self.whole and not self._lost()
        return runs if self.whole else {}

    def _lost(self) -> bool:
        # A run was removed since the marks: unfinished, or by a planner that missed its retry.
        for key in self._since.keys() - self._raw.keys():
            row, removed = self.finished.get(kept_run(key)), codec.decode_known(KeptRun, self._since[key] or b"")
            if row is None or (removed and removed.seq > row.head.seq):
                return True
        return False

    def _lives(self, record: KeptRun) -> bool:
        """True if a run is not over, or was retried: then its row is of a former end."""
        row = self.finished.get(record.run_id)
        if row is not None and record.seq > row.head.seq:
            self.finished.forget(record.run_id)
            return True
        return row is None

    def _begins(self, record: KeptRun) -> int:
        """Size of a run's first entry in bytes; 0 if it is missing."""
        entries, first = record.entries, self._raw.get(block_key(record.run_id, 0))
        if record.blocks and first and (block := codec.decode_known(KeptBlock, first)):
            entries = block.entries
        return int(_LENGTH.unpack_from(entries)[1]) if len(entries) >= _LENGTH.size else 0

    def take(self, run: RunId) -> KeptEntries:
        """Remove and return the entries of a run from `close`. **Raises** MalformedError."""
        key = run_key(run)
        record, main = codec.decode(KeptRun, self._raw[key]), weight(key, self._raw.pop(key))
        pairs: list[LogPair] = []
        total = main
        for number in range(record.blocks):
            value = self._raw.pop(block_key(run, number))
            total ^= weight(block_key(run, number), value)
            pairs += unpack_entries(run, codec.decode(KeptBlock, value).entries)
        tail = list(unpack_entries(run, record.entries))
        return KeptEntries(pairs + tail, record.blocks, len(tail), main, total)

    def put(self, run: RunId, value: bytes) -> Asleep:
        """Put a run without full blocks to sleep: `take` returns its entries."""
        record, self._raw[run_key(run)] = codec.decode(KeptRun, value), value
        return Asleep(record.status, record.due_ms, record.log, self._begins(record))

    def left(self, live: Iterable[RunId]) -> dict[bytes, int]:
        """Remove the records of all runs that are not in `live`; return checksums by key."""
        living = set(live)
        keys = [key for key in self._raw if kept_run(key) not in living]
        return {key: weight(key, self._raw.pop(key)) for key in keys}

    def forgotten(self) -> dict[bytes, int]:
        """Remove the records whose runs are all past the horizon; return checksums by key."""
        keys = [key for key, (_, _, by_ms) in self.ended.items() if by_ms <= self.horizon_ms]
        return {key: self.ended.pop(key)[1] for key in keys}

    def _mark(self, value: bytes | None) -> None:
        marks = codec.decode_known(Marks, value)
        if marks is None:
            self._readable = False  # of a newer version, with unknown conditions
        elif self.marks is None or marks.round >= self.marks.round:
            self.marks, self.whole = marks, int.from_bytes(marks.check) == self.check
            self._readable = True
            self._since.clear()

    def _end(self, key: bytes, value: bytes | None) -> None:
        """Add the rows of a record of finished runs, or forget it as a record (tombstone): its rows stay."""
        replaced = key in self.ended
        self.check ^= self.ended.pop(key, (b"", 0, 0))[1]
        if value is None:
            return
        ended = codec.decode_known(EndedRuns, value)
        try:
            if ended is not None:
                rows = self.finished.load(ended.rows, ended.pools)
                small = rows if len(rows) < ENDED_BYTES else b""
                self.ended[key] = small, weight(key, value), ended_by(rows)
                self.check ^= self.ended[key][1]
                return
        except MalformedError:
            pass
        self._readable, self.unkept = False, self.unkept or replaced


def _readable(key: bytes) -> bool:
    # No planner writes another key: its record is void, or it would end each take-over.
    try:
        return bool(key.decode())
    except UnicodeDecodeError:
        return False
