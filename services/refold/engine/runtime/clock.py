"""Clock of the log, for all decisions, and of this machine, for log lines only."""

import time


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LogClock:
    """Time by the log: the broker's append time seen last, plus the local time since. It may go back if a broker's
    clock is corrected. `fresh`: an own record was delivered. **Units**: `now_ms` in milliseconds since 1970, 0 before
    the first record; `mono_ms` is monotonic, as of this turn."""

    def __init__(self) -> None:
        self._seen_ms = self._seen_mono = self.mono_ms = 0
        self.fresh = False

    @property
    def now_ms(self) -> int:
        """Present time; before `fresh` a lower bound, perhaps far behind."""
        return self._seen_ms + self.mono_ms - self._seen_mono if self._seen_ms else 0

    def tick(self, mono_ms: int) -> None:
        self.mono_ms = mono_ms

    def read(self, at_ms: int) -> None:
        """Read the append time of any record: a lower bound, as the record may be old."""
        if at_ms > self.now_ms:
            self._seen_ms, self._seen_mono = at_ms, self.mono_ms

    def delivered(self, at_ms: int) -> None:
        """Set the clock by an own record, appended just now."""
        self._seen_ms, self._seen_mono, self.fresh = at_ms, self.mono_ms, True

    def mono_of(self, at_ms: int) -> int:
        """Local monotonic time at which the log's clock shows `at_ms`."""
        return self.mono_ms + at_ms - self.now_ms
