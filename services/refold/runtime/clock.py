"""Time: by the log, for whatever is decided; by this machine, for lines in its log and nothing else."""

import time


def clock_ms() -> int:
    """The time of this machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class LogClock:
    """The time by the log: the append time of the broker that was seen last, and what has passed here since.

    It may go back, when a broker's clock is corrected. It is `fresh` after a delivery of our own. **Units**: `now_ms`
    in milliseconds since 1970, 0 before anything was seen; `mono_ms` on the local monotonic clock, as of this turn.
    """

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
        """A record was read that was appended then. It may have lain there for long: it only is not earlier."""
        if at_ms > self.now_ms:
            self._seen_ms, self._seen_mono = at_ms, self.mono_ms

    def delivered(self, at_ms: int) -> None:
        """A record of our own was appended then, just now: that is the time."""
        self._seen_ms, self._seen_mono, self.fresh = at_ms, self.mono_ms, True

    def mono_of(self, at_ms: int) -> int:
        """The local monotonic time at which it will be this late."""
        return self.mono_ms + at_ms - self.now_ms
