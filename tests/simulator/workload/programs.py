"""Schedules of random programs: what a seed makes up for `programs`, and who speaks to them, with faults in between."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulator.app import DANGEROUS
from tests.simulator.programs.grammar import Grower, Node, every_part, without
from tests.simulator.programs.perform import AGENT
from tests.simulator.settings import PARTITIONS
from tests.simulator.workload.inputs import ClientInput, Scenario, operation, pause, signal, start_run, word
from tests.simulator.workload.schedules import FORKED, UNSAFE_MS, asking
from tests.simulator.world.faults import Chance
from tests.simulator.world.tools import ANY

_TOOLS = ("look", "push", "push", "pushed_briefly", "book", "pay")
_NAMES = ("go", "go", "on")


def program_schedule(seed: int) -> tuple[Scenario, Chance]:
    """The programs of a seed, what is said to them, and the chance that they run under."""
    rng = Random(f"programs {seed}")
    asks = rng.random() < 0.35
    tools = (*_TOOLS, *DANGEROUS) if asks else _TOOLS
    inputs: list[ClientInput] = []
    for number in range(rng.choice((1, 1, 1, 2))):
        inputs += _program(rng, f"p-{number + 1}", Grower(rng, tools).grow())
    inputs += _pauses(Random(f"programs {seed}: pauses"), inputs)
    sizes = {"planners": rng.choice((1, 1, 2)), "executors": rng.choice((1, 1, 2))}
    changes: dict[str, Any] = {**sizes, "sharing": rng.random() < 0.5}
    own, rate, left = Random(rng.random()), rng.choice((0.01, 0.03, 0.08)), rng.randint(0, 6)
    chance = Chance(own, wild=True, rate=rate, left=left, until_ms=UNSAFE_MS)
    scenario = Scenario(f"programs {seed}", tuple(inputs), {ANY: ()}, "truth", changes, replies=None, programs=True)
    scenario = replace(scenario, retries=rng.choice((0, 1, 2)))
    if (own := Random(f"programs {seed}: forks")).random() < FORKED:
        scenario = replace(scenario, forks=own.choice((1, 2, 3)))
    return (asking(rng, scenario) if asks else scenario), chance


def _program(rng: Random, run: str, tree: Node) -> list[ClientInput]:
    at_ms = rng.randrange(200)
    found = [start_run(run, AGENT, {"tree": tree}, at_ms=at_ms)]
    if any(part["do"] == "wait" for part in every_part(tree)):
        found += _words(rng, run)
    if rng.random() < 0.12:
        says = rng.choice((signal, operation))
        found.append(says(run, "c", "cancel", {"reason": "chance"}, at_ms=at_ms + rng.randrange(1_500)))
    return found


def _pauses(rng: Random, inputs: list[ClientInput]) -> list[ClientInput]:
    """Now and then an operator has one stand still for a while, drawn apart so that seeds stay what they were."""
    runs = [given.key.decode() for given in inputs if given.kind == "run" and given.key]
    return [pause(run, "p", at_ms=rng.randrange(1_500)) for run in runs if rng.random() < 0.2]


def _words(rng: Random, run: str) -> list[ClientInput]:
    """What it is told whether or not it waits; what it is told because it does comes besides."""
    said: list[ClientInput] = []
    for number in range(rng.choice((0, 0, 1, 2))):
        data, at_ms = rng.choice((None, {"n": 1}, {"n": 2})), rng.choice((0, 200, 600, 1_500)) + rng.randrange(100)
        said += [word(run, f"s-{number}", data, at_ms=at_ms, name=rng.choice(_NAMES), partitions=PARTITIONS)]
    return said


def pruned(scenario: Scenario, chance: Chance, *, less: Iterable[str]) -> tuple[Scenario, Chance]:
    """The same with nothing in the place of some parts of its programs: `part-I.N` is part N of the program that is
    input I."""
    gone = [part.removeprefix("part-").split(".") for part in less if part.startswith("part-")]
    inputs = list(scenario.inputs)
    for number, given in enumerate(inputs, 1):
        numbers = {int(part) for place, part in gone if int(place) == number}
        if numbers:
            said = json.loads(given.value or b"")
            said["input"]["tree"] = without(said["input"]["tree"], numbers)
            inputs[number - 1] = replace(given, value=json.dumps(said).encode())
    return replace(scenario, inputs=tuple(inputs)), chance


def trees_in(scenario: Scenario) -> dict[int, Node]:
    """The programs of a scenario, by the number of their input, counted from 1."""
    found = {}
    for number, given in enumerate(scenario.inputs, 1):
        if scenario.programs and given.kind == "run" and given.value:
            found[number] = json.loads(given.value)["input"]["tree"]
    return found
