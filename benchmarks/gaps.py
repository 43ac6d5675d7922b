"""What lies between the steps of one run, early and late: by the clock of a tool, on the real platform.

`python -m benchmarks.gaps` prints JSON. *TTFS*: from the request to the first step's code. *STSO*: from the end of a
step's code to the beginning of the next one's. *WO*: all of a run's time that was not spent in its steps.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.engine import Engine, alone

FEW_STEPS, EARLY, WINDOW = 20, slice(4, 16), 10
"""Steps of a short run, those of it that count as the tenth, and which part of a long run counts as its end: of 100
steps, a third of a second, the median is that of the moment, and varies by half beside other work."""

GOALS = {
    "step gap at step 1,000 of step 10": ("<=", 1.05, 1.1),
    "step gap at step 10,000 of step 10": ("<=", 1.05, 1.1),
}
"""Figure, direction, goal, must."""


def measure(engine: Engine, *, short: int = 20, long: tuple[int, ...] = (1_000, 10_000)) -> dict[str, Any]:
    """Measure an engine. **Raises** TimeoutError if a run takes much longer than any should."""

    def drive(steps: int) -> None:
        runs = engine.client.start("stepped", 1, {"steps": steps})
        engine.client.finish(runs, timeout_s=60 + steps * 0.1)

    return _gaps(drive, engine.effects, short=short, long=long)


def _gaps(drive: Callable[[int], object], stamps: Path, *, short: int, long: tuple[int, ...]) -> dict[str, Any]:
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


def _alone(drive: Callable[[int], object], stamps: Path, steps: int) -> tuple[int, list[tuple[int, int]], int]:
    """When a run was asked for, when its steps began and ended, when it was over. **Units**: nanoseconds."""
    stamps.write_bytes(b"")
    asked = time.time_ns()
    drive(steps)
    over = time.time_ns()
    return asked, [tuple(json.loads(line)) for line in stamps.read_bytes().splitlines()], over


def _between(times: list[tuple[int, int]]) -> list[float]:
    return [(after[0] - before[1]) / 1e6 for before, after in pairwise(times)]


def figures(found: dict[str, Any]) -> dict[str, float]:
    """What of it has a goal."""
    at = {"1,000": "ratio_at_1000", "10,000": "ratio_at_10000"}
    return {f"step gap at step {step} of step 10": found[name] for step, name in at.items() if name in found}


def main() -> None:
    """Prints it, of a broker and a Valkey of its own."""
    with alone("gaps") as engine:
        print(json.dumps(measure(engine), indent=2))


if __name__ == "__main__":
    main()
