"""Many cases on all cores: every single fault, all pairs on the smallest scenarios, and schedules from seeds."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refold.simulator.attacks.byzantine import NEEDED_LIES, run_siege
from refold.simulator.attacks.kinds import ENOUGH, Told, tally
from refold.simulator.case import CaseOutcome, run_case, run_minds, run_programs, run_schedule
from refold.simulator.workload.budgets import BUDGETS
from refold.simulator.workload.calls import CALLS
from refold.simulator.workload.families import FAMILIES
from refold.simulator.workload.inputs import Scenario, backlog
from refold.simulator.workload.pauses import PAUSES
from refold.simulator.workload.questions import QUESTIONS
from refold.simulator.workload.waits import WAITS
from refold.simulator.world.faults import SMALL, Fault, modes_at

NEEDED = (
    *(
        "takeovers",
        "void_records",
        "record.foreign",
        "input.ignored",
        "lost_acks",
        "claims_refused",
        "in_doubt",
        "held",
    ),
    *("doubts_asked", "result.late", "dead_letters", "approval.decided", "vote.void", "call.refused"),
    *(
        "drains",
        "tool.handed_over",
        "deploys",
        "run.stalled",
        "run.unstalled",
        "hung",
        "publish.refused",
        "truncated",
        "repeated",
    ),
    *("signals.taken", "callbacks.answered", "pauses", "blobs.kept", "blobs.read"),
)
"""What has to have happened at least once, or a campaign has proved nothing."""

NEEDED_PROGRAMS = (
    *("takeovers", "signals.taken", "callbacks.answered", "in_doubt", "approval.decided", "drains", "truncated"),
    "pauses",
    *(
        f"program: {kind}"
        for kind in (
            *("RunCompleted", "RunFailed", "RunCancelled", "StepGivenUp", "SleepEnded", "WaitEnded", "WaitExpired"),
            *("CallbackCompleted", "CallbackFailed", "ChildCompleted", "EventPublished", "CheckpointReached"),
            *("AttemptFailed", "CallFailed", "LateResultRecorded", "SignalReceived"),
        )
    ),
)
"""What random programs have to have met."""

NEEDED_MINDS = (
    *("takeovers", "approval.decided", "in_doubt", "mind: harm wanted", "mind: harm prevented", "mind: harm allowed"),
    *("mind: answer refused", "mind: the same once more", "mind: ended completed", "mind: ended cancelled"),
    *("mind: ended budget_steps", "mind: ended budget_bytes", "mind: ended deadline", "mind: ended budget_children"),
    *("mind: ended budget_usd", "mind: ended budget_tokens", "mind: ended budget_calls", "mind: ended budget_seconds"),
    *("mind: refused as repeated", "mind: to be made cheaper", "mind: went on beyond", "mind: child spent"),
    *("mind: perhaps paid", "mind: denied"),
)
"""What agents whose models err have to have met."""

SCENARIOS: dict[str, Scenario] = {**CALLS, **QUESTIONS, **WAITS, **FAMILIES, **PAUSES, **BUDGETS}
"""What is asked of the platform, without and with people, by name."""

SMALLEST = ("pure", "keyed", "probed", "once")
"""What pairs of faults are tried on."""

BACKLOG = 100_000
"""Requests that lie there when the platform of `backlog` starts, which is too large for a fault at every boundary."""

CHUNK = 40
"""Cases that a worker takes at a time: under half a second, so that progress is smooth and the cores end together."""


class Named(NamedTuple):
    """A case by name, as a worker is sent it. An empty scenario: the schedule of `seed`, `lies`: with a liar;
    `programs`: of random programs, `minds`: of agents whose models err; `less`: without these parts."""

    scenario: str
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    lies: bool = False
    less: tuple[str, ...] = ()
    programs: bool = False
    minds: bool = False

    @property
    def mode(self) -> str:
        """How the command line calls this kind of case."""
        named = {"byzantine": self.lies, "programs": self.programs, "minds": self.minds}
        return next((mode for mode, chosen in named.items() if chosen), "random")

    @property
    def command(self) -> str:
        """The command line that runs just this case."""
        if not self.scenario:
            less = "".join(f" --less {part}" for part in self.less)
            return f"refold sim{f' --mode {self.mode}' if self.mode != 'random' else ''} --seed {self.seed} --one{less}"
        faults = "".join(f" --fault {fault}" for fault in self.faults)
        return f"refold sim --scenario {self.scenario}{faults}"

    def run(self, *, traced: bool = False) -> CaseOutcome:
        """Runs it."""
        if self.lies:
            return run_siege(self.seed, traced=traced)
        if not self.scenario:
            runs = {"programs": run_programs, "minds": run_minds}.get(self.mode, run_schedule)
            return runs(self.seed, less=self.less, traced=traced)
        scenario = backlog(BACKLOG) if self.scenario == "backlog" else SCENARIOS[self.scenario]
        return run_case(scenario, self.faults, traced=traced)


@dataclass(slots=True)
class Summary:
    """What a campaign found, and what it `needed` to see. `wrong` has what was wrong with which case."""

    cases: int = 0
    struck: int = 0
    seconds: float = 0.0
    needed: tuple[str, ...] = NEEDED
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[Named, tuple[str, ...]]] = field(default_factory=list)

    @property
    def lies(self) -> dict[str, Told]:
        """How often each kind of lie was told and refused; nothing where nobody lied."""
        return tally(self.counts) if self.needed is NEEDED_LIES else {}

    @property
    def missing(self) -> list[str]:
        """Which of the needed things never happened; of lies only after so many cases that they had to."""
        if not self.lies:
            return [name for name in self.needed if not self.counts[name]]
        if self.cases < ENOUGH:
            return []
        unrefused = [f"a refusal of {name}" for name, told in self.lies.items() if not all(told)]
        return [*(name for name in self.needed if not self.counts[name]), *unrefused]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "cases": self.cases,
            "faults_struck": self.struck,
            "seconds": round(self.seconds, 1),
            "wrong": [{"command": case.command, "what": list(what)} for case, what in self.wrong],
            "missing": self.missing,
            **({"lies": {name: told._asdict() for name, told in self.lies.items()}} if self.lies else {}),
            "counts": dict(sorted(self.counts.items())),
        }


def singles(scenarios: Iterable[str] = SCENARIOS) -> Iterator[Named]:
    """Every fault that makes sense at every boundary of a faultless run, one at a time."""
    for name in scenarios:
        for at, kind in enumerate(run_case(SCENARIOS[name], traced=False).kinds, 1):
            for mode in modes_at(kind):
                yield Named(name, (Fault(at, mode),))


def pairs(scenarios: Iterable[str] = SMALLEST) -> Iterator[Named]:
    """All pairs of the plainest faults; the second is counted on in the run that the first has changed."""
    for name in scenarios:
        boundaries = range(1, len(run_case(SCENARIOS[name], traced=False).kinds) + 1)
        for first, second in itertools.combinations(boundaries, 2):
            for one, other in itertools.product(SMALL, SMALL):
                yield Named(name, (Fault(first, one), Fault(second, other)))


def backlogs() -> Iterator[Named]:
    """The large backlog, alone and with a few faults: what is done for it grows with it, and nothing else does."""
    yield Named("backlog")
    yield Named("backlog", (Fault(40, "die"), Fault(70, "freeze"), Fault(90, "power")))


def schedules(count: int, *, seed: int = 0) -> Iterator[Named]:
    """Random schedules from consecutive seeds."""
    return (Named("", seed=number) for number in range(seed, seed + count))


def sieges(count: int, *, seed: int = 0) -> Iterator[Named]:
    """Byzantine planners from consecutive seeds."""
    return (Named("", seed=number, lies=True) for number in range(seed, seed + count))


def programs(count: int, *, seed: int = 0) -> Iterator[Named]:
    """Random programs from consecutive seeds."""
    return (Named("", seed=number, programs=True) for number in range(seed, seed + count))


def minds(count: int, *, seed: int = 0) -> Iterator[Named]:
    """Agents whose models err, from consecutive seeds."""
    return (Named("", seed=number, minds=True) for number in range(seed, seed + count))


def campaign(cases: list[Named], *, jobs: int = 0) -> Iterator[Summary]:
    """Runs cases on `jobs` processes (0: one per core) and adds up what happened: one summary, as it grows."""
    chunks = [cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK)]
    kinds = {"byzantine": NEEDED_LIES, "programs": NEEDED_PROGRAMS, "minds": NEEDED_MINDS}
    needed = kinds.get(cases[0].mode, NEEDED)
    summary, begun = Summary(needed=needed), time.monotonic()
    yield summary
    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    with context.Pool(jobs or os.cpu_count() or 1) as pool:
        for part in pool.imap_unordered(_run_chunk, chunks):
            summary.cases += part.cases
            summary.struck += part.struck
            summary.counts.update(part.counts)
            summary.wrong += part.wrong
            summary.seconds = time.monotonic() - begun
            yield summary


def _run_chunk(cases: list[Named]) -> Summary:
    summary = Summary()
    for case in cases:
        outcome = case.run()
        summary.cases += 1
        summary.struck += len(outcome.struck)
        summary.counts.update(outcome.counts)
        if outcome.wrong:
            summary.wrong.append((case, outcome.wrong))
    return summary
