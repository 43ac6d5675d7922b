"""The work that every system does, and what is measured of it. Standard library only: peers live in their own Python.

A run is a number of steps, one after the other. A step's code writes down when it began and when it ended, and does
nothing else; what it returns has to be kept before the next step begins.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

STAMPS = "PEER_STAMPS"
"""The environment variable that names the file of the steps' times."""

SHORT, SUSTAINED, BATCH = 3, 10, 200
FEW_STEPS, EARLY, WINDOW = 20, slice(4, 16), 10
"""Steps of a short run, those of it that count as the tenth, and which part of a long run counts as its end: of 100
steps, a third of a second, the median is that of the moment, and varies by half beside other work."""

Drive = Callable[[int, int, int], list[float]]
"""So many runs of so many steps, so many of them in flight: the seconds of each, from its request to its end."""


def stamp(i: int) -> int:
    """The code of a step."""
    begun = time.time_ns()
    descriptor = _files.get(os.environ[STAMPS])
    if descriptor is None:
        descriptor = os.open(os.environ[STAMPS], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        _files[os.environ[STAMPS]] = descriptor
    os.write(descriptor, f"[{begun},{time.time_ns()}]\n".encode())
    return i


_files: dict[str, int] = {}


def cpu_seconds() -> float:
    """Processor seconds that this machine has spent so far, over all cores and processes."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def driven(one: Callable[[int], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> Drive:
    """A `Drive` of a system whose runs are coroutines: `one` is a run of so many steps."""

    async def all_of(runs: int, steps: int, in_flight: int) -> list[float]:
        free, spans = asyncio.Semaphore(in_flight), list[float]()

        async def next_() -> None:
            async with free:
                begun = time.perf_counter()
                await one(steps)
                spans.append(time.perf_counter() - begun)

        await asyncio.gather(*(next_() for _ in range(runs)))
        return spans

    return lambda runs, steps, in_flight: loop.run_until_complete(all_of(runs, steps, in_flight))


def measure(drive: Drive, stamps: Path, *, runs: int, load: int, long: tuple[int, ...]) -> dict[str, Any]:
    """The figures of one system, in the order of the table. **Units**: milliseconds, seconds, as the names say."""
    drive(20, SHORT, 5)
    spans = sorted(drive(runs, SHORT, 1))
    found: dict[str, Any] = {
        "run_of_3_ms_p50": round(statistics.median(spans) * 1e3, 2),
        "run_of_3_ms_p95": round(spans[int(len(spans) * 0.95)] * 1e3, 2),
    }
    begun = time.perf_counter()
    drive(BATCH, SHORT, BATCH)
    found["batch_of_200_s"] = round(time.perf_counter() - begun, 3)
    drive(load // 4, SUSTAINED, 100)
    begun, cpu = time.perf_counter(), cpu_seconds()
    drive(load, SUSTAINED, 100)
    steps = load * SUSTAINED
    found["steps_per_s"] = round(steps / (time.perf_counter() - begun))
    found["cpu_ms_per_step"] = round((cpu_seconds() - cpu) * 1e3 / steps, 3)
    found["steps_per_core_s"] = round(1e3 / found["cpu_ms_per_step"])
    found |= gaps(drive, stamps, long=())
    for number in long:
        try:
            found |= gaps(drive, stamps, long=(number,))
        except Exception as error:  # noqa: BLE001 - what a system says of too long a run is its figure
            found[f"stso_ms_at_{number}"] = f"{type(error).__name__}: {error}"[:200]
            break
    return found


def gaps(drive: Drive, stamps: Path, *, short: int = 20, long: tuple[int, ...]) -> dict[str, Any]:
    """The time between the steps of one run, early and late: short runs and long ones in turns, so that a machine that
    gets slower meets both.

    **Units**: milliseconds, medians.
    """
    first, early, overhead = list[float](), list[float](), list[float]()
    late: dict[int, list[float]] = {}
    for steps in long or (0,):
        if steps:
            late[steps] = _between(_alone(drive, stamps, steps)[1])[-max(steps // WINDOW, 1) :]
        for _ in range(short // max(len(long), 1)):
            asked, times, over = _alone(drive, stamps, FEW_STEPS)
            first.append((times[0][0] - asked) / 1e6)
            early += _between(times)[EARLY]
            overhead.append((over - asked - sum(ended - begun for begun, ended in times)) / 1e6)
    tenth = statistics.median(early)
    found: dict[str, Any] = {
        "ttfs_ms": round(statistics.median(first), 2),
        "stso_ms": round(tenth, 2),
        f"wo_ms_of_{FEW_STEPS}_steps": round(statistics.median(overhead), 2),
    }
    for steps, between in late.items():
        found[f"stso_ms_at_{steps}"] = round(statistics.median(between), 2)
        found[f"ratio_at_{steps}"] = round(statistics.median(between) / tenth, 3)
    return found


def _alone(drive: Drive, stamps: Path, steps: int) -> tuple[int, list[tuple[int, int]], int]:
    """When a run was asked for, when its steps began and ended, when it was over. **Units**: nanoseconds."""
    stamps.write_bytes(b"")
    asked = time.time_ns()
    drive(1, steps, 1)
    over = time.time_ns()
    return asked, [tuple(json.loads(line)) for line in stamps.read_bytes().splitlines()], over


def _between(times: list[tuple[int, int]]) -> list[float]:
    return [(after[0] - before[1]) / 1e6 for before, after in pairwise(times)]


def report(drive: Drive) -> None:
    """Print what a peer's process has measured, as its parent has asked for it: JSON on the last line."""
    wanted = json.loads(sys.argv[1])
    sizes = {"runs": wanted["runs"], "load": wanted["load"], "long": tuple(wanted["long"])}
    print(json.dumps(measure(drive, Path(os.environ[STAMPS]), **sizes)), flush=True)
