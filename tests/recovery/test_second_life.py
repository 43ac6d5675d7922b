"""A run whose history was lost, or came back by a copy, asks for its calls a second time: effects meet their keys.

The numbers of its events, and with them the ids of its calls, need not be what they were; the keys are.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.ids import CallId
from refold.core.messages import ToolClaim, ToolRequest
from refold.core.wire import codec
from refold.engine.executor.claim_chain import Claims, record_key
from refold.engine.ports.ledger import Claim
from refold.engine.ports.log import Record
from tests.recovery.executor_rig import Rig

FIRST = ToolRequest(CallId("r1/3"), "r1", 1, 1, 0, "fire", "{}", "key", "once", 3_000)
SECOND = replace(FIRST, call_id=CallId("r1/5"))


def lived(effect: str, *, forgotten: bool = True, closed: bool = True) -> Rig:
    """A platform on which a call was carried out once; then its ledger forgot everything."""
    rig = Rig()
    first = replace(FIRST, effect=effect)
    rig.ask(first)
    rig.end(result='"ok"')
    assert [result.status for result in rig.told(FIRST.call_id)] == ["completed"]
    if closed:
        rig.close(first)
    if forgotten:
        rig.ledger.wipe()
    return rig


@pytest.mark.parametrize("request_", [SECOND, FIRST], ids=["other numbers", "the same numbers"])
def test_a_once_effect_is_in_doubt_and_does_not_happen_again(request_: ToolRequest) -> None:
    rig = lived("once")

    rig.ask(request_)
    rig.turn(after_ms=100)

    assert len(rig.started) == 1
    assert rig.told(request_.call_id)[-1].status == "doubt"


def test_a_probed_effect_is_asked_about() -> None:
    rig = lived("probed")

    rig.ask(replace(SECOND, effect="probed"))
    rig.end("happened", '"it did"')

    assert [start.probe for start in rig.started] == [False, True]
    assert [(told.status, told.result) for told in rig.told(SECOND.call_id)] == [("completed", '"it did"')]


@pytest.mark.parametrize("effect", ["keyed", "once", "probed", "pure"])
def test_a_result_that_is_stored_under_the_key_comes_back_as_that_of_the_new_call(effect: str) -> None:
    rig = lived(effect, forgotten=False, closed=False)

    rig.ask(replace(SECOND, effect=effect, attempt=2))

    assert len(rig.started) == 1
    assert [(told.attempt, told.status, told.result) for told in rig.told(SECOND.call_id)] == [(2, "completed", '"ok"')]
    rig.turn(after_ms=100)
    assert not any(rig.ledger.outbox().values())


def test_a_keyed_effect_whose_result_is_gone_is_repeated_under_its_key_and_its_failure_is_not_certain() -> None:
    rig = lived("keyed", forgotten=False)

    rig.ask(replace(SECOND, effect="keyed"))
    rig.end("failed")

    assert [start.request.key for start in rig.started] == ["key", "key"]
    assert rig.told(SECOND.call_id)[-1].status == "unknown"


def test_a_lower_attempt_than_another_life_has_claimed_is_answered_and_not_made() -> None:
    rig = lived("probed")
    rig.ask(replace(FIRST, effect="probed", attempt=2))
    rig.end("did_not_happen")
    rig.end(result='"twice"')
    rig.ledger.wipe()
    begun = len(rig.started)

    rig.ask(replace(FIRST, effect="probed", attempt=1))

    assert len(rig.started) == begun
    last = rig.told(FIRST.call_id)[-1]
    assert last.failure
    assert (last.attempt, last.status, last.failure.code, last.late) == (1, "doubt", "superseded", True)
    assert not any(rig.ledger.leases().values())


def test_the_tombstone_of_the_first_life_does_not_close_the_call_of_the_second() -> None:
    rig = lived("keyed", forgotten=True, closed=False)
    rig.ask(replace(SECOND, effect="keyed"))

    rig.close(replace(FIRST, effect="keyed"))
    rig.end(result='"again"')

    assert [told.result for told in rig.told(SECOND.call_id)] == ['"again"']


# Chains under other keys

CLAIM = ToolClaim(FIRST.call_id, "c-1", "", 1, False, "somebody")


def chains(*claims: ToolClaim) -> Claims:
    """The chains after these claims."""
    found = Claims()
    for offset, claim in enumerate(claims):
        found.follow(
            Record("tool-claimed.default", 0, offset, record_key(claim), codec.encode(claim), lambda: None), offset
        )
    return found


def test_a_claim_from_before_claims_had_keys_counts_for_its_call() -> None:
    known = chains(CLAIM).of(FIRST)

    assert (known.head, known.others, known.claimed, known.passed) == ("", ("c-1",), True, False)
    assert chains(CLAIM).of(SECOND).seen_ms == {}


def test_a_higher_attempt_whose_arguments_people_have_edited_is_seen_by_the_lower_one() -> None:
    edited = replace(CLAIM, key="key of other arguments", attempt=2)

    assert chains(replace(CLAIM, key="key"), edited).of(FIRST).passed
    assert not chains(replace(CLAIM, key="key"), replace(edited, call_id="r1/9")).of(FIRST).passed


def test_the_attempts_of_another_life_are_not_counted_with_those_of_this() -> None:
    known = chains(replace(CLAIM, key="key", attempt=7)).of(SECOND)

    assert (known.head, known.claimed, known.passed) == ("c-1", False, False)
    assert (known.shared, known.open) == (True, True)


# Tombstones


def test_a_request_that_comes_past_its_tombstone_is_not_acted_upon_and_the_planner_hears_of_it() -> None:
    rig = lived("keyed", forgotten=False)

    rig.ask(replace(FIRST, effect="keyed"))

    assert len(rig.started) == 1
    last = rig.told(FIRST.call_id)[-1]
    assert last.failure
    assert (last.status, last.failure.code, last.late) == ("unknown", "superseded", True)


@pytest.mark.parametrize("named", [True, False])
def test_what_a_settled_call_leaves_in_the_ledger_is_gone_after_an_hour(named: bool) -> None:
    rig = lived("keyed", forgotten=False, closed=False)

    rig.close(replace(FIRST, effect="keyed"), named=named)

    assert [(entry.closed, entry.result) for entry in rig.ledger.entries().values()] == [(True, b"")]
    rig.turn(after_ms=3_600_000)
    assert rig.ledger.entries() == {}


def test_a_call_that_was_cancelled_under_way_leaves_as_little() -> None:
    rig, request = Rig(), replace(FIRST, effect="keyed", timeout_ms=10_000_000)
    rig.ask(request)
    rig.close(request)
    rig.turn(after_ms=3_700_000)
    assert rig.ledger.entries() == {}

    rig.end(result='"late"')

    assert [told.result for told in rig.told(FIRST.call_id)] == ['"late"']
    assert [(entry.closed, entry.result) for entry in rig.ledger.entries().values()] == [(True, b"")]


def test_a_lapsed_lease_of_a_call_whose_tombstone_named_no_key_is_closed_and_not_taken_over() -> None:
    rig, request = Rig(), replace(FIRST, effect="keyed")
    rig.ledger.run([Claim(0, "default", request.key, request.call_id, 1, "dead", 0, rig.order(request))])

    rig.close(request, named=False)
    rig.turn(after_ms=1_000)
    rig.turn(after_ms=1_000)

    assert rig.started == []
    assert [entry.closed for entry in rig.ledger.entries().values()] == [True]


@pytest.mark.parametrize(("left_ms", "tried"), [(FIRST.timeout_ms + 1_000, True), (FIRST.timeout_ms - 1, False)])
def test_a_try_that_could_arrive_after_the_key_window_is_not_begun(left_ms: int, tried: bool) -> None:
    rig = Rig()

    rig.ask(replace(FIRST, effect="keyed", key_expires_ms=rig.now_ms + left_ms))

    assert len(rig.started) == tried
    assert [told.status for told in rig.told(FIRST.call_id)] == ([] if tried else ["doubt"])
