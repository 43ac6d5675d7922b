"""An agent in three versions that begin alike: what each does later says by which of them its run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from refold.sdk.app import App
from refold.sdk.context import Context

REVISED = "revised"
"""How the agent is called in all its versions."""

OWN = 100
"""Numbers of calls from here on are of one version alone, which is their hundreds."""

APART, OLDER, NEWEST = "1", "2", "3"
"""One that differs from its first call on, and two that differ from their third."""

Changed = Callable[[Callable[..., Any]], Callable[..., Any]]


async def _first(ctx: Context) -> list[Any]:
    return [await ctx.call("look", 101), await ctx.call("push", 102)]


async def _second(ctx: Context) -> list[Any]:
    return [*await _begun(ctx), await ctx.call("look", 201), await ctx.call("push", 202)]


async def _third(ctx: Context) -> list[Any]:
    return [*await _begun(ctx), await ctx.call("push", 301), await ctx.call("look", 302)]


async def _begun(ctx: Context) -> list[Any]:
    """What the second and the third version have in common."""
    done = [await ctx.call("push", 1)]
    await asyncio.sleep(0.3)
    done.append(await ctx.call("look", 2))
    await asyncio.sleep(0.3)
    return done


_CODE = {APART: _first, OLDER: _second, NEWEST: _third}


def add_revised(
    app: App, versions: tuple[str, ...] = (APART, OLDER, NEWEST), changed: Changed = lambda code: code
) -> None:
    """Registers these versions, the newest last; `changed` makes other code of theirs."""
    for version in versions:
        app.agent(name=REVISED, version=version)(cast(FunctionType, changed(_CODE[version])))
