"""Broker and ledger in memory that outlive their process: one file has all their changes (ADR 41)."""

import marshal
import os
import secrets
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from refold.core.errors import RefoldError
from refold.engine.adapters.memory.broker import Group, MemoryBroker, Partition
from refold.engine.adapters.memory.ledger import MemoryLedger
from refold.engine.ports import ledger
from refold.engine.ports.log import NEVER, Delivery, Outgoing, Place
from refold.engine.runtime.clock import clock_ms

Row = tuple[Any, ...]
"""A kind, and plain values: reading them, unlike with `pickle`, runs no code of the file."""

_FRAME = struct.Struct(">II")
"""Before the rows of a write: their length in bytes, and their checksum."""

_READS = (ledger.Unpublished, ledger.Fill, ledger.Lapsed)
_KINDS = {kind.__name__: kind for kind in get_args(ledger.Operation)}


class RowFile:
    """Append-only file of rows. A write that a crash cut off is removed by `rows`, which is called first."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._end, self._broken = 0, ""
        self._later: list[Row] = []

    def rows(self) -> Iterator[Row]:
        """Rows of all whole writes. **Raises** RefoldError for a file that is damaged before its last write."""
        content = self._path.read_bytes()
        while (at := self._end) < len(content):
            body = memoryview(content)[at + _FRAME.size :]
            length, checksum = _FRAME.unpack_from(content, at) if len(body) else (0, 0)
            if not 0 < length <= len(body) or zlib.crc32(body[:length]) != checksum:
                if at + _FRAME.size + length < len(content) and any(content[at:]):
                    hint = "restore a copy of it, or start with --fresh, which deletes all runs"
                    raise RefoldError(f"{self._path} is damaged at byte {at}", hint=hint)
                os.ftruncate(self._file, at)
                return
            self._end += _FRAME.size + length
            yield from marshal.loads(body[:length])

    def keep(self, row: Row) -> None:
        """Write a row with the next write; it may be lost."""
        with self._lock:
            self._later.append(row)

    def write(self, rows: list[Row]) -> None:
        """Write rows, all or none after a crash, and sync the file. **Raises** RefoldError: no later write follows."""
        with self._lock:
            if self._broken:
                raise RefoldError(self._broken, hint="make room, then start again")
            body = marshal.dumps([*self._later, *rows], 4)
            frame, self._later = _FRAME.pack(len(body), zlib.crc32(body)) + body, []
            try:
                if (written := os.write(self._file, frame)) < len(frame):
                    raise OSError(f"{written} of {len(frame)} bytes written")
                os.fsync(self._file)
            except OSError as error:
                # A second write would follow half a frame, and a second sync may report a success that was none.
                self._broken = f"cannot write {self._path}: {error}"
                raise RefoldError(self._broken, hint="make room, then start again") from None
            self._end += len(frame)


class LastingBroker(MemoryBroker):
    """Broker with the records and committed positions of a file; topics of the file stay. `identity` is that of the
    file. Thread-safe. `ledger` is the ledger in the same file."""

    def __init__(self, topics: Iterable[str], path: Path, partitions: int = 1, *, max_bytes: int) -> None:
        super().__init__(topics, partitions, max_bytes=max_bytes, clock_ms=clock_ms)
        self.file, self.identity = RowFile(path), ""
        self.ledger = LastingLedger(self.file)
        replay: dict[str, Callable[..., None]] = {
            "record": self._restore,
            "commit": self._recommit,
            "ledger": self.ledger.repeat,
        }
        for kind, *values in self.file.rows():
            if kind == "identity":
                (self.identity,) = values
            else:
                replay[kind](*values)
        if not self.identity:
            self.identity = secrets.token_hex(8)
            self.file.write([("identity", self.identity)])

    def _restore(self, at_ms: int, *content: Any) -> None:
        record = Outgoing._make((*content, 0, False))
        if record.topic not in self.topics:
            self.topics += (record.topic,)
            self._logs |= {(record.topic, number): Partition() for number in range(self.partitions)}
        self._store(record, at_ms)

    def _recommit(self, group: str, positions: list[tuple[Place, int]]) -> None:
        self.groups.setdefault(group, Group()).committed.update(positions)

    def write_all(self, records: Sequence[Outgoing]) -> list[Delivery]:
        """Append records by one write of the file, before any reader gets them."""
        with self.changed:
            at_ms, rows = self._clock_ms(), list[Row]()
            fitting = [record for record in records if self.fits(record)]
            for topic, partition, key, value, headers, *_ in fitting:
                self.log(topic, partition)
                rows.append(("record", at_ms, topic, partition, key, value, [tuple(pair) for pair in headers]))
            if rows:
                self.file.write(rows)
            refused = [Delivery(record.token, NEVER) for record in records if not self.fits(record)]
            deliveries = [self._store(record, at_ms) for record in fitting]
            self.changed.notify_all()
            return refused + deliveries

    def commit(self, name: str, member: str, *, session: int, generation: int, at: Mapping[Place, int]) -> bool:
        held = super().commit(name, member, session=session, generation=generation, at=at)
        if held:
            self.file.keep(("commit", name, list(at.items())))
        return held


class LastingLedger(MemoryLedger):
    """Ledger whose operations are in the file of a broker, on disk before their replies are returned. Repeating them
    at their times restores its state: claims of a dead process keep their leases."""

    def __init__(self, file: RowFile, clock: Callable[[], int] = clock_ms) -> None:
        super().__init__(lambda: self._now)
        self._file, self._real_clock, self._now = file, clock, 0
        self._running = threading.Lock()

    def run(self, operations: Sequence[ledger.Operation]) -> list[ledger.Reply]:
        with self._running:
            self._now = max(self._now, self._real_clock())
            before = {place: dict(leases) for place, leases in self._leases.items()}
            replies = super().run(operations)
            if self._leases != before or not all(isinstance(operation, _READS) for operation in operations):
                # Executors look for lapsed leases all the time: only one that ended a lease is an event.
                rows = [(type(operation).__name__, tuple(operation)) for operation in operations]
                self._file.write([("ledger", self._now, rows)])
            return replies

    def repeat(self, now_ms: int, operations: list[tuple[str, Row]]) -> None:
        self._now = now_ms
        super().run([_KINDS[name](*values) for name, values in operations])
