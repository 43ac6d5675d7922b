"""Views in place of the log: the database of projections that is set, and runs out of it.

Needs the extra `views`, so nothing imports this that can do without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from refold.adapters.kafka.source import KafkaLogSource
from refold.adapters.sql.opening import open_views
from refold.core.errors import NotFoundError, UsageError
from refold.core.ids import RunId, home, run_id
from refold.core.topics import RUN_LOG
from refold.operations.runs import Runs
from refold.ports.tables import ViewDatabase
from refold.projections.runs import ViewedRuns
from refold.projections.service import serving
from refold.projections.shipped.projection import Shipped
from refold.runtime.settings import Settings
from refold.views.history import Run

FRESH_S = 2.0
"""How long a view that is behind the log is waited for. Whoever has just written reads what they wrote."""
VIEW_POLL_S = 0.02


def views(settings: Settings) -> ViewDatabase:
    """Open the database of projections. **Raises** UsageError when none is set, UnreachableError while it is away."""
    if url := settings.views.url:
        return open_views(url)
    hint = "set REFOLD_VIEWS__URL, for example to sqlite:///views.db, and run `refold serve projections`"
    raise UsageError("no database of views is set here", hint=hint)


class Viewed(NamedTuple):
    """A run out of a view, and the runs below it."""

    run: Run
    family: list[Run]


def viewed(settings: Settings, run: str, runs: Runs) -> Viewed | None:
    """Return a run as the view has it; None where the log has to be asked.

    The view is waited for until it is where the log was at the call. What stalls a run that goes on is asked of `runs`.
    """
    wanted, source = run_id(run), KafkaLogSource(settings.kafka)
    with _opened(settings) as database:
        try:
            number = serving(database, Shipped.name)
        except NotFoundError:
            return None
        store = database.store(Shipped.name, number)
        place = RUN_LOG, home(wanted, source.partitions)
        if store.notes().get("log") != source.identity():
            return None
        end, deadline = source.end(place), time.monotonic() + FRESH_S
        while store.positions().get(place, 0) < end:
            if time.monotonic() > deadline:
                return None
            time.sleep(VIEW_POLL_S)
        with store.snapshot() as still:
            known = ViewedRuns(still)
            found = known.find(wanted)
            below = known.family(found) if found else []
    if found is None:
        return None
    live = [each for each in (found, *below) if not each.state.over]
    holds = runs.holds(place[1]) if live else {}
    for each in live:
        each.stall(holds.get(RunId(each.state.run_id)))
    return Viewed(found, below)


@contextmanager
def _opened(settings: Settings) -> Iterator[ViewDatabase]:
    database = views(settings)
    try:
        yield database
    finally:
        database.close()
