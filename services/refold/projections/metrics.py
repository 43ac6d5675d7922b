"""Metrics of the views, for Prometheus: read from the database when scraped, at most every few seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from refold.core.errors import RefoldError, not_installed
from refold.core.run.metering import NANO
from refold.ports.log import LogSource
from refold.ports.tables import MOST_PAGE, Query, ViewDatabase, ViewReader, Where
from refold.projections.following import lags
from refold.projections.service import serving
from refold.projections.shipped.projection import Shipped
from refold.projections.shipped.tables import APPROVALS, DAILY, HOLDS, RUNS, STEPS
from refold.runtime.clock import clock_ms

try:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

SHOWN_S = 5.0
"""The time what was found is shown again: counting runs reads an index of all of them."""
BUSIEST = 100
OTHER = "other"
"""The label of all tools but the busiest: each is a time series."""

_SUMS = {
    "calls": ("refold_tool_calls", "Calls that agents have asked for"),
    "failed": ("refold_tool_failures", "Calls that ended without a result"),
    "effects_avoided": ("refold_effects_avoided", "Calls that were not repeated, as they were known to have happened"),
    "tokens": ("refold_tokens", "Tokens of model calls"),
    "nano_usd": ("refold_cost_dollars", "Cost of calls"),
}


class ViewMetrics(Collector):
    """See the module. While the database or the log is away, nothing is shown but that."""

    def __init__(self, database: ViewDatabase, source: LogSource) -> None:
        self._database, self._source = database, source
        self._found: list[Metric] = []
        self._until = 0.0
        self._closed: tuple[int, str, dict[str, Counter[str]]] = (0, "", {})

    def collect(self) -> Iterator[Metric]:
        if time.monotonic() >= self._until:
            away = 0
            try:
                self._found = [*self._read()]
            except RefoldError:
                self._found, away = [], 1
            text = "1 while the views cannot be read"
            self._found.append(GaugeMetricFamily("refold_views_unreadable", text, value=away))
            self._until = time.monotonic() + SHOWN_S
        yield from self._found

    def _read(self) -> Iterator[Metric]:
        number = serving(self._database, Shipped.name)
        view = self._database.store(Shipped.name, number)
        counts = view.counts(Query(RUNS), ("status",))
        yield _labelled("refold_runs", "Runs by state", "status", {str(key[0]): n for key, n in counts.items()})
        asked = Query(APPROVALS, (Where("open", "=", 1),), order="asked_ms", limit=1)
        oldest = [clock_ms() - int(row[APPROVALS.places["asked_ms"]]) for row in view.query(asked)]
        gauges = {
            "refold_approvals_pending": (view.count(asked), "Questions that wait for people"),
            "refold_approval_oldest_seconds": (max(0, *oldest, 0) / 1000, "Age of the oldest of them"),
            "refold_calls_in_doubt": (_steps(view, "doubt"), "Calls of which nobody knows whether they happened"),
            "refold_calls_on_hold": (_steps(view, "held"), "Calls that wait for an operator"),
            "refold_runs_stalled": (view.count(Query(HOLDS)), "Runs whose code is not run"),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        totals = self._totals(number, view)
        shown = {tool for tool, _ in totals["calls"].most_common(BUSIEST)}
        for column, (name, text) in _SUMS.items():
            family, by_label = CounterMetricFamily(name, text, labels=["tool"]), Counter[str]()
            for tool in totals["calls"]:  # of all that were called, or the first failure of a tool would not be seen
                by_label[tool if tool in shown else OTHER] += totals[column][tool]
            for label, value in by_label.items():
                family.add_metric([label], value / NANO if column == "nano_usd" else value)
            yield family
        bounds = self._source.bounds()
        behind = {
            name: sum(lags(self._database.store(name, serving(self._database, name)).positions(), bounds).values())
            for name in self._database.projections()
        }
        yield _labelled("refold_projection_lag_records", "Records that a view has not read", "projection", behind)

    def _totals(self, generation: int, view: ViewReader) -> dict[str, Counter[str]]:
        """The sums by tool. Days before yesterday grow no more, so they are added up once a day."""
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
        if self._closed[:2] != (generation, yesterday):
            self._closed = generation, yesterday, _by_tool(view, Where("day", "<", yesterday))
        fresh = _by_tool(view, Where("day", ">=", yesterday))
        return {column: self._closed[2][column] + fresh[column] for column in _SUMS}


def _by_tool(view: ViewReader, where: Where) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {column: Counter() for column in _SUMS}
    query = Query(DAILY, (where,))
    while rows := view.query(query):
        for row in rows:
            of = DAILY.named(row)
            for column, sums in found.items() if of["tool"] else ():
                sums[str(of["tool"])] += int(of[column])
        if len(rows) < MOST_PAGE:
            break
        query = Query(DAILY, (where,), after=query.place(rows[-1]))
    return found


def _steps(view: ViewReader, status: str) -> int:
    return view.count(Query(STEPS, (Where("status", "=", status),)))


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
