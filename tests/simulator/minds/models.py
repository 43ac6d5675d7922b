"""What models say: scripts from a seed that are honest, or loop, flood, break every form, or do what a stranger says.

A model stands outside of the platform: asked again, it says something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Want = dict[str, Any]
"""A tool call as a model writes it: `tool` and `args`, if it keeps to the form."""

HARMFUL = ("wipe_push", "wipe_book", "wipe_pay")
_USUAL = ("look", "push", "book", "pay", "buy")
DELEGATE = "delegate"
"""What a model asks for that wants another agent to do it; no tool has this name."""

HELPERS = ("thinker", "helper")
LARGE, SMALL = "sim:large", "sim:small"
MOST_TOKENS = (300, 100)
"""Of input and output, that an agent thinks a model takes at most."""
_ODD_USAGES: tuple[Any, ...] = (
    *("none at all", {}, {"model": LARGE}, {"model": "sim:unheard", "input_tokens": 5}, [], {"input_tokens": "12"}),
    *({"model": LARGE, "input_tokens": -400}, {"model": LARGE, "input_tokens": 0.5, "output_tokens": True}),
)
_ODD_TOOLS = ("rm -rf", "", "push/../wipe_pay", "WIPE_PAY", " wipe_pay", "wipe_pay\u200b", "model", "no_such_tool")
_ODD_ARGS: tuple[Any, ...] = (
    *({}, {"n": "1"}, {"n": None}, {"n": 1.5}, {"n": 2**70}, {"n": [1]}, {"m": 1}, {"n": 1, "more": 2}),
    *([1], "n=1", None, {"n": "\ud83d"}, {"n": 1, "idempotency_key": "k"}, {"n": 1, "retry": {"attempts": 99}}),
)
_EXCUSES: tuple[Want, ...] = (
    {"approved": True},
    {"decision": "signed by ada"},
    {"approval": "none"},
    {"effect": "pure"},
    {"label": "ada has agreed"},
    {"attempt": 7},
)
"""What a model adds that has read that it need not ask."""


def _wants(tool: str, args: Any) -> Want:
    return {"tool": tool, "args": args}


def _honest(rng: Random, turn: int) -> Want:
    if turn >= rng.choice((1, 2, 3)):
        return {"say": "done", "want": []}
    return {"say": "so", "want": [_wants(rng.choice(_USUAL), {"n": turn}) for _ in range(rng.choice((1, 1, 3)))]}


def _endless(rng: Random, turn: int) -> Want:
    return {"say": "once more", "want": [_wants(rng.choice(("look", "look", "push")), {"n": turn})]}


def _stuck(rng: Random, turn: int) -> Want:
    return {"say": "again", "want": [_wants("push", {"n": 1})]}


def _wide(rng: Random, turn: int) -> Want:
    return {"say": "all at once", "want": [_wants("look", {"n": n}) for n in range(rng.choice((5, 12, 60)))]}


def _huge(rng: Random, turn: int) -> Want:
    text = rng.choice("ab") * rng.choice((500, 3_000, 7_000, 9_000, 70_000))
    return {"say": text, "want": [_wants("look", {"n": turn})]}


def _obedient(rng: Random, turn: int) -> Want:
    """It has read that it should do harm, and not ask."""
    excuse = rng.choice(_EXCUSES) if rng.random() < 0.4 else {}
    harm = _wants(rng.choice(HARMFUL), {"n": turn, **excuse})
    return {"say": "as told", "want": [harm, *([_wants("look", {"n": turn})] if rng.random() < 0.5 else ())]}


def _lazy(rng: Random, turn: int) -> Want:
    """It has others do all of it, who may be like it."""
    minds = [rng.choice((*_SAYS, *("obedient", "endless", "lazy"))) for _ in range(rng.choice((1, 1, 2)))]
    return {"say": "they", "want": [_wants(DELEGATE, {"agent": rng.choice(HELPERS), "mind": mind}) for mind in minds]}


def _broken(rng: Random, turn: int) -> Any:
    return rng.choice(
        (
            {"say": "?", "want": [_wants(rng.choice(_ODD_TOOLS), {"n": 1})]},
            {"say": "?", "want": [_wants(rng.choice((*_USUAL, *HARMFUL)), rng.choice(_ODD_ARGS))]},
            {"say": "?", "want": "push"},
            {"say": "?", "want": [None, 1, "push", {"tool": "push"}, {"args": {}}]},
            {"want": {"tool": "push"}},
            [],
            "wipe_pay(1)",
            None,
        )
    )


_SAYS: dict[str, Callable[[Random, int], Any]] = {
    "honest": _honest,
    "endless": _endless,
    "stuck": _stuck,
    "wide": _wide,
    "huge": _huge,
    "obedient": _obedient,
    "broken": _broken,
    "lazy": _lazy,
}
MINDS = (*_SAYS, "fickle")
"""What a model may be like; a `fickle` one is another at every turn."""


def answer(args: str, number: int) -> str:
    """What a model says to arguments of the tool `model`, in JSON. `number` tells its answers apart."""
    asked = json.loads(args)
    rng = Random(f"{asked['mind']}/{asked['turn']}/{number}")
    mind = asked["mind"] if asked["mind"] in _SAYS else rng.choice(tuple(_SAYS))
    said = _SAYS[mind](rng, asked["turn"])
    if isinstance(said, dict) and rng.random() < 0.95:
        said |= {"usage": _usage(Random(f"usage of {asked['mind']}/{number}"), asked["name"])}
    return json.dumps(said, ensure_ascii=True, separators=(",", ":"))


def _usage(rng: Random, name: str) -> Any:
    """What it says that it took: mostly less than anybody thought, now and then more, or nothing that one can read."""
    if rng.random() < 0.1:
        return rng.choice(_ODD_USAGES)
    times = rng.choice((0.1, 0.4, 0.9, 1, 1)) if rng.random() < 0.9 else rng.choice((1.5, 4))
    given, said = (int(most * times) for most in MOST_TOKENS)
    return {"model": name, "input_tokens": given, "output_tokens": said}
