"""An app that is forked in the ways that FORK_TEST_HOW names: as it was, with other code, or so that it never ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold import App, CallFailed, Context

HOW = os.environ.get("FORK_TEST_HOW", "")
if HOW == "import-raises":
    raise RuntimeError("<script>window.ran=1</script> no such \u202ething")
if HOW == "import-hangs":
    time.sleep(600)

app = App("forkable")


def spins() -> list[Any]:
    """Never gives its thread back."""
    while True:
        pass


def told_of_the_gateway() -> str:
    """What the process that has started this one was started with."""
    try:
        return Path(f"/proc/{os.getppid()}/environ").read_text()
    except OSError as error:
        return type(error).__name__


TOLD = [dict(os.environ), [Path(f"/proc/self/fd/{fd}").exists() for fd in range(3, 2_000)], told_of_the_gateway()]
ACTS: dict[str, Callable[[], list[Any]]] = {"hangs": spins, "exits": lambda: os._exit(3), "tells": lambda: TOLD}


@app.tool(effect="pure")
def look(what: str) -> str:
    """Looks."""
    return what


@app.tool(effect="once")
def buy(item: str) -> str:
    """Buys."""
    return f"one {item}"


@app.tool(effect="once", approval="required")
def drop(table: str) -> str:
    """Drops a table, if somebody lets it."""
    return table


@app.agent
async def shops(ctx: Context, items: list[str]) -> list[Any]:
    """Buys one after the other."""
    if HOW in ACTS:
        return list(ACTS[HOW]())
    done: list[Any] = []
    for number, item in enumerate(items):
        ctx.status(item[:100])
        ctx.note("wants", item)
        if HOW == "differs" and number == 1:
            await ctx.call(look, item)
        done.append(await ctx.call(buy, item))
    return done


@app.agent
async def drops(ctx: Context, table: str) -> str:
    """Drops a table, whatever people say."""
    try:
        return await ctx.call(drop, table)
    except CallFailed as failed:
        return f"no: {failed.message}"


@app.agent
async def parent(ctx: Context) -> str:
    """Has another one work."""
    return str(await ctx.run(shops, {"items": ["tea"]}))
