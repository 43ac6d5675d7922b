"""A lane works when something came for it or when its time has come, and costs a turn nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from refold.engine.ports.log import Assigned, End, Reached, Record, Revoked
from refold.engine.runtime.clock import LogClock
from refold.engine.runtime.lanes import Awake, Lanes, Positions


@dataclass
class Sleeper:
    """A lane that wants to work at the times that it is given."""

    partition: int
    due_ms: int | None = None
    clock: LogClock = field(default_factory=LogClock)

    def reads(self) -> Mapping[str, int]:
        """Nothing."""
        return {}

    def feed(self, item: Record | Reached | End) -> None:
        """Nothing is taken."""

    def low_water(self) -> Positions:
        """Nothing is done with."""
        return {}


def lanes(count: int) -> tuple[Lanes[Sleeper], Awake[Sleeper]]:
    """So many lanes."""
    found = Lanes(lambda assigned: Sleeper(assigned.partition))
    for number in range(count):
        found.route(Assigned(number, {}, {}, {}))
    return found, Awake(found)


def turn(awake: Awake[Sleeper], mono_ms: int, *touched: int) -> tuple[list[int], list[int]]:
    """A turn in which something comes for these; which lanes were due, and which worked."""
    due = [lane.partition for lane in awake.begin(mono_ms)]
    for partition in touched:
        awake.touch(partition)
    worked = [lane.partition for lane in awake]
    awake.rest(lambda lane: lane.due_ms)
    return due, worked


def test_only_what_is_touched_or_due_works() -> None:
    every, awake = lanes(3)
    first = every.get(1)
    assert first is not None

    first.due_ms = 50
    assert turn(awake, 10, 1) == ([], [1])
    first.due_ms = None
    assert turn(awake, 20, 2) == ([], [2])
    assert awake.next_due_ms() == 50
    assert turn(awake, 50) == ([1], [1])
    assert (first.clock.mono_ms, awake.next_due_ms()) == (50, None)


def test_a_time_that_was_put_off_wakes_nobody() -> None:
    every, awake = lanes(1)
    lane = every.get(0)
    assert lane is not None

    for at_ms in range(1_000):
        lane.due_ms = at_ms + 500
        turn(awake, at_ms, 0)

    assert awake.next_due_ms() == 1_499
    assert turn(awake, 1_498) == ([], [])
    assert turn(awake, 1_499) == ([0], [0])


def test_a_lane_that_is_gone_is_not_due_and_one_that_comes_back_is_when_it_says() -> None:
    every, awake = lanes(1)
    lane = every.get(0)
    assert lane is not None
    lane.due_ms = 30
    turn(awake, 1, 0)

    every.route(Revoked(0))
    awake.forget(0)

    assert awake.next_due_ms() is None
    every.route(Assigned(0, {}, {}, {}))
    assert turn(awake, 30) == ([], [])


@pytest.mark.parametrize("count", [1, 60])
def test_lanes_at_rest_are_not_asked(count: int) -> None:
    _, awake = lanes(count)

    assert turn(awake, 5, count - 1)[1] == [count - 1]
    assert turn(awake, 6) == ([], [])
