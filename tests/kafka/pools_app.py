"""A tool in each of two pools, one of which people decide on, and an agent that calls both."""

from __future__ import annotations

import asyncio

from refold import App, Context

app = App("pools")


@app.tool(effect="probed", probe=lambda word, *, idempotency_key: word)
def plain(word: str, *, idempotency_key: str) -> str:
    """In the pool `default`."""
    return word


@app.tool(effect="keyed", pool="model")
def modelled(word: str, *, idempotency_key: str) -> str:
    """In the pool `model`."""
    return word


@app.tool(effect="pure", approval="required")
def decided(word: str) -> str:
    """A person decides."""
    return word


@app.agent
async def both(ctx: Context, word: str, ask: bool = False) -> list[str]:
    """One call in each pool, and with `ask` one that waits for a person."""
    found = list(await asyncio.gather(ctx.call(plain, word), ctx.call(modelled, word)))
    return [*found, *([await ctx.call(decided, word)] if ask else [])]
