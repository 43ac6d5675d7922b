"""Schedules of agents that think: what a seed makes up for `minds`, with people, laws, limits and faults."""

from __future__ import annotations

from random import Random
from typing import Any

from refold.simulator.minds.models import MINDS
from refold.simulator.minds.verdict import THINKER
from refold.simulator.settings import SimSettings
from refold.simulator.workload.inputs import ClientInput, Scenario, operation, signal, start_run
from refold.simulator.workload.schedules import UNSAFE_MS, asking
from refold.simulator.world.faults import Chance
from refold.simulator.world.law import REQUESTER
from refold.simulator.world.tools import ANY

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
    }
    own, rate, left = Random(rng.random()), rng.choice((0.01, 0.03, 0.08)), rng.choice((0, 0, 1, 2, 4))
    chance = Chance(own, wild=left > 0, rate=rate, left=left, until_ms=UNSAFE_MS if left else 0)
    scenario = Scenario(f"minds {seed}", tuple(inputs), {ANY: ()}, "truth", changes)
    return asking(rng, scenario), chance


def _thinker(rng: Random, run: str) -> list[ClientInput]:
    at_ms, mind = rng.randrange(200), rng.choice(_ODD) if rng.random() < 0.9 else "honest"
    # People may be asked at every turn, and whoever waits for them as often comes to rest late.
    by_ms = SimSettings().epoch_ms + rng.choice((300, 900, 3_000, 12_000, 12_000, 12_000))
    given = {"mind": mind, "by_ms": by_ms}
    found = [start_run(run, THINKER, given, at_ms=at_ms, requester=REQUESTER, deadline_ms=by_ms)]
    if rng.random() < 0.1:
        says = rng.choice((signal, operation))
        found.append(says(run, "c", "cancel", {"reason": "enough"}, at_ms=at_ms + rng.randrange(1_500)))
    return found
