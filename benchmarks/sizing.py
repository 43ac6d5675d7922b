"""Figures to size a platform by: CPU, memory and bytes of a run of ten steps, by process and by topic.

    python -m benchmarks.sizing [--runs 1000] [--open 5000] [--in-flight 10,100]

Prints JSON. CPU is that of `/proc`, bytes are those of the broker's files before compaction, of Redis and of the
database of views: none of them depends on what else the machine does. Memory is the difference of the proportional set
size before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.engine import SERVICES, Engine, alone
from benchmarks.measure import memory_mib, spent_s
from benchmarks.peers.load import STEPS
from redis import Redis

from refold.console.gateway.reading import ReadSide
from refold.console.projections.shipped.projection import Shipped
from refold.console.sql.opening import open_views
from refold.core.errors import RefoldError

SETTLE_S = 6.0
"""Time in which a planner writes the snapshot behind the last run; no record tells that it was the last."""

WITHIN_S = 300.0
STATUS = Shipped.runs.names.index("status")


def eventually(condition: Callable[[], bool]) -> None:
    """Look until it holds. **Raises** TimeoutError."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} does not hold after {WITHIN_S} s")
        time.sleep(0.2)


class Platform:
    """An engine with a projector beside it, and its Redis."""

    def __init__(self, engine: Engine, redis: Redis) -> None:
        self.engine, self._redis = engine, redis
        self._url = engine.environment["REFOLD_VIEWS__URL"]
        engine.serve("projections")
        eventually(lambda: self.rows("completed") == 1)

    def rows(self, status: str) -> int:
        """The runs of a status in the view; none before there is one."""
        database = open_views(self._url)
        try:
            store = ReadSide(database).store()
            return sum(row[STATUS] == status for row in store.scan(Shipped.runs))
        except RefoldError:
            return 0
        finally:
            database.close()

    def cpu(self) -> dict[str, float]:
        """Processor seconds of each service so far."""
        return {name: spent_s(self.engine.pid(name)) for name in (*SERVICES, "projections")}

    def memory(self) -> dict[str, float]:
        """**Units**: MiB."""
        return {name: memory_mib([self.engine.pid(name)]) for name in (*SERVICES, "projections")}

    def stored(self) -> dict[str, int]:
        """Bytes of the segments of each topic, of Redis in memory and on disk, and of the view."""
        prefix, found = self.engine.settings.prefix, dict[str, int]()
        for path in self.engine.folder.rglob(f"{prefix}*/*.log"):
            topic = path.parent.name.removeprefix(prefix).rpartition("-")[0]
            found[topic] = found.get(topic, 0) + path.stat().st_size
        view = sum(path.stat().st_size for path in self.engine.folder.glob("views.db*"))
        memory: Any = self._redis.info("memory")
        files: Any = self._redis.info("persistence")
        return {**found, "Redis, memory": memory["used_memory"], "Redis, file": files["aof_current_size"], "view": view}

    def drive(self, runs: int, in_flight: int) -> dict[str, Any]:
        """Microseconds of CPU a step, and bytes a run, of so many runs of ten steps."""
        done = self.rows("completed")
        before, cpu = self.stored(), self.cpu()
        self.engine.client.drive("ten", runs, in_flight=in_flight)
        eventually(lambda: self.rows("completed") == done + runs)
        used = difference(self.cpu(), cpu)
        time.sleep(SETTLE_S)
        return {
            "in_flight": in_flight,
            "cpu_us_a_step": {name: round(value * 1e6 / (runs * STEPS)) for name, value in used.items()},
            "bytes_a_run": {
                name: round(value / runs) for name, value in difference(self.stored(), before).items() if value > 0
            },
        }

    def sleepers(self, runs: int) -> dict[str, Any]:
        """KiB of memory of each run that waits, by service."""
        before = self.memory()
        self.engine.client.start("naps", runs)
        eventually(lambda: self.rows("suspended") == runs)
        time.sleep(SETTLE_S)
        return {name: round(value * 1024 / runs, 2) for name, value in difference(self.memory(), before).items()}


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return what each figure has grown by."""
    return {name: value - before.get(name, 0) for name, value in after.items()}


def measure(runs: int, waiting: int, in_flight: list[int]) -> dict[str, Any]:
    """All of it, on a platform with one partition."""
    with alone("sizing") as engine, Redis.from_url(engine.environment["REFOLD_REDIS__URL"]) as redis:
        engine.environment["REFOLD_VIEWS__URL"] = f"sqlite:///{engine.folder / 'views.db'}"
        platform = Platform(engine, redis)
        at_rest = platform.memory()
        driven = [platform.drive(runs, number) for number in in_flight]
        ended = difference(platform.memory(), at_rest)
        return {
            "memory_mib_at_rest": at_rest,
            "driven": driven,
            "kib_a_finished_run": {
                name: round(value * 1024 / (runs * len(in_flight)), 2) for name, value in ended.items()
            },
            "kib_a_waiting_run": platform.sleepers(waiting),
            "load": round(os.getloadavg()[0], 1),
        }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.sizing", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="runs of ten steps for each number in flight")
    parser.add_argument("--open", type=int, default=5_000, help="runs that wait")
    parser.add_argument("--in-flight", default="10,100", help="runs at a time; several with a comma")
    wanted = parser.parse_args()
    found = measure(wanted.runs, wanted.open, [int(number) for number in wanted.in_flight.split(",")])
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
