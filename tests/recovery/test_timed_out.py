"""A tool that does not answer in time: what is said of its effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import Answers, AskLedger, StartTool
from refold.engine.ports.ledger import Claim, Claimed
from tests.recovery.test_executor_rebalance import REQUEST, Bench
from tests.recovery.test_refused_takeover import ASSIGNED, order, said


@pytest.mark.parametrize(
    ("effect", "message"),
    [("pure", "no answer within 5000 ms"), ("keyed", "no answer within 5000 ms: the effect may have happened")],
)
def test_of_a_tool_without_an_effect_none_is_told(effect: str, message: str) -> None:
    bench = Bench(ExecutorSettings())
    taken = bench.turn(ASSIGNED, order(replace(REQUEST, effect=effect, timeout_ms=5_000)))
    (batch,) = [each for each in taken if isinstance(each, AskLedger)]
    answers = [Claimed() if isinstance(each, Claim) else [] for each in batch.operations]
    started = bench.turn(Answers(batch.batch, answers))

    result = said(bench.turn(after_ms=5_000))

    assert any(isinstance(each, StartTool) for each in started)
    assert result.failure
    assert (result.status, result.failure.code, result.failure.message) == ("unknown", "timeout", message)
