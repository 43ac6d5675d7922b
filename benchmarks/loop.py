"""What the loop of agents costs: CPU per step, as the history grows, when calls are given up, and a run that waits.

`python -m benchmarks.loop` prints a table. The driver alone: no log, no planner. CPU time, the best of three.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from refold.core.events import CallCompleted, RetryPolicy
from refold.core.run.intents import Call
from refold.core.run.replay import Moment
from refold.core.run.state import Settled
from refold.sdk import loop
from refold.sdk.execution import Execution

Code = Callable[[], Coroutine[Any, Any, Any]]
PARKED = 10_000
POLICY = RetryPolicy()


def call(tool: str) -> Coroutine[Any, Any, Any]:
    """A step without the context around it."""
    return loop.step(Call(tool, "{}", "default", "keyed", 1_000, POLICY, 0, _read))


def _read(outcome: Settled) -> str:
    assert isinstance(outcome, CallCompleted)
    return outcome.result


def sequential(count: int) -> Code:
    """Calls, one after the other."""

    async def code() -> None:
        for _ in range(count):
            await call("a")

    return code


def gathered(count: int) -> Code:
    """Calls at once."""

    async def code() -> None:
        await asyncio.gather(*(call("a") for _ in range(count)))

    return code


def grouped(count: int) -> Code:
    """Calls at once, each a task of a group."""

    async def code() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(call("a"))

    return code


def in_time(code: Code) -> Code:
    """The same within a timeout."""

    async def limited() -> None:
        async with asyncio.timeout(3600):
            await code()

    return limited


def drive(code: Code, settled: int) -> Execution:
    """Code that is driven until so many of its calls have settled, in order."""
    moment = Moment(100)
    execution, ready = Execution(code(), moment, str(id(moment))), list[int]()
    asked = execution.start()
    for _ in range(settled):
        ready += [step for step, intent in asked if isinstance(intent, Call)]
        step = ready.pop(0)
        moment.now_ms += 1
        asked = execution.settle(step, CallCompleted(step, 1, "1"))
    return execution


def us_per_step(make: Callable[[int], Code], count: int, repeat: int) -> float:
    """Microseconds of CPU for a step, opening and all."""
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        for _ in range(repeat):
            execution = drive(make(count), count)
            assert execution.end is not None, "all calls have settled"
            execution.close()
        best = min(best, time.process_time() - begun)
    return best / (count * repeat) * 1e6


def tenths(count: int) -> list[float]:
    """Microseconds of CPU for a step in every tenth of a long history."""
    moment, begun, found = Moment(100), time.process_time(), list[float]()
    execution = Execution(sequential(count + 1)(), moment, "seed")
    execution.start()
    for step in range(1, count + 1):
        execution.settle(step, CallCompleted(step, 1, "1"))
        if step % (count // 10) == 0:
            now = time.process_time()
            found.append((now - begun) / (count // 10) * 1e6)
            begun = now
    execution.close()
    return found


def us_to_cancel(count: int) -> float:
    """Microseconds of CPU for a call that is given up with all others."""

    async def code() -> None:
        tasks = [asyncio.create_task(call("a")) for _ in range(count)]
        await call("b")
        for task in tasks:
            task.cancel()
        await call("c")

    execution = Execution(code(), Moment(100), "seed")
    execution.start()
    begun = time.process_time()
    given_up = execution.settle(1, CallCompleted(1, 1, "1"))
    took = time.process_time() - begun
    assert len(given_up) == count + 1, "all are given up, and one call is new"
    execution.close()
    return took / count * 1e6


def parked(code: Code, settled: int) -> tuple[float, float, float]:
    """Of a run that waits: KiB, microseconds to open and replay, and to drop."""
    drive(code, settled).close()
    gc.collect()
    before, begun = _resident_kib(), time.process_time()
    waiting = [drive(code, settled) for _ in range(PARKED)]
    opened = time.process_time() - begun
    gc.collect()
    size, begun = _resident_kib() - before, time.process_time()
    for execution in waiting:
        execution.close()
    dropped = time.process_time() - begun
    return size / PARKED, opened / PARKED * 1e6, dropped / PARKED * 1e6


def _resident_kib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


GOALS = {"a run that waits for a call, KiB of code": ("<=", 4.0, 6.0)}
"""Figure, direction, goal, must."""

WAITING = {
    "one call open, two done": (sequential(3), 2),
    "the same in `asyncio.timeout`": (in_time(sequential(3)), 2),
    "`gather` of 4 open": (gathered(4), 0),
}


def parked_as(name: str) -> tuple[float, float, float]:
    """The same by name, for a process of its own: freed memory would be taken for less memory."""
    return parked(*WAITING[name])


def parked_each() -> dict[str, tuple[float, float, float]]:
    """All of them, by name."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {name: pool.apply(parked_as, (name,)) for name in WAITING}


def main() -> None:
    """Prints the table."""
    print(f"Python {sys.version.split()[0]}\n\n| {PARKED:,} parked | KiB each | open and replay, us | drop, us |")
    print("|---|---|---|---|")
    for name, values in parked_each().items():
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    print("\n| CPU of a step | us |\n|---|---|")
    for name, make, count in (
        ("sequential", sequential, 10),
        ("sequential", sequential, 1_000),
        ("`gather`", gathered, 100),
        ("`TaskGroup`", grouped, 100),
    ):
        print(f"| {name} of {count:,} | {us_per_step(make, count, 20_000 // count):.1f} |")
    print(f"| a given-up call of 2,000 | {us_to_cancel(2_000):.1f} |")
    print(f"| 20,000 sequential, each tenth | {', '.join(f'{value:.1f}' for value in tenths(20_000))} |")


if __name__ == "__main__":
    main()
