"""The app that the benchmarks run: ten steps of a tool that does nothing, or that writes down what it did."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

from benchmarks.measure import STEPS
from refold import App, Context, Retry
from refold.sdk.tool import DID_NOT_HAPPEN

app = App("benchmark")
_files: dict[str, int] = {}


@app.tool(effect="keyed")
async def nothing(i: int, *, idempotency_key: str) -> int:
    """Does nothing, under a key."""
    return i


def _path() -> str:
    return os.environ["BENCHMARK_EFFECTS"]


def _fire(line: str) -> None:
    """One line per effect, appended in one write: what the outside world saw."""
    path = _path()
    if path not in _files:
        _files[path] = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.write(_files[path], f"{line}\n".encode())


def _happened(idempotency_key: str) -> bool:
    try:
        with open(_path()) as effects:
            return any(line.split()[2] == idempotency_key for line in effects)
    except FileNotFoundError:
        return False


def _ask(run: str, i: int, *, idempotency_key: str) -> int | object:
    return i if _happened(idempotency_key) else DID_NOT_HAPPEN


@app.tool(effect="probed", probe=_ask, lease=timedelta(seconds=1.5), retry=Retry(attempts=5))
async def fire(run: str, i: int, *, idempotency_key: str) -> int:
    """Has an effect, then takes 20 ms, so that a kill finds effects whose result was not recorded."""
    _fire(f"{run} {i} {idempotency_key}")
    await asyncio.sleep(0.02)
    return i


@app.tool(effect="once", lease=timedelta(seconds=1.5))
async def fire_once(run: str, i: int) -> int:
    """The same, of a receiver that can neither be asked nor told a key."""
    _fire(f"{run} {i} -")
    await asyncio.sleep(0.02)
    return i


@app.agent
async def ten(ctx: Context) -> int:
    """Ten durable steps."""
    total = 0
    for i in range(STEPS):
        total += await ctx.call(nothing, i)
    return total


@app.agent
async def ten_effects(ctx: Context) -> int:
    """Ten steps, each with an effect that its receiver can be asked about."""
    total = 0
    for i in range(STEPS):
        total += await ctx.call(fire, ctx.run_id, i)
    return total


@app.agent
async def ten_once(ctx: Context) -> int:
    """Ten steps, each with an effect that nobody can be asked about."""
    total = 0
    for i in range(STEPS):
        total += await ctx.call(fire_once, ctx.run_id, i)
    return total
