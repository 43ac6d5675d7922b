"""What a pool keeps to itself: its tools, its orders, its answers."""

from __future__ import annotations

import pytest

from refold.core.approval.decision import ToolFacts
from refold.core.ids import CallId
from refold.core.messages import ToolRequest
from refold.executor.gate import Gate
from refold.executor.settings import ExecutorSettings
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
