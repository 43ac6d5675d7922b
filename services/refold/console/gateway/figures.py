"""Live figures of the last minutes, written by `refold serve insights`; for display only."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import fields, replace
from typing import Any, cast

from refold.core.errors import MalformedError, RefoldError
from refold.core.messages import RunInsight
from refold.core.wire import codec
from refold.engine.ports.log import Record
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.outages import OUTAGES

WINDOW_MS = 900_000
WATCHED_S = 30.0
"""Seconds without requests after which the topic is no longer read."""
FIRST_S = 0.5
"""Seconds that the first request waits."""
_SUMS = [field.name for field in fields(RunInsight) if isinstance(field.default, int)]


class LiveFigures:
    """Figures of the last minutes. `read` yields the records of `run-insight`, and None when idle."""

    def __init__(self, read: Callable[[], Iterator[Record | None]]) -> None:
        self._read = read
        self._lock, self._caught_up = threading.Lock(), threading.Event()
        self._figures: dict[bytes, RunInsight] = {}
        self._thread: threading.Thread | None = None
        self._requested_s = 0.0

    def latest(self) -> list[RunInsight]:
        """Return sums by kind and name, and alerts, the latest first."""
        self._requested_s = time.monotonic()
        with self._lock:
            if first := self._thread is None or not self._thread.is_alive():
                self._caught_up.clear()
                self._thread = threading.Thread(target=self._follow, name="refold-gateway-figures", daemon=True)
                self._thread.start()
        if first:
            self._caught_up.wait(FIRST_S)
        since = clock_ms() - WINDOW_MS
        with self._lock:
            self._figures = {key: figure for key, figure in self._figures.items() if figure.at_ms >= since}
            figures = sorted(self._figures.values(), key=lambda figure: figure.at_ms)
        sums = dict[tuple[str, str, str], RunInsight]()
        for figure in figures:
            name = figure.kind, figure.name, figure.run_id
            before = sums.pop(name, None)
            sums[name] = _sum(figure, before) if before else figure
        return list(reversed(sums.values()))

    def _follow(self) -> None:
        self._figures = {}
        try:
            with closing(cast(Any, self._read())) as records:
                for record in records:
                    if record is not None:
                        self._update_figure(record)
                    else:
                        self._caught_up.set()
                    if time.monotonic() - self._requested_s > WATCHED_S:
                        return
        except RefoldError as error:  # the next request tries again
            OUTAGES.failed("gateway.figures_unread", reason=error.message)
            self._caught_up.set()

    def _update_figure(self, record: Record) -> None:
        """Replace the figure of a record's key; an empty, invalid or old record removes it."""
        insight = None
        with suppress(MalformedError):
            insight = codec.decode_message(RunInsight, record.value) if record.value else None
        with self._lock:
            if record.key and insight is not None and insight.at_ms >= clock_ms() - WINDOW_MS:
                self._figures[record.key] = insight
            elif record.key:
                self._figures.pop(record.key, None)


def _sum(one: RunInsight, other: RunInsight) -> RunInsight:
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in _SUMS})
