"""Time: by the log for all decisions; by this machine only for its log lines."""

import time


def clock_ms() -> int:
    """The time of this machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class LogClock:
    """The time by the log: the broker's append time seen last, plus the local time since. It may go back, when a
    broker's clock is corrected. It is `fresh` after a delivery of an own record. **Units**: `now_ms` in milliseconds
    since 1970, 0 before the first record; `mono_ms` on the local monotonic clock, as of this turn."""

    def __init__(self) -> None:
        self._seen_ms = 0
        self._seen_mono = 0
        self.mono_ms = 0
        self.fresh = False

    @property
    def now_ms(self) -> int:
        """The time. Before it is `fresh` it may be far behind, and never ahead of the broker's."""
        return self._seen_ms + self.mono_ms - self._seen_mono if self._seen_ms else 0

    def tick(self, mono_ms: int) -> None:
        self.mono_ms = mono_ms

    def read(self, at_ms: int) -> None:
        """Take the append time of a record: a lower bound, as the record may be old."""
        if at_ms > self.now_ms:
            self._seen_ms, self._seen_mono = at_ms, self.mono_ms

    def delivered(self, at_ms: int) -> None:
        """Take the append time of an own record, appended just now: the present time."""
        self._seen_ms, self._seen_mono, self.fresh = at_ms, self.mono_ms, True

    def mono_of(self, at_ms: int) -> int:
        """The local monotonic time at which the log's clock shows this time."""
        return self.mono_ms + at_ms - self.now_ms
