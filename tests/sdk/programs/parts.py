"""What a program is made of: nodes of a tree, each of a construct, and the trace that their tasks share."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from refold.core.errors import CallFailed

HANDLED = (CallFailed, TimeoutError, ExceptionGroup, ValueError, asyncio.BrokenBarrierError, asyncio.QueueFull)

PLACE: contextvars.ContextVar[int] = contextvars.ContextVar("place", default=0)


class World:
    """What the tasks of a program share."""

    def __init__(self) -> None:
        self.trace = 0
        self.lock, self.permits, self.changed = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Condition()
        self.event, self.queue, self.limiter = asyncio.Event(), asyncio.Queue[int](3), asyncio.LifoQueue[int]()
        self.left: list[Any] = []

    def mark(self, *done: Any) -> int:
        """Notes what was done, in the trace of all that comes after it."""
        self.trace = crc32(repr(done).encode(), self.trace)
        return self.trace


@dataclass(slots=True)
class Node:
    """A construct with its parts. `chance` is a number for what it does one way or another."""

    kind: str
    number: int
    chance: int
    handles: bool
    parts: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind}{'?' if self.handles else ''}({', '.join(map(str, self.parts))})"

    @property
    def seconds(self) -> float:
        """A short while."""
        return (self.chance % 40) / 10


Construct = Callable[[World, Node], Awaitable[Any]]
LEAVES: dict[str, Construct] = {}
TREES: dict[str, Construct] = {}


def leaf(construct: Construct) -> Construct:
    LEAVES[construct.__name__] = construct
    return construct


def tree(construct: Construct) -> Construct:
    TREES[construct.__name__] = construct
    return construct


async def do(w: World, node: Node) -> int:
    """Does what a node says, and leaves in the trace what came of it."""
    w.mark(node.number)
    try:
        value = await (LEAVES.get(node.kind) or TREES[node.kind])(w, node)
    except asyncio.CancelledError:
        w.mark(node.number, "cancelled")
        raise
    except HANDLED as error:
        w.mark(node.number, type(error).__name__)
        if not node.handles:
            raise
        value = None
    return w.mark(node.number, value)


async def each(w: World, node: Node) -> None:
    for part in node.parts:
        await do(w, part)


def tasks(w: World, node: Node) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(do(w, part)) for part in node.parts]
