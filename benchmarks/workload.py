"""The app that the benchmarks run: ten steps of a tool that does nothing, or that writes down what it did."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from benchmarks.peers.load import STEPS, step

from refold import App, Context, Retry
from refold.sdk.tool import DID_NOT_HAPPEN

app = App("benchmark")
PAUSE_S = 0.4
_files: dict[str, int] = {}


@app.tool(effect="keyed")
async def nothing(i: int, *, idempotency_key: str) -> int:
    """Does nothing, under a key."""
    return i


@app.tool(effect="pure")
async def reads(i: int) -> int:
    """Does nothing, as often as anybody likes."""
    return i


@app.tool(effect="keyed", timeout=timedelta(seconds=1))
async def soon(i: int, *, idempotency_key: str) -> int:
    """Does nothing, and is missed after a second."""
    return i


def _effects() -> int:
    """The outside world: a file to which every effect appends one line in one write."""
    path = os.environ["BENCHMARK_EFFECTS"]
    if path not in _files:
        _files[path] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    return _files[path]


def _has(key: str) -> bool:
    return f" {key}\n".encode() in os.pread(_effects(), 1 << 26, 0)


def _fire(line: str) -> None:
    os.write(_effects(), f"{line}\n".encode())


@app.tool(effect="keyed", retry=Retry(attempts=5))
async def fire_keyed(run: str, i: int, *, idempotency_key: str) -> int:
    """An effect on a receiver that knows the keys it has served, then 20 ms in which a kill finds it unrecorded."""
    _fire(f"{run} {i} {'again' if _has(idempotency_key) else 'effect'} {idempotency_key}")
    await asyncio.sleep(0.02)
    return i


@app.tool(effect="keyed")
async def stamp(i: int, *, idempotency_key: str) -> int:
    """Writes down when its code begins and ends."""
    _fire(f"[{time.time_ns()},{time.time_ns()}]")
    return i


@app.tool(effect="pure")
async def step_pure(i: int) -> int:
    """Adds a byte to a file, as the steps of the peers do; may run as often as it likes."""
    return step(i)


@app.tool(effect="keyed")
async def step_keyed(i: int, *, idempotency_key: str) -> int:
    """The same under a key."""
    return step(i)


def _never(i: int, *, idempotency_key: str) -> object:
    return DID_NOT_HAPPEN


@app.tool(effect="probed", probe=_never)
async def step_probed(i: int, *, idempotency_key: str) -> int:
    """The same with a probe."""
    return step(i)


@app.tool(effect="once")
async def step_once(i: int) -> int:
    """The same without any of these."""
    return step(i)


COUNTED: dict[str, Callable[..., Coroutine[Any, Any, int]]] = {
    "pure": step_pure,
    "keyed": step_keyed,
    "probed": step_probed,
    "once": step_once,
}


def _ask(i: int, *, idempotency_key: str) -> int | object:
    return i if _has(idempotency_key) else DID_NOT_HAPPEN


@app.tool(effect="probed", probe=_ask, lease=timedelta(seconds=1.5), retry=Retry(attempts=5))
async def fire_probed(run: str, i: int, *, idempotency_key: str) -> int:
    """The same on a receiver that does not mind keys but can be asked."""
    _fire(f"{run} {i} effect {idempotency_key}")
    await asyncio.sleep(0.02)
    return i


@app.tool(effect="once", lease=timedelta(seconds=1.5))
async def fire_once(run: str, i: int) -> int:
    """The same on a receiver that can neither be asked nor told a key."""
    _fire(f"{run} {i} effect -")
    await asyncio.sleep(0.02)
    return i


@app.tool(effect="once", approval="required")
async def dangerous(i: int) -> int:
    """Never runs without a decision."""
    return i


@app.agent
async def asks(ctx: Context) -> int:
    """Waits for people."""
    return await ctx.call(dangerous, 1)


@app.agent
async def at_once(ctx: Context) -> int:
    """Needs nobody but the planner."""
    return 1


@app.agent
async def naps(ctx: Context) -> int:
    """Sleeps for a month, then calls."""
    await asyncio.sleep(2592000)
    return await ctx.call(nothing, 1)


@app.agent
async def many(ctx: Context, calls: int) -> int:
    """So many calls, one after the other."""
    return sum([await ctx.call(nothing, i) for i in range(calls)])


@app.agent
async def paced(ctx: Context, calls: int) -> int:
    """So many calls, with a pause behind each."""
    for i in range(calls):
        await ctx.call(nothing, i)
        await asyncio.sleep(PAUSE_S)
    return calls


@app.agent
async def stepped(ctx: Context, steps: int) -> int:
    """So many calls, one after the other, each with its times."""
    return sum([await ctx.call(stamp, i) for i in range(steps)])


@app.agent
async def fans_out(ctx: Context, children: int) -> int:
    """So many runs of its own at once."""
    return sum(await asyncio.gather(*(ctx.run(at_once) for _ in range(children))))


@app.agent
async def wide(ctx: Context, calls: int) -> int:
    """So many calls at once."""
    return sum(await asyncio.gather(*(ctx.call(nothing, i) for i in range(calls))))


@app.agent
async def impatient(ctx: Context) -> int:
    """One call that should be answered within a second."""
    return await ctx.call(soon, 1)


@app.agent
async def ten(ctx: Context) -> int:
    """Ten durable steps."""
    total = 0
    for i in range(STEPS):
        total += await ctx.call(nothing, i)
    return total


@app.agent
async def counted(ctx: Context, effect: str) -> int:
    """Ten counted steps of an effect class."""
    return sum([await ctx.call(COUNTED[effect], i) for i in range(STEPS)])


@app.agent
async def ten_reads(ctx: Context) -> int:
    """Ten steps that leave nothing behind."""
    return sum([await ctx.call(reads, i) for i in range(STEPS)])


@app.agent(durability="memory")
async def ten_in_memory(ctx: Context) -> int:
    """The same in memory."""
    return sum([await ctx.call(reads, i) for i in range(STEPS)])


@app.agent
async def ten_keyed(ctx: Context) -> int:
    """Ten effects under keys."""
    return sum([await ctx.call(fire_keyed, ctx.run_id, i) for i in range(STEPS)])


@app.agent
async def ten_probed(ctx: Context) -> int:
    """Ten effects that can be asked about."""
    return sum([await ctx.call(fire_probed, ctx.run_id, i) for i in range(STEPS)])


@app.agent
async def ten_once(ctx: Context) -> int:
    """Ten effects that nobody can be asked about."""
    return sum([await ctx.call(fire_once, ctx.run_id, i) for i in range(STEPS)])
