"""Schedules of agents that think: what a seed makes up for `minds`, with people, laws, limits and faults."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.simulator.app import PRICED
from tests.simulator.minds.models import MINDS
from tests.simulator.settings import SimSettings
from tests.simulator.workload.inputs import ClientInput, Scenario, operation, signal, start_run
from tests.simulator.workload.schedules import FORKED, UNSAFE_MS, VIEWED, asking
from tests.simulator.world.faults import Chance
from tests.simulator.world.law import REQUESTER
from tests.simulator.world.tools import ANY

THINKER = "thinker"
_LOST = (("raises-after",), ("raises-after", "not-done"), ("not-done",), ("crawls",))
_ODD = tuple(mind for mind in MINDS if mind != "honest")


def mind_schedule(seed: int) -> tuple[Scenario, Chance]:
    """The agents of a seed and what their models are like, and the chance that they run under."""
    rng = Random(f"minds {seed}")
    inputs: list[ClientInput] = []
    for number in range(rng.choice((1, 1, 1, 2))):
        inputs += _thinker(rng, f"m-{number + 1}")
    changes: dict[str, Any] = {
        "planners": rng.choice((1, 1, 2)),
        "executors": rng.choice((1, 1, 2)),
        "sharing": rng.random() < 0.5,
        "run_steps": rng.choice((8, 16, 24)),
        "run_bytes": rng.choice((10_000, 40_000, 1_000_000)),
        "run_children": rng.choice((2, 3)),
        "run_depth": rng.choice((1, 2)),
    }
    own, rate, left = Random(rng.random()), rng.choice((0.01, 0.03, 0.08)), rng.choice((0, 0, 1, 2, 4))
    chance = Chance(own, wild=left > 0, rate=rate, left=left, until_ms=UNSAFE_MS if left else 0)
    # Of some answers nobody knows whether they were paid, though nothing is wrong with the platform.
    lost = {"model": rng.choice(_LOST), PRICED: rng.choice(_LOST)} if rng.random() < 0.3 else {}
    scenario = Scenario(f"minds {seed}", tuple(inputs), {ANY: (), **lost}, "truth", changes)
    scenario = asking(rng, scenario)
    scenario = replace(scenario, policy="thrifty") if rng.random() < 0.3 else scenario
    if Random(f"views of minds {seed}").random() < VIEWED:
        scenario = replace(scenario, changes={**scenario.changes, "projectors": 1})
    if (own := Random(f"forks of minds {seed}")).random() < FORKED:
        scenario = replace(scenario, forks=own.choice((1, 2)))
    return scenario, chance


def _thinker(rng: Random, run: str) -> list[ClientInput]:
    at_ms, mind = rng.randrange(200), rng.choice(_ODD) if rng.random() < 0.9 else "honest"
    # People may be asked at every turn, and whoever waits for them as often comes to rest late.
    by_ms = SimSettings().epoch_ms + rng.choice((300, 900, 3_000, 12_000, 12_000, 12_000))
    given = {"mind": mind, "by_ms": by_ms}
    more: dict[str, Any] = {"budget": _budget(rng)} if rng.random() < 0.7 else {}
    found = [start_run(run, THINKER, given, at_ms=at_ms, requester=REQUESTER, deadline_ms=by_ms, **more)]
    if rng.random() < 0.1:
        says = rng.choice((signal, operation))
        found.append(says(run, "c", "cancel", {"reason": "enough"}, at_ms=at_ms + rng.randrange(1_500)))
    return found


def _budget(rng: Random) -> dict[str, Any]:
    return {
        "tokens": rng.choice((0, 0, 900, 2_500, 5_000)),
        "nano_usd": rng.choice((0, 150_000_000, 400_000_000, 1_000_000_000)),
        "calls": rng.choice((0, 0, 4, 12, 40)),
        "ms": rng.choice((0, 0, 0, 700, 3_000)),
        "soft_percent": rng.choice((50, 80, 100)),
        "then": rng.choice(("warn", "ask", "degrade")),
        "same": rng.choice((0, 1, 1, 3)),
    }
