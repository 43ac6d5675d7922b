"""A deploy: every service is told to end and comes back, one after the other, while runs go on; nothing else happens.

    python -m tests.chaos.rolling --rounds 2 --folder DIR

Tells how long a partition finished no step, and what a call paid for it, which must be nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from refold.engine.runtime.settings import KafkaSettings
from tests.chaos import raw
from tests.chaos.judge import Verdict
from tests.chaos.operations import ask_to_end
from tests.chaos.stack import PREFIX, Stack
from tests.chaos.world import Groups, World
from tests.waiting import eventually

QUICK = ("look", "stamp", "poke", "fire")
BACK_S = 120.0
CHARGES = "AttemptFailed", "CallDoubted"
"""Nothing but the deploy could be the reason for these: every tool here ends well, and soon enough."""


@dataclass(frozen=True, slots=True)
class Deploy:
    """How much. `dwell_s` is how long a tool is under way that every executor has one of when it is told to end."""

    seed: int = 1
    rounds: int = 1
    in_flight: int = 24
    dwell_s: float = 8.0
    apart_s: float = 1.0
    steady_s: float = 3.0


@dataclass(slots=True)
class Deployed:
    """What it cost. **Units**: seconds; `gaps` by partition, from the broker's clock."""

    verdict: Verdict = field(default_factory=Verdict)
    steady: dict[int, float] = field(default_factory=dict)
    gaps: dict[int, float] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)
    charged: list[str] = field(default_factory=list)
    steps: int = 0
    restarts: int = 0
    waiting: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For machines, and for docs/reliability.md."""
        return {
            "restarts": self.restarts,
            "steps": self.steps,
            "longest_gap_s": max(self.gaps.values(), default=0.0),
            "gap_s_by_partition": self.gaps,
            "without_a_deploy_s": self.steady,
            "told_to_end_and_gone_s": self.ends,
            "charged": self.charged,
            "not_over": self.waiting,
            "problems": self.verdict.problems(),
        }


def deploy(plan: Deploy, folder: Path) -> Deployed:
    """Restarts everything that is ours, under load, and judges it."""
    found, worlds = Deployed(), list[World]()

    def prepare(kafka: str) -> None:
        settings = KafkaSettings(bootstrap=kafka, prefix=PREFIX)
        worlds.append(World(settings, stack.outside, seed=plan.seed))
        worlds[0].open()

    stack = Stack(folder, prepare=prepare)
    with stack:
        (world,) = worlds
        over, moments = threading.Event(), list[float]()
        load = threading.Thread(target=_load, args=(world, plan, over), name="load", daemon=True)
        load.start()
        eventually(lambda: len(world.over) >= plan.in_flight, within=BACK_S, what="runs end")
        moments.append(time.time())
        over.wait(plan.steady_s)
        moments.append(time.time())
        for _ in range(plan.rounds):
            for name in stack.names:
                found.ends.setdefault(name.partition("-")[0], []).append(_restart(stack, name))
                found.restarts += 1
                over.wait(plan.apart_s)
        moments.append(time.time())
        over.set()
        load.join()
        world.flush()
        deadline = time.monotonic() + BACK_S
        while world.waiting() and time.monotonic() < deadline:
            over.wait(0.1)
            threading.Event().wait(0.1)
        found.waiting = world.waiting()
        found.verdict = world.judge()
        _measure(found, raw.scan(stack.dev.kafka, f"{PREFIX}run-log"), moments)
        world.close()
    return found


def _load(world: World, plan: Deploy, over: threading.Event) -> None:
    """Keeps so many runs in flight; of a few the tools take long, and a few people are asked about."""
    rng, number = random.Random(plan.seed), 0
    while not over.wait(0.02):
        for _ in range(plan.in_flight - len(world.waiting()) + world.human.open):
            number += 1
            world.start_run(_groups(rng, number, plan))


def _groups(rng: random.Random, number: int, plan: Deploy) -> Groups:
    if number % 12 == 0:
        return [[{"tool": "dwell", "label": "dwell", "plan": str(plan.dwell_s)}]]
    groups = [[{"tool": rng.choice(QUICK), "label": f"c{n}", "plan": "ok"}] for n in range(rng.randint(3, 8))]
    if number % 10 == 0:
        groups.append([{"tool": "risky_stamp", "label": "c0-any", "plan": "ok"}])
    return groups


def _restart(stack: Stack, name: str) -> float:
    """Asks a service to end; its supervisor starts it again. Returns how long it took to be gone."""
    pid = eventually(lambda: stack.pid(name), within=BACK_S, what=f"{name} lives")
    begun = time.monotonic()
    ask_to_end(pid)
    eventually(lambda: stack.pid(name) != pid, within=BACK_S, what=f"{name} ends")
    gone = time.monotonic() - begun
    eventually(lambda: stack.pid(name) and stack.works(name), within=BACK_S, what=f"{name} is back at work")
    return round(gone, 2)


def _measure(found: Deployed, log: list[raw.Raw], moments: list[float]) -> None:
    """How long each partition finished no step, before and during the deploy, and what calls were charged."""
    chain, finished = raw.Chain(), defaultdict[int, list[int]](list)
    for record in sorted(log, key=lambda record: (record.partition, record.offset)):
        run, events = chain.feed(record) or (None, [])
        kinds = Counter(name for name, _ in events)
        if kinds["CallCompleted"]:
            found.steps += kinds["CallCompleted"]
            finished[record.partition].append(record.at_ms)
        found.charged += [f"{name} in {run.run}: {fields}" for name, fields in events if run and name in CHARGES]
        found.charged += [f"{run.run}: {fields}" for name, fields in events if run and _again(name, fields)]
    first, last, end = (round(moment * 1_000) for moment in moments)
    for number, times in sorted(finished.items()):
        found.steady[number] = _gap([at for at in times if first <= at <= last])
        found.gaps[number] = _gap([last, *(at for at in times if last <= at <= end), end])


def _again(name: str, fields: raw.Fields) -> bool:
    return name == "CallDispatched" and fields["attempt"] > 1


def _gap(times: list[int]) -> float:
    return max((after - before for before, after in pairwise(times)), default=0) / 1_000


def main() -> int:
    """Runs a deploy from the command line; 0 if it cost nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is restarted")
    parser.add_argument("--in-flight", type=int, default=24, help="runs at once")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="refold-rolling-"))
    found = deploy(Deploy(options.seed, options.rounds, options.in_flight), folder)
    print(json.dumps(found.as_json(), indent=2))  # noqa: T201
    return 1 if found.charged or found.waiting or found.verdict.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
