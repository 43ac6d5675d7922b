"""An executor that takes a call over from a dead one and may not carry it out: what became of it is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.messages import ToolClaim, ToolRequest, ToolResult
from refold.core.wire import codec
from refold.engine.executor.gate import Gate
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import Answers, AskLedger, Effect
from refold.engine.ports.ledger import Claim, Claimed, Complete
from refold.engine.ports.log import Assigned, Record
from tests.recovery.test_executor_rebalance import REQUEST, Bench, asked

REFUSING = ExecutorSettings(gate=Gate(required=("*",)))
ASSIGNED = Assigned(0, {}, {}, {"tool-claimed.default": 1, "catalog": 0})
HOUR_MS = 3_600_000


def order(request: ToolRequest) -> Record:
    """A request that comes without the decision which this executor wants to see."""
    return Record("tool-requested.default", 0, 0, request.call_id.encode(), codec.encode(request), lambda: None)


def claimed(request: ToolRequest, call: str) -> Record:
    """The claim of a call by somebody else, which is the only record of the chain."""
    claim = ToolClaim(call, "somebody-1", "", request.attempt, False, "somebody")
    return Record("tool-claimed.default", 0, 0, f"{call}/somebody-1".encode(), codec.encode(claim), lambda: None)


def said(effects: list[Effect]) -> ToolResult:
    """The result that goes to ledger and outbox."""
    ((_, complete),) = asked(effects, Complete)
    assert isinstance(complete, Complete)
    return codec.decode(ToolResult, REFUSING.seal.open("result", 0, complete.result)[1])


def refused(request: ToolRequest, chain: str, *, takeover: bool) -> ToolResult:
    """What a refusing executor says of a call, an hour after the chain was written for the call `chain`."""
    bench = Bench(REFUSING)
    found = bench.turn(ASSIGNED, claimed(request, chain), order(request))
    (batch,) = [effect for effect in found if isinstance(effect, AskLedger)]
    answers = [Claimed("before" * takeover) if isinstance(each, Claim) else [] for each in batch.operations]
    found = bench.turn(Answers(batch.batch, answers))
    return said(found if asked(found, Complete) else bench.turn(after_ms=HOUR_MS))


@pytest.mark.parametrize("takeover", [True, False])
@pytest.mark.parametrize("effect", ["once", "probed"])
def test_a_chained_call_that_somebody_has_claimed_is_in_doubt(effect: str, takeover: bool) -> None:
    result = refused(replace(REQUEST, effect=effect), REQUEST.call_id, takeover=takeover)

    assert result.failure
    assert (result.status, result.failure.code) == ("doubt", "unauthorised")


@pytest.mark.parametrize("takeover", [True, False])
@pytest.mark.parametrize("effect", ["once", "probed"])
def test_a_chained_call_that_nobody_has_claimed_was_not_sent(effect: str, takeover: bool) -> None:
    assert refused(replace(REQUEST, effect=effect), "r1/9", takeover=takeover).status == "unauthorised"


@pytest.mark.parametrize(
    ("effect", "takeover", "status"),
    [
        ("keyed", True, "unknown"),
        ("keyed", False, "unauthorised"),
        ("pure", True, "unauthorised"),
    ],
)
def test_of_other_calls_the_ledger_tells_whether_somebody_was_before(effect: str, takeover: bool, status: str) -> None:
    assert refused(replace(REQUEST, effect=effect), "r1/9", takeover=takeover).status == status
