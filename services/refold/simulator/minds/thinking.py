"""The loop that any framework of agents has: ask a model, do what it wants, tell it what came of it.

It trusts the model and has no limit of its own, so that all that holds is held by the platform.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from refold.core.errors import RefoldError

_TOLD = 300
"""Characters of what its calls have come to that a model is told."""


async def think(ctx: Any, mind: str) -> Any:
    """Asks until the model wants nothing more; what it says then."""
    told, turns = "", count()
    while True:
        turn = next(turns)
        try:
            said = await ctx.call("model", mind=mind, turn=turn, told=told)
        except RefoldError as error:  # as a framework does that asks another model, or once more
            told = f"{type(error).__name__}: {error.code}"
            continue
        wanted = said.get("want") if isinstance(said, dict) else "what?"
        if not wanted:
            return said["say"]
        listed = wanted if isinstance(wanted, list) else [wanted]
        told = str(await asyncio.gather(*(_do(ctx, each) for each in listed)))[:_TOLD]


async def _do(ctx: Any, wanted: Any) -> str:
    try:
        return str(await ctx.call(wanted["tool"], **wanted["args"]))
    except (RefoldError, TypeError, KeyError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
