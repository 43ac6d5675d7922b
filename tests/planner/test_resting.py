"""A run that sleeps for long is let go of: what the planner knows of it then is its entries, as after a take-over."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.ids import RunId
from refold.core.run import snapshot
from tests.core.histories import examples
from tests.planner.clocked import Rig

HOUR = 3_600_000


def known(rig: Rig) -> tuple[set[RunId], set[RunId]]:
    """The runs of which the planner holds the state, and those that rest."""
    [lane] = rig.planner.lanes
    return set(lane.log.fold.states), set(lane.log.asleep)


def rested(**naps: int) -> Rig:
    """A planner whose runs have fallen asleep, for so many seconds."""
    rig = Rig()
    for run, seconds in naps.items():
        rig.start(run, "napping", {"seconds": seconds})
    return rig.run(20_000)


def test_a_run_that_sleeps_for_long_rests_and_goes_on_in_time() -> None:
    rig = rested(long=3_600, short=60)
    assert known(rig) == ({"short"}, {"long"})

    rig.run(HOUR - 20_001)
    before = rig.kinds("long")
    rig.run(2)

    assert before == ["RunRequested", "RunStarted", "SleepStarted", "RunSuspended"]
    assert rig.kinds("long")[4:] == ["SleepEnded", "RunCompleted"]
    assert known(rig) == (set(), set())


def test_a_run_that_rests_is_known_to_whoever_asks_for_it_or_says_something() -> None:
    rig = rested(r=3_600)

    rig.start("r", "napping", {"seconds": 3_600})
    rig.start("r", "napping", {"seconds": 1})
    rig.run(10)
    rig.signal("r", "cancel")
    rig.run(10)

    assert rig.kinds("r")[4:] == ["RunCancelled"]
    assert [letter.code for letter in rig.letters()] == ["conflict"]


def test_a_run_that_waits_for_more_than_time_or_is_paused_does_not_rest() -> None:
    rig = Rig()
    rig.start("told", "told", {})
    rig.start("paused", "napping", {"seconds": 3_600})
    rig.start("calls", "buying", {})
    rig.start("either", "either", {})
    rig.operate("paused", "pause")
    rig.run(20_000)

    assert known(rig) == ({"told", "paused", "calls", "either"}, set())


def test_a_run_whose_history_does_not_fit_into_one_record_does_not_rest() -> None:
    rig = Rig()
    rig.start("r", "brooding", {"letters": 20_000})
    rig.run(10)
    rig.answer(rig.take()[0])
    rig.run(20_000)
    assert known(rig) == ({"r"}, set())

    rig.run(HOUR)

    assert (rig.kinds("r")[-2:], rig.planner.counts["record.void"]) == (["SleepEnded", "RunCompleted"], 0)


@pytest.mark.parametrize("turns", range(2, 42))
def test_a_run_that_moves_while_it_falls_asleep_is_awake(turns: int) -> None:
    rig = Rig()
    rig.start("r", "napping", {"seconds": 3_600})
    for _ in range(turns):
        rig.now += 250
        rig.turn()

    rig.operate("r", "pause")
    rig.run(20_000)
    rig.operate("r", "resume", name="on")
    rig.run(HOUR)

    assert rig.kinds("r")[4:] == ["RunPaused", "RunUnpaused", "SleepEnded", "RunCompleted"]
    assert rig.planner.counts["record.void"] == 0


def test_a_successor_goes_on_with_runs_that_rested() -> None:
    rig = rested(r=3_600)
    rig.successor()
    rig.run(20_000)
    assert known(rig) == (set(), {"r"})

    rig.run(HOUR)

    assert rig.kinds("r")[4:] == ["SleepEnded", "RunCompleted"]


def lived(seed: int) -> list[object]:
    """The histories of some runs, whatever was said of them meanwhile, and whoever planned."""
    rng, rig = random.Random(seed), Rig()
    runs = [f"r-{number}" for number in range(4)]
    for run in runs:
        rig.start(run, rng.choice(["napping", "buying"]), {"seconds": rng.choice([30, 900, 4_000])})
    for number in range(12):
        rig.run(rng.choice([100, 6_000, 700_000]))
        run, said = rng.choice(runs), rng.randrange(8)
        if said == 0:
            rig.successor()
        elif said == 1:
            rig.say_go(run)
        elif said < 4:
            rig.operate(run, ("pause", "resume")[said % 2], name=f"o-{number}")
        elif said == 4:
            rig.signal(run, "cancel", name=f"c-{number}")
        elif said == 5:
            rig.start(run, "idling", {})
        else:
            for request in rig.take():
                rig.answer(request)
    rig.run(2 * HOUR)
    return [*map(rig.kinds, runs), [each.call_id for each in rig.requests()], rig.alarms]


@examples
@given(st.integers(0, 2**32))
def test_what_becomes_of_runs_is_the_same_as_if_none_rested(seed: int) -> None:
    found = lived(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "REST_MS", 1 << 60)

        assert found == lived(seed)
