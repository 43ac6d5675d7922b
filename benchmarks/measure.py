"""What the benchmarks measure with: processor time of the whole machine, memory of processes, percentiles."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

STEPS = 10
"""Steps of a benchmark run, the same for the floor, the engine and every peer."""


def cpu_seconds() -> float:
    """Processor seconds that this machine has spent so far, over all cores and processes."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def memory_mib(pids: Iterable[int]) -> float:
    """Proportional set size of processes. **Units**: MiB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n"):
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return round(total / 1024, 1)


def latency(run_seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds per step: median and 95th percentile over runs."""
    steps = sorted(seconds * 1000 / STEPS for seconds in run_seconds)
    return {"p50": round(statistics.median(steps), 3), "p95": round(steps[int(len(steps) * 0.95)], 3)}
