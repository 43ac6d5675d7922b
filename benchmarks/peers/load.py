"""The work of every system, and its figures. Standard library only: a peer runs in a Python of its own.

A run is ten durable steps, one after the other. The code of a step adds a byte to a file and does nothing else; the
result of a step has to be durable before the next one begins. A figure counts only if every run returned the sum of
its steps, and the file grew by one byte for each step.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

STEPS = 10
RESULT = sum(range(STEPS))
STEPS_FILE = "BENCHMARK_STEPS"
"""The environment variable with the path of the file to which each step adds a byte."""

RUNS = {1: 40, 10: 200, 100: 1_000, 1_000: 2_000}
"""Runs by how many of them are in flight."""
LIMIT_S = 6.0
"""A figure has fewer runs where a system would need longer for them, but as many as are in flight."""
GIVE_UP_S = 90.0
"""A figure is left out where a system would need longer even for that."""

MISSING = 3
"""The exit code of a process that cannot measure here; the last line of its stderr is the reason."""

Drive = Callable[[int, int], list[float]]
"""Do so many runs, so many of them in flight. **Returns** seconds from the request to the end of each.
**Raises** an exception if a run does not return `RESULT`."""


def step(i: int) -> int:
    """The code of a step."""
    path = os.environ[STEPS_FILE]
    if path not in _files:
        _files[path] = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.write(_files[path], b".")
    return i


_files: dict[str, int] = {}


def cpu_seconds() -> float:
    """Processor seconds that this machine has spent so far, over all cores and processes."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def tree_seconds(roots: Iterable[int]) -> float:
    """Processor seconds of processes and their descendants, also of those that have ended since."""
    ticks, parents = dict[int, int](), dict[int, int]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(folder.name)] = int(fields[1])
                ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    found, new = set[int](), set(roots) & ticks.keys()
    while new:
        found |= new
        new = {pid for pid, parent in parents.items() if parent in new} - found
    return sum(ticks[pid] for pid in found) / os.sysconf("SC_CLK_TCK")


def driven(one: Callable[[], Awaitable[Any]], loop: asyncio.AbstractEventLoop) -> Drive:
    """Return the `Drive` of a system whose runs are coroutines that return their result."""

    async def all_of(runs: int, in_flight: int) -> list[float]:
        free, spans = asyncio.Semaphore(in_flight), list[float]()

        async def next_() -> None:
            async with free:
                begun = time.perf_counter()
                if (result := await one()) != RESULT:
                    raise ValueError(f"a run returned {result!r}, not {RESULT}")
                spans.append(time.perf_counter() - begun)

        await asyncio.gather(*(next_() for _ in range(runs)))
        return spans

    return lambda runs, in_flight: loop.run_until_complete(all_of(runs, in_flight))


def measure(
    drive: Drive, system: Iterable[int], *, in_flight: Iterable[int] = RUNS, scale: float = 1.0
) -> list[dict[str, Any]]:
    """Measure a system with so many runs in flight, one number after the other.

    `system`: the process ids of its servers and workers; their descendants count too. `scale` multiplies the number of
    runs. **Returns** figures as `_figure` does, or for a number that would take too long, its text as `left_out`.
    """
    figures = list[dict[str, Any]]()
    _counted(drive, 20, 10)
    rate = 0.0
    for number in in_flight:
        if number <= 100 or not rate:  # before the first time with so many: code, connections and caches warm up
            warm = max(min(number, 100), 5)
            rate = warm / _counted(drive, warm, number)[0]
        if number / rate > GIVE_UP_S:
            figures.append({"in_flight": number, "left_out": f"takes about {number / rate:.0f} s"})
            continue
        runs = max(number, 5, min(round(RUNS[number] * scale), round(rate * LIMIT_S)))
        figures.append({"in_flight": number, "runs": runs, **_figure(drive, set(system), runs, number)})
    return figures


def _figure(drive: Drive, system: set[int], runs: int, in_flight: int) -> dict[str, float]:
    """**Units**: `ms` of a step (the time of a run by its steps); steps/s; microseconds of CPU a step: of the system,
    of this process where it is no part of the system; cores in use by everything else on the machine."""
    machine, spent, own = cpu_seconds(), tree_seconds(system), time.process_time()
    took_s, spans = _counted(drive, runs, in_flight)
    machine, spent = cpu_seconds() - machine, tree_seconds(system) - spent
    own = 0.0 if os.getpid() in system else time.process_time() - own
    steps = sorted(seconds * 1e3 / STEPS for seconds in spans)
    each, others = 1e6 / (runs * STEPS), max(0.0, machine - spent - own)
    return {
        "steps_per_s": round(runs * STEPS / took_s, 1),
        "ms": round(statistics.median(steps), 3),
        "ms_p95": round(steps[int(len(steps) * 0.95)], 3),
        "cpu_us": round(spent * each),
        "driver_us": round(own * each),
        "others_cores": round(others / took_s, 2),
    }


def _counted(drive: Drive, runs: int, in_flight: int) -> tuple[float, list[float]]:
    """Drive, and return the seconds it took and those of each run. **Raises** ValueError if steps are missing or were
    done more than once."""
    file = Path(os.environ[STEPS_FILE])
    before = file.stat().st_size if file.exists() else 0
    begun = time.perf_counter()
    spans = drive(runs, in_flight)
    took_s = time.perf_counter() - begun
    if (done := file.stat().st_size - before) != runs * STEPS or len(spans) != runs:
        raise ValueError(f"{len(spans)} of {runs} runs ended, with {done} steps instead of {runs * STEPS}")
    return took_s, spans


def report(drive: Drive, system: Iterable[int]) -> None:
    """Print the figures of a system as its parent has ordered them: JSON on the last line."""
    wanted = json.loads(sys.argv[1])
    print(json.dumps(measure(drive, system, in_flight=wanted["in_flight"], scale=wanted["scale"])), flush=True)
