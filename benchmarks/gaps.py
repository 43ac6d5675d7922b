"""What lies between the steps of one run, early and late: by the clock of a tool, on the real platform.

`python -m benchmarks.gaps` prints JSON. *TTFS*: from the request to the first step's code. *STSO*: from the end of a
step's code to the beginning of the next one's. *WO*: all of a run's time that was not spent in its steps.
"""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from typing import Any

import orjson
from benchmarks.engine import Engine, alone

GOALS = {
    "step gap at step 1,000 of step 10": ("<=", 1.05, 1.1),
    "step gap at step 10,000 of step 10": ("<=", 1.05, 1.1),
}
"""Figure, direction, goal, must."""

SHORT, EARLY, WINDOW = 20, slice(4, 16), 10
"""Steps of a short run, those of it that count as the tenth, and which part of a long run counts as its end: of 100
steps, a third of a second, the median is that of the moment, and varies by half beside other work."""

Stamps = list[tuple[int, int]]


def _run(engine: Engine, calls: int) -> tuple[int, Stamps, int]:
    """When a run was asked for, when the code of each of its steps began and ended, and when it was over. In ns."""
    engine.effects.write_bytes(b"")
    asked = time.time_ns()
    engine.client.finish(engine.client.start("stamps", 1, {"calls": calls}), timeout_s=60 + calls * 0.1)
    over = time.time_ns()
    stamps = [orjson.loads(line) for line in engine.effects.read_bytes().splitlines()]
    return asked, [(begun, ended) for begun, ended in stamps], over


def _gaps(stamps: Stamps) -> list[float]:
    return [(after[0] - before[1]) / 1e6 for before, after in pairwise(stamps)]


def measure(engine: Engine, *, short: int = 20, long: tuple[int, ...] = (1_000, 10_000)) -> dict[str, Any]:
    """One run at a time: short ones and a long one in turns, so that a machine that gets slower meets both.

    **Units**: milliseconds, medians.
    """
    first, early, overhead = list[float](), list[float](), list[float]()
    late: dict[int, list[float]] = {}
    for calls in long:
        late[calls] = _gaps(_run(engine, calls)[1])[-max(calls // WINDOW, 1) :]
        for _ in range(short // len(long)):
            asked, stamps, over = _run(engine, SHORT)
            first.append((stamps[0][0] - asked) / 1e6)
            early += _gaps(stamps)[EARLY]
            overhead.append((over - asked - sum(ended - begun for begun, ended in stamps)) / 1e6)
    tenth = statistics.median(early)
    found: dict[str, Any] = {
        "ttfs_ms": round(statistics.median(first), 2),
        "stso_ms": round(tenth, 2),
        f"wo_ms_of_{SHORT}_steps": round(statistics.median(overhead), 2),
    }
    for calls, gaps in late.items():
        found[f"stso_ms_at_{calls}"] = round(statistics.median(gaps), 2)
        found[f"ratio_at_{calls}"] = round(statistics.median(gaps) / tenth, 3)
    return found


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
