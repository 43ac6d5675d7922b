"""Claims that a mirror has repeated and a cleaner put into another order: an effect still meets what was claimed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.ids import CallId
from refold.core.messages import ToolClaim, ToolRequest
from refold.core.wire import codec
from refold.engine.executor.claim_chain import Claims, Lineage, record_key
from refold.engine.ports.log import Outgoing, Record
from tests.recovery.executor_rig import CLAIMS, Rig

ORDER = ToolRequest(CallId("r1/3"), "r1", 1, 2, 0, "fire", "{}", "key", "once", 3_000)


def link(name: str, prev: str, attempt: int, **more: bool) -> ToolClaim:
    return replace(ToolClaim(ORDER.call_id, name, prev, attempt, False, "elsewhere", "key"), **more)


C1, U1, C2 = link("c1", "", 1), link("u1", "c1", 1, undone=True), link("c2", "u1", 2)
U2, C3 = link("u2", "c2", 2, undone=True), link("c3", "u2", 3)
LOST = link("x2", "u1", 2)


def read(claims: Sequence[ToolClaim]) -> Claims:
    found = Claims()
    for offset, claim in enumerate(claims):
        found.follow(Record(CLAIMS, 0, offset, record_key(claim), codec.encode(claim), lambda: None, 7), offset)
    return found


def meets(claims: Sequence[ToolClaim], attempt: int) -> Lineage:
    return read(claims).of(replace(ORDER, attempt=attempt))


@pytest.mark.parametrize("effect", ["once", "probed"])
@pytest.mark.parametrize("order", [(C1, U1, C2), (C1, C2, U1), (C2, U1, C1), (U1, C2, C1)], ids=repr)
def test_an_attempt_that_was_claimed_elsewhere_does_not_begin_wherever_its_claims_lie(
    order: tuple[ToolClaim, ...], effect: str
) -> None:
    """Attempt 1 was taken back, attempt 2 acted; its site is lost with its Redis, and the claims come by a mirror."""
    rig = Rig()
    for claim in order:
        rig.claims.append(Outgoing(CLAIMS, 0, record_key(claim), codec.encode(claim), (), 0))
    for offset in range(len(rig.claims)):
        rig.turn(*rig._claimed(offset))

    rig.ask(replace(ORDER, effect=effect))
    rig.turn(after_ms=100_000)

    assert [start.probe for start in rig.started] == [True] * (effect == "probed")
    if effect == "once":
        assert rig.told(ORDER.call_id)[-1].status == "doubt"


@given(st.permutations([C1, U1, C2, U2, C3]), st.integers(0, 4))
def test_copies_in_any_order_make_the_chain_that_was_written(order: list[ToolClaim], again: int) -> None:
    found = meets([*order, order[again]], 3)

    assert (found.head, found.claimed, found.open, found.begun) == ("c3", True, True, 3)


@given(st.permutations([C1, U1, C2, LOST]))
def test_where_two_competed_and_the_order_is_lost_somebody_may_have_acted(order: list[ToolClaim]) -> None:
    found = meets(order, 2)

    assert found.claimed
    assert found.open


@given(st.permutations([C1, U1, C2, U2, LOST]))
def test_a_link_that_takes_one_of_two_back_clears_nothing_where_the_order_is_lost(order: list[ToolClaim]) -> None:
    at = {claim.claim_id: place for place, claim in enumerate(order)}
    disturbed = at["u1"] < at["c1"] or min(at["c2"], at["x2"], at["u2"]) < at["u1"] or at["u2"] < at["c2"]

    found = meets(order, 2)

    assert found.claimed
    assert found.open or not disturbed


def test_a_claim_whose_predecessor_is_gone_for_good_counts_as_one_that_may_have_acted() -> None:
    found = meets([C1, C2], 2)

    assert (found.head, found.claimed, found.open, found.begun) == ("c1", True, True, 2)


def test_in_an_undisturbed_log_who_comes_second_is_void_and_changes_nothing() -> None:
    found = meets([C1, U1, C2, LOST, U2], 3)

    assert (found.head, found.claimed, found.open) == ("u2", False, False)


def test_a_long_chain_in_reverse_is_read() -> None:
    names = [f"n{number}" for number in range(300)]
    chain = [link(name, prev, number) for number, (prev, name) in enumerate(zip(["", *names], names, strict=False), 1)]
    random.Random(1).shuffle(chain)

    assert meets(chain, 300).head == names[-1]
