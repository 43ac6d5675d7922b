"""Runs that the simulator has recorded, forked from every tenth event, become themselves again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import pytest

from refold.lab.forks.engine import ForkChanges
from refold.lab.forks.report import ForkReport, forked
from refold.lab.forks.worker import ForkJob, ForkSetup
from refold.lab.processes import forks
from tests.forks.simulated import around, families, played
from tests.simulator.app import simulated
from tests.simulator.world.law import STATUTES


def verdicts(kind: str, seeds: range, every: int) -> tuple[Counter[str], list[str]]:
    """How forks of all runs of some cases came out, and those that are not the same."""
    counts, others = Counter[str](), []
    for seed in seeds:
        world = played(kind, seed)
        for root, family, recorded in families(world):
            counts["runs"] += 1
            for at in range(0, recorded[root].state.head.seq + 1, every):
                report = forked(simulated, family, root, at, ForkChanges(), around(world, recorded))
                counts[report.verdict] += 1
                if report.verdict != "same":
                    others.append(f"{kind} {seed} {root} at {at}: {report.verdict} {report.message}")
    return counts, others


@pytest.mark.parametrize(("kind", "first"), [("random", 100), ("programs", 100), ("minds", 100)])
def test_runs_of_a_platform_under_faults_are_themselves_again(kind: str, first: int) -> None:
    counts, others = verdicts(kind, range(first, first + 6), 10)

    assert others == []
    assert counts["same"] > 10


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param("random", 219, id="a child begins in the turn in which its parent is cancelled"),
        pytest.param(
            "random", 264, id="time comes while the run is paused, as it was asked for later than in the record"
        ),
        pytest.param("minds", 262, id="a paid result of an earlier attempt ends a question"),
        pytest.param("random", 5116, id="an executor sends back a call that another one may have made"),
        pytest.param("minds", 5145, id="an executor sends back a call that may have been paid"),
        pytest.param("minds", 265, id="an operator settles a doubt, as the policy of that time named nobody"),
    ],
)
def test_what_once_became_another_run_is_itself_again(kind: str, seed: int) -> None:
    counts, others = verdicts(kind, range(seed, seed + 1), 10)

    assert others == []
    assert counts["same"] > 0


@pytest.mark.long
def test_a_hundred_recorded_runs_forked_from_every_tenth_event_do_nothing_twice() -> None:
    """With models, people, children and failures, under faults: in processes that count what is wanted of them."""
    runs, jobs = 0, list[tuple[ForkJob, ForkSetup]]()
    for kind in ("random", "programs", "minds"):
        for seed in range(200, 230):
            world = played(kind, seed)
            for root, family, recorded in families(world):
                stands = around(world, recorded)
                setup = ForkSetup("tests.simulator.app:simulated", stands.environment, list(STATUTES.values()))
                setup = replace(setup, bounds=stands.bounds)
                ends = range(0, recorded[root].state.head.seq + 1, 10)
                jobs += [(ForkJob(root, family, at, values=stands.values), setup) for at in ends]
                runs += 1

    first, second = (list(_forked(jobs)) for _ in range(2))

    assert runs > 100
    assert first == second
    assert all(report.refused == {} for report in first)
    assert sum(report.verdict == "same" for report in first) >= 0.99 * len(first)


def _forked(jobs: list[tuple[ForkJob, ForkSetup]]) -> Iterator[ForkReport]:
    """The reports on jobs, in a process for all that share their setup."""
    for _, together in groupby(jobs, key=lambda job: repr(job[1])):
        found = list(together)
        yield from forks([job for job, _ in found], found[0][1], at_once=2)
