"""Random programs of asyncio and anyio: trees of what people write, whose tasks share a trace of all that was done.

Every call and note has the trace in its arguments, so that any other order of two things anywhere shows in what the
program asks for next.
"""

from __future__ import annotations

import random

from tests.sdk.programs import plain, scopes  # noqa: F401 - the constructs, in this order
from tests.sdk.programs.parts import LEAVES, TREES, Node, World, do
from tests.sdk.replays import call

DEPTH = 4


def program(seed: int) -> Node:
    """The program of a seed, the same in every process."""
    chance, count = random.Random(f"program {seed}"), iter(range(10_000))

    def grow(depth: int) -> Node:
        is_leaf = depth == 0 or chance.random() < (0.25 if depth < DEPTH else 0)
        kind = chance.choice(list(LEAVES if is_leaf else TREES))
        node = Node(kind, next(count), chance.randrange(1 << 20), chance.random() < 0.6)
        node.parts = [] if is_leaf else [grow(depth - 1) for _ in range(chance.choice((1, 2, 2, 3, 3)))]
        return node

    return grow(DEPTH)


async def main(w: World, node: Node) -> int:
    """A program."""
    try:
        return await do(w, node)
    finally:
        if node.chance & 1:
            w.mark(await call("last", str(w.trace)))
