"""A program is data: a tree of what people write with asyncio, small, and JSON, so that it is the input of a run.

Every part has a number of its own, which is in the arguments of what it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

Node = dict[str, Any]
"""`do` says what it is, `of` are its parts, `n` is its number; `handles`: what goes wrong in it is its value."""

LEAVES = {"call": 10, "sleep": 2, "wait": 3, "answer": 2, "run": 2, "start": 1, "say": 1, "publish": 0.3, "raise": 0.6}
TREES = {
    "row": 4,
    "gather": 2,
    "settle": 2,
    "group": 3,
    "race": 3,
    "first": 2,
    "timeout": 2,
    "wait_for": 1,
    "again": 1,
    "clean": 2,
    "limited": 1,
    "aside": 2,
    "shield": 1,
}
"""What parts are drawn from, and how often. A leaf asks for something; of a tree there is asyncio in each."""

PARTS = {
    **dict.fromkeys(("timeout", "wait_for", "again", "clean", "shield"), (1, 1)),
    **dict.fromkeys(("gather", "settle", "group", "race", "first"), (2, 3)),
    "row": (2, 3),
    "limited": (3, 3),
    "aside": (2, 2),
}
DEPTH, CHILD_DEPTH = 3, 1
"""Of a program, and of one that another runs."""

_TIMES_MS = (20, 60, 150, 400, 900)
_PATIENCE_MS = (60, 300, 900, 2_000)
_MATCHES = ("", "", "data.n == 1", "data.n == 2")


class Grower:
    """Makes a program out of chance. `tools` are what it calls."""

    def __init__(self, rng: Random, tools: tuple[str, ...]) -> None:
        self._rng, self._tools, self._numbers = rng, tools, count(1)

    def grow(self, depth: int = DEPTH, top: bool = True, runs: int = 1) -> Node:
        """A program that is so deep at most, and that may run others, which may run `runs` - 1 below them."""
        rng = self._rng
        if depth and (top or rng.random() < 0.68):
            do = rng.choices(list(TREES), list(TREES.values()))[0]
            parts = [self.grow(depth - 1, top=False, runs=runs) for _ in range(rng.randint(*PARTS[do]))]
            return self._more({"do": do, "n": next(self._numbers), "of": parts})
        do = rng.choices(list(LEAVES), list(LEAVES.values()))[0]
        if do in ("run", "start") and not runs:
            do = "call"
        return self._leaf({"do": do, "n": next(self._numbers)}, runs)

    def _more(self, node: Node) -> Node:
        rng, do = self._rng, node["do"]
        if do in ("timeout", "wait_for"):
            node["ms"] = rng.choice(_TIMES_MS) + node["n"]
        elif do == "again":
            node["times"] = rng.choice((2, 2, 3))
        elif do == "clean":
            node["tool"] = rng.choice(self._tools)
        elif do == "aside":
            node["then"] = rng.choice(("cancel", "await", "leave"))
        return self._handling(node)

    def _leaf(self, node: Node, runs: int) -> Node:
        rng, do = self._rng, node["do"]
        if do in ("call", "publish"):
            node["tool"] = rng.choice(self._tools)
            node["tries"] = rng.choice((0, 0, 0, 1, 2))
        elif do == "sleep":
            node["ms"] = rng.choice(_TIMES_MS) + node["n"]
        elif do == "wait":
            # Not more by its number: two equal ones are to be two.
            node |= {
                "name": rng.choice(("go", "go", "on")),
                "match": rng.choice(_MATCHES),
                "ms": rng.choice(_PATIENCE_MS),
            }
            if node["n"] % 2:  # by its number: seeds stay what they were
                node["answers"] = True
        elif do == "answer":
            node["ms"] = rng.choice((60, 400, 1_500))
        elif do in ("run", "start"):
            node["tree"] = self.grow(rng.choice((0, CHILD_DEPTH, CHILD_DEPTH + 1)), top=False, runs=runs - 1)
            node["outlives"] = rng.random() < 0.2
            node["then"] = rng.choice(("await", "cancel", "leave"))
        elif do == "say":
            node["how"] = rng.choice(("note", "checkpoint", "status"))
            if node["how"] == "status" and node["n"] % 2:  # by its number: seeds stay what they were
                node["how"] = "expose"
        return self._handling(node)

    def _handling(self, node: Node) -> Node:
        if self._rng.random() < 0.45:
            node["handles"] = True
        return node


def every_part(node: Node) -> Iterator[Node]:
    """A program and all its parts, and those of the programs that it runs."""
    yield node
    for part in [*node.get("of", ()), *([node["tree"]] if "tree" in node else ())]:
        yield from every_part(part)


def words(node: Node) -> str:
    """A program in words: `race?(call push 3, sleep 159)`, with a question mark where it handles what goes wrong."""
    said = " ".join(
        str(node[name]) for name in ("tool", "name", "match", "then", "how", "ms", "times") if node.get(name)
    )
    below = [*node.get("of", ()), *([node["tree"]] if "tree" in node else ())]
    parts = f"({', '.join(map(words, below))})" if below else ""
    return f"{node['do']}{'?' if node.get('handles') else ''} {node['n']}{f' {said}' if said else ''}{parts}"


def without(node: Node, numbers: set[int]) -> Node:
    """The program with nothing in the place of the parts with these numbers."""
    if node["n"] in numbers:
        return {"do": "row", "n": node["n"], "of": []}
    changed = {"of": [without(part, numbers) for part in node["of"]]} if "of" in node else {}
    return {**node, **changed, **({"tree": without(node["tree"], numbers)} if "tree" in node else {})}
