"""Agents whose inputs and arguments have sets, drawn defaults, clocks and 64-bit integers; a run lasts some starts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic as p

from refold import App, Context

app = App("values")

STEPS = 30


class Order(p.BaseModel):
    """An input of which a process draws a part."""

    id: uuid.UUID = p.Field(default_factory=uuid.uuid4)
    at: datetime = p.Field(default_factory=lambda: datetime.now(UTC))
    ms: int = p.Field(default_factory=time.time_ns)
    tags: frozenset[str] = frozenset()
    chat: int = 616581622363398142
    limit: float = float("inf")
    note: str | None = None


@dataclass(frozen=True)
class Part:
    """A part of an argument."""

    number: int
    names: frozenset[str]


@app.tool(effect="pure")
def look(order: Order, tags: set[str], parts: Iterable[Part]) -> dict[str, int]:
    """Has all of it, and gives integers of 64 bits back."""
    return {part: order.ms + each.number for each in parts for part in sorted(each.names | tags)}


@app.tool(effect="keyed", keyed_by="arguments")
def mark(of: uuid.UUID, numbers: set[int], data: Any) -> tuple[frozenset[int], float, bytes]:
    """Gives a set, infinity and bytes back."""
    return frozenset(numbers), float("-inf"), of.bytes


@app.agent
async def drawn(ctx: Context, order: Order) -> Order:
    """An input that is one model."""
    for step in range(STEPS):
        tags = {f"tag-{number}" for number in range(8)} | set(order.tags)
        seen = await ctx.call(look, order, tags, [Part(2**63 + step, frozenset(tags))])
        await ctx.call(mark, order.id, set(seen.values()), {"at": order.at.isoformat(), "large": 2**70 + step})
        await asyncio.sleep(1)
    return order


@app.agent
async def beside(ctx: Context, orders: list[Order], tags: set[str], seen: datetime | None = None) -> dict[str, int]:
    """Inputs by name, and a child for each."""
    ended = await asyncio.gather(*(ctx.run(drawn, each) for each in orders))
    return {str(each.id): each.ms for each in ended if each.tags <= tags}
