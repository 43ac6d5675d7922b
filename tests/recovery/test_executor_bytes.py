"""What requests take of an executor is counted in bytes: in front of its slots, and in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from refold.core.messages import ToolRequest
from refold.engine.executor.inputs import HEAVY_BYTES, CallQueue, Requested
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import Effect, Flow, ToolEnded
from tests.recovery.executor_rig import ORDERS, Rig
from tests.recovery.test_executor_takeover import asks, begun, call

BIG = "x" * 100_000
OPERATIONS = ("add", "take", "aside", "back", "give up", "withdraw", "clear")


def flows(effects: Iterable[Effect]) -> list[str]:
    return [effect.action for effect in effects if isinstance(effect, Flow) and effect.topic == ORDERS]


def test_what_waits_stops_the_topic_by_its_bytes_until_half_of_them_are_gone() -> None:
    rig = Rig(ExecutorSettings(slots=1, backlog_bytes=5 * len(BIG)))

    small = rig.turn(*[asks(offset, call(offset)) for offset in range(100)])
    large = rig.turn(*[asks(offset, call(offset, args=BIG)) for offset in range(100, 104)])
    ended: list[list[str]] = []
    while rig.executor.attempts:
        ended.append(flows(rig.turn(ToolEnded(rig.started[-1].number, "completed", "1"), after_ms=100)))

    assert flows(small) == []
    assert flows(large) == ["pause"]
    assert len(begun(rig)) == len(ended) == 104
    assert [(102 - number, told) for number, told in enumerate(ended) if told] == [(2, ["resume"])]  # two wait then


def test_large_calls_leave_slots_free_and_small_ones_use_all_of_them() -> None:
    settings = ExecutorSettings(slots=50, acting_bytes=3 * len(BIG))
    large, small = Rig(settings), Rig(settings)

    large.turn(*[asks(offset, call(offset, args=BIG)) for offset in range(5)])
    small.turn(*[asks(offset, call(offset, args="x" * (HEAVY_BYTES - 2_000))) for offset in range(60)])
    first = len(begun(large))
    large.turn(ToolEnded(large.started[0].number, "completed", "1"), after_ms=100)

    assert (first, len(begun(large))) == (3, 4)
    assert len(begun(small)) == 50


def test_one_call_that_is_larger_than_all_may_take_is_made() -> None:
    rig = Rig(ExecutorSettings(acting_bytes=1, backlog_bytes=1))

    rig.turn(asks(0, call(0, args=BIG)), asks(1, call(1, args=BIG)))
    rig.end()

    assert begun(rig) == ["r0/3", "r1/3"]


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 4), st.integers(1, 3), st.integers(1, 9))))
def test_a_queue_knows_what_it_takes_whatever_becomes_of_its_calls(
    operations: list[tuple[str, int, int, int]],
) -> None:
    queue = CallQueue()
    for now, (name, number, attempt, size) in enumerate(operations):
        request: ToolRequest = replace(call(number), attempt=attempt)
        if name == "add":
            queue.add(Requested(request, now, size))
        elif name in ("take", "aside") and queue.ready:
            requested = queue.take()
            if name == "aside" and requested.request.call_id not in queue:
                queue.put_aside(requested, now + size)
        elif name == "back":
            queue.bring_back()
        elif name == "give up":
            queue.give_up(now)
        elif name == "withdraw":
            queue.withdraw(request.call_id, 1)
        elif name == "clear":
            queue.clear()

    queue.bring_back()
    assert queue.bytes == sum(queue.take().bytes for _ in range(len(queue)))
    assert queue.bytes == 0
