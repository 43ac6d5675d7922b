"""Agents that start others, each doing one thing that a family may do."""

from __future__ import annotations

import asyncio
from typing import Any

from refold import App, ChildFailed, Context
from refold.core import topics
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.wire import canonical, codec
from refold.engine.ports.log import Outgoing
from tests.planner.rig import Rig

family = App("family")


@family.tool(effect="once")
async def act(run: str, n: int) -> int:
    """Never runs: its result is played."""
    return n


@family.agent
async def worker(ctx: Context, n: int) -> int:
    """Acts once."""
    return 10 * await ctx.call(act, ctx.run_id, n)


@family.agent
async def breaker(ctx: Context) -> None:
    """Fails."""
    raise ValueError("it broke")


@family.agent
async def boss(ctx: Context, n: int) -> int:
    """Has a worker do it."""
    result: int = await ctx.run(worker, {"n": n})
    return result + 1


@family.agent
async def chief(ctx: Context, n: int) -> int:
    """Has a boss do it."""
    result: int = await ctx.run("boss", {"n": n})
    return result + 1


@family.agent
async def patient(ctx: Context, agent: str) -> str:
    """Has something done, and acts itself when it has heard what came of that."""
    said = "done"
    try:
        await ctx.run(agent, {"n": 4} if agent == "worker" else {})
    except ChildFailed as failed:
        said = str(failed.fields["code"])
    await ctx.call(act, ctx.run_id, 100)
    return said


@family.agent
async def careful(ctx: Context) -> dict[str, Any]:
    """Has something broken done, and says what came of it."""
    try:
        await ctx.run(breaker)
    except ChildFailed as failed:
        return dict(failed.fields)
    return {}


@family.agent
async def teller(ctx: Context) -> str:
    """Tells of something and is over."""
    ctx.publish("paid", {"n": 7})
    return "told"


@family.on("paid")
async def listener(ctx: Context, n: int) -> int:
    """Hears of it."""
    return 10 * await ctx.call(act, ctx.run_id, n)


@family.on("paid", match="data.n > 100 && event == 'paid'")
async def auditor(ctx: Context, n: int) -> None:
    """Hears of what is much."""


@family.on("paid", match="data.nothing.of.this == 1")
async def confused(ctx: Context, n: int) -> None:
    """Never hears of anything."""


@family.agent
async def leaver(ctx: Context) -> str:
    """Starts something that goes on without it."""
    ctx.start(worker, {"n": 3}, on_parent_end="abandon")
    return "left"


@family.agent
async def deserter(ctx: Context) -> str:
    """Starts something and does not wait for it."""
    ctx.start(worker, {"n": 3})
    await ctx.call(act, ctx.run_id, 1)
    return "left"


@family.agent
async def digger(ctx: Context) -> None:
    """Goes down for ever."""
    await ctx.run("digger")


def rig(**more: Any) -> Rig:
    """A planner of the family."""
    return Rig(code=family, **more)


def ask(rig: Rig, run: str, agent: str, given: Any = None, **more: Any) -> None:
    """Asks for a run."""
    request = RunRequest(RunId(run), agent, canonical.dumps(given), "ann", **more)
    rig.write(topics.RUN_REQUESTED, run, run, codec.encode(request))


def forge(rig: Rig, run: str, agent: str, given: Any = None) -> Outgoing:
    """A request that says it was a child's."""
    request = RunRequest(RunId(run), agent, canonical.dumps(given), "mallory")
    return Outgoing(topics.RUN_REQUESTED, 0, run.encode(), codec.encode(request), (), 0)


@family.agent
async def leaf(ctx: Context, n: int, given: str = "") -> str:
    """Is over at once, with so long a result."""
    return "x" * n


@family.agent
async def crowd(ctx: Context, count: int, given: str = "") -> int:
    """Starts so many at once."""
    return len(
        await asyncio.gather(*(ctx.run(leaf, {"n": 1, "given": given}) for _ in range(count)), return_exceptions=True)
    )


@family.agent
async def listening(ctx: Context) -> dict[str, Any]:
    """Is handed more than fits."""
    try:
        return {"length": len(await ctx.run(leaf, {"n": 1_100_000}))}
    except ChildFailed as failed:
        return {"code": failed.fields["code"]}


@family.agent
async def hurrying(ctx: Context) -> str:
    """Waits for another only until it has acted itself, and acts once more."""
    task = asyncio.create_task(ctx.run(worker, {"n": 3}))
    await ctx.call(act, ctx.run_id, 1)
    task.cancel()
    await ctx.call(act, ctx.run_id, 2)
    return "gave it up"


@family.agent
async def many(ctx: Context, count: int) -> int:
    """Has so many workers at once."""
    return len(await asyncio.gather(*(ctx.run(worker, {"n": number}) for number in range(count))))


@family.agent
async def ambler(ctx: Context) -> int:
    """Starts something that goes on without it, and waits for another."""
    ctx.start(worker, {"n": 3}, on_parent_end="abandon")
    result: int = await ctx.run(worker, {"n": 4})
    return result
