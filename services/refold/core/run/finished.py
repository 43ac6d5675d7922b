"""What has to be known of runs that are over: enough to judge whatever may still come for them, in 60 bytes a run.

Runs end all the time and are remembered for as long as their ids may come again, so this is what a planner's memory is
made of after a month. Rows have a fixed size and lie in shards of a few dozen; one is found by searching its shard for
the digest of the run's id, which the C code of `bytearray.find` does faster than a dictionary of Python objects would
be kept in the cache, in a tenth of its memory.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import NamedTuple

from refold.core.errors import MalformedError
from refold.core.events import RunRequested
from refold.core.ids import EntryId, RunId
from refold.core.run.chain import Head
from refold.core.run.state import RunState, Status

_ROW = struct.Struct(">16s16s16sIIBH")
_TAIL = struct.Struct(">BH")
ROW_BYTES = _ROW.size
"""The digests of the run's id and of its request, its head (id and seq), when it ended (in seconds), how, its pools."""

_SEQ, _TIME = 48, 52
"""Where the seq of the head begins in a row, and what follows it."""

_STATUSES: tuple[Status, ...] = ("completed", "failed", "cancelled")
_CROWD = 32
"""Rows per shard on average: a search reads 2 kB at most, and an empty bytearray weighs as much as one row."""


class FinishedRun(NamedTuple):
    """A run that is over."""

    head: Head
    status: Status
    request_digest: str
    ended_ms: int
    pools: tuple[str, ...]


class Finished:
    """The runs of a partition that are over."""

    def __init__(self) -> None:
        self._pools: list[tuple[str, ...]] = []
        self._numbers: dict[tuple[str, ...], int] = {}
        self._shards = [bytearray()]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, run: RunId) -> bool:
        return self._place(run)[1] >= 0

    def get(self, run: RunId) -> FinishedRun | None:
        """What is known of a run, if it is over."""
        shard, at = self._place(run)
        if at < 0:
            return None
        _, request, head, seq, ended_s, status, pools = _ROW.unpack_from(shard, at)
        return FinishedRun(
            Head(EntryId(head), seq), _STATUSES[status], request.hex(), ended_s * 1000, self._pools[pools]
        )

    def state(self, run: RunId) -> RunState | None:
        """The same as a state that lets nothing happen any more: what decides and judges needs no more."""
        over = self.get(run)
        if over is None:
            return None
        request = RunRequested(agent="", input="", request_digest=over.request_digest, seed="")
        return RunState(run, over.head, over.status, request, at_ms=over.ended_ms, pools=over.pools)

    def add(self, state: RunState) -> bytes:
        """Remembers a run that is over, by its last end; returns its row, which `load` takes."""
        request = state.request.request_digest if state.request else ""
        row = _ROW.pack(
            _digest(state.run_id),
            _request(request),
            state.head.id,
            state.head.seq,
            state.at_ms // 1000,
            _STATUSES.index(state.status),
            self._number(state.called_pools()),
        )
        self._insert(row)
        return row

    def forget(self, run: RunId) -> bool:
        """Makes a run unknown, as if it had never been; whether it was known."""
        shard, at = self._place(run)
        if at >= 0:
            del shard[at : at + ROW_BYTES]
            self._count -= 1
        return at >= 0

    def load(self, rows: bytes, pools: list[str]) -> bytes:
        """Takes rows with their own numbers of pools; returns them with ours. **Raises** MalformedError."""
        if len(rows) % ROW_BYTES:
            raise MalformedError("a block of finished runs ends within a row")
        numbers = [self._number(tuple(names.split(",")) if names else ()) for names in pools]
        taken = []
        for at in range(0, len(rows), ROW_BYTES):
            status, number = _TAIL.unpack_from(rows, at + ROW_BYTES - _TAIL.size)
            if number >= len(numbers) or status >= len(_STATUSES):
                raise MalformedError("a finished run has a status or pools that are not there")
            row = rows[at : at + ROW_BYTES - 2] + numbers[number].to_bytes(2)
            taken.append(row)
            self._insert(row)
        return b"".join(taken)

    def pools(self) -> list[str]:
        """The names of pools by the numbers that rows have."""
        return [",".join(names) for names in self._pools]

    def _number(self, pools: tuple[str, ...]) -> int:
        if pools not in self._numbers:
            self._numbers[pools] = len(self._pools)
            self._pools.append(pools)
        return self._numbers[pools]

    def _place(self, run: RunId) -> tuple[bytearray, int]:
        digest = _digest(run)
        shard = self._shard(digest)
        return shard, _find(shard, digest)

    def _shard(self, digest: bytes) -> bytearray:
        # Linear hashing: the table grows by one shard at a time, so that no single run pays for all.
        number, half = int.from_bytes(digest[:4]), 1 << (len(self._shards).bit_length() - 1)
        place = number & (2 * half - 1)
        return self._shards[place if place < len(self._shards) else place - half]

    def _insert(self, row: bytes) -> None:
        digest = row[:16]
        shard = self._shard(digest)
        if (at := _find(shard, digest)) >= 0:
            if row[_SEQ:_TIME] > shard[at + _SEQ : at + _TIME]:  # it has failed before, and was retried
                shard[at : at + ROW_BYTES] = row
            return
        shard += row
        self._count += 1
        if self._count > len(self._shards) * _CROWD:
            self._split()

    def _split(self) -> None:
        half = 1 << (len(self._shards).bit_length() - 1)
        crowded = self._shards[len(self._shards) - half]
        self._shards.append(bytearray())
        rows = [bytes(crowded[at : at + ROW_BYTES]) for at in range(0, len(crowded), ROW_BYTES)]
        crowded.clear()
        for row in rows:
            self._shard(row[:16]).extend(row)


def _find(shard: bytearray, digest: bytes) -> int:
    at = shard.find(digest)
    while at > 0 and at % ROW_BYTES:  # the bytes of two rows side by side may look like a digest
        at = shard.find(digest, at + 1)
    return at


def _digest(run: RunId) -> bytes:
    return blake2b(run.encode(), digest_size=16).digest()


def _request(digest: str) -> bytes:
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        raw = b""
    # Requests are digested to 16 bytes; whatever else stands there is told apart as well.
    return raw if len(raw) == 16 else blake2b(digest.encode(), digest_size=16).digest()
