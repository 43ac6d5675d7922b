"""Looks for a planted bug where it should show, until the checker sees it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from refold.simulator.campaign import SCENARIOS, Named, minds, programs, sieges, singles
from refold.simulator.case import CaseOutcome, run_case
from refold.simulator.world.faults import Fault, modes_at
from tests.sim.bugs.bugs import BUGS, planted
from tests.sim.bugs.planting import Bug

MOST = 2_000
"""Cases that a hunt may cost. Most bugs show in the first hundred."""


def hunt(name: str) -> tuple[Named, CaseOutcome] | None:
    """The first case in which the checker objects to a bug; None if that is not among the first `MOST`.

    Where a bug has moved the boundaries, a fault may strike what it makes no sense for, and the case crashes: the
    checker has judged nothing there.
    """
    cases = _order(name)
    with planted(name):
        for case in cases:
            outcome = case.run()
            if outcome.wrong and not any(wrong.startswith("crash:") for wrong in outcome.wrong):
                return case, outcome
    return None


def _order(name: str) -> list[Named]:
    """What is tried, shuffled in the same way every time: cases that fail stand together, and often at the end."""
    bug = BUGS[name]
    strikes = list(_strikes(bug))
    Random(name).shuffle(strikes)
    return [
        *sieges(bug.seeds, seed=bug.start),
        *programs(bug.programs, seed=bug.start),
        *minds(bug.minds, seed=bug.start),
        *map(Named, bug.where),
        *strikes,
    ][:MOST]


def _strikes(bug: Bug) -> Iterator[Named]:
    for scenario in bug.where:
        if len(bug.faults) == 2:
            yield from _pairs(scenario, *bug.faults)
        else:
            yield from (case for case in singles((scenario,)) if not bug.faults or case.faults[0].mode in bug.faults)


def _pairs(scenario: str, one: str, other: str) -> Iterator[Named]:
    for at, kind in enumerate(run_case(SCENARIOS[scenario], traced=False).kinds, 1):
        if one in modes_at(kind):
            first = Fault(at, one)
            for later, changed in enumerate(run_case(SCENARIOS[scenario], (first,), traced=False).kinds, 1):
                if later > at and other in modes_at(changed):
                    yield Named(scenario, (first, Fault(later, other)))
