"""A pause reaches what ends with the run: children, theirs, and those that begin meanwhile; and so does its end."""

from __future__ import annotations

import pytest

from refold.core import events
from tests.planner.kin import ask, rig
from tests.planner.rig import Rig

ALL = ("r", "r.1", "r.1.1")


def working(agent: str = "chief") -> Rig:
    """A family of which the last one has a call with executors, who say nothing so far."""
    world = rig()
    world.answers = False
    ask(world, "r", agent, {"n": 4} if agent in ("chief", "boss") else None)
    world.pump()
    return world


def paused(world: Rig, *runs: str) -> list[list[str]]:
    """The roles of those who have paused runs."""
    states = [world.state(run) for run in runs]
    return [[pause.role for pause in state.paused] if state else ["unknown"] for state in states]


def answered(world: Rig) -> Rig:
    """Executors say what came of what they have."""
    world.answers = True
    for _ in range(3):
        world.pump()
    return world


def orders(world: Rig) -> int:
    """How often executors were asked for something."""
    return sum(record.value is not None for record in world.reader.scan("tool-requested.default"))


def test_a_pause_reaches_all_below_and_so_does_its_end() -> None:
    world = working()

    world.operate("r", "pause", '{"reason": "look first"}')
    world.pump()
    during = paused(world, *ALL), answered(world).outcomes()
    world.operate("r", "resume", number=2)
    world.pump()

    assert during == ([["operator"], ["parent"], ["parent"]], {})
    [said] = [entry.events[0] for entry in world.log_of("r.1.1") if isinstance(entry.events[0], events.RunPaused)]
    assert (said.actor, said.reason) == ("r.1", "look first")
    assert paused(world, *ALL) == [[], [], []]
    assert world.outcomes()["r"].pop()[2] == "42"


def test_a_child_that_is_paused_by_itself_stays_so() -> None:
    world = working()
    world.operate("r.1", "pause")
    world.operate("r", "pause", number=2)
    world.pump()
    both = paused(world, *ALL)

    world.operate("r", "resume", number=3)
    world.pump()

    assert both == [["operator"], ["operator", "parent"], ["parent"]]
    assert paused(world, *ALL) == [[], ["operator"], ["parent"]]
    assert answered(world).outcomes() == {}
    world.operate("r.1", "resume", number=4)
    world.pump()
    assert world.outcomes()["r"].pop()[0] == "completed"


def test_a_parent_is_not_paused_with_its_child() -> None:
    world = working()

    world.operate("r.1", "pause")
    world.pump()

    assert paused(world, *ALL) == [[], ["operator"], ["parent"]]


def test_what_goes_on_without_its_parent_is_not_paused_with_it() -> None:
    world = working("ambler")

    world.operate("r", "pause")
    world.pump()

    assert paused(world, "r", "r.1", "r.2") == [["operator"], [], ["parent"]]


@pytest.mark.parametrize("turns", range(12))
def test_a_child_that_begins_while_its_parent_is_paused_begins_paused(turns: int) -> None:
    world = rig()
    ask(world, "r", "chief", {"n": 4})
    world.pump(turns)

    world.operate("r", "pause")
    world.pump()
    there, during = "r" in world.outcomes(), orders(world)
    for run in ("r", "r.1", "r.1.1"):
        state = world.state(run)
        assert state is None or state.over or state.paused, run
    world.boot()
    world.pump()
    still = orders(world)
    world.operate("r", "resume", number=2)
    world.pump()

    assert during == still or there
    assert world.outcomes()["r"].pop()[2] == "42"
    assert world.world.done.total() == 1


@pytest.mark.parametrize("said", [["pause"], ["pause", "resume"], ["pause", "resume", "pause"]])
def test_a_crash_at_any_point_changes_nothing_of_a_pause(said: list[str]) -> None:
    for turns in range(1, 16):
        world = working()
        for number, kind in enumerate(said):
            world.operate("r", kind, number=number)
        for _ in range(12):
            world.pump(turns)
            world.boot(turns)
        world.pump()
        world.boot()

        expected = [["operator"], ["parent"], ["parent"]] if said[-1] == "pause" else [[], [], []]
        assert paused(world, *ALL) == expected, turns


def test_a_child_of_a_paused_run_is_cancelled_with_it() -> None:
    world = working()
    world.operate("r", "pause")
    world.pump()

    world.operate("r", "cancel", number=2)
    world.pump()

    assert {run: told.pop()[0] for run, told in world.outcomes().items()} == dict.fromkeys(ALL, "cancelled")


def test_a_thousand_children_are_paused_and_all_finish() -> None:
    world = rig(active=2_000)
    world.answers = False
    ask(world, "r", "many", {"count": 1_000})
    world.pump(4_000)
    world.operate("r", "pause")
    world.pump(4_000)
    held = [paused(world, f"r.{step}")[0] for step in range(1, 1_001)]

    world.operate("r", "resume", number=2)
    world.answers = True
    world.pump(8_000)

    assert held == [["parent"]] * 1_000
    assert world.outcomes()["r"].pop()[2] == "1000"
