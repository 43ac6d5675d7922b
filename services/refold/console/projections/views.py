"""Runs from the database of projections. Import it lazily: it needs the extra `views`."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from refold.client.operations.runs import STALLED, Newest, RunQuery, Runs
from refold.client.reading.history import Run
from refold.console.projections.projector import HEADS
from refold.console.projections.runs import ViewedRuns, latest_generation, runs_query
from refold.console.projections.service import serving
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import RUNS
from refold.console.projections.status import needs_of, status_of
from refold.console.sql.opening import open_views
from refold.core.errors import NotFoundError, UsageError
from refold.core.ids import RunId, home, run_id
from refold.core.messages import Hold
from refold.core.topics import RUN_LOG
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.ports.tables import MOST_PAGE, Query, ViewDatabase, ViewReader, Where
from refold.engine.runtime.settings import Settings

FRESH_S = 2.0
"""Seconds to wait for a view behind the log, so that a writer reads its own writes."""
VIEW_POLL_S = 0.02
MOST_LOOKED = 5_000
"""Runs examined for their state at a time: a millisecond or more each."""


def views(settings: Settings) -> ViewDatabase:
    """Open the database of projections. **Raises** UsageError when none is set, UnreachableError while it is away."""
    if url := settings.views.url:
        return open_views(url)
    hint = "set REFOLD_VIEWS__URL, for example to sqlite:///views.db, and run `refold serve projections`"
    raise UsageError("no database of views is set here", hint=hint)


class Viewed(NamedTuple):
    """A run read from the view, and its descendants, each after its parent."""

    run: Run
    family: list[Run]


def viewed(settings: Settings, run: str, runs: Runs) -> Viewed | None:
    """Return a run from the view, at the log's end; None if the log has to be read. **Raises** GoneError."""
    source = KafkaLogSource(settings.kafka)
    number = home(run_id(run.removesuffix("+1")), source.partitions)
    with _view_at_end(settings, source, (number,)) as view:
        if view is None:
            return None
        viewed_runs, name = ViewedRuns(view), latest_generation(view, run)
        current = viewed_runs.find(name)
        below = viewed_runs.family(current) if current else []
        if current is None and (gone := viewed_runs.gone(name)):
            raise gone
    if current is None:
        return None
    _set_holds((current, *below), lambda: runs.holds(number))
    return Viewed(current, below)


def listed(settings: Settings, query: RunQuery, at_ms: int | None, runs: Runs) -> Newest | None:
    """Return the newest runs of the view, as of a time or now; None if the log has to be read."""
    # A view has the time of the request and the columns of now, a log the last entry and the state of then.
    if query.code or query.since_ms:
        return None
    if at_ms is None and (query.state == STALLED or (query.state in _LIVE and runs.holds())):
        return None
    source = KafkaLogSource(settings.kafka)
    with _view_at_end(settings, source, range(source.partitions)) as view:
        if view is None or view.count(Query(HEADS, (Where("reason", ">", ""),))):
            return None
        if at_ms is not None:
            return runs_then(view, query, at_ms)
        rows, viewed_runs = runs_query(query), ViewedRuns(view)
        newest = [run for row in reversed(view.query(rows)) if (run := viewed_runs.find(str(row[0]))) is not None]
        meant, total = view.count(rows), view.count(Query(RUNS))
    _set_holds(newest, runs.holds)
    return Newest(newest, meant, total)


def runs_then(view: ViewReader, query: RunQuery, at_ms: int) -> Newest:
    """Return the newest runs of a view, as they were at a time. By `state` at most `MOST_LOOKED` are examined; the
    numbers are those of the selected runs and of the runs that were there."""
    # Columns have the state of now: that of then is judged run by run.
    rows = runs_query(replace(query, state="", sort="-requested_ms", until_ms=at_ms + 1, limit=MOST_PAGE))
    total, meant, viewed_runs, newest = view.count(rows), 0, ViewedRuns(view), list[Run]()
    for _ in range(MOST_LOOKED // MOST_PAGE):
        page = view.query(rows)
        for row in page:
            run = viewed_runs.find_at(RunId(str(row[0])), at_ms)
            if run is not None and (not query.state or query.matches(run)):
                meant += 1
                newest += [run] if meant <= query.limit else []
            if not query.state and meant == query.limit:
                return Newest(newest[::-1], total, total)
        if len(page) < MOST_PAGE:
            break
        rows = replace(rows, after=rows.place(page[-1]))
    return Newest(newest[::-1], meant, total)


def needs_people(settings: Settings, since_ms: int) -> tuple[dict[str, int] | None, list[str]]:
    """Return the counts of `needs_of`, None if the log has to be read, and reasons of halted projections."""
    database, source = views(settings), KafkaLogSource(settings.kafka)
    try:
        infos = [status_of(name, database, settings.views.url, source).row for name in database.projections()]
    finally:
        database.close()
    stopped = [f"projection {row.projection} stands still: {row.reason.partition(chr(10))[0]}" for row in infos]
    with _view_at_end(settings, source, range(source.partitions)) as view:
        counts = None if view is None else needs_of(view, since_ms)
    return counts, [f"{why}; refold projection list" for why, row in zip(stopped, infos, strict=True) if row.reason]


_LIVE = ("pending", "running", "suspended")
"""Statuses that a run does not have while its code is held."""


def _set_holds(runs: Collection[Run], read: Callable[[], Mapping[RunId, Hold]]) -> None:
    if live := [run for run in runs if not run.state.over]:
        holds = read()
        for run in live:
            run.stall(holds.get(run.state.run_id))


@contextmanager
def _view_at_end(settings: Settings, source: KafkaLogSource, partitions: Iterable[int]) -> Iterator[ViewReader | None]:
    """Yield the view once it has reached the log's end; None without one or after `FRESH_S`."""
    database, store = views(settings), None
    try:
        with suppress(NotFoundError):
            store = database.store(Shipped.name, serving(database, Shipped.name))
        if store is None or store.notes().get("log") != source.identity():
            yield None
            return
        ends = {place: source.end(place) for place in ((RUN_LOG, number) for number in partitions)}
        deadline = time.monotonic() + FRESH_S
        while any(store.positions().get(place, 0) < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                yield None
                return
            time.sleep(VIEW_POLL_S)
        with store.snapshot() as view:
            yield view
    finally:
        database.close()
