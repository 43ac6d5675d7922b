"""All of it for so many minutes: load, faults at random moments, kills at exact points, and then the verdict.

    python -m tests.chaos.campaign --seconds 900 --points 60 --folder DIR     # what `make chaos` runs

The seed decides what is asked for and which fault comes when; what the processes make of it is theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from refold.engine.runtime.settings import KafkaSettings
from tests.chaos.faults import Fault, Saboteur
from tests.chaos.judge import Verdict
from tests.chaos.points import Swept, sweep
from tests.chaos.stack import KINDS, PATH, PREFIX, Stack
from tests.chaos.world import World
from tests.roots import PINNED

KINDS_OF_WRONG = ("lost", "twice", "stuck", "unlisted", "unauthorised", "wrong")


FAULTS = 600
PAUSE_S = 0.1, 1.2
"""Between two faults of a full campaign."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything.

    **Units**: `seconds` of random faults, twice as many at most if there are not `faults` in all by then; `pause_s`
    between two (from, to), `in_flight` runs at once. `points` are the
    exact boundaries of planner and executor, `decisions` those of the approval service; `first` are faults that come
    before the random ones, in this order. `busy` is the share of dangerous calls that wait until their decision is old.
    `quiet_s` is how long everything may take to come to its end when the faults are over; what takes longer is stuck.
    `naps_ms` are how long agents may sleep. `without` are kinds of random faults that are left out, `brokers` how many
    there are. `kinds` are the services of which each pair has one. `world` is what asks for runs, and judges them.
    """

    seed: int
    seconds: float
    faults: int = 0
    pause_s: tuple[float, float] = (0.5, 4.0)
    in_flight: int = 45
    points: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    first: tuple[tuple[str, str], ...] = ()
    poison: int = 12
    busy: float = 0.0
    quiet_s: float = 60.0
    naps_ms: tuple[int, ...] = (0, 0, 5, 300, 3_000)
    without: tuple[str, ...] = ()
    brokers: int = 3
    kinds: tuple[str, ...] = KINDS
    world: Callable[..., World] = World


@dataclass(slots=True)
class Report:
    """What a campaign did and found."""

    plan: Plan
    seconds: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    swept: dict[str, Swept] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    seen: Counter[str] = field(default_factory=Counter)
    verified: dict[str, Any] = field(default_factory=dict)
    quiet_s: float = 0.0

    @property
    def problems(self) -> dict[str, list[str]]:
        """Everything that is wrong, by kind; empty when nothing is."""
        found = self.verdict.problems()
        for kind, swept in self.swept.items():
            found.update({f"{kind} points: {name}": problems for name, problems in swept.verdict.problems().items()})
        if self.failures:
            found["faults that failed"] = self.failures
        if self.verified.get("exit") != 0:
            found["refold verify"] = [str(self.verified)]
        return found

    @property
    def fault_counts(self) -> dict[str, int]:
        """How many faults were shown to have happened, by kind and victim."""
        counts = Counter(f"{fault.kind} {fault.victim}" for fault in self.faults)
        counts.update({f"exact point {kind}": len(swept.died) for kind, swept in self.swept.items()})
        return dict(sorted(counts.items()))

    def as_json(self) -> dict[str, Any]:
        """For machines, and for docs/reliability.md."""
        total = Counter(self.verdict.counts)
        for swept in self.swept.values():
            total.update(swept.verdict.counts)
        every = [self.verdict, *(swept.verdict for swept in self.swept.values())]
        return {
            "seed": self.plan.seed,
            "seconds": round(self.seconds),
            "faults": self.fault_counts,
            "faults_in_all": sum(self.fault_counts.values()),
            **{name: sum(len(getattr(v, name)) for v in every) for name in KINDS_OF_WRONG},
            "counted": dict(sorted(total.items())),
            "seen_in_logs": dict(sorted(self.seen.items())),
            "process_back_s": _spans(self.faults, "back_s"),
            "next_outcome_s": _spans(self.faults, "outcome_s"),
            "quiet_s": round(self.quiet_s, 1),
            "verify": self.verified,
            "problems": self.problems,
        }


def run(plan: Plan, folder: Path) -> Report:
    """Runs a campaign on a folder."""
    report, begun = Report(plan), time.monotonic()
    worlds: list[World] = []
    stack = Stack(
        folder,
        prepare=lambda kafka: worlds.append(_world(kafka, stack, plan)),
        brokers=plan.brokers,
        kinds=plan.kinds,
    )
    with stack:
        (world,) = worlds
        saboteur = Saboteur(stack, world.human, seed=plan.seed + 1, without=plan.without)
        if plan.points:
            _sweep(stack, plan, report)
        _storm(world, saboteur, plan, sum(len(swept.died) for swept in report.swept.values()))
        report.quiet_s = _calm(world, plan.quiet_s)
        report.faults, report.failures = saboteur.faults, [*saboteur.failures, *world.troubles]
        _time_outcomes(report.faults, world)
        since_ms = (time.time() - time.monotonic()) * 1_000
        world.wiped = [since_ms + fault.at * 1_000 for fault in report.faults if fault.kind == "wipe"]
        with ThreadPoolExecutor(1) as pool:
            verified = pool.submit(_verify, stack)
            report.verdict = _judge(world)
            report.verified = verified.result()
        report.verdict.counts.update(world.people.counts)
        report.verdict.counts["decisions_echoed"] = world.echo.count
        world.close()
    report.seconds = time.monotonic() - begun
    report.seen = seen(stack)
    return report


def _world(kafka: str, stack: Stack, plan: Plan) -> World:
    settings = KafkaSettings(bootstrap=kafka, prefix=PREFIX)
    world = plan.world(settings, stack.outside, seed=plan.seed, busy=plan.busy, naps_ms=plan.naps_ms)
    world.open()
    return world


def _sweep(stack: Stack, plan: Plan, report: Report) -> None:
    """All services at once, in worlds of their own."""
    points = {"planner": plan.points, "executor": plan.points, "approval": plan.decisions}
    with ThreadPoolExecutor(len(points)) as pool:
        futures = {kind: pool.submit(sweep, stack, kind, points[kind], seed=plan.seed) for kind in KINDS}
        report.swept = {kind: future.result() for kind, future in futures.items()}


def _storm(world: World, saboteur: Saboteur, plan: Plan, before: int) -> None:
    """Load all the time, and now and then a fault or a decree. `before`: faults that there were."""
    over = threading.Event()
    load = threading.Thread(target=_load, args=(world, plan, over), name="load", daemon=True)
    load.start()
    for ruler in world.rulers:
        ruler.start()
    begun = time.monotonic()
    for kind, victim in plan.first:
        saboteur.do(kind, victim)
        over.wait(saboteur.pause(plan.pause_s))
    while (lasted := time.monotonic() - begun) < plan.seconds or (
        lasted < 2 * plan.seconds and before + len(saboteur.faults) < plan.faults
    ):
        saboteur.strike()
        over.wait(saboteur.pause(plan.pause_s))
    for ruler in world.rulers:
        ruler.dismiss()
    saboteur.finish()
    for ruler in world.rulers:
        ruler.stop()
    over.set()
    load.join()


def _load(world: World, plan: Plan, over: threading.Event) -> None:
    """Keeps so many runs in flight; one in thirty is cancelled, new or old; now and then comes poison."""
    started = poisoned = 0
    while not over.wait(0.05):
        waiting = world.waiting()
        for _ in range(plan.in_flight - len(waiting) + world.human.open):
            run = world.start_run()
            started += 1
            if started % 30 == 0:
                world.cancel(waiting[0] if started % 60 and waiting else run)
        if poisoned < plan.poison and started > 10 * (poisoned + 1):
            poisoned += 1
            world.poison()


def _calm(world: World, quiet_s: float) -> float:
    """Waits until all is over; returns the seconds that it took, all of the patience if it never was."""
    begun = time.monotonic()
    world.flush()
    pause = threading.Event()
    while world.waiting() and time.monotonic() - begun < quiet_s:
        pause.wait(0.1)
    return time.monotonic() - begun


def _judge(world: World) -> Verdict:
    """The other topics follow the log within moments, so what is wrong counts if it stays."""
    deadline, pause = time.monotonic() + 30, threading.Event()
    while True:
        verdict = world.judge()
        if verdict.clean or time.monotonic() > deadline:
            return verdict
        pause.wait(1)


def _verify(stack: Stack) -> dict[str, Any]:
    """What the product itself says of what is left: `refold verify`."""
    addresses = {"REFOLD_KAFKA__BOOTSTRAP": stack.dev.kafka, "REFOLD_KAFKA__PREFIX": PREFIX}
    done = subprocess.run(
        [sys.executable, "-m", "refold", "verify", "--settle", "20", "--json"],
        env={**os.environ, **addresses, "PYTHONPATH": PATH, "REFOLD_TRUST": PINNED},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"exit": done.returncode, "said": (done.stdout + done.stderr)[-2000:]}
    said = json.loads(done.stdout)
    return {"exit": 0, **{name: said[name] for name in ("records", "accepted", "events", "void", "runs")}}


def _time_outcomes(faults: list[Fault], world: World) -> None:
    """Notes for each fault when the next run came to its end, as the user saw it."""
    ends = sorted(world.over.values())
    for fault in faults:
        after = bisect(ends, fault.at)
        fault.outcome_s = ends[after] - fault.at if after < len(ends) else 0.0


def seen(stack: Stack) -> Counter[str]:
    """What the services have said of themselves."""
    counts: Counter[str] = Counter()
    for line in stack.log_lines():
        counts[str(line.get("event"))] += 1
    return counts


def _spans(faults: list[Fault], name: str) -> dict[str, dict[str, float]]:
    """How long something took, by kind of fault and victim."""
    found: dict[str, list[float]] = {}
    for fault in faults:
        found.setdefault(f"{fault.kind} {fault.victim}", []).append(getattr(fault, name))
    return {
        name: {"p50": round(sorted(spans)[len(spans) // 2], 2), "max": round(max(spans), 2)}
        for name, spans in sorted(found.items())
    }


def full(seed: int, seconds: float, points: int) -> Plan:
    """The campaign of `make chaos`: exact points first, then random faults for these seconds."""
    every = tuple(str(number) for number in range(1, points + 1)) + tuple(f"{number}:after" for number in (7, 19, 33))
    decisions = tuple(f"{number}{when}" for number in range(1, 6) for when in ("", ":after"))
    swept = (every, decisions) if points else ((), ())
    return Plan(
        seed,
        seconds,
        FAULTS if points else 0,
        PAUSE_S,
        points=swept[0],
        decisions=swept[1],
        first=(("roll", "everything"),),
        poison=100,
        busy=0.15,
    )


def main() -> int:
    """Runs a campaign from the command line; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--seconds", type=float, default=600.0, help="of random faults")
    parser.add_argument("--points", type=int, default=60, help="exact boundaries of each service")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--without", action="append", default=[], help="a kind of fault that is left out")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="refold-chaos-"))
    plan = replace(full(options.seed, options.seconds, options.points), without=tuple(options.without))
    report = run(plan, folder)
    print(json.dumps(report.as_json(), indent=2))  # noqa: T201
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
