"""Ten `pure` calls with each step in the log, and the same agent in memory, in turns; JSON on stdout.

`python -m benchmarks.memory [--runs 50] [--load 300] [--repeat 3]`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from benchmarks.engine import Engine, alone
from benchmarks.peers.load import STEPS, cpu_seconds

AGENTS = ("ten_reads", "ten_in_memory")


def measure(engine: Engine, *, runs: int, load: int, repeat: int) -> dict[str, Any]:
    """One run at a time, then 100 in flight; of both agents in turns.

    **Units**: steps/s, and milliseconds a run or step; all samples, or the median of them.
    """
    found: dict[str, Any] = {name: {"steps_per_s": [], "cpu_ms_per_step": [], "ms_per_run": []} for name in AGENTS}
    for _ in range(repeat):
        for name, each in found.items():
            spans = engine.client.drive(name, runs, in_flight=1)
            each["ms_per_run"].append(round(statistics.median(spans) * 1000, 2))
            begun, cpu = time.perf_counter(), cpu_seconds()
            engine.client.drive(name, load, in_flight=100)
            each["steps_per_s"].append(round(load * STEPS / (time.perf_counter() - begun)))
            each["cpu_ms_per_step"].append(round((cpu_seconds() - cpu) * 1000 / (load * STEPS), 3))
    return found


def main() -> None:
    """Prints it, of a broker and a Valkey of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--load", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with alone("memory") as engine:
        found = measure(engine, runs=options.runs, load=options.load, repeat=options.repeat)
    print(json.dumps({"load": os.getloadavg(), **found}, indent=2))


if __name__ == "__main__":
    main()
