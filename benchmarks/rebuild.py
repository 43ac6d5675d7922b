"""A log of years beside its view: rebuild and verify while rows are read and written, `run show`, memory at rest.

`python -m benchmarks.rebuild --store sqlite --events 1152000` runs real processes on a broker of its own and prints
JSON. CPU seconds stand beside those on the clock, since other work on the machine takes from the latter alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import spent_s
from benchmarks.prefill import EVENTS, fill
from tests.contract.table_benches import Bench, PostgresBench, SqliteBench, running_postgres
from tests.projections.killing import Load, caught_up, platform, projecting, store_of
from tests.waiting import eventually

from refold.client.operations.runs import RunQuery
from refold.console.projections.runs import runs_query
from refold.console.projections.service import serving
from refold.console.projections.shipped.projection import Shipped
from refold.console.projections.shipped.tables import ENTRIES
from refold.console.sql.opening import open_views
from refold.dev.kafka import EmbeddedKafka
from refold.engine.runtime.settings import KafkaSettings

GIVE_UP_S = 900
REST_S = 10.0
"""After the last record, before memory is looked at."""
READ_EVERY_S = 0.05
SHOWN = 5


@contextmanager
def reading(url: str) -> Iterator[list[float]]:
    """Read a page of runs and the entries of its first one, again and again. The block gets how long each took."""
    stop, took, views = threading.Event(), list[float](), open_views(url)

    def read() -> None:
        while not stop.wait(READ_EVERY_S):
            begun = time.monotonic()
            store = views.store(Shipped.name, serving(views, Shipped.name))
            if rows := store.query(runs_query(RunQuery(limit=50))):
                store.rows_of(ENTRIES, rows[0][0])  # type: ignore[arg-type]
            took.append(time.monotonic() - begun)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()
        views.close()


def timed(work: Callable[[], Any], pid: int = 0) -> dict[str, float]:
    """Seconds on the clock, and CPU seconds of the commands that were started and of another process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, cpu_s = time.monotonic(), spent_s(pid) if pid else 0.0
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = (spent_s(pid) if pid else 0.0) - cpu_s
    cpu_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"s": round(time.monotonic() - begun, 2), "cpu_s": round(cpu_s, 2)}


def main(kind: str, events: int) -> dict[str, object]:
    """Measure one store."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refold-rebuild-")))
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        bench: Bench = (
            SqliteBench(folder) if kind == "sqlite" else PostgresBench(stack.enter_context(running_postgres()))
        )
        settings = platform(kafka.bootstrap, "bench")
        fill(settings, "finished", events // EVENTS)
        return measured(settings, bench, folder, events // EVENTS * EVENTS) | {"store": kind}


def measured(settings: KafkaSettings, bench: Bench, folder: Path, events: int) -> dict[str, object]:
    """The figures of a log that is filled."""
    environment = os.environ | {
        "REFOLD_KAFKA__BOOTSTRAP": settings.bootstrap,
        "REFOLD_KAFKA__PREFIX": settings.prefix,
        "REFOLD_KAFKA__PARTITIONS": str(settings.partitions),
        "REFOLD_VIEWS__URL": bench.url,
    }

    def refold(*words: str) -> None:
        command = [sys.executable, "-m", "refold", *words, "--json"]
        subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    with projecting(settings, bench.url, folder) as running:
        pid = running.process.pid
        first = timed(lambda: eventually(lambda: caught_up(settings, bench), every=0.2, within=GIVE_UP_S), pid)
        time.sleep(REST_S)
        found: dict[str, object] = {
            "events": events, "load": os.getloadavg()[0], "first_build": first, "projector_rest_mib": running.rss_mib
        }  # fmt: skip
        show = ("run", "show", "finished-0000007")
        found["run_show"] = [timed(lambda: refold(*show)) for _ in range(SHOWN)]
        with Load(settings) as load, reading(bench.url) as took:
            found["rebuild"] = timed(lambda: refold("projection", "rebuild"), pid)
            found["verify"] = timed(lambda: refold("projection", "verify"))
        took.sort()
        found |= {"written_meanwhile": len(load.runs), "reads": len(took)}
        found |= {"read_p50_ms": took[len(took) // 2] * 1e3, "read_p99_ms": took[len(took) * 99 // 100] * 1e3}
        eventually(lambda: caught_up(settings, bench), every=0.5)
        time.sleep(REST_S)
        found |= {"projector_rest_mib_after": running.rss_mib, "bytes": bench.views.bytes()}
        found["positions"] = sum(store_of(bench).positions().values())
    bench.views.close()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--events", type=int, default=1_152_000)
    given = parser.parse_args()
    print(json.dumps(main(given.store, given.events), indent=2))
