"""Reads accepted entries of the views in order, and exports the spans that end."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from refold.console.projections.runs import entry_of
from refold.console.projections.service import serving
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import ENTRIES
from refold.console.telemetry.spans import RunSpans, Style
from refold.core.errors import ConflictError, UnreachableError
from refold.core.ids import RunId
from refold.core.tables import ViewRow
from refold.core.topics import RUN_LOG
from refold.engine.ports.log import Place
from refold.engine.ports.tables import MOST_PAGE, Query, ViewChanges, ViewDatabase, ViewReader, Where

KEPT_AS = "telemetry"
"""Name of the positions in the database."""
MOST_RUNS = 500
"""Runs whose fold is in memory."""
MOST_SPANS = 500
"""Spans of one request to the collector: some 200 KiB."""

Export = Callable[[Sequence[ReadableSpan]], None]
"""Sends spans. **Raises** UnreachableError."""

_log = structlog.get_logger()


def exporting(exporter: SpanExporter) -> Export:
    """Return a function that sends spans by an exporter, in portions."""

    def export(spans: Sequence[ReadableSpan]) -> None:
        for first in range(0, len(spans), MOST_SPANS):
            if exporter.export(spans[first : first + MOST_SPANS]) is not SpanExportResult.SUCCESS:
                raise UnreachableError("the collector took no spans", hint="REFOLD_TELEMETRY__ENDPOINT has its address")

    return export


class Telemetry:
    """Exporter of spans; `from_start`: the first time, existing entries are exported too."""

    def __init__(self, database: ViewDatabase, export: Export, style: Style, *, from_start: bool = False) -> None:
        self._database, self._export, self._style = database, export, style
        self._from_start = from_start
        self._runs: OrderedDict[RunId, RunSpans] = OrderedDict()

    def turn(self) -> int:
        """Export new entries; return their number. **Raises** UnreachableError while the database or the collector is
        away or another process exports: the next turn repeats it."""
        if not self._database.lock(KEPT_AS):
            raise UnreachableError("another process exports the spans of these views")
        view = self._database.store(Shipped.name, serving(self._database, Shipped.name))
        store = self._database.store(KEPT_AS, self._own_generation(view))
        exported, read, count = store.positions(), view.positions(), 0
        for place, end in read.items():
            at = exported.get(place, 0)
            if place[0] == RUN_LOG and end > at:
                end, rows = _page(view, place, at, end)
                count += len(rows)
                self._export_rows(view, rows)
            # After the export: a crash in between sends the same spans again, and loses none.
            if end > at:
                store.commit(ViewChanges((), moves={place: (at, end)}))
        return count

    def _own_generation(self, view: ViewReader) -> int:
        """Return the number of the exported positions' generation; a new one if the view's log was replaced."""
        newest, log = max(self._database.generations(KEPT_AS), default=0), view.notes()["log"]
        if newest and self._database.store(KEPT_AS, newest).notes().get("log") == log:
            return newest
        with suppress(ConflictError):
            self._database.create(KEPT_AS, newest + 1, (), {"log": log, "version": "1"})
        if newest:
            self._database.drop(KEPT_AS, newest)
        elif not self._from_start:
            steps = {place: (0, at) for place, at in view.positions().items() if at}
            self._database.store(KEPT_AS, newest + 1).commit(ViewChanges((), moves=steps))
        self._database.switch(KEPT_AS, newest + 1, ())
        return newest + 1

    def _export_rows(self, view: ViewReader, rows: Sequence[ViewRow]) -> None:
        spans: list[ReadableSpan] = []
        for row in rows:
            judged, entry = entry_of(row)
            run = self._spans_of(view, entry.run_id, entry.seq, entry.prev)
            spans += run.feed(judged.id, entry)
            if run.state.over:
                self._runs.pop(entry.run_id, None)
        if spans:
            self._export(spans)

    def _spans_of(self, view: ViewReader, run: RunId, seq: int = 0, prev: bytes = b"") -> RunSpans:
        cached = self._runs.get(run)
        # Where its spans were not taken they are sent again.
        if cached is None or (seq and cached.state.head.id != prev and not cached.broken):
            cached = RunSpans(run, self._style, lambda above: self._spans_of(view, above))
            for row in view.rows_of(ENTRIES, run):
                judged, entry = entry_of(row)
                if not seq or entry.seq < seq:
                    cached.feed(judged.id, entry)
            self._runs[run] = cached
        self._runs.move_to_end(run)
        while len(self._runs) > MOST_RUNS:
            self._runs.popitem(last=False)
        return cached


def _page(view: ViewReader, place: Place, at: int, end: int) -> tuple[int, list[ViewRow]]:
    """Next offset, and accepted entries from an offset on; those accepted by one record stay together."""
    where = (Where("partition", "=", place[1]), Where("since_offset", ">=", at), Where("since_offset", "<", end))
    query, since = Query(ENTRIES, where, order="since_offset"), ENTRIES.places["since_offset"]
    rows: list[ViewRow] = []
    while page := view.query(query):
        rows += page
        query = replace(query, after=query.place(page[-1]))
        if len(page) < MOST_PAGE:
            return end, rows
        whole = [row for row in rows if row[since] < page[-1][since]]  # type: ignore[operator]
        if whole:
            return int(page[-1][since]), whole
    return end, rows
