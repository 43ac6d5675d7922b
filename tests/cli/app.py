"""The app that the command line's tests run: tools that leave a line per effect in a file, and wait when told to."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from refold import App, CallFailed, Context, Limit, NotDone, Retry
from refold.sdk.current_attempt import current_attempt

app = App("command-line-tests", limits=[Limit("day", agent="bounded", label="tenant", calls=7)])
ALWAYS = Retry(attempts=20, base=timedelta(milliseconds=100), cap=timedelta(seconds=1))


def leave(line: str) -> None:
    """One effect in the world."""
    with (_folder() / "effects").open("a") as file:
        file.write(line + "\n")


def mark_once(run: str, n: int, key: str) -> None:
    """Leaves a line, unless there is one with this key."""
    lines = (_folder() / "effects").read_text().splitlines()
    if f"{run} {n} {key}" not in lines:
        leave(f"{run} {n} {key}")


def _folder() -> Path:
    return Path(os.environ["EFFECTS"])


def _hold(name: str) -> None:
    """Stands still while the test says so."""
    while (_folder() / f"hold-{name}").exists():
        time.sleep(0.02)


@app.tool(effect="keyed", timeout=timedelta(seconds=20), retry=ALWAYS)
def mark(run: str, n: int, *, idempotency_key: str) -> int:
    """Leaves a line, once per key, as a receiver that knows keys does."""
    mark_once(run, n, idempotency_key)
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


@app.tool(effect="pure")
def speak(n: int) -> int:
    """Sends a live part."""
    attempt = current_attempt()
    assert attempt is not None
    attempt.tell("text", {"text": f"part {n}"})
    return n


@app.agent
async def speaker(ctx: Context, count: int = 3) -> int:
    """Speaks several times, one after the other."""
    for n in range(count):
        await ctx.call(speak, n)
    return count


@app.agent
async def bounded(ctx: Context, count: int = 5) -> int:
    """The same under a limit."""
    for n in range(count):
        await ctx.call(mark, ctx.run_id, n)
    return count


@app.tool(effect="keyed", timeout=timedelta(seconds=60), retry=ALWAYS)
def scan(run: str, n: int, size: int, *, idempotency_key: str) -> str:
    """Leaves a line, once per key, and brings home much."""
    mark_once(run, n, idempotency_key)
    return str(n % 10) * size


@app.agent
async def scans(ctx: Context, count: int = 5, size: int = 200_000, note: str = "") -> list[int]:
    """Brings home much, one after the other; waits before the last."""
    found = []
    for n in range(count):
        if n == count - 1 and note == "wait":
            await ctx.wait_for("go")
        found.append(len(await ctx.call(scan, ctx.run_id, n, size)))
    return [*found, len(note)]


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
async def foreman(ctx: Context) -> int:
    """Has another agent leave its marks."""
    marked: int = await ctx.run(marks, {"count": 1})
    return marked


@app.agent
async def basket(ctx: Context) -> list[str]:
    """Takes what it is asked to, and shows it, until it is closed."""
    items: list[str] = []

    @ctx.on("add")
    async def add(item: str, count: int = 1) -> int:
        if count < 1:
            raise ValueError("nothing to add")
        if item == "slow":
            await ctx.call(fire, ctx.run_id)
        else:
            await ctx.call(mark, ctx.run_id, len(items))
        items.extend([item] * count)
        ctx.expose("items", items)
        return len(items)

    await ctx.wait_for("close")
    return items


@app.agent
async def sleeper(ctx: Context) -> None:
    """Sleeps for an hour."""
    await asyncio.sleep(3600)


@app.agent
async def doomed(ctx: Context) -> str:
    """Fails."""
    return await ctx.call(refuse)


@app.tool(effect="keyed", retry=Retry(attempts=1))
def deliver(run: str, n: int, *, idempotency_key: str) -> int:
    """Leaves a line, if nobody has closed the door."""
    if (_folder() / f"closed-{run}").exists():
        raise NotDone("the door is closed")
    leave(f"{run} delivered {n}")
    return n


@app.tool(effect="keyed", retry=Retry(attempts=2, base=timedelta(milliseconds=50), then="hold"))
def insist(run: str, *, idempotency_key: str) -> str:
    """Leaves a line, if nobody has closed the door."""
    if (_folder() / f"closed-{run}").exists():
        raise NotDone("the door is closed")
    leave(f"{run} insisted")
    return "through"


@app.agent
async def insisting(ctx: Context) -> str:
    """Insists, and takes a failure for an answer."""
    try:
        return await ctx.call(insist, ctx.run_id)
    except CallFailed as failure:
        return f"no: {failure.fields['code']}"


@app.agent
async def parcels(ctx: Context, count: int = 2) -> int:
    """Marks and delivers, one after the other."""
    for n in range(count):
        await ctx.call(mark, ctx.run_id, n)
        await ctx.call(deliver, ctx.run_id, n)
    return count


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


@app.tool(effect="pure", timeout=timedelta(minutes=5))
async def look(run: str, n: int) -> int:
    """Leaves a line when it begins and when it is stopped, and stands still while the test says so."""
    leave(f"{run} looked {n}")
    try:
        while (_folder() / f"hold-{run}-{n}").exists():  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        leave(f"{run} stopped {n}")
        raise
    return n


@app.tool(effect="pure")
def compute(n: int) -> int:
    """Adds one, in a thread."""
    return n + 1


@app.agent(durability="memory", timeout=timedelta(minutes=5))
async def looks(ctx: Context, count: int = 3) -> int:
    """Looks several times, in memory."""
    ctx.note("plan", count)
    found = 0
    for n in range(count):
        found += await ctx.call(compute, await ctx.call(look, ctx.run_id, n))
    return found


@app.agent(durability="memory", timeout=timedelta(seconds=1))
async def brief(ctx: Context) -> int:
    """Has a second."""
    return await ctx.call(look, ctx.run_id, 0)


@app.agent
async def living(ctx: Context, seen: list[Any], every: int = 2) -> list[Any]:
    """Takes signals until one is `end`, and begins a new history after so many; submits a run at last."""
    for _ in range(every):
        data = (await ctx.wait_for("message")).data
        if data == "end":
            ctx.submit("clocked", {"seconds": 0}, id=f"{ctx.run_id}-after")
            return [*seen, ctx.generation]
        seen = [*seen, data]
    return ctx.continue_as({"seen": seen, "every": every})  # type: ignore[no-any-return]
