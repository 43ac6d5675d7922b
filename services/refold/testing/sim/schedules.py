"""Scenarios that a seed makes up: several runs, tools that do anything, inputs of every kind, faults in between."""

from __future__ import annotations

import json
from random import Random

from refold.testing.sim.inputs import Input, Scenario, poison, signal, start
from refold.testing.sim.tools import ANY
from refold.testing.sim.world import Chance

UNSAFE_MS = 6_000
"""How long chance may do harm: twice the longest stay of a zombie."""

_TOOLS = ("look", "push", "pushed_briefly", "book", "pay", "pay", "book")
_AGENTS = ("one", "one", "one", "three", "fan", "twins", "sleeper", "failing", "handling")
_RUNS = ("r-1", "r-2", "r-3", "r-4")


def schedule(seed: int) -> tuple[Scenario, Chance]:
    """The scenario of a seed, and the chance that it runs under."""
    rng = Random(seed)
    inputs: list[Input] = []
    for run in rng.sample(_RUNS, rng.choice((1, 1, 1, 2, 2, 3))):
        inputs += _run(rng, run)
    if rng.random() < 0.15:
        topic = rng.choice(("run-requested", "run-signalled", "tool-completed", "tool-requested.default"))
        inputs.append(poison(topic, rng.choice((b"\xff", b"{}", b"[1]", b"\0\0\0\0\x63x")), at_ms=rng.randrange(300)))
    changes = {
        "planners": rng.choice((1, 1, 2)),
        "executors": rng.choice((1, 1, 2)),
        "sharing": rng.random() < 0.5,
    }
    chance = Chance(Random(rng.random()), wild=True, rate=rng.choice((0.01, 0.03, 0.08)), left=rng.randint(1, 7))
    chance.until_ms = UNSAFE_MS
    verdict = "truth" if rng.random() < 0.8 else rng.choice(("happened", "did_not_happen", "give_up"))
    return Scenario(f"seed {seed}", tuple(inputs), {ANY: ()}, verdict, changes), chance


def _run(rng: Random, run: str) -> list[Input]:
    agent, at_ms = rng.choice(_AGENTS), rng.randrange(200)
    given = {"tool": rng.choice(_TOOLS)} if agent in ("one", "handling") else None
    found = [start(run, agent, given, at_ms=at_ms, stray=rng.random() < 0.1)]
    if rng.random() < 0.2:
        found.append(start(run, agent, given, at_ms=rng.randrange(400), kind="repeat", stray=rng.random() < 0.3))
    if rng.random() < 0.05:
        found.append(start(run, agent, json.dumps(given), at_ms=rng.randrange(400), kind="conflict"))
    if rng.random() < 0.15:
        found.append(signal(run, "c", "cancel", {"reason": "chance"}, at_ms=rng.randrange(1_500)))
    return found
