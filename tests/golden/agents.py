"""The agents of golden runs. What they ask for never changes: their histories have to replay for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from refold import App, CallFailed, Context

app = App("golden")


@app.tool(effect="pure")
def fetch(name: str) -> str:
    """A call that anybody may make."""
    return name


@app.agent(version="1")
async def gathers(ctx: Context) -> list[Any]:
    """Calls at once, which end in any order, and one that fails."""
    ctx.note("plan", {"parts": 3})
    names = ("a", "b", "fails")
    done = await asyncio.gather(*(ctx.call(fetch, name) for name in names), return_exceptions=True)
    kinds = [type(each).__name__ for each in done]
    return [kinds, await ctx.call(fetch, f"{ctx.random.randint(0, 9)}{ctx.uuid().hex[:4]}")]


@app.agent(version="1")
async def groups(ctx: Context) -> str:
    """A group of tasks of which one fails, so that the others are given up."""
    told = "nothing failed"
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.call(fetch, "a"))
            group.create_task(chain(ctx, "fails"))
            group.create_task(asyncio.sleep(86_400))
    except* CallFailed:
        told = await ctx.call(fetch, "instead")
    return told


async def chain(ctx: Context, name: str) -> str:
    """Two calls, one after the other."""
    await ctx.call(fetch, "b")
    return await ctx.call(fetch, name)


@app.agent(version="1")
async def hurries(ctx: Context) -> list[str]:
    """A call that is given up after a second, a race, and a change that came later."""
    told = []
    try:
        async with asyncio.timeout(1):
            await ctx.call(fetch, "slow")
    except TimeoutError:
        told.append("too slow")
    racers = [asyncio.create_task(ctx.call(fetch, name)) for name in ("x", "slow")]
    first, rest = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    told += [task.result() for task in first]
    if ctx.patched("sleeps"):
        await asyncio.sleep(5)
    return told


@app.agent(version="1")
async def waits(ctx: Context) -> None:
    """Comes to stand in its second call."""
    await ctx.call(fetch, "a")
    await ctx.call(fetch, "slow")
