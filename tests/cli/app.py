"""The app that the command line's tests run: tools that leave a line per effect in a file, and wait when told to."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from refold import App, Context, NotDone, Retry

app = App("command-line-tests")
ALWAYS = Retry(attempts=20, base=timedelta(milliseconds=100), cap=timedelta(seconds=1))


def leave(line: str) -> None:
    """One effect in the world."""
    with (_folder() / "effects").open("a") as file:
        file.write(line + "\n")


def _folder() -> Path:
    return Path(os.environ["EFFECTS"])


def _hold(name: str) -> None:
    """Stands still while the test says so."""
    while (_folder() / f"hold-{name}").exists():
        time.sleep(0.02)


@app.tool(effect="keyed", timeout=timedelta(seconds=20), retry=ALWAYS)
def mark(run: str, n: int, *, idempotency_key: str) -> int:
    """Leaves a line, once per key, as a receiver that knows keys does."""
    lines = (_folder() / "effects").read_text().splitlines()
    if f"{run} {n} {idempotency_key}" not in lines:
        leave(f"{run} {n} {idempotency_key}")
    return n


@app.tool(effect="once", timeout=timedelta(seconds=20))
def fire(run: str) -> str:
    """Acts, then stands still before it answers."""
    leave(f"{run} fired")
    _hold(run)
    return "fired"


@app.tool(effect="pure", retry=Retry(attempts=2, base=timedelta(milliseconds=50)))
def refuse() -> str:
    """Never works."""
    raise NotDone("not today")


@app.tool(effect="pure")
async def tick(run: str) -> None:
    """Leaves the time."""
    with (_folder() / "ticks").open("a") as file:
        file.write(f"{run} {time.time()}\n")


@app.agent
async def ticks(ctx: Context, count: int = 1_000) -> int:
    """Leaves the time again and again."""
    for _ in range(count):
        await ctx.call(tick, ctx.run_id)
    return count


@app.agent
async def marks(ctx: Context, count: int = 5) -> int:
    """Leaves several lines, one after the other."""
    for n in range(count):
        await ctx.call(mark, ctx.run_id, n)
    return count


@app.agent
async def risky(ctx: Context) -> str:
    """Makes one call that cannot be repeated."""
    return await ctx.call(fire, ctx.run_id)


@app.tool(effect="keyed", approval="required")
def wipe(run: str, *, idempotency_key: str) -> str:
    """Leaves a line, if people let it."""
    leave(f"{run} wiped")
    return "wiped"


@app.agent
async def cleaner(ctx: Context) -> str:
    """Wipes."""
    return await ctx.call(wipe, ctx.run_id)


@app.agent
async def household(ctx: Context) -> str:
    """Has somebody wipe, and somebody sleep whom it does not wait for."""
    ctx.start(sleeper)
    cleaned: str = await ctx.run(cleaner)
    return cleaned


@app.agent
async def sleeper(ctx: Context) -> None:
    """Sleeps for an hour."""
    await asyncio.sleep(3600)


@app.agent
async def doomed(ctx: Context) -> str:
    """Fails."""
    return await ctx.call(refuse)


@app.agent
async def ordering(ctx: Context) -> dict[str, Any]:
    """Waits for a parcel, and for whoever has the token to pay."""
    paid = ctx.callback("paid", schema=int, timeout=timedelta(days=1))
    ctx.note("token", paid.token)
    shipped = await ctx.wait_for("shipped", match="data.parcel != ''", timeout=timedelta(days=7))
    return {"parcel": shipped.data["parcel"], "by": shipped.actor, "paid": await paid}


@app.agent
async def clocked(ctx: Context, seconds: float) -> float:
    """Sleeps, and says how late it was."""
    due = ctx.now().timestamp() + seconds
    await asyncio.sleep(seconds)
    return ctx.now().timestamp() - due
