"""What fails is told with as little around it as it fails with."""

from __future__ import annotations

from tests.sim.bugs.bugs import planted
from tests.sim.bugs.hunt import hunt
from tests.simulator.campaign import Named, schedules
from tests.simulator.case import run_schedule
from tests.simulator.shrinking import shrink
from tests.simulator.workload.schedules import parts_of, schedule
from tests.simulator.world.faults import Fault


def test_faults_that_have_nothing_to_do_with_it_are_dropped() -> None:
    found = hunt("same-bytes-twice")
    assert found is not None
    (needed,) = found[0].faults

    with planted("same-bytes-twice"):
        more = (found[0]._replace(faults=(needed, Fault(at, "pause"))) for at in range(needed.at + 1, needed.at + 20))
        least = shrink(next(case for case in more if case.run().wrong))

    assert least.faults == (needed,)


def test_a_schedule_is_spared_what_it_fails_without() -> None:
    with planted("timeout-is-failure"):
        wrong = (case for case in schedules(2_000, seed=133) if len(_parts(case)) > 6 and case.run().wrong)
        # Where a fault alone is what is wrong, its schedule may be spared nothing.
        least = next(least for least in map(shrink, wrong) if least.less)

        assert least.run().wrong
        assert least.less
        assert f"--less {least.less[0]}" in least.command


def test_a_schedule_that_is_spared_nothing_is_the_same() -> None:
    assert run_schedule(77).trace == run_schedule(77, less=()).trace
    assert run_schedule(77).trace != run_schedule(77, less=("input-1",)).trace


def _parts(case: Named) -> list[str]:
    return parts_of(schedule(case.seed)[0], len(case.run().struck))
