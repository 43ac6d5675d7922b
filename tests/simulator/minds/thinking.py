"""The loop that any framework of agents has: ask a model, do what it wants, tell it what came of it.

It trusts the model and has no limit of its own, so that all that holds is held by the platform.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from refold.core.errors import RefoldError
from refold.core.run.account import Reserve
from refold.sdk.prices import Price
from tests.simulator.minds.models import DELEGATE, HELPERS, LARGE, MOST_TOKENS, SMALL

_TOLD = 300
"""Characters of what its calls have come to that a model is told."""


PRICES = {LARGE: Price(input="100", output="400"), SMALL: Price(input="10", output="40")}
"""Such that a turn of the large one costs some cents."""


async def think(ctx: Any, mind: str) -> Any:
    """Asks until the model wants nothing more; what it says then."""
    told, name, turns = "", LARGE, count()
    while True:
        turn, most = next(turns), Reserve(name, *MOST_TOKENS, cheap=name == SMALL)
        try:
            said = await ctx.call("model", name=name, mind=mind, turn=turn, told=told, reserve=most)
        except RefoldError as error:  # as a framework does that asks another model, or once more
            told, name = f"{type(error).__name__}: {error.code}", SMALL
            continue
        wanted = said.get("want") if isinstance(said, dict) else "what?"
        if not wanted:
            return said["say"]
        listed = wanted if isinstance(wanted, list) else [wanted]
        told = str(await asyncio.gather(*(_do(ctx, each) for each in listed)))[:_TOLD]


async def _do(ctx: Any, wanted: Any) -> str:
    try:
        if wanted["tool"] == DELEGATE and wanted["args"]["agent"] in HELPERS:
            return str(await ctx.run(wanted["args"]["agent"], {"mind": wanted["args"]["mind"]}))
        return str(await ctx.call(wanted["tool"], **wanted["args"]))
    except (RefoldError, TypeError, KeyError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
