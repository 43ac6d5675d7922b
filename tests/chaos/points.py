"""Kills at exact boundaries: a service dies at its effect number n, for n = 1, 2, 3 ..., while a small run needs it.

Every victim is also the successor of the one before it, so each start is a recovery from the last boundary.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from refold.dev import process
from refold.engine.runtime.settings import KafkaSettings
from tests.chaos.faults import ended_by_kill
from tests.chaos.judge import Verdict
from tests.chaos.stack import KINDS, Stack, command
from tests.chaos.world import SIMPLE, World
from tests.waiting import eventually

REACH_S = 25.0
"""How long a boundary may take to be reached. A start takes 1 s, a boundary 10 ms; a service that idles asks Redis."""


@dataclass(slots=True)
class Swept:
    """What a sweep did. `died` are the boundaries at which the victim was killed, `missed` those never reached."""

    died: list[str]
    missed: list[str]
    verdict: Verdict
    undone: int


def sweep(stack: Stack, kind: str, points: Iterable[str], *, seed: int) -> Swept:
    """Kills a service at each of the points, beside partners of the other kinds that live on; then judges it all."""
    prefix = f"points-{kind}."
    settings = KafkaSettings(bootstrap=stack.dev.kafka, prefix=prefix)
    world = World(settings, stack.outside, seed=seed, tag=kind[0])
    world.open()
    steady = [_spawn(stack, f"{other}-1", prefix) for other in KINDS if other != kind]
    died: list[str] = []
    missed: list[str] = []
    try:
        for point in points:
            victim = _spawn(stack, f"{kind}-1", prefix, REFOLD_FAULT_KILL=point)
            killed = ended_by_kill(victim, unless=lambda: not _busy(world), within=REACH_S)
            (died if killed else missed).append(point)
            process.kill(victim)
        healed = _spawn(stack, f"{kind}-1", prefix)
        world.flush()
        eventually(lambda: not world.waiting(), within=90, what=f"{prefix} is quiet")
        process.end(healed, grace=timedelta(seconds=10))
    except AssertionError:
        pass  # what is not over is told by the verdict
    finally:
        for partner in steady:
            process.end(partner, grace=timedelta(seconds=10))
        world.close()
    return Swept(died, missed, world.judge(), len(world.waiting()))


def _busy(world: World) -> bool:
    """Keeps two small runs in flight."""
    while len(world.waiting()) < 2:
        world.start_run(SIMPLE)
    return True


def _spawn(stack: Stack, name: str, prefix: str, **more: str) -> process.Process:
    env = {**os.environ, **stack.environment(prefix), **stack.addresses(), "PYTHONUNBUFFERED": "1", **more}
    return process.spawn(command(name), log=log_of(stack.folder, prefix, name), env=env)


def log_of(folder: Path, prefix: str, name: str) -> Path:
    """Where a service of a sweep logs."""
    return folder / "logs" / f"{prefix}{name}.log"
