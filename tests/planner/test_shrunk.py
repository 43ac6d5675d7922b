"""A run log that has lost acknowledged records is noticed at once, and folded again."""

from __future__ import annotations

from refold.core.topics import RUN_LOG
from tests.planner.rig import Rig


def busy(runs: int = 4) -> Rig:
    """A platform on which some runs are over."""
    rig = Rig()
    for n in range(runs):
        rig.start(f"run-{n}")
    rig.pump()
    return rig


def test_runs_go_on_after_the_log_has_lost_its_end_under_a_living_planner() -> None:
    rig = busy()
    log = rig.broker.log(RUN_LOG, 0)
    rig.broker.truncate(RUN_LOG, 0, log.end // 2)

    rig.start("new")
    rig.pump()

    state = rig.state("new")
    assert state is not None
    assert state.status == "completed"
    assert set(rig.world.done.values()) == {1}
    assert all(rig.state(f"run-{n}").status == "completed" for n in range(4))  # type: ignore[union-attr]


def test_an_end_that_was_lost_and_written_over_is_noticed_by_what_is_delivered() -> None:
    rig = busy()
    log, position = rig.broker.log(RUN_LOG, 0), rig.log.cursors.find(RUN_LOG, 0)
    assert position is not None
    rig.broker.truncate(RUN_LOG, 0, log.end // 2)
    position.position = log.end  # the consumer was put back without a word

    rig.start("new")
    rig.pump()

    assert rig.planner.counts["log.shrunk"] == 1
    state = rig.state("new")
    assert state is not None
    assert state.status == "completed"
