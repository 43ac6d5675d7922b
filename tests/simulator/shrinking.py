"""The least of a case that fails: whatever it fails without is taken away, one part at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.campaign import Named
from tests.simulator.programs.grammar import every_part
from tests.simulator.workload.minds import mind_schedule
from tests.simulator.workload.programs import program_schedule, trees_in
from tests.simulator.workload.schedules import parts_of, schedule

TRIES = 300
"""Cases that a search may cost, 3 s of one core."""


def shrink(case: Named, *, tries: int = TRIES) -> Named:
    """The same failure with less; the case itself where nothing can go. A liar's cases are not made smaller.

    The same failure is one of the same promises: what stands before the colon.
    """
    kinds = _kinds(case)
    smaller = True
    while smaller:
        smaller = False
        for candidate in _without_a_part(case):
            if tries <= 0:
                return case
            tries -= 1
            if _kinds(candidate) & kinds:
                case, smaller = candidate, True
                break
    return case


def _kinds(case: Named) -> set[str]:
    return {what.partition(":")[0] for what in case.run().wrong}


def _without_a_part(case: Named) -> Iterator[Named]:
    for place in range(len(case.faults)):
        yield case._replace(faults=case.faults[:place] + case.faults[place + 1 :])
    if not case.scenario and not case.lies:
        struck = len(case.run().struck) + sum(part.startswith("fault-") for part in case.less)
        made = {"programs": program_schedule, "minds": mind_schedule}.get(case.mode, schedule)
        scenario, _ = made(case.seed)
        pieces = [f"part-{n}.{part['n']}" for n, tree in trees_in(scenario).items() for part in every_part(tree)]
        for part in [*pieces, *parts_of(scenario, struck)]:
            if part not in case.less:
                yield case._replace(less=(*case.less, part))
