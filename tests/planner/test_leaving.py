"""A planner that is told to leave leaves nothing behind that its successor would have to tell a second time."""

from __future__ import annotations

import pytest

from tests.planner.clocked import Rig


def leave(rig: Rig) -> list[bool]:
    """What the planner says each time that it is asked whether it has drained."""
    said = [rig.planner.drain()]
    for _ in range(5):
        rig.turn()
        said.append(rig.planner.drain())
    return said


@pytest.mark.parametrize("drains", [True, False])
def test_an_outcome_is_published_once_when_a_planner_leaves(drains: bool) -> None:
    rig = Rig()
    rig.run(10)
    for number in range(5):
        rig.start(f"r{number}", "idling", {})
    rig.run(10)

    said = leave(rig) if drains else []
    rig.successor()
    rig.run(10)

    assert len(rig.outcomes()) == (5 if drains else 10)  # without, the last half second is told twice
    assert said == [False, True, True, True, True, True] * drains


def test_who_leaves_decides_nothing_more_and_loses_nothing() -> None:
    rig = Rig()
    rig.run(10)
    rig.planner.drain()
    rig.start("r", "idling", {})
    rig.run(1_000)
    before = rig.kinds("r")

    rig.successor()
    rig.run(10)

    assert before == []
    assert rig.kinds("r")[-1] == "RunCompleted"


def test_who_leaves_waits_for_what_is_not_acknowledged() -> None:
    rig = Rig()
    rig.run(10)
    rig.silent = 1
    rig.start("r", "looking", {"what": "it"})
    rig.turn()
    while not rig.requests():
        rig.turn()

    said = leave(rig)

    assert said[0] is False
    assert said[-1] is True
    assert len(rig.requests()) == 2  # the first publish had no answer, so it went out again
