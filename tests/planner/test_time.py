"""The log is the planner's clock: no clock of a machine delays anything or fires anything early."""

from __future__ import annotations

import pytest

from refold.core.events import RunCompleted
from tests.planner.clocked import DAY, NOW, Rig


@pytest.mark.parametrize("ahead_ms", [-DAY, 0, DAY])
def test_a_sleep_lasts_as_long_as_it_should_whatever_the_clock_of_the_machine_says(ahead_ms: int) -> None:
    rig = Rig()
    rig.wall_ms = lambda: rig.now + ahead_ms
    rig.start("r", "napping", {"seconds": 5})

    rig.run(4_999)
    before = rig.kinds("r")
    rig.run(2)

    assert before == ["RunRequested", "RunStarted", "SleepStarted"]
    assert rig.kinds("r")[3:] == ["SleepEnded", "RunCompleted"]


def test_a_clock_that_jumps_and_runs_backwards_changes_nothing() -> None:
    rig = Rig()
    jumps = iter(range(10**6))
    rig.wall_ms = lambda: NOW + (-1) ** (jump := next(jumps)) * jump * DAY
    rig.start("r", "napping", {"seconds": 5})

    rig.run(5_001)

    state, _ = rig.history("r")
    assert isinstance(state.end, RunCompleted)
    assert state.at_ms - state.requested_ms in range(5_000, 5_003)


def test_what_was_due_in_a_long_pause_comes_at_the_takeover() -> None:
    rig = Rig()
    rig.start("r", "napping", {"seconds": 3_600})
    rig.run(1_000)
    rig.now += 8 * 3_600_000

    rig.successor()
    rig.run(10)

    assert rig.kinds("r")[-1] == "RunCompleted"


def test_a_partition_whose_log_is_a_day_ahead_delays_no_other_run() -> None:
    rig = Rig()
    rig.now += DAY
    rig.start("ahead", "napping", {"seconds": 5})
    rig.run(10)
    rig.now = NOW + 1_000  # the broker's clock is put right
    rig.successor()
    rig.start("r", "napping", {"seconds": 5})

    rig.run(5_010)

    assert rig.kinds("r")[-1] == "RunCompleted"
    assert rig.kinds("ahead")[-1] == "SleepStarted"


def test_requests_that_waited_are_decided_at_the_time_of_now() -> None:
    rig = Rig()
    rig.start("r", "napping", {"seconds": 5})
    rig.now += DAY

    rig.run(10)

    assert rig.kinds("r")[-1] == "SleepStarted"
    assert rig.history("r")[0].requested_ms >= NOW + DAY
