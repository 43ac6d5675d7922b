"""Whether a `once` call goes out again by what people say: nothing came of the attempts before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.approval.catalog import Catalog, Halts
from refold.core.approval.decision import Decision
from refold.core.approval.policy import Policy
from refold.core.approval.signature import sign
from refold.core.events import Requirement
from refold.core.ids import CallId
from tests.core.decisions import VOTING, made, votes_of
from tests.recovery.shop import (
    KEY,
    LEASE_MS,
    MUTE,
    POLICY,
    ROLES,
    Shop,
    asked,
    claim,
    decided,
    furnish,
    order,
    settled,
    tried,
)


def test_what_people_have_said_lets_one_more_out() -> None:
    shop = tried()
    shop.ask(order(2))

    shop.ask(settled(order(3)))
    shop.end(result='"ok"')

    assert (shop.tries(), shop.said()) == ([1, 3], "completed")


def test_it_is_good_for_one_claim() -> None:
    shop = tried()
    shop.ask(settled(order(2)))
    shop.end("unknown")
    for again in (2, 3):
        shop.ledger.wipe()
        shop.ask(replace(settled(order(2)), attempt=again))

    assert shop.tries() == [1, 2]


def test_it_is_good_for_the_next_number_where_the_one_that_it_was_for_was_not_begun() -> None:
    shop, again = tried(), settled(order(2))
    shop.between = lambda: setattr(shop.catalog, "halts", Halts().with_entry("all", "stop"))
    shop.ask(again)
    shop.between, shop.catalog.halts = (lambda: None), Halts()

    shop.ask(replace(again, attempt=3))

    assert shop.tries() == [1, 3]


def test_attempts_of_another_life_of_the_run_are_not_counted_with_those_that_it_is_about() -> None:
    shop = Shop()
    shop.foreign(claim(7, "c1", call_id=CallId("run-1/9")))

    shop.ask(settled(order(2)))
    shop.turn(after_ms=LEASE_MS)

    assert shop.tries() == [2]


def test_a_policy_in_force_that_wants_to_judge_again_wants_to_ask_again() -> None:
    shop, strict = tried(), Policy.parse({**POLICY.content, "recheck": True})
    furnish(shop.catalog, strict)
    shop.catalog.current = strict.digest

    shop.ask(replace(settled(order(2)), policy=strict.digest))
    assert (shop.tries(), shop.said()) == ([1], "doubt: in_doubt")

    shop.ask(replace(settled(order(3), policy=strict.digest), policy=strict.digest))
    assert shop.tries() == [1, 3]


def test_an_honest_failure_after_it_needs_nobody() -> None:
    shop = tried()
    shop.ask(settled(order(2)))
    shop.end("failed")

    shop.ask(order(3))

    assert shop.tries() == [1, 2, 3]


def token_of(found: Decision) -> str:
    return sign(found.payload(), KEY)


SECOND = order(2)
APPROVAL = asked(SECOND, rule="large", needs=POLICY.rules[0].requirement, about="")
FOREIGN: dict[str, str] = {
    "made up": "nothing but words",
    "signed by another key": sign(decided(asked(SECOND)).payload(), replace(KEY, seed=b"x" * 32)),
    "about another call": settled(order(2, call="run-1/9", step=2)).settled,
    "about another run": settled(order(2, call="run-2/5")).settled,
    "about other arguments": settled(order(2, args='{"to":"eve"}')).settled,
    "about another attempt": settled(order(3)).settled,
    "about a call of another class": settled(SECOND, effect="probed").settled,
    "an approval": token_of(decided(APPROVAL, "lea")),
    "a rejection": token_of(decided(asked(SECOND), action="reject")),
    "an answer": token_of(decided(asked(SECOND), action="answer", result='"ok"')),
    "by people whom the policy does not name": settled(
        SECOND, needs=Requirement(["role:lead", "role:cashier"])
    ).settled,
    "by fewer than it wants": settled(SECOND, needs=replace(asked(SECOND).requirement, quorum=1)).settled,
    "by votes that are missing": token_of(replace(decided(asked(SECOND)), tokens=())),
    "under a policy that names nobody": settled(SECOND, policy=MUTE.digest).settled,
}


@pytest.mark.parametrize("token", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_is_no_word_of_theirs_about_this_is_refused_and_told(token: str) -> None:
    shop = tried()

    shop.ask(replace(order(2), settled=token))

    assert (shop.tries(), shop.said()) == ([1], "unauthorised: unauthorised")
    assert shop.executor.counts["call.unauthorised"] == 1
    assert shop.links() == ["claim 1"]


def test_it_is_told_as_well_where_nothing_was_in_doubt() -> None:
    shop = tried("failed")

    shop.ask(replace(order(2), settled="nothing but words"))

    assert (shop.tries(), shop.said()) == ([1], "unauthorised: unauthorised")


def withdrawn(catalog: Catalog, what: str) -> None:
    """Takes from the catalog what the word of people rests on."""
    if what == "key":
        catalog.keys = {**catalog.keys, KEY.kid: KEY.public(revoked=True)}
    elif what == "gateway":
        catalog.keys = {**catalog.keys, VOTING.kid: VOTING.public(revoked=True)}
    elif what == "person":
        catalog.roles = replace(ROLES, revoked=frozenset({"bob"}))
    else:
        catalog.policies.clear()
        catalog.policies[MUTE.digest] = MUTE


WITHDRAWN = ["key", "gateway", "person", "policy"]


@pytest.mark.parametrize("what", WITHDRAWN)
def test_what_does_not_hold_any_more_leaves_the_doubt(what: str) -> None:
    shop, again = tried(), settled(order(2))
    withdrawn(shop.catalog, what)

    shop.ask(again)

    assert (shop.tries(), shop.said()) == ([1], "doubt: in_doubt")
    assert shop.executor.counts["call.unauthorised"] == 0


@pytest.mark.parametrize("what", WITHDRAWN)
def test_nor_does_it_when_it_was_withdrawn_between_claim_and_effect(what: str) -> None:
    shop = tried()
    shop.between = lambda: withdrawn(shop.catalog, what)

    shop.ask(settled(order(2)))

    assert (shop.tries(), shop.said()) == ([1], "doubt: in_doubt")
    assert shop.links() == ["claim 1", "claim 2"]
    shop.ask(order(3))
    assert shop.tries() == [1]


def test_a_word_of_before_the_attempt_that_it_is_about_is_none() -> None:
    """People are asked about a doubt that is made up, look, and truly find nothing. Then the attempt goes out."""
    early = Shop()
    word = settled(order(2), asked_ms=early.now_ms).settled
    early.ask(order())
    early.end("unknown")

    early.ask(replace(order(2), settled=word))

    assert (early.tries(), early.said(), early.links()) == ([1], "doubt: in_doubt", ["claim 1", "doubt 2"])
    early.ask(settled(order(3), asked_ms=early.now_ms))
    assert early.tries() == [1, 3]


def test_one_old_vote_of_two_settles_nothing() -> None:
    shop = Shop()
    before_ms = shop.now_ms
    shop.ask(order())
    shop.end("unknown")
    again = asked(order(2), asked_ms=shop.now_ms)
    votes = [*votes_of(again, "ada", at=shop.now_ms), *votes_of(again, "bob", at=before_ms)]
    word = sign(made(again, votes, ROLES, now=shop.now_ms + 1).payload(), KEY)

    shop.ask(replace(order(2), settled=word))

    assert (shop.tries(), shop.said()) == ([1], "doubt: in_doubt")


def test_nor_is_one_that_was_kept_while_an_attempt_before_it_went_out_by_itself() -> None:
    shop = tried()
    kept = settled(order(5), asked_ms=shop.now_ms).settled
    shop.ask(settled(order(2)))
    shop.end("failed")
    shop.ask(order(3))  # what the second one has taken back needs nobody
    shop.end("unknown")

    shop.ask(replace(order(5), settled=kept))

    assert (shop.tries(), shop.said()) == ([1, 2, 3], "doubt: in_doubt")
