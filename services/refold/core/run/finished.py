"""Finished runs of a partition, 59 bytes each: enough to judge late records. Rows lie in buckets by the first bits of
their run's digest, sorted at the first lookup: a take-over loads a million rows without a Python object each."""

import struct
from bisect import bisect_left
from hashlib import blake2b
from math import isqrt
from typing import NamedTuple

from refold.core.errors import MalformedError
from refold.core.events import RunRequested
from refold.core.ids import EntryId, RunId
from refold.core.run.chain import Head
from refold.core.run.state import RunState, Status

_ROW = struct.Struct(">16s16s16sIIBH")
ROW_BYTES = _ROW.size
"""Digests of run id and request, head (id and seq), end time (in seconds), status, number of its pools."""

_REQUEST, _HEAD, _SEQ, _TIME, _STATUS, _POOLS = 16, 32, 48, 52, 56, 57
"""Offsets in a row: request, id of the head, its seq, end time, status, number of its pools."""

_STATUSES: tuple[Status, ...] = ("completed", "failed", "cancelled", "continued")
_CROWD = 4_096
"""Most rows per bucket, on average: 240 KiB, copied for every added row."""


class FinishedRun(NamedTuple):
    """Unpacked row of a finished run. `pools`: executor pools of its calls."""

    head: Head
    status: Status
    request_digest: str
    ended_ms: int
    pools: tuple[str, ...]


class Finished:
    """Packed rows of the finished runs of a partition, looked up by run id."""

    def __init__(self) -> None:
        self._pools: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._buckets = [b""]
        self._loaded: list[list[bytes]] = [[]]
        self._bits = self._count = 0

    def __len__(self) -> int:
        for number in range(len(self._buckets)):
            self._settle(number)
        return self._count

    def __contains__(self, run: RunId) -> bool:
        return self._find(run_digest(run))[1] >= 0

    def get(self, run: RunId) -> FinishedRun | None:
        number, at = self._find(run_digest(run))
        if at < 0:
            return None
        _, request, head, seq, ended_s, status, pools = _ROW.unpack_from(self._buckets[number], at)
        last, ended_ms = Head(EntryId(head), seq), ended_s * 1000
        return FinishedRun(last, _STATUSES[status], request.hex(), ended_ms, self._pools[pools])

    def state(self, run: RunId) -> RunState | None:
        """Row of a run as a final state, which is enough for decisions and validation."""
        over = self.get(run)
        if over is None:
            return None
        request = RunRequested(agent="", input="", request_digest=over.request_digest, seed="")
        return RunState(run, over.head, over.status, request, at_ms=over.ended_ms, pools=over.pools)

    def add(self, state: RunState) -> bytes:
        """Add a finished run, or its later end; return its row in the form that `load` reads."""
        request = state.request.request_digest if state.request else ""
        digest, pools = run_digest(state.run_id), self._number(state.called_pools())
        head, status = state.head, _STATUSES.index(state.status)
        ended_s = min(state.at_ms // 1000, 0xFFFFFFFF)  # a forged time may be as late as the year 9999
        row = _ROW.pack(digest, _request(request), head.id, head.seq, ended_s, status, pools)
        number, at = self._find(digest)
        rows = self._buckets[number]
        if at < 0:
            at = _place(rows, digest)
            self._buckets[number] = b"".join((rows[:at], row, rows[at:]))
            self._count += 1
            self._grow()
        elif row[_SEQ:_TIME] > rows[at + _SEQ : at + _TIME]:  # an earlier failure was retried
            self._buckets[number] = b"".join((rows[:at], row, rows[at + ROW_BYTES :]))
        return row

    def extend(self, run: RunId, ended_ms: int) -> bytes:
        """Keep a run as long as one that ended at this time; return its row, empty if nothing changed."""
        number, at = self._find(run_digest(run))
        rows, time = self._buckets[number], min(ended_ms // 1000, 0xFFFFFFFF).to_bytes(4)
        if at < 0 or rows[at + _TIME : at + _STATUS] >= time:
            return b""
        self._buckets[number] = b"".join((rows[: at + _TIME], time, rows[at + _STATUS :]))
        return self._buckets[number][at : at + ROW_BYTES]

    def forget(self, run: RunId) -> bool:
        number, at = self._find(run_digest(run))
        if at >= 0:
            rows = self._buckets[number]
            self._buckets[number] = rows[:at] + rows[at + ROW_BYTES :]
            self._count -= 1
        return at >= 0

    def drop(self, before_ms: int) -> None:
        least = min(before_ms // 1000, 0xFFFFFFFF).to_bytes(4)
        for number in range(len(self._buckets)):
            self._settle(number)
            rows = _split(self._buckets[number])
            remaining = [row for row in rows if row[_TIME:_STATUS] >= least]
            self._buckets[number] = b"".join(remaining)
            self._count -= len(rows) - len(remaining)

    def load(self, rows: bytes, pools: list[str]) -> bytes:
        """Add rows with foreign pool numbers; return them with this table's. **Raises** MalformedError."""
        parts = _split(rows)
        if not parts:
            return rows
        numbers = [self._number(tuple(names.split(",")) if names else ()) for names in pools]
        pairs = set(zip(rows[_POOLS::ROW_BYTES], rows[_POOLS + 1 :: ROW_BYTES], strict=True))
        used = {high << 8 | low for high, low in pairs}
        if max(used) >= len(numbers) or max(rows[_STATUS::ROW_BYTES]) >= len(_STATUSES):
            raise MalformedError("a finished run has a status or pools that are not there")
        if any(numbers[number] != number for number in used):
            parts = [row[:_POOLS] + numbers[int.from_bytes(row[_POOLS:])].to_bytes(2) for row in parts]
        parts.sort()
        self._count += len(parts)
        self._grow()
        begin, last = 0, len(self._loaded) - 1
        for number, loaded in enumerate(self._loaded):
            end = bisect_left(parts, self._begins(number + 1), begin) if number < last else len(parts)
            if end > begin:
                loaded.append(b"".join(parts[begin:end]))
            begin = end
        return b"".join(parts)

    def rows(self) -> bytes:
        for number in range(len(self._buckets)):
            self._settle(number)
        return b"".join(self._buckets)

    def pools(self) -> list[str]:
        return [",".join(names) for names in self._pools]

    def _number(self, pools: tuple[str, ...]) -> int:
        if pools not in self._numbers:
            self._numbers[pools] = len(self._pools)
            self._pools.append(pools)
        return self._numbers[pools]

    def _begins(self, number: int) -> bytes:
        return (number << (32 - self._bits)).to_bytes(4)

    def _find(self, digest: bytes) -> tuple[int, int]:
        """Bucket of a run, and offset of its row; -1 without one."""
        first = int.from_bytes(digest[:4])
        number = first >> (32 - self._bits)
        if self._loaded[number]:
            self._settle(number)
        rows = self._buckets[number]
        count = len(rows) // ROW_BYTES
        # Digests are evenly spread: a row lies near its expected place, within the root of their number.
        place = ((first << self._bits) & 0xFFFFFFFF) * count >> 32
        near = isqrt(count) // 2 + 8
        while True:
            begin, end = max(0, place - near) * ROW_BYTES, min(count, place + near) * ROW_BYTES
            at = rows.find(digest, begin, end)
            while at > 0 and at % ROW_BYTES:  # the bytes of two rows side by side may look like a digest
                at = rows.find(digest, at + 1, end)
            if at >= 0:
                return number, at
            above = begin and rows[begin : begin + 16] > digest
            if not above and (end == len(rows) or rows[end - ROW_BYTES : end - ROW_BYTES + 16] >= digest):
                return number, -1
            near *= 4

    def _settle(self, number: int) -> None:
        """Sort loaded rows into a bucket. Of two rows of a run the later end counts."""
        rows = _split(b"".join((self._buckets[number], *self._loaded[number])))
        rows.sort()
        if len({row[:16] for row in rows}) < len(rows):
            rows.sort(key=lambda row: (row[:16], row[_SEQ:_TIME]))
            self._count -= len(rows)
            rows = list({row[:16]: row for row in rows}.values())
            self._count += len(rows)
        self._buckets[number], self._loaded[number] = b"".join(rows), []

    def _grow(self) -> None:
        while self._count > len(self._buckets) * _CROWD and self._bits < 32:
            for number, loaded in enumerate(self._loaded):
                if loaded:
                    self._settle(number)
            self._bits += 1
            halves: list[bytes] = []
            for number, rows in enumerate(self._buckets):
                half = _place(rows, self._begins(2 * number + 1))
                halves += rows[:half], rows[half:]
            self._buckets, self._loaded = halves, [[] for _ in halves]


def run_digest(run: RunId) -> bytes:
    return blake2b(run.encode(), digest_size=16).digest()


def ends_of(rows: bytes) -> list[tuple[bytes, bytes]]:
    """Digest of the run's id and id of its head, by row. **Raises** MalformedError."""
    return [(row[:_REQUEST], row[_HEAD:_SEQ]) for row in _split(rows)]


def times_of(rows: bytes) -> dict[bytes, int]:
    """End time by digest of the run's id. **Units**: milliseconds. **Raises** MalformedError."""
    return {row[:_REQUEST]: int.from_bytes(row[_TIME:_STATUS]) * 1000 for row in _split(rows)}


def ended_by(rows: bytes) -> int:
    """Time by which every row had ended, at most 18 hours after the last end. **Units**: milliseconds."""
    # From the upper half of the seconds alone, so that no Python object is made per row.
    high, low = max(zip(rows[_TIME::ROW_BYTES], rows[_TIME + 1 :: ROW_BYTES], strict=True), default=(0, 0))
    return ((high << 8 | low) + 1 << 16) * 1000


def _place(rows: bytes, digest: bytes) -> int:
    """Offset at which to insert a row with this digest."""
    offsets = range(0, len(rows), ROW_BYTES)
    return bisect_left(offsets, digest, key=lambda at: rows[at : at + 16]) * ROW_BYTES


def _split(rows: bytes) -> list[bytes]:
    if len(rows) % ROW_BYTES:
        raise MalformedError("a block of finished runs ends within a row")
    return [rows[at : at + ROW_BYTES] for at in range(0, len(rows), ROW_BYTES)]


def _request(digest: str) -> bytes:
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        raw = b""
    # Request digests have 16 bytes; any other text still gets a distinct value.
    return raw if len(raw) == 16 else blake2b(digest.encode(), digest_size=16).digest()
