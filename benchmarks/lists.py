"""Times of lists of the gateway over many runs: `python -m benchmarks.lists --store postgres`. Prints JSON.

Runs are rows of the view, with two labels each; each list is asked for in turn. **Units**: milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from random import Random

from benchmarks.views import AT_MS, database

from refold.client.operations.runs import RunQuery
from refold.console.projections.projector import Projector
from refold.console.projections.runs import runs_query
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import RUN_LABELS, RUNS
from refold.engine.ports.tables import ViewChanges

ROWS = 5_000
"""Of a transaction."""
STATUSES = ("completed", "completed", "completed", "failed", "running", "suspended")
LISTS = {
    "newest": RunQuery(limit=50),
    "by agent": RunQuery(agent="agent-3", limit=50),
    "by status": RunQuery(state="suspended", limit=50),
    "waiting for people": RunQuery(state="waiting_for_people", limit=50),
    "by label": RunQuery(labels=(("team", "team-7"),), limit=50),
    "by at_ms": RunQuery(sort="-at_ms", limit=50),
    "by ended_ms": RunQuery(sort="ended_ms", limit=50),
    "text that is rare": RunQuery(text="order 4711", limit=50),
    "text that is nowhere": RunQuery(text="no such words", limit=50),
}


def main(kind: str, runs: int, rounds: int) -> dict[str, object]:
    """Measure one store."""
    rng = Random(1)
    with database(kind) as views:
        views.create(Shipped.name, 1, Projector.tables_of(Shipped()), {})
        store = views.store(Shipped.name, 1)
        for first in range(0, runs, ROWS):
            changes = ViewChanges((RUNS, RUN_LABELS))
            rows, labels = changes.rows.setdefault(RUNS, {}), changes.rows.setdefault(RUN_LABELS, {})
            for number in range(first, min(first + ROWS, runs)):
                name, at_ms = f"run-{number:07}", AT_MS + number * 100 + rng.randrange(50)
                of = {column: 0 if kind_ is int else "" for column, kind_ in RUNS.columns.items()}
                of |= {"run_id": name, "agent": f"agent-{number % 20}", "root": name, "requested_ms": at_ms}
                of |= {"at_ms": at_ms + rng.randrange(60_000), "ended_ms": at_ms + rng.randrange(60_000), "seq": 33}
                of |= {"status": rng.choice(STATUSES), "says": f"packs order {number} for the customer, shelf 12"}
                of |= {"waiting_for_people": int(number % 1_000 == 0)}
                rows[name,] = tuple(of.values())
                for label, value in (("team", f"team-{number % 200}"), ("region", f"region-{number % 5}")):
                    labels[name, label] = (name, label, value)
            store.commit(changes)
        views.switch(Shipped.name, 1, Shipped.tables)
        store = views.store(Shipped.name, 1)
        time.sleep(3)  # Postgres looks at new tables
        took: dict[str, list[float]] = {name: [] for name in LISTS}
        for _ in range(rounds):
            for name, listing in LISTS.items():
                begun = time.perf_counter()
                store.query(runs_query(listing))
                took[name].append((time.perf_counter() - begun) * 1e3)
        views.close()
    figures = {
        name: {"p50": sorted(each)[rounds // 2], "p99": sorted(each)[rounds * 99 // 100]} for name, each in took.items()
    }
    return {"store": kind, "runs": runs, "load": os.getloadavg()[0], "ms": figures}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="postgres")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    print(json.dumps(main(given.store, given.runs, given.rounds), indent=2))
