"""The app of the restore drill: effects of each class on a receiver that keeps a book, and gates that hold runs.

`DRILL` names a folder with the receiver's `book`, one line per effect, and the gates that are open.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from refold import App, Context, Retry
from refold.sdk.tool import DID_NOT_HAPPEN

app = App("drill", version="1")
WAIT = timedelta(minutes=5)
LARGE = 200_000


def folder() -> Path:
    return Path(os.environ["DRILL"])


def booked(key: str) -> bool:
    return f" {key}\n" in (folder() / "book").read_text()


async def act(kind: str, run: str, key: str, gate: str) -> str:
    """One effect, then a wait for its gate: until that is open the receiver has acted and no result is recorded."""
    if kind != "keyed" or not booked(key):
        with (folder() / "book").open("a") as book:
            book.write(f"{run} {key}\n")
    await opened(gate)
    return f"{run} done"


async def opened(gate: str) -> None:
    while gate and not (folder() / gate).exists():  # noqa: ASYNC110 - a file tells nobody
        await asyncio.sleep(0.02)


@app.tool(effect="pure", timeout=WAIT)
async def wait(gate: str) -> None:
    """Waits for a gate."""
    await opened(gate)


@app.tool(effect="keyed", timeout=WAIT)
async def pay(run: str, gate: str, *, idempotency_key: str) -> str:
    """The receiver drops a key that it has."""
    return await act("keyed", run, idempotency_key, gate)


def happened(run: str, gate: str, *, idempotency_key: str) -> str | object:
    return f"{run} done" if booked(idempotency_key) else DID_NOT_HAPPEN


@app.tool(effect="probed", probe=happened, timeout=WAIT, retry=Retry(attempts=5))
async def book(run: str, gate: str, *, idempotency_key: str) -> str:
    """The receiver can be asked."""
    return await act("probed", run, idempotency_key, gate)


@app.tool(effect="once", timeout=WAIT)
async def mail(run: str, gate: str, *, idempotency_key: str) -> str:
    """The receiver has no keys and cannot be asked."""
    return await act("once", run, idempotency_key, gate)


@app.tool(effect="once", approval="required", timeout=WAIT)
async def wire(run: str, *, idempotency_key: str) -> str:
    """The same, after people have agreed."""
    return await act("once", run, idempotency_key, "")


@app.tool(effect="pure")
async def export() -> str:
    """A value that lies in the blob store."""
    return "x" * LARGE


TOOLS = {"pay": pay, "book": book, "mail": mail}


@app.agent
async def errand(ctx: Context, tool: str, before: str = "", within: str = "") -> str:
    """One effect, behind a gate or with one before its result."""
    if before:
        await ctx.call(wait, before)
    return await ctx.call(TOOLS[tool], ctx.run_id, within)


@app.agent
async def large(ctx: Context, gate: str) -> int:
    """A value of a blob store, read again after a gate."""
    value = await ctx.call(export)
    await ctx.call(wait, gate)
    return len(value)


@app.agent
async def asking(ctx: Context) -> str:
    """An effect that people have to agree to."""
    return await ctx.call(wire, ctx.run_id)
