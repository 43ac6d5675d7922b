"""What a `kill -9` costs: the time until all runs in flight are done, and effects that happened twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.engine import Engine
from benchmarks.measure import STEPS

RUNS = 50


def crash(engine: Engine, victim: str, agent: str, *, restart: Callable[[], None] | None = None) -> dict[str, Any]:
    """Kills the victim when half of the effects of 50 runs have happened; the supervisor restarts it at once.

    `restart` kills and starts a victim that is not a service of the engine (the broker).
    """
    runs = engine.client.start(agent, RUNS)
    _wait_for_effects(engine, runs, RUNS * STEPS // 2)
    begun = time.perf_counter()
    if restart:
        restart()
    else:
        engine.kill(victim)
    engine.client.finish(runs, timeout_s=60)
    recovered = time.perf_counter() - begun
    counts = Counter(tuple(line.split()[:2]) for line in _lines(engine, runs) if line.split()[2] == "effect")
    again = sum(line.split()[2] == "again" for line in _lines(engine, runs))
    return {
        "victim": victim,
        "agent": agent,
        "all_done_s": round(recovered, 2),
        "effects": sum(counts.values()),
        "effects_expected": RUNS * STEPS,
        "effects_twice": sum(count - 1 for count in counts.values()),
        "absorbed_by_key": again,
    }


def _lines(engine: Engine, runs: set[bytes]) -> list[str]:
    if not engine.effects.exists():
        return []
    lines = engine.effects.read_text().split("\n")
    return [line for line in lines if line and line.split()[0].encode() in runs]


def _wait_for_effects(engine: Engine, runs: set[bytes], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(_lines(engine, runs)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} effects did not happen in a minute")
        time.sleep(0.002)
