"""An order that a later ruling has taken back does not begin, wherever it waits: what runs already goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from refold.core.errors import UnreachableError
from refold.core.ids import CallId, RunId
from refold.core.messages import ToolRequest
from refold.core.wire.headers import CALL_KEY, TAKEN_BACK
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.ledger import Operation, Reply
from refold.engine.ports.log import Headers, Record
from tests.recovery.executor_rig import ORDERS, Rig
from tests.recovery.shop import Shop, order
from tests.simulator.world.open_ledger import OpenLedger


def call(number: int, *, attempt: int = 1, effect: str = "keyed") -> ToolRequest:
    name = CallId(f"r{number}/3")
    return ToolRequest(name, RunId(f"r{number}"), 1, attempt, 0, "fire", "{}", f"key-{number}", effect, 60_000)


def take_back(rig: Rig, request: ToolRequest) -> None:
    """The tombstone comes by which a planner takes an attempt back, and those before it."""
    named: Headers = [(CALL_KEY, request.key.encode()), (TAKEN_BACK, str(request.attempt).encode())]
    at = next(rig.orders)
    rig.log[at] = Record(ORDERS, rig.home, at, request.call_id.encode(), None, lambda: named, rig.now_ms)
    rig.turn(rig.log[at])
    rig.turn(after_ms=rig.settings.close_ms)


def begun(rig: Rig) -> list[tuple[str, int]]:
    return [(start.request.call_id, start.request.attempt) for start in rig.started]


class Away(OpenLedger):
    """A ledger that cannot be reached while it is `away`."""

    away = False

    def run(self, operations: Sequence[Operation]) -> list[Reply]:
        if self.away:
            raise UnreachableError("the ledger is away")
        return super().run(operations)


def test_an_order_that_waits_for_a_slot_does_not_begin() -> None:
    rig = Rig(ExecutorSettings(slots=1))
    rig.ask(call(1))
    rig.ask(call(2))

    take_back(rig, call(2))
    rig.end(result="1")
    rig.turn(after_ms=2_000)

    assert begun(rig) == [("r1/3", 1)]
    assert rig.commits[ORDERS, 0] == 3


def test_an_order_that_waits_for_its_ledger_does_not_begin_when_that_is_back() -> None:
    ledger = Away(lambda: 1_000_000)
    rig = Rig(shared=ledger)
    ledger.away = True
    rig.ask(call(1))
    rig.turn(after_ms=10_000)

    take_back(rig, call(1))
    ledger.away = False
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=30_000)

    assert begun(rig) == []


@pytest.mark.parametrize("wiped", [False, True])
def test_a_successor_begins_the_later_attempt_alone(wiped: bool) -> None:
    rig = Rig(ExecutorSettings(slots=0))
    rig.ask(call(1))
    take_back(rig, call(1))
    if wiped:
        rig.ledger.wipe()
    rig.settings = ExecutorSettings()

    successor = rig.successor()
    assert begun(successor) == []
    successor.ask(call(1, attempt=2))

    assert begun(successor) == [("r1/3", 2)]


def test_a_lease_of_such_an_order_lapses_for_nobody_and_the_next_attempt_knows_of_it() -> None:
    rig = Rig()
    rig.ask(call(1))
    take_back(rig, call(1))

    successor = rig.successor()
    successor.turn(after_ms=60_000)
    assert begun(successor) == []
    successor.ask(call(1, attempt=2))

    assert begun(successor) == [("r1/3", 2)]
    assert [attempt.takeover for attempt in successor.executor.attempts.values()] == [True]


def test_an_old_order_that_comes_behind_its_tombstone_does_not_begin() -> None:
    rig = Rig()
    rig.ask(call(1, attempt=2))
    take_back(rig, call(1, attempt=2))
    rig.end("unknown")
    rig.ledger.wipe()

    for attempt in (1, 2):
        rig.ask(call(1, attempt=attempt))

    assert begun(rig) == [("r1/3", 2)]
    # A planner whose log has lost the ruling still waits for an answer.
    answers = [(result.attempt, result.status, result.late) for result in rig.told(CallId("r1/3"))]
    assert answers[-2:] == [(1, "unknown", False), (2, "unknown", False)]


def test_a_wiped_ledger_gets_no_order_from_whoever_runs_one_that_was_taken_back() -> None:
    rig = Rig()
    rig.ask(call(1))
    take_back(rig, call(1))
    rig.ledger.wipe()
    rig.turn(after_ms=500)
    assert [entry.state for entry in rig.ledger.entries().values()] == ["started"]

    rig.commits[ORDERS, 0] = 2  # its offsets are committed long ago
    successor = rig.successor()
    successor.turn(after_ms=60_000)

    assert begun(successor) == []


def test_a_call_that_runs_goes_on_and_its_result_is_heard() -> None:
    rig = Rig()
    rig.ask(call(1))

    take_back(rig, call(1))
    rig.end(result="7")

    assert [(result.status, result.result) for result in rig.told(CallId("r1/3"))] == [("completed", "7")]


def test_a_claim_under_which_nothing_was_done_is_taken_back_too() -> None:
    shop = Shop()
    shop.between = lambda: take_back(shop, order())
    shop.ask(order())
    shop.between = lambda: None
    assert shop.tries() == []

    shop.ask(replace(order(2)))

    assert shop.tries() == [2]
    assert shop.links()[:2] == ["claim 1", "undone 1"]
