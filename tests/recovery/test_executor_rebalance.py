"""An executor that loses a partition, for good or for a moment, while calls of it are between claim and effect."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Literal

import pytest

from refold.core.approval.policy import policy_digest
from refold.core.ids import CallId
from refold.core.messages import ToolClaim, ToolRequest, ToolResult
from refold.core.wire import codec
from refold.engine.executor.claim_chain import record_key
from refold.engine.executor.gate import Gate
from refold.engine.executor.service import HALTED_MS, Executor
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import (
    Answers,
    Append,
    AskEnd,
    AskLedger,
    Commit,
    Effect,
    Item,
    Now,
    Publish,
    StartTool,
    ToolEnded,
)
from refold.engine.ports.ledger import (
    Claim,
    Claimed,
    Close,
    Complete,
    Completed,
    Fill,
    HandOver,
    Lapsed,
    Operation,
    Renew,
    Renewed,
    Reply,
)
from refold.engine.ports.log import Assigned, Delivery, End, Outgoing, Record, Revoked
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from tests.roots import TRUST
from tests.roots import entry as signed

REQUEST = ToolRequest("r1/3", "r1", 1, 1, 0, "fire", "{}", "key", "once", 3_000)
ASSIGNED = Assigned(0, {}, {}, {"tool-claimed.default": 0, "catalog": 0})
HOUR_MS = 3_600_000


class Bench:
    """An executor, and the turns that it is given."""

    def __init__(self, settings: ExecutorSettings | None = None) -> None:
        numbers = count(1)
        relay = Relay(RelaySettings(), token=lambda: next(numbers))
        names = (f"id-{number}" for number in count(1))
        settings = settings or ExecutorSettings(trust=TRUST)
        self.executor = Executor(settings, relay, token=lambda: next(numbers), fresh=lambda: next(names))
        self._now = 0

    def turn(self, *inbox: Item, after_ms: int = 10) -> list[Effect]:
        """What it orders; it is told the time at once, and looking around is not shown."""
        self._now += after_ms
        now = Now(self._now, self._now)
        effects = self.executor.turn(list(inbox), now)
        beats = [record.token for effect in effects if isinstance(effect, Publish) for record in effect.records]
        if beats:
            effects += self.executor.turn([Delivery(token, 0) for token in beats], now)
        return [effect for effect in effects if not (isinstance(effect, AskLedger) and _looks(effect))]


def _looks(batch: AskLedger) -> bool:
    return all(isinstance(operation, Lapsed | Fill) for operation in batch.operations)


def request(offset: int, call: ToolRequest = REQUEST) -> Record:
    return Record("tool-requested.default", 0, offset, b"r1/3", codec.encode(call), lambda: None)


def entry(offset: int, name: str, kind: str, content: Any) -> Record:
    value = codec.encode(signed(name, kind, content, actor="operator", at_ms=1))
    return Record("catalog", 0, offset, name.encode(), value, lambda: None)


def claimed(offset: int, claim: ToolClaim) -> Record:
    return Record("tool-claimed.default", 0, offset, record_key(claim), codec.encode(claim), lambda: None)


def start(effects: list[Effect]) -> StartTool:
    (order,) = [effect for effect in effects if isinstance(effect, StartTool)]
    return order


def asked(effects: list[Effect], kind: type[Operation]) -> list[tuple[int, Operation]]:
    """The operations of a kind, with the numbers of their batches."""
    batches = [effect for effect in effects if isinstance(effect, AskLedger)]
    return [(batch.batch, found) for batch in batches for found in batch.operations if isinstance(found, kind)]


def answer(effects: list[Effect]) -> Answers:
    """Claims succeed, results are taken, nothing else is said."""
    (batch,) = [effect for effect in effects if isinstance(effect, AskLedger)]
    said = {Claim: Claimed(), Complete: Completed("r1/3#1")}
    return Answers(batch.batch, [said.get(type(operation), []) for operation in batch.operations])  # type: ignore[misc]


def appended(effects: list[Effect]) -> Outgoing:
    (append,) = [effect for effect in effects if isinstance(effect, Append)]
    return append.records[0]


def probing(bench: Bench, call: ToolRequest) -> StartTool:
    """The probe of a call that somebody has claimed before and left."""
    before = ToolClaim(call.call_id, "somebody-1", "", 1, False, "somebody")
    started = bench.turn(
        Assigned(0, {}, {}, {"tool-claimed.default": 1, "catalog": 0}), claimed(0, before), request(0, call)
    )
    bench.turn(answer(started))
    own = appended(bench.turn(after_ms=HOUR_MS))
    bench.turn(Delivery(own.token, 1))
    return start(bench.turn(claimed(1, codec.decode(ToolClaim, own.value or b""))))


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_claim_that_was_not_read_back_is_taken_back_before_its_call_is_handed_over(comes_back: bool) -> None:
    bench = Bench()
    claim = appended(bench.turn(answer(bench.turn(ASSIGNED, request(0)))))
    bench.turn(Delivery(claim.token, 0))

    effects = bench.turn(Revoked(0), *([ASSIGNED] if comes_back else []))
    link = appended(effects)
    undone = codec.decode(ToolClaim, link.value or b"")
    handed = bench.turn(Delivery(link.token, 1))
    bench.turn(answer(handed))

    assert (undone.undone, undone.prev) == (True, codec.decode(ToolClaim, claim.value or b"").claim_id)
    assert not asked(effects, HandOver)
    assert len(asked(handed, HandOver)) == 1
    assert bench.executor.attempts == {}


def test_a_partition_that_comes_back_has_its_calls_claimed_anew() -> None:
    bench = Bench()
    claim = appended(bench.turn(answer(bench.turn(ASSIGNED, request(0)))))
    bench.turn(Delivery(claim.token, 0))
    link = appended(bench.turn(Revoked(0), ASSIGNED))
    bench.turn(Delivery(link.token, 1))

    effects = bench.turn(request(1))

    assert len(asked(effects, Claim)) == 1


def test_a_claim_that_is_answered_after_the_partition_went_is_released() -> None:
    bench = Bench()
    claim = bench.turn(ASSIGNED, request(0))
    bench.turn(Revoked(0))

    effects = bench.turn(answer(claim))

    assert len(asked(effects, HandOver)) == 1
    assert not [effect for effect in effects if isinstance(effect, Append)]


def test_a_probe_that_ends_after_its_partition_went_is_followed_by_no_effect() -> None:
    bench, call = Bench(), replace(REQUEST, effect="probed")
    probe = probing(bench, call)

    effects = bench.turn(Revoked(0)) + bench.turn(ToolEnded(probe.number, "did_not_happen"))

    assert probe.probe
    assert not [each for each in effects if isinstance(each, StartTool)]
    assert len(asked(effects, HandOver)) == 1


@pytest.mark.parametrize("slept", [False, True])
def test_nothing_is_claimed_before_the_catalog_is_read_to_where_it_ended_when_the_partition_came(slept: bool) -> None:
    bench, behind = Bench(), replace(ASSIGNED, ends={"tool-claimed.default": 0, "catalog": 2})
    if slept:
        bench.turn(ASSIGNED)
        bench.turn(Revoked(0))

    early = bench.turn(behind, request(0)) + bench.turn(after_ms=1_000)
    ready = bench.turn(*(Record("catalog", 0, offset, b"note", b"of nobody", lambda: None) for offset in range(2)))

    assert (len(asked(early, Claim)), len(asked(ready, Claim))) == (0, 1)


def test_a_tool_that_runs_goes_on_when_its_partition_goes() -> None:
    bench = Bench()
    claim = appended(bench.turn(answer(bench.turn(ASSIGNED, request(0)))))
    bench.turn(Delivery(claim.token, 0))
    read = Record("tool-claimed.default", 0, 0, claim.key, claim.value, lambda: None)
    assert codec.decode(ToolClaim, claim.value or b"").call_id == "r1/3"
    assert [effect for effect in bench.turn(read) if isinstance(effect, StartTool)]

    effects = bench.turn(Revoked(0))

    assert asked(effects, HandOver) == []
    assert len(bench.executor.attempts) == 1


@pytest.mark.parametrize("effect", ["pure", "keyed"])
def test_nothing_begins_for_a_partition_that_went_whose_catalog_is_not_read_any_more(
    effect: Literal["pure", "keyed"],
) -> None:
    bench = Bench()
    claim = bench.turn(ASSIGNED, request(0, replace(REQUEST, effect=effect)))

    effects = [*bench.turn(Revoked(0)), *bench.turn(answer(claim))]

    assert asked(effects, HandOver)
    assert not [effect for effect in effects if isinstance(effect, StartTool)]


def test_a_policy_that_was_read_with_the_claim_is_obeyed() -> None:
    bench, content = Bench(), {"recheck": True, "rules": []}
    claim = appended(bench.turn(answer(bench.turn(ASSIGNED, request(0)))))
    bench.turn(Delivery(claim.token, 0))
    read = Record("tool-claimed.default", 0, 0, claim.key, claim.value, lambda: None)
    name = policy_digest(content)
    policy = [entry(0, f"policy/{name}", "policy", content), entry(1, "current", "current", name)]

    effects = bench.turn(read, *policy)
    assert not [effect for effect in effects if isinstance(effect, StartTool)]
    link = appended(effects)  # nothing came of the claim
    bench.turn(Delivery(link.token, 1))

    assert asked(bench.turn(claimed(1, codec.decode(ToolClaim, link.value or b""))), Complete)


def test_a_failed_try_whose_completion_was_not_answered_closes_nothing() -> None:
    bench, call = Bench(), replace(REQUEST, effect="keyed")
    tool = start(bench.turn(answer(bench.turn(ASSIGNED, request(0, call)))))
    lost = bench.turn(ToolEnded(tool.number, "failed", code="not_done"))
    bench.turn(Answers(asked(lost, Complete)[0][0], None))

    effects = bench.turn(after_ms=60_000)
    batch = next(effect for effect in effects if isinstance(effect, AskLedger))
    said: dict[type, Reply] = {Renew: Renewed(closed=True), Complete: Completed("r1/3#1")}  # it had been carried out
    later = bench.turn(Answers(batch.batch, [said.get(type(operation), []) for operation in batch.operations]))

    assert {type(operation) for operation in batch.operations} >= {Renew, Complete}
    assert not asked([*later, *bench.turn(after_ms=1_000)], Close)


def test_an_answer_from_before_a_partition_came_back_commits_nothing_that_has_to_be_read_again() -> None:
    bench = Bench()
    claim = bench.turn(ASSIGNED, request(1))
    bench.turn(Revoked(0), ASSIGNED)

    effects = [*bench.turn(answer(claim)), *bench.turn(after_ms=1_000)]

    assert not [effect for effect in effects if isinstance(effect, Commit)]


def test_a_claim_has_not_ended_while_the_tool_runs_under_it() -> None:
    bench, call = Bench(), replace(REQUEST, effect="probed", timeout_ms=100)
    probe = probing(bench, call)
    tool = start(bench.turn(ToolEnded(probe.number, "did_not_happen")))
    bench.turn(answer(bench.turn(after_ms=1_000)))
    waits = bench.turn(answer(bench.turn(request(1, replace(call, attempt=2)))))

    ended = bench.turn(ToolEnded(tool.number, "failed"), after_ms=100)

    assert (probe.probe, tool.probe) == (True, False)
    assert not [effect for effect in waits if isinstance(effect, Append)]
    assert codec.decode(ToolClaim, appended(ended).value or b"").prev == "id-2"


HALT = entry(0, "halt/tool/fire", "halt", "look first")
GOES_ON = entry(1, "halt/tool/fire", "halt", None)


def test_a_halted_call_is_not_claimed_and_is_when_it_goes_on() -> None:
    bench = Bench()

    halted = bench.turn(ASSIGNED, HALT, request(0))
    assert asked(halted, Claim) == []
    goes_on = bench.turn(GOES_ON)

    assert len(asked(goes_on, Claim)) == 1


def test_a_call_waits_while_an_agent_is_halted_that_waits_for_its_run() -> None:
    bench = Bench()
    below = replace(REQUEST, agent="worker", above=["chief", "boss"])

    halted = bench.turn(ASSIGNED, entry(0, "halt/agent/boss", "halt", "look first"), request(0, below))
    goes_on = bench.turn(entry(1, "halt/agent/boss", "halt", None))

    assert asked(halted, Claim) == []
    assert len(asked(goes_on, Claim)) == 1


def test_nothing_behind_a_halted_call_waits_for_it() -> None:
    bench = Bench()
    other = replace(REQUEST, call_id=CallId("r2/3"), tool="other")

    effects = bench.turn(ASSIGNED, HALT, request(0), request(1, other))
    claims = asked(effects, Claim)
    later = bench.turn(after_ms=HALTED_MS)
    later += bench.turn(after_ms=HALTED_MS)

    assert len(claims) == 1
    assert [effect.positions for effect in later if isinstance(effect, Commit)][-1:] == [
        {("tool-requested.default", 0): 1}
    ]


def test_what_is_halted_after_its_claim_was_never_begun_and_says_so() -> None:
    bench = Bench()
    claim = appended(bench.turn(answer(bench.turn(ASSIGNED, request(0)))))
    bench.turn(Delivery(claim.token, 0))

    effects = bench.turn(HALT, claimed(0, codec.decode(ToolClaim, claim.value or b"")))
    assert [effect for effect in effects if isinstance(effect, StartTool)] == []
    link = appended(effects)
    bench.turn(Delivery(link.token, 1))
    undone = codec.decode(ToolClaim, link.value or b"")
    effects = bench.turn(claimed(1, undone))

    assert (undone.undone, undone.attempt) == (True, 1)
    ((_, told),) = asked(effects, Complete)
    assert isinstance(told, Complete)
    result = codec.decode(ToolResult, ExecutorSettings().seal.open("result", 0, told.result)[1])
    assert result.failure is not None
    assert (result.status, result.failure.code, result.retryable) == ("unauthorised", "halted", True)


@pytest.mark.parametrize("effect", ["pure", "keyed"])
def test_what_is_halted_between_the_ledger_and_the_effect_is_not_begun(effect: str) -> None:
    bench = Bench()
    claiming = bench.turn(ASSIGNED, request(0, replace(REQUEST, effect=effect)))

    effects = bench.turn(HALT, answer(claiming))

    assert [each for each in effects if isinstance(each, StartTool)] == []
    assert len(asked(effects, Complete)) == 1


class TestBlind:
    """An executor that cannot read the end of the catalog may have missed the word that a key is revoked."""

    SETTINGS = ExecutorSettings(trust=TRUST, gate=Gate(required=("fire",)), look_ms=1_000, blind_ms=60_000)

    def bench(self) -> Bench:
        """An executor that knows all of the catalog, and has asked where it ends by now."""
        bench = Bench(self.SETTINGS)
        bench.turn(ASSIGNED)
        assert [e for e in bench.turn(after_ms=2_000) if isinstance(e, AskEnd)] == [AskEnd("catalog", 0)]
        return bench

    @pytest.mark.parametrize(("changes", "claims"), [({"tool": "fire"}, 0), ({"settled": "a word"}, 0), ({}, 1)])
    def test_it_takes_no_call_that_rests_on_what_people_say(self, changes: dict[str, str], claims: int) -> None:
        bench = self.bench()

        effects = bench.turn(request(0, replace(REQUEST, **{"tool": "other", **changes})), after_ms=90_000)

        assert len(asked(effects, Claim)) == claims

    def test_one_that_is_told_of_an_end_it_has_not_read_is_blind_too(self) -> None:
        bench = self.bench()

        bench.turn(End("catalog", 0, 5))

        assert asked(bench.turn(request(0), after_ms=90_000), Claim) == []

    def test_it_asks_once_and_goes_on_when_it_sees(self) -> None:
        bench = self.bench()
        quiet = bench.turn(after_ms=90_000)
        assert [each for each in quiet if isinstance(each, AskEnd)] == []

        bench.turn(End("catalog", 0, 0))
        again = bench.turn(after_ms=2_000)
        bench.turn(End("catalog", 0, 0))

        assert [each for each in again if isinstance(each, AskEnd)] == [AskEnd("catalog", 0)]
        assert len(asked(bench.turn(request(0)), Claim)) == 1
