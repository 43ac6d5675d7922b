"""What a pool keeps to itself: its tools, its orders, its answers."""

from __future__ import annotations

import pytest

from refold.core import topics
from refold.core.approval.decision import ToolFacts
from refold.core.ids import CallId
from refold.core.messages import DeadLetter, RunOutcome, ToolRequest
from refold.core.wire import codec
from refold.engine.executor.gate import Gate
from refold.engine.executor.settings import ExecutorSettings
from tests.planner.clocked import Rig as PlannerRig
from tests.recovery.executor_rig import Rig

TOOLS = {"pay": ToolFacts("pay", "1", "schema", "pure", pool="payments")}


@pytest.mark.parametrize("effect", ["pure", "keyed", "probed", "once"])
@pytest.mark.parametrize("pool", ["web", "payments"])
def test_an_executor_runs_no_tool_of_another_pool(pool: str, effect: str) -> None:
    gate = Gate(TOOLS, pool=pool)
    rig = Rig(ExecutorSettings(tools=frozenset(TOOLS), gate=gate))

    rig.ask(ToolRequest(CallId("r1/3"), "r1", 1, 1, 0, "pay", "{}", "key", effect, 3_000))
    rig.turn(after_ms=100)

    assert len(rig.started) == (pool == "payments")
    assert not rig.claims or pool == "payments", "nothing is claimed for what nobody here may do"
    codes = [said.failure.code for said in rig.results if said.failure]
    assert codes == ([] if pool == "payments" else ["wrong_pool"])


@pytest.mark.parametrize("status", ["completed", "failed", "broken", "doubt", "unauthorised"])
@pytest.mark.parametrize("over", [False, True], ids=["while it is open", "when it is settled"])
def test_a_planner_takes_no_answer_of_another_pool(status: str, over: bool) -> None:
    rig = PlannerRig(pools=("default", "web"))
    rig.start("r1", "paying", {"what": "x"})
    rig.run()
    (order,) = rig.requests()

    if over:
        rig.answer(order, result='"paid"')
        rig.run()
    rig.answer(order, status, result='"made up"', pool="web")
    rig.run()
    if not over:
        rig.answer(order, result='"paid"')
        rig.run()

    assert outcomes(rig) == [("completed", '"paid"')]
    assert over or letters(rig) == [(topics.tool_completed("web"), "wrong_pool")]
    assert over or "input.dead" in rig.alarms


def test_what_another_pool_says_and_nobody_can_read_settles_nothing() -> None:
    rig = PlannerRig(pools=("default", "web"))
    rig.start("r1", "paying", {"what": "x"})
    rig.run()
    (order,) = rig.requests()

    rig.write(topics.tool_completed("web"), order.call_id, b"nonsense")
    rig.run()
    assert outcomes(rig) == []
    rig.answer(order, result='"paid"')
    rig.run()

    assert outcomes(rig) == [("completed", '"paid"')]
    assert letters(rig) == [(topics.tool_completed("web"), "malformed")]


def outcomes(rig: PlannerRig) -> list[tuple[str, str]]:
    records = rig.broker.log(topics.RUN_COMPLETED, 0).records
    told = [codec.decode(RunOutcome, record.value) for record in records if record.value]
    return [(outcome.status, outcome.result) for outcome in told]


def letters(rig: PlannerRig) -> list[tuple[str, str]]:
    records = rig.broker.log(topics.DEAD_LETTER, 0).records
    told = [codec.decode(DeadLetter, record.value) for record in records if record.value]
    return [(letter.topic, letter.code) for letter in told]
