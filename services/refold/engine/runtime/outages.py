"""Log lines of repeated failures: the first at once, one per interval with count and duration, one at the end."""

import threading
import time

import structlog

LINE_S = 30.0
"""Interval of lines about one outage: without it a planner wrote 146 a minute with Kafka away."""
SILENT_S = 15.0
"""Silence after which an outage is over: longer than any client's pause between tries."""

_log = structlog.get_logger()


class _Outage:
    def __init__(self, now: float) -> None:
        self.begun_s = self.last_s = self.line_s = now
        self.failures = 1

    def add(self, now: float, every_s: float) -> dict[str, float] | None:
        """Count a failure; return the fields of its log line, if one is due."""
        self.failures, self.last_s = self.failures + 1, now
        if now - self.line_s < every_s:
            return None
        self.line_s = now
        return {"failures": self.failures, "seconds": round(now - self.begun_s)}


class Outages:
    def __init__(self, line_s: float = LINE_S, quiet_s: float = SILENT_S) -> None:
        self._line_s, self._quiet_s, self._lock = line_s, quiet_s, threading.Lock()
        self._open: dict[tuple[str, str], _Outage] = {}

    def failed(self, event: str, kind: str = "", level: str = "warning", /, **fields: object) -> None:
        """Report a failure; the first of an outage and of each interval is logged."""
        now, key = time.monotonic(), (event, kind)
        with self._lock:
            outage = self._open.get(key)
            if outage is None:
                self._open[key] = _Outage(now)
                threading.Thread(target=self._end, args=(key, self._open[key]), daemon=True, name="outage").start()
            counts = outage.add(now, self._line_s) if outage else {}
        if counts is not None:
            getattr(_log, level)(event, **fields, **counts)

    def _end(self, key: tuple[str, str], outage: _Outage) -> None:
        while (left_s := outage.last_s + self._quiet_s - time.monotonic()) > 0:
            time.sleep(left_s)
        with self._lock:
            del self._open[key]
        if outage.failures > 1:
            seconds = round(outage.last_s - outage.begun_s, 1)
            _log.info("outage.over", of=key[0], kind=key[1], failures=outage.failures, seconds=seconds)


OUTAGES = Outages()
