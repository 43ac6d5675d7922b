"""Lanes of an executor work where something came; what time makes due in all others is found all the same."""

from __future__ import annotations

from collections.abc import Iterator

from refold.core.ids import CallId, RunId
from refold.core.messages import ToolRequest
from refold.core.wire import codec
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import AskEnd, AskLedger, Effect, Look, Publish, StartTool, ToolEnded
from refold.engine.ports.ledger import Lapsed, Operation, Unpublished
from refold.engine.ports.log import Assigned, Record
from tests.recovery.executor_rig import CLAIMS, ORDERS, Rig

MANY = range(1, 9)
"""Partitions beside that of the rig."""


def call(number: int, home: int) -> Record:
    """An order that lies in this partition."""
    request = ToolRequest(
        CallId(f"r{number}/3"), RunId(f"r{number}"), 1, 1, 0, "fire", "{}", f"key-{number}", "pure", 3_000
    )
    return Record(ORDERS, home, number, request.call_id.encode(), codec.encode(request), lambda: None, 1_000_000)


def crowded(settings: ExecutorSettings | None = None) -> Rig:
    """A process with all of these partitions, in which nothing is under way."""
    rig = Rig(settings or ExecutorSettings())
    rig.turn(*[Assigned(number, {}, {}, {CLAIMS: 0, "catalog": 0, ORDERS: 0}) for number in MANY])
    return rig


def asked(effects: list[Effect]) -> Iterator[Operation]:
    for effect in effects:
        yield from effect.operations if isinstance(effect, AskLedger) else ()


def test_a_lease_that_lapses_where_nothing_comes_is_looked_for_as_often_as_elsewhere() -> None:
    rig, seen = crowded(), dict.fromkeys((0, *MANY), 0)

    for number in range(200):  # 2 s, in which one partition alone has work
        effects = rig.turn(call(number, 3))
        for operation in asked(effects):
            if isinstance(operation, Lapsed):
                seen[operation.home] += 1

    assert set(seen.values()) == {10}


def test_what_lies_in_the_outbox_of_a_partition_at_rest_is_looked_for() -> None:
    rig = crowded()

    found = [each.home for _ in range(20) for each in asked(rig.turn(after_ms=100)) if isinstance(each, Unpublished)]

    assert sorted(found) == sorted([0, *MANY] * 2)


def test_a_call_of_a_dead_process_goes_on_where_nothing_comes() -> None:
    dead, rig = crowded(), crowded()
    rig.ledger, rig.now_ms = dead.ledger, dead.now_ms
    dead.ledger._clock = lambda: rig.now_ms
    dead.turn(call(1, 5))
    assert [start.request.call_id for start in dead.started] == ["r1/3"]
    rig.log[1] = call(1, 5)

    found = next(effects for number in range(2, 200) if Look in map(type, effects := rig.turn(call(number, 3))))

    assert "r1/3" in [each.request.call_id for each in found if isinstance(each, StartTool)]


def test_every_lane_asks_the_log_for_the_time_and_for_the_end_of_its_catalog_whatever_comes() -> None:
    settings = ExecutorSettings()
    rig, beats, ends = crowded(settings), list[int](), list[int]()

    for number in range(61):
        for effect in rig.turn(call(number, 3), after_ms=1_000):
            if isinstance(effect, Publish):
                beats += [each.partition for each in effect.records if each.topic == CLAIMS]
            elif isinstance(effect, AskEnd):
                ends.append(effect.partition)

    assert sorted(beats) == [0, *MANY]
    assert set(ends) == {0, *MANY}


def test_a_lane_at_rest_has_the_time_from_when_it_was_told() -> None:
    rig = crowded(ExecutorSettings(clock_probe_ms=60_000))
    lane = rig.executor.lanes.get(5)
    assert lane is not None
    rig.silent = True
    rig.turn(after_ms=60_000)  # all of them ask

    rig.silent = False
    rig.now_ms += 150
    rig.heard()
    rig.turn(call(1, 5), after_ms=10)

    assert lane.clock.now_ms == rig.now_ms + 150  # as long as the answer was on its way


def test_calls_that_wait_in_lanes_at_rest_begin_when_a_slot_is_free_and_each_lane_has_its_turn() -> None:
    rig = crowded(ExecutorSettings(slots=1))
    rig.turn(*[call(number, number) for number in MANY])

    while len(rig.started) < len(MANY):
        begun = len(rig.started)
        rig.turn(ToolEnded(rig.started[-1].number, "completed", "1"), after_ms=1)
        assert len(rig.started) == begun + 1

    assert sorted(start.request.call_id for start in rig.started) == [f"r{number}/3" for number in MANY]
