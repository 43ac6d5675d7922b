"""An app of which a deploy changes what its planners read: a new version of its agent, a new pool, a new limit."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from refold import App, Context, Limit

NEW_POOL = "checks"
DEPLOYED = Path(os.environ.get("CHAOS_DEPLOYED", ""))
NEW = DEPLOYED.is_file() and json.loads(DEPLOYED.read_text()) == {"code": "new"}
CALLS = {"1": ["pay", "ship"], "2": ["pay", "check", "ship"]}
"""The tools that each version of the agent calls, in order."""

app = App("shop", version="new" if NEW else "old", limits=[Limit("day", calls=1_000_000)] if NEW else [])


@app.tool(effect="pure")
def pay(nap_ms: int) -> int:
    """Take the money."""
    return nap_ms


@app.tool(effect="pure")
def ship(nap_ms: int) -> int:
    """Send the parcel."""
    return nap_ms


async def first(ctx: Context, nap_ms: int) -> str:
    """Pay, and ship a while later."""
    await ctx.call(pay, nap_ms)
    await asyncio.sleep(nap_ms / 1_000)
    await ctx.call(ship, nap_ms)
    return "1"


if NEW:

    @app.tool(effect="pure", pool=NEW_POOL)
    def check(nap_ms: int) -> int:
        """Look at the address."""
        return nap_ms

    async def second(ctx: Context, nap_ms: int) -> str:
        """Nothing is shipped that was not checked."""
        await ctx.call(pay, nap_ms)
        await asyncio.sleep(nap_ms / 1_000)
        await ctx.call(check, nap_ms)
        await ctx.call(ship, nap_ms)
        return "2"

    app.agent(name="order", version="1")(first)
    app.agent(name="order", version="2")(second)
else:
    app.agent(name="order", version="1")(first)
