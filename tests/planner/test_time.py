"""The log is the planner's clock: no clock of a machine delays anything or fires anything early."""

from __future__ import annotations

import pytest

from refold.core import topics
from refold.core.events import RunCompleted
from refold.engine.ports import effects
from refold.engine.ports.log import Delivery, Outgoing
from tests.planner.clocked import DAY, NOW, Rig


class SlowReports(Rig):
    """`late` are the reports about entries, while they are held back; `unsure`: entries have no answer."""

    late: list[effects.Item] | None = None
    unsure = False

    def __init__(self) -> None:
        self._entries: set[int] = set()
        super().__init__()

    def hear(self) -> None:
        """The reports come."""
        self._answers += self.late or []
        self.late = None

    def _carry_out(self, effect: effects.Effect) -> None:
        super()._carry_out(effect)
        if self.late is not None and not self.unsure:
            self.late += [each for each in self._answers if isinstance(each, Delivery) and each.token in self._entries]
            self._answers = [each for each in self._answers if each not in self.late]

    def _write(self, record: Outgoing) -> Delivery:
        found = super()._write(record)
        if record.topic == topics.RUN_LOG:
            self._entries.add(record.token)
        return Delivery(record.token, None) if self.unsure and record.topic == topics.RUN_LOG else found


@pytest.mark.parametrize("ahead_ms", [-DAY, 0, DAY])
def test_a_sleep_lasts_as_long_as_it_should_whatever_the_clock_of_the_machine_says(ahead_ms: int) -> None:
    rig = Rig()
    rig.wall_ms = lambda: rig.now + ahead_ms
    rig.start("r", "napping", {"seconds": 5})

    rig.run(4_999)
    before = rig.kinds("r")
    rig.run(2)

    assert before == ["RunRequested", "RunStarted", "SleepStarted", "RunSuspended"]
    assert rig.kinds("r")[4:] == ["SleepEnded", "RunCompleted"]


def test_the_clock_of_the_broker_that_leads_the_snapshots_changes_nothing() -> None:
    rig = Rig()
    written = rig.broker.clock_ms
    rig.broker.clock_ms = lambda topic: written(topic) + DAY * (topic == topics.RUN_SNAPSHOT)  # type: ignore[method-assign]
    rig.successor()
    rig.start("r", "napping", {"seconds": 20})

    rig.run(19_000)
    before = rig.kinds("r")
    rig.successor()
    rig.run(900)
    taken_over = rig.kinds("r")
    rig.run(200)

    assert before == taken_over == ["RunRequested", "RunStarted", "SleepStarted", "RunSuspended"]
    assert rig.kinds("r")[4:] == ["SleepEnded", "RunCompleted"]


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
    assert rig.kinds("ahead")[-2:] == ["SleepStarted", "RunSuspended"]


def test_requests_that_waited_are_decided_at_the_time_of_now() -> None:
    rig = Rig()
    rig.start("r", "napping", {"seconds": 5})
    rig.now += DAY

    rig.run(10)

    assert rig.kinds("r")[-2:] == ["SleepStarted", "RunSuspended"]
    assert rig.history("r")[0].requested_ms >= NOW + DAY


def test_a_timer_is_not_lost_when_the_clock_goes_back_before_its_turn_comes() -> None:
    rig = SlowReports()
    rig.start("r", "napping", {"seconds": 5})
    rig.run(4_980)
    rig.late = []
    rig.start("slow", "idling", None)
    rig.run(10)
    rig.start("other", "idling", None)
    rig.unsure = True
    rig.turn()
    rig.unsure, rig.now = False, NOW + 5_010
    rig.turn()  # it is due, and the log has to be read first

    assert rig.late  # was appended before it was due: that is the time as soon as it is heard
    rig.hear()
    rig.run(1_000)

    assert rig.kinds("r")[-1] == "RunCompleted"
