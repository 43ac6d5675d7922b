"""An app outside of the examples: an order in three parts, and a gift that a person allows."""

from __future__ import annotations

import asyncio
from pathlib import Path

from refold import App, Context

app = App("walk")


def effect(folder: str, key: str) -> str:
    """Record an effect under its key; a repetition of the key changes nothing."""
    there = Path("world", folder)
    there.mkdir(parents=True, exist_ok=True)
    (there / key).touch()
    return key


@app.tool(effect="keyed")
def pack(order: str, part: int, *, idempotency_key: str) -> str:
    """Packs a part of an order."""
    return effect(order, idempotency_key)


@app.tool(effect="keyed", approval="required")
def give(order: str, *, idempotency_key: str) -> str:
    """Gives something away."""
    return effect(order, idempotency_key)


@app.agent
async def ship(ctx: Context, order: str) -> int:
    """Packs three parts, with a pause between two."""
    for part in range(3):
        await ctx.call(pack, order, part)
        await asyncio.sleep(1)
    return 3


@app.agent
async def gift(ctx: Context, order: str) -> str:
    """Gives something away, if a person allows it."""
    return await ctx.call(give, order)
