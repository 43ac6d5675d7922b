"""Prometheus metrics of the views, read when scraped and cached for seconds."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from refold.client.reading.member import WorkerGroup, Workers
from refold.console.projections.following import lags
from refold.console.projections.service import serving
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import APPROVALS, DAILY, HOLDS, RUNS
from refold.console.projections.status import stands_still, steps_in
from refold.core.errors import RefoldError
from refold.core.run.account import NANO
from refold.engine.ports.log import LogSource
from refold.engine.ports.tables import MOST_PAGE, Query, ViewDatabase, ViewReader, Where
from refold.engine.runtime.clock import clock_ms

SHOWN_S = 5.0
"""Seconds for which metrics are cached: counting runs reads an index of all of them."""
BUSIEST = 100
OTHER = "other"
"""Label of all tools but the busiest: each label is a time series."""

KAFKA_S = 3.0

_OF_GROUPS: dict[str, tuple[str, Callable[[WorkerGroup], float]]] = {
    "refold_workers": ("Members of the group", lambda group: group.members),
    "refold_partitions_unserved": (
        "Partitions that no member serves though one is needed",
        lambda group: len(group.unserved) if group.needed else 0,
    ),
    "refold_waiting": ("Requests, calls or questions that nobody has taken", lambda group: group.waiting),
    "refold_oldest_waiting_seconds": ("Age of the oldest of them", lambda group: group.oldest_s),
}
_SUMS = {
    "calls": ("refold_tool_calls", "Calls that agents have asked for"),
    "failed": ("refold_tool_failures", "Calls that ended without a result"),
    "effects_avoided": ("refold_effects_avoided", "Calls that were not repeated, as they were known to have happened"),
    "tokens": ("refold_tokens", "Tokens of model calls"),
    "nano_usd": ("refold_cost_dollars", "Cost of calls"),
}


class ViewMetrics(Collector):
    """Collector of view metrics; two of them report an unreadable database and an unreachable Kafka."""

    def __init__(self, database: ViewDatabase, source: LogSource, ask: Callable[[], Workers] | None = None) -> None:
        self._database, self._source, self._ask = database, source, ask
        self._asker, self._log_answer = ThreadPoolExecutor(1, thread_name_prefix="metrics"), Future[list[Metric]]()
        self._log_answer.set_result([])
        self._families: list[Metric] = []
        self._until = 0.0
        self._closed: tuple[int, str, dict[str, Counter[str]]] = (0, "", {})

    def collect(self) -> Iterator[Metric]:
        if time.monotonic() >= self._until:
            away = unheard = 0
            try:
                self._families = [*self._view_metrics()]
            except RefoldError:
                self._families, away = [], 1
            if self._log_answer.done():
                self._log_answer = self._asker.submit(lambda: [*self._log_metrics()])
            try:
                # Prometheus counts a process with late metrics as down.
                self._families += self._log_answer.result(KAFKA_S)
            except (RefoldError, TimeoutError):
                unheard = 1
            gauges = {
                "refold_views_unreadable": (away, "1 while the database of the views cannot be read"),
                "refold_kafka_unreachable": (unheard, "1 while Kafka does not answer"),
            }
            self._families += [GaugeMetricFamily(name, text, value=value) for name, (value, text) in gauges.items()]
            self._until = time.monotonic() + SHOWN_S
        yield from self._families

    def _view_metrics(self) -> Iterator[Metric]:
        number = serving(self._database, Shipped.name)
        view = self._database.store(Shipped.name, number)
        counts = sorted(view.counts(Query(RUNS), ("status",)).items())
        yield _labelled("refold_runs", "Runs by state", ["status"], [((str(status),), n) for (status,), n in counts])
        waiting = Query(APPROVALS, (Where("open", "=", 1),), order="asked_ms", limit=1)
        oldest = [clock_ms() - int(row[APPROVALS.places["asked_ms"]]) for row in view.query(waiting)]
        gauges = {
            "refold_approvals_pending": (view.count(waiting), "Questions that wait for people"),
            "refold_approval_oldest_seconds": (max(0, *oldest, 0) / 1000, "Age of the oldest of them"),
            "refold_calls_in_doubt": (steps_in(view, "doubt"), "Calls of which nobody knows whether they happened"),
            "refold_calls_on_hold": (steps_in(view, "held"), "Calls that wait for an operator"),
            "refold_runs_stalled": (view.count(Query(HOLDS)), "Runs whose code is not run"),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        totals = self._totals_by_tool(number, view)
        shown = {tool for tool, _ in totals["calls"].most_common(BUSIEST)}
        for column, (name, text) in _SUMS.items():
            family, by_label = CounterMetricFamily(name, text, labels=["tool"]), Counter[str]()
            # Zeros too: without a first sample, Prometheus would not see the first failure of a tool as an increase.
            for tool in totals["calls"]:
                by_label[tool if tool in shown else OTHER] += totals[column][tool]
            for label, value in by_label.items():
                family.add_metric([label], value / NANO if column == "nano_usd" else value)
            yield family

    def _log_metrics(self) -> Iterator[Metric]:
        names = self._database.projections()
        stores = {name: self._database.store(name, serving(self._database, name)) for name in names}
        positions = {name: store.positions() for name, store in stores.items()}
        # The log after the positions, as in `status_of`: a view under load is ahead of bounds that were read before.
        bounds, log = self._source.bounds(), self._source.identity()
        behind = [((name,), sum(lags(positions[name], bounds).values())) for name in names]
        reasons = {name: stands_still(of.notes(), positions[name], log, bounds) for name, of in stores.items()}
        stopped = [((name,), int(bool(reason))) for name, reason in reasons.items()]
        yield _labelled("refold_projection_lag_records", "Records that a view has not read", ["projection"], behind)
        yield _labelled("refold_projection_stopped", "1 if a view stands still", ["projection"], stopped)
        if self._ask is None:
            return
        groups, text = self._ask().groups, "for planners, or executors of a pool"
        for name, (about, value) in _OF_GROUPS.items():
            by_group = [((group.role, group.pool), value(group)) for group in groups]
            yield _labelled(name, f"{about}, {text}", ["role", "pool"], by_group)
        by_topic = [((group.role, group.pool, topic), lag) for group in groups for topic, lag in group.lag.items()]
        yield _labelled("refold_group_lag_records", "Records behind", ["role", "pool", "topic"], by_topic)

    def _totals_by_tool(self, generation: int, view: ViewReader) -> dict[str, Counter[str]]:
        yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
        # Days before yesterday no longer grow: they are added up once a day.
        if self._closed[:2] != (generation, yesterday):
            self._closed = generation, yesterday, _sums_by_tool(view, Where("day", "<", yesterday))
        fresh = _sums_by_tool(view, Where("day", ">=", yesterday))
        return {column: self._closed[2][column] + fresh[column] for column in _SUMS}


def _sums_by_tool(view: ViewReader, where: Where) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {column: Counter() for column in _SUMS}
    query = Query(DAILY, (where,))
    while rows := view.query(query):
        for row in rows:
            of = DAILY.named(row)
            for column, sums in counts.items() if of["tool"] else ():
                sums[str(of["tool"])] += int(of[column])
        if len(rows) < MOST_PAGE:
            break
        query = Query(DAILY, (where,), after=query.place(rows[-1]))
    return counts


def _labelled(name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
