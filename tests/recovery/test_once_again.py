"""Whether a `once` call goes out again by what the claim chain says. A planner says nothing of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval.catalog import Catalog, Halts
from refold.core.ids import CallId, RunId, home
from refold.core.messages import ToolClaim, ToolRequest
from refold.core.wire import codec
from refold.engine.executor.gate import Gate
from refold.engine.ports.effects import Append, Effect, Item
from refold.engine.ports.log import Delivery, Revoked
from tests.recovery.shop import LEASE_MS, TOOLS, Shop, claim, order, settled, tried

# What the chain says by itself


def test_a_try_that_says_that_nothing_came_of_it_needs_nobody_to_be_tried_again() -> None:
    shop = tried("failed")

    for attempt in (2, 3):
        shop.ask(order(attempt))
        shop.end("failed")
    shop.ask(order(4))
    shop.end(result='"ok"')

    assert shop.tries() == [1, 2, 3, 4]
    assert shop.said() == "completed"
    assert shop.links()[:4] == ["claim 1", "undone 1", "claim 2", "undone 2"]


@pytest.mark.parametrize("status", ["unknown", "broken", "completed"])
def test_a_try_of_which_anything_may_have_come_is_in_doubt_at_the_next_one(status: str) -> None:
    shop = tried(status)
    shop.ledger.wipe()

    shop.ask(order(2))

    assert shop.tries() == [1]
    assert shop.said() == "doubt: in_doubt"
    assert shop.links()[-1] == "doubt 2"


def test_a_doubt_that_was_declared_is_no_try_but_what_was_before_it_stays_one() -> None:
    shop = tried()
    for attempt in (2, 3):
        shop.ask(order(attempt))

    assert shop.tries() == [1]
    assert shop.links() == ["claim 1", "doubt 2", "doubt 3"]


def test_the_same_attempt_is_never_claimed_twice_not_even_after_nothing_came_of_it() -> None:
    """Who died between the link and the result, or whose ledger forgot: others may act on it by now."""
    shop = tried("failed")
    shop.ledger.wipe()

    shop.ask(order(1))

    assert (shop.tries(), shop.said()) == ([1], "doubt: in_doubt")
    shop.ask(order(2))
    assert shop.tries() == [1, 2]


def test_the_chain_hears_that_nothing_came_of_it_before_the_ledger_does() -> None:
    shop = Shop()
    shop.ask(order())
    shop.did.clear()

    shop.end("failed")

    assert shop.did == ["link", "result"]
    assert shop.said().startswith("failed")


def test_a_link_that_comes_after_a_declared_doubt_is_void_and_people_are_asked() -> None:
    shop = Shop()
    shop.ask(order())
    (head,) = (codec.decode(ToolClaim, record.value or b"") for record in shop.claims)
    doubt = replace(head, claim_id="another", prev=head.claim_id, doubt=True, executor="another")
    shop.foreign(doubt)

    shop.end("failed")

    assert shop.said().startswith("unknown")
    shop.ask(order(2))
    shop.turn(after_ms=LEASE_MS)
    assert (shop.tries(), shop.said()) == ([1], "doubt: in_doubt")


def test_a_failure_after_the_timeout_is_told_and_needs_nobody_either() -> None:
    shop = Shop()
    shop.ask(order())
    shop.turn(after_ms=3_000)
    assert shop.said() == "unknown: timeout"

    shop.end("failed")

    assert (shop.results[-1].status, shop.results[-1].late) == ("failed", True)
    shop.ask(order(2))
    assert shop.tries() == [1, 2]


def test_what_is_halted_between_its_claim_and_its_effect_is_taken_back() -> None:
    shop = Shop()
    shop.between = lambda: setattr(shop.catalog, "halts", Halts().with_entry("all", "stop"))

    shop.ask(order())

    assert (shop.tries(), shop.said()) == ([], "unauthorised: halted")
    shop.between = lambda: None
    shop.catalog.halts = Halts()
    shop.ask(order(2))
    assert shop.tries() == [2]
    assert shop.links() == ["claim 1", "undone 1", "claim 2"]


def test_a_link_under_way_when_the_partition_goes_is_told_all_the_same() -> None:
    shop = Shop()
    shop.ask(order())
    shop.deaf = True
    shop.end("failed")
    assert shop.results == []

    shop.turn(Revoked(0))
    shop.turn(after_ms=100)

    assert shop.said().startswith("failed")


def test_a_tool_that_fails_when_the_partition_is_gone_takes_its_claim_back_too() -> None:
    shop = Shop()
    shop.ask(order())
    shop.turn(Revoked(0))

    shop.end("failed")

    assert shop.links() == ["claim 1", "undone 1"]
    assert shop.said().startswith("failed")


def test_who_waits_for_a_claim_goes_on_when_it_is_taken_back() -> None:
    shop = Shop()
    shop.foreign(claim(1, "c1"))
    shop.ask(order(2))
    assert shop.tries() == []

    shop.foreign(claim(1, "u1", "c1", undone=True))

    assert shop.tries() == [2]


@pytest.mark.parametrize(
    "link",
    [
        claim(1, "u1", "d1", undone=True),
        claim(2, "u1", "d1", undone=True),
        claim(2, "u1", "d1", undone=True, doubt=True),
    ],
)
def test_only_a_claim_to_act_is_taken_back_and_by_its_own_name(link: ToolClaim) -> None:
    shop = Shop()
    for each in (claim(1, "c1"), claim(2, "d1", "c1", doubt=True), link):
        shop.foreign(each)

    shop.ask(order(3))
    shop.turn(after_ms=LEASE_MS)

    assert (shop.tries(), shop.said()) == ([], "doubt: in_doubt")


@pytest.mark.parametrize("changes", [{"attempt": 2}, {"call_id": "run-1/7"}, {"doubt": True}])
def test_a_link_about_another_attempt_than_the_one_before_it_is_void(changes: dict[str, Any]) -> None:
    shop = Shop()
    for each in (claim(1, "c1"), replace(claim(1, "u1", "c1", undone=True), **changes)):
        shop.foreign(each)

    shop.ask(order(3))
    shop.turn(after_ms=LEASE_MS)

    assert (shop.tries(), shop.said()) == ([], "doubt: in_doubt")


# What a planner says


def test_an_order_says_nothing_of_the_class() -> None:
    shop = tried()

    for effect in ("pure", "keyed", "probed"):
        shop.ask(order(2, effect=effect))

    assert shop.tries() == [1]
    assert {result.status for result in shop.results} == {"unknown", "doubt"}


# What another version of the tool has done


@pytest.mark.parametrize("sent", [{"attempt": 2}, {"again": True}], ids=["a later attempt", "an attempt sent again"])
def test_what_went_out_while_its_tool_was_keyed_has_no_claims_so_it_is_in_doubt(sent: dict[str, Any]) -> None:
    shop = Shop()

    shop.ask(replace(order(effect="keyed"), **sent))

    assert (shop.tries(), shop.said()) == ([], "doubt: in_doubt")
    shop.ask(order(3, effect="keyed"))  # and nobody makes a beginning of the doubt
    assert shop.tries() == []


def test_the_first_try_of_a_call_that_was_proposed_while_its_tool_was_keyed_is_one() -> None:
    shop = Shop()

    shop.ask(order(effect="keyed"))

    assert (shop.tries(), shop.links()) == ([1], ["claim 1"])


def test_a_tool_that_can_be_asked_by_now_is_asked_what_came_of_a_try_without_a_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TOOLS, "pay", replace(TOOLS["pay"], effect="probed"))
    shop = Shop()

    shop.ask(order(2, effect="keyed"))

    assert [start.probe for start in shop.started] == [True]


@pytest.mark.parametrize(("effect", "probes", "said"), [("once", [], ["doubt"]), ("probed", [True], [])])
def test_an_order_of_a_run_whose_claims_were_erased_is_none_that_nobody_has_begun(
    effect: Any, probes: list[bool], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOOLS, "pay", replace(TOOLS["pay"], effect=effect))
    shop = Shop()
    for run in ("run-1", "run-2"):
        shop.erased(run)

    shop.ask(order(effect=effect))

    assert ([start.probe for start in shop.started], [result.status for result in shop.results]) == (probes, said)
    shop.ask(order(call="run-3/5", effect=effect))
    assert [start.probe for start in shop.started] == [*probes, False], "of others nothing was erased"


def test_what_follows_the_erasure_of_a_chain_begins_none_whatever_comes_with_it() -> None:
    shop = Shop()
    shop.erased("run-1")

    # A link of another run under the same key, the first attempt, and one that people have settled before.
    other = replace(order(2, call="run-9/5", effect="keyed", key=order().key), run_id=RunId("run-9"))
    for asked in (other, order(), settled(order(2))):
        shop.ask(asked)
        shop.turn(after_ms=LEASE_MS)

    assert shop.tries() == []
    assert [result.status for result in shop.results] == ["doubt"] * 3


def test_a_doubt_that_nothing_precedes_stands_for_the_claim_that_the_log_has_lost() -> None:
    before, shop = Shop(), Shop()
    before.ask(order())
    shop.now_ms, shop.ledger = before.now_ms, before.ledger
    shop.ledger._clock = lambda: shop.now_ms
    shop.turn(after_ms=2 * LEASE_MS)
    shop.ask(order())
    assert (shop.tries(), shop.links()) == ([], ["doubt 1"])

    shop.turn(after_ms=2 * LEASE_MS)
    shop.ask(order(2))
    # What a retry of the run asks for: another call, with the same effect.
    shop.turn(after_ms=2 * LEASE_MS)
    shop.ask(order(call="run-1/9"))

    assert shop.tries() == []
    shop.turn(after_ms=2 * LEASE_MS)
    shop.ask(settled(order(3)))
    assert shop.tries() == [3], "people have the last word"


@pytest.mark.parametrize("effect", ["once", "probed", "pure"])
def test_an_order_where_the_claims_of_its_run_are_not_is_refused(effect: str) -> None:
    gate, request = Gate(TOOLS, "test", partitions=2), order(2, effect=effect)
    here = home(request.run_id, 2)
    stray = replace(request, call_id=CallId("run-9/5"))

    def refused(at: int, ordered: ToolRequest) -> str:
        found = gate.refusal(ordered, Catalog(), partition=at, now_ms=1)
        return found.code if found and not found.stale else ""

    assert (refused(here, request), refused(1 - here, request), refused(here, stray)) == (
        "",
        "unauthorised",
        "unauthorised",
    )


def test_an_order_whose_key_no_planner_has_made_is_put_away_and_ends_nobody() -> None:
    shop = Shop()

    shop.ask(order(key="k" * 70_000))

    assert (shop.tries(), shop.executor.counts["input.dead"]) == ([], 1)
    shop.ask(order(2))
    assert shop.tries() == [2]


@pytest.mark.parametrize("asked", [order(3), order(call="run-1/9")], ids=["the next attempt", "a retry of the run"])
@pytest.mark.parametrize("follows", ["", "c1"], ids=["nothing", "what the log has lost"])
def test_a_doubt_holds_back_what_comes_after_it_whatever_it_follows(asked: ToolRequest, follows: str) -> None:
    shop = Shop()
    shop.foreign(claim(2, "d1", follows, doubt=True))
    shop.turn(after_ms=2 * LEASE_MS)

    shop.ask(asked)
    shop.turn(after_ms=2 * LEASE_MS)

    assert shop.tries() == []


@pytest.mark.parametrize("call", ["nonsense", "a b/3", "run-1/", "", "run-1/5x"])
def test_an_order_of_what_is_no_call_ends_nobody_where_claims_were_erased(call: str) -> None:
    shop = Shop()
    shop.erased("other")

    shop.ask(replace(order(), call_id=CallId(call)))
    shop.turn(after_ms=100)

    shop.ask(order(call="run-2/5"))
    assert shop.started[-1].request.call_id == "run-2/5"


def test_who_takes_the_record_away_that_claims_were_erased_has_claims_count_again() -> None:
    shop = Shop()
    shop.erased("run-1")
    shop.erased("run-1", back=True)

    shop.ask(order())

    assert shop.tries() == [1]


# What the chain has lost, and the ledger knows of


def test_an_older_claim_of_the_call_is_no_knowledge_of_one_that_the_log_has_lost() -> None:
    shop = tried("failed")
    shop.ask(order(2))
    assert (shop.tries(), shop.links()) == ([1, 2], ["claim 1", "undone 1", "claim 2"])
    shop.claims.pop()

    successor = shop.successor()
    successor.turn(after_ms=LEASE_MS)
    successor.turn(after_ms=LEASE_MS)

    assert (successor.started, [result.status for result in successor.told(order().call_id)]) == ([], ["doubt"])


def test_who_lets_go_of_a_doubt_leaves_what_the_ledger_knew_of_the_claim_before() -> None:
    shop = tried("failed")
    shop.ask(order(2))
    shop.claims.pop()
    successor = shop.successor()
    carry_out = successor._carry_out

    def unknown(effect: Effect) -> list[Item]:
        """The log does not say whether it has taken a claim, and it has not."""
        if not isinstance(effect, Append):
            return carry_out(effect)
        return [Delivery(record.token, None, 0) for record in effect.records]

    successor._carry_out = unknown  # type: ignore[method-assign, assignment]
    successor.turn(after_ms=LEASE_MS)
    successor.turn(after_ms=LEASE_MS)
    assert (successor.started, successor.told(order().call_id)) == ([], [])
    successor._carry_out = carry_out  # type: ignore[method-assign]
    successor.ask(order(2, again=True))
    successor.turn(after_ms=LEASE_MS)

    assert (successor.started, [result.status for result in successor.told(order().call_id)]) == ([], ["doubt"])


def test_of_two_claims_of_a_call_under_two_keys_the_later_lets_go() -> None:
    shop = Shop()
    shop.between = lambda: shop.foreign(claim(1, "x1", key="of other arguments"))

    shop.ask(order())

    assert (shop.tries(), shop.results) == ([], [])
