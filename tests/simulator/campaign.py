"""Many cases on all cores: every single fault, all pairs on the smallest scenarios, and schedules from seeds."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from refold.core.topics import BUDGET_SPENT, CATALOG
from tests.simulator.attacks.byzantine import NEEDED_LIES, run_siege
from tests.simulator.attacks.kinds import ENOUGH, Told, tally
from tests.simulator.case import CaseOutcome, run_case, run_minds, run_programs, run_schedule
from tests.simulator.workload.budgets import BUDGETS
from tests.simulator.workload.calls import CALLS
from tests.simulator.workload.erasures import ERASURES
from tests.simulator.workload.families import FAMILIES
from tests.simulator.workload.generations import GENERATIONS
from tests.simulator.workload.inputs import Scenario, backlog
from tests.simulator.workload.pauses import PAUSES
from tests.simulator.workload.questions import QUESTIONS
from tests.simulator.workload.versions import VERSIONS
from tests.simulator.workload.views import VIEWED
from tests.simulator.workload.waits import WAITS
from tests.simulator.world.faults import SMALL, TRUNCATES, Fault, modes_at

_OFTEN, _SELDOM, _RARE = 1_000, 5_000, 30_000
"""Cases in which something has to have happened: what happens often does in one of fifty, what is rare in one of a few
thousand. A smaller campaign that has not met it proves nothing of it, and a larger one has failed."""

NEEDED: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("takeovers", "void_records", "record.foreign", "input.ignored", "lost_acks", "in_doubt"),
            *("doubts_asked", "result.late", "dead_letters", "approval.decided", "vote.void", "call.refused"),
            *("drains", "deploys", "run.stalled", "run.unstalled", "hung", "publish.unknown", "truncated"),
            *("signals.taken", "callbacks.answered", "pauses", "blobs.kept", "blobs.read", "input.forwarded"),
            *("lease.lapsed", "outbox.found", "request.again", "mirrored", "mirrored.elsewhere", "repeated"),
            *("twins", "marks.foreign", "marks.missing", "snapshot.broken", "migrations"),
            *("snapshot.newer", "snapshot.holed", "members.uneven", "run.rested"),
            *("archived", "erased", "erased.repeated", "erase.demanded", "erase.refused", "markers.gone"),
        ),
        _OFTEN,
    ),
    **dict.fromkeys(
        (
            "claims_refused",
            "held",
            "tool.handed_over",
            "publish.refused",
            "log.shrunk",
            "migrations_refused",
        ),
        _SELDOM,
    ),
    **dict.fromkeys(
        (
            *("rule: a chain is extended", "rule: an effect begins within its margin", "rule: tools come first"),
            *(
                "rule: a call that was judged again is sent",
                "rule: an order was taken back",
                "rule: a call that was judged again begins",
                "rule: a decision is judged by the catalog of its time",
            ),
        ),
        _SELDOM,
    ),
    **dict.fromkeys(("erase.unknown", "passes.cut", "passes.failed", "erased.forgotten"), _SELDOM),
    **dict.fromkeys(
        (f"views.{each}" for each in ("killed", "refused", "cut", "switched", "rebuilt", "read whole", "erased")),
        _SELDOM,
    ),
    "views.stood still": _SELDOM,
    **dict.fromkeys(
        (
            *(f"truncated: {topic}" for topic in TRUNCATES.values() if topic != BUDGET_SPENT),
            *(f"repeated: {topic}" for topic in (CATALOG, *TRUNCATES.values()) if topic != BUDGET_SPENT),
        ),
        _SELDOM,
    ),
    **dict.fromkeys(("mirrored.forked", "repairs", "archive.rotten"), _RARE),
}
"""What has to have happened at least once, and in how many cases at the latest."""

NEEDED_SINGLES: Mapping[str, int] = {
    **{name: cases for name, cases in NEEDED.items() if name not in ("mirrored.forked", "repairs")},
    **dict.fromkeys(("signals.dropped", "ledger.ahead", "mirrored.plain", "limits.of_several", "limits.rest"), _SELDOM),
    **dict.fromkeys(("limits.told", f"truncated: {BUDGET_SPENT}", f"repeated: {BUDGET_SPENT}"), _SELDOM),
}
"""The same of single faults and of pairs: a fork and a mirror are two, but lanes there tell each other of limits.
Of what chance never makes up there is a scenario, or a fault."""

NEEDED_PROGRAMS: Mapping[str, int] = dict.fromkeys(
    (
        *("takeovers", "signals.taken", "callbacks.answered", "in_doubt", "approval.decided", "drains", "truncated"),
        "pauses",
        *(
            f"program: {kind}"
            for kind in (
                *("RunCompleted", "RunFailed", "RunCancelled", "StepGivenUp", "SleepEnded", "WaitEnded", "WaitExpired"),
                *("CallbackCompleted", "CallbackFailed", "ChildCompleted", "EventPublished", "CheckpointReached"),
                *("AttemptFailed", "CallFailed", "LateResultRecorded", "SignalReceived", "StatusSet"),
                "SignalAnswered",
            )
        ),
    ),
    _OFTEN,
)
"""What random programs have to have met."""

NEEDED_MINDS: Mapping[str, int] = dict.fromkeys(
    (
        *("takeovers", "approval.decided", "in_doubt", "mind: harm wanted", "mind: harm prevented"),
        *("mind: harm allowed", "mind: answer refused", "mind: the same once more", "mind: ended completed"),
        *("mind: ended cancelled", "mind: ended budget_steps", "mind: ended budget_bytes", "mind: ended deadline"),
        *("mind: ended budget_children", "mind: ended budget_usd", "mind: ended budget_tokens"),
        *("mind: ended budget_calls", "mind: ended budget_seconds", "mind: refused as repeated"),
        *("mind: to be made cheaper", "mind: went on beyond", "mind: child spent", "mind: perhaps paid"),
        "mind: denied",
    ),
    _OFTEN,
)
"""What agents whose models err have to have met."""

NEEDED_OF: Mapping[str, Mapping[str, int]] = {
    "exhaustive": NEEDED_SINGLES,
    "byzantine": dict.fromkeys(NEEDED_LIES, ENOUGH),
    "programs": NEEDED_PROGRAMS,
    "minds": NEEDED_MINDS,
}
"""By mode, where that has needs of its own."""

SCENARIOS: dict[str, Scenario] = {
    **CALLS,
    **QUESTIONS,
    **WAITS,
    **FAMILIES,
    **GENERATIONS,
    **PAUSES,
    **BUDGETS,
    **ERASURES,
    **VERSIONS,
    **VIEWED,
}
"""What is asked of the platform, without and with people, by name."""

SMALLEST = ("pure", "keyed", "probed", "once")
"""What pairs of faults are tried on."""

PAIRED = ("limit-many", "keyed-terminal-deaf", "budget-judged-again")
"""Larger ones of which two faults have shown what one does not; of their pairs some are drawn."""

DRAWN = 3_000
"""Pairs of these in a whole campaign."""

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
            mode = f" --mode {self.mode}" if self.mode != "random" else ""
            return f"python -m tests.simulator{mode} --seed {self.seed} --one{less}"
        faults = "".join(f" --fault {fault}" for fault in self.faults)
        return f"python -m tests.simulator --scenario {self.scenario}{faults}"

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
    needed: Mapping[str, int] = field(default_factory=lambda: NEEDED)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[Named, tuple[str, ...]]] = field(default_factory=list)

    def count(self, outcome: CaseOutcome) -> None:
        """Adds what happened in a case, but for what was wrong."""
        self.cases += 1
        self.struck += len(outcome.struck)
        self.counts.update(outcome.counts)

    @property
    def lies(self) -> dict[str, Told]:
        """How often each kind of lie was told and refused; nothing where nobody lied."""
        return tally(self.counts) if self.needed is NEEDED_OF["byzantine"] else {}

    @property
    def reached(self) -> dict[str, int]:
        """How often each thing happened that has to."""
        return {name: self.counts[name] for name in self.needed}

    @property
    def missing(self) -> list[str]:
        """Which of the needed things never happened: of these the campaign proves nothing."""
        unrefused = [f"a refusal of {name}" for name, told in self.lies.items() if not all(told)]
        return [*(name for name, times in self.reached.items() if not times), *unrefused]

    @property
    def unmet(self) -> list[str]:
        """Which of these had to happen in so many cases: the campaign has failed."""
        return [name for name in self.missing if self.cases >= self.needed.get(name, ENOUGH)]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "cases": self.cases,
            "faults_struck": self.struck,
            "seconds": round(self.seconds, 1),
            "wrong": [{"command": case.command, "what": list(what)} for case, what in self.wrong],
            "reached": self.reached,
            "missing": self.missing,
            "unmet": self.unmet,
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


def sampled(count: int, scenarios: Iterable[str], *, seed: int, faults: int = 1) -> Iterator[Named]:
    """So many cases of one fault each, or two of any kind, at boundaries of a faultless run; scenarios share evenly.

    It runs no scenario but for its boundaries, so that it costs what its cases do, however many there are in all.
    """
    rng, names = Random(seed), list(scenarios)
    kinds = {name: run_case(SCENARIOS[name], traced=False).kinds for name in names}
    for number in range(count):
        name = names[number % len(names)]
        places = sorted(rng.sample(range(len(kinds[name])), faults))
        yield Named(name, tuple(Fault(at + 1, rng.choice(modes_at(kinds[name][at]))) for at in places))


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
    mode = "exhaustive" if cases[0].scenario else cases[0].mode
    summary, begun = Summary(needed=NEEDED_OF.get(mode, NEEDED)), time.monotonic()
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
        summary.count(outcome)
        if outcome.wrong:
            summary.wrong.append((case, outcome.wrong))
    return summary
