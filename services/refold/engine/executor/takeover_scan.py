"""Open requests of a partition, read to their end before any of them is acted upon."""

from __future__ import annotations

from refold.engine.ports.log import Record

RESTART_MS = 1_000
"""Time for the second reading to begin, before it is requested again."""


class TakeOverScan:
    """Reading of requests from `start` to the captured `end`; open ones are then read again.

    A request may be followed by its tombstone, and the marker in the ledger may be gone: acting at the first reading
    would repeat every call of the past. **Units**: monotonic ms. Each open call takes 126 bytes until its second
    reading.
    """

    def __init__(self, start: int, end: int) -> None:
        self._open: dict[bytes, int] = {}
        self._end, self._read_to = end, start - 1
        self._again_from = start
        self._requested_ms: int | None = None
        self._restarted = self.complete = start >= end

    def follow(self, record: Record, *, poison: bool) -> None:
        """Note a record of the first reading; poison stays open regardless of later records."""
        key = b"\0%d" % record.offset if poison else record.key or b""
        if record.value is None:
            self._open.pop(key, None)
        else:
            self._open[key] = record.offset
        self.reached(record.offset + 1)

    def reached(self, offset: int) -> None:
        self._read_to = max(self._read_to, offset - 1)
        if offset >= self._end and not self.complete:
            self.complete = True
            self._again_from = min(self._open.values(), default=self._end)
            self._restarted = not self._open

    @property
    def low(self) -> int:
        """Offset below which everything is closed, once the first reading is complete."""
        return self._again_from

    def rewinds(self, now_ms: int) -> int | None:
        """Offset to read from again now, if that is not under way."""
        if (
            not self.complete
            or self._restarted
            or (self._requested_ms is not None and now_ms - self._requested_ms < RESTART_MS)
        ):
            return None
        self._requested_ms = now_ms
        return self._again_from

    def passes(self, record: Record) -> bool:
        """True if a record is of the second reading, or follows it."""
        if not self._restarted and record.offset <= self._read_to:
            self._restarted = True
        self._read_to = max(self._read_to, record.offset)
        return self._restarted

    def open(self, record: Record, *, poison: bool) -> bool:
        """True, once, if a request of the second reading is the last record of its call."""
        if record.offset >= self._end:
            self._open = {}
            return True
        key = b"\0%d" % record.offset if poison else record.key or b""
        if self._open.get(key) != record.offset:
            return False
        del self._open[key]
        return True

    def __len__(self) -> int:
        return len(self._open)
