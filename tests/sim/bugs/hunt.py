"""Looks for a planted bug where it should show, until the checker sees it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from refold.simulator.campaign import SCENARIOS, Named, sieges, singles
from refold.simulator.case import CaseOutcome, run_case
from refold.simulator.world.faults import Fault, modes_at
from tests.sim.bugs.bugs import BUGS, planted

MOST = 2_000
"""Cases that a hunt may cost. Most bugs show in the first hundred."""


def hunt(name: str) -> tuple[Named, CaseOutcome] | None:
    """The first case in which the checker objects to a bug; None if that is not among the first `MOST`."""
    cases = list(islice(_cases(name), MOST))
    with planted(name):
        for case in cases:
            outcome = case.run(traced=True)
            if outcome.wrong:
                return case, outcome
    return None


def _cases(name: str) -> Iterator[Named]:
    bug = BUGS[name]
    yield from sieges(bug.seeds)
    for scenario in bug.where:
        yield Named(scenario)
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
