"""Open requests of a partition at its take-over: read to its end once, before any of them is acted upon."""

from __future__ import annotations

from refold.ports.log import Record

RESTART_MS = 1_000
"""Time for the second reading to begin, before it is requested again: a broker answers within that."""


class TakeOverScan:
    """Reads requests from `start` to the captured `end`, records the open ones, then has them read again.

    A request may be followed by its tombstone, and that call's marker in the ledger may be gone: an executor that was
    away for long, or whose group has lost its offsets, would make every call of the past again.

    **Units**: monotonic ms. Each open call takes 126 bytes until it is read for the second time.
    """

    def __init__(self, start: int, end: int) -> None:
        self._open: dict[bytes, int] = {}
        self._end, self._seen = end, start - 1
        self._again_from = start
        self._asked_ms: int | None = None
        self._restarted = self.complete = start >= end

    def follow(self, record: Record, *, poison: bool) -> None:
        """Note a request or tombstone of the first reading. Poison is kept, regardless of later records."""
        key = b"\0%d" % record.offset if poison else record.key or b""
        if record.value is None:
            self._open.pop(key, None)
        else:
            self._open[key] = record.offset
        self.reached(record.offset + 1)

    def reached(self, offset: int) -> None:
        """Note that the first reading has come to this offset."""
        self._seen = max(self._seen, offset - 1)
        if offset >= self._end and not self.complete:
            self.complete = True
            self._again_from = min(self._open.values(), default=self._end)
            self._restarted = not self._open

    @property
    def low(self) -> int:
        """Offset below which everything is closed; valid when the first reading is complete."""
        return self._again_from

    def rewinds(self, now_ms: int) -> int | None:
        """Offset to read from again now; None: nowhere, or that is under way."""
        if (
            not self.complete
            or self._restarted
            or (self._asked_ms is not None and now_ms - self._asked_ms < RESTART_MS)
        ):
            return None
        self._asked_ms = now_ms
        return self._again_from

    def passes(self, record: Record) -> bool:
        """True if a record is of the second reading, or follows it. Others were on their way when it began."""
        if not self._restarted and record.offset <= self._seen:
            self._restarted = True
        self._seen = max(self._seen, record.offset)
        return self._restarted

    def open(self, record: Record, *, poison: bool) -> bool:
        """True if a request of the second reading, which comes once, is the last record of its call."""
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
