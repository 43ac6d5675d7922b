"""Whoever has the key of an approval service, and no votes, can withhold decisions and make none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from refold.core.approval import ballot, decision, signature
from refold.core.approval.ballot import Remember, Vote
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.decision import SKEW_MS, Cast, Decision
from refold.core.approval.policy_check import unfounded
from refold.core.approval.question import bound, named
from refold.core.approval.signature import SigningKey
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from tests.approval.questions import NOW, ROLES, request
from tests.core.ballots import SOON
from tests.core.decisions import VOTING, made, signed, use_of, votes_of
from tests.core.test_ballot import ballots

SERVICE = SigningKey("service", "decision", bytes(32))
TWO = request(needs=Requirement(["role:lead"], quorum=2))


def catalog(roles: Roles = ROLES, **key: Any) -> Catalog:
    """What an executor has read. `key`: fields of the key for votes that are otherwise."""
    found = Catalog()
    found.keys = {VOTING.kid: VOTING.public(**key), SERVICE.kid: SERVICE.public()}
    found.roles = roles
    return found


def why(found: Decision, roles: Roles = ROLES, **key: Any) -> str:
    refused = unfounded(found, catalog(roles, **key))
    return f"{refused.code}: {refused.message}" if refused else ""


def hijacked(asked: ApprovalRequest, votes: Sequence[Vote], *actors: str, key: SigningKey = VOTING) -> Decision:
    """What a hijacked service says that these people have decided, by whatever votes it has."""
    casts = tuple(Cast(actor, "role:lead", "", f"{actor}-approve", NOW) for actor in actors)
    tokens = tuple(signed(votes, key).values())
    return decision.build(asked, "approve", votes=casts, tokens=tokens, issued_ms=SOON, nonce="n")


def honest(*actors: str, asked: ApprovalRequest = TWO) -> Decision:
    return made(asked, votes_of(asked, *(actors or ("ada", "bob")), at=NOW), ROLES, now=SOON)


def test_what_people_have_decided_is_counted_again() -> None:
    assert why(honest()) == ""


@pytest.mark.parametrize(
    ("votes", "actors", "says"),
    [
        ([], ("ada", "bob"), "0 of 2 people"),
        (votes_of(TWO, "ada", at=NOW), ("ada", "bob"), "1 of 2 people"),
        (votes_of(TWO, "ada", "ada", at=NOW), ("ada", "bob"), "1 of 2 people"),
        (votes_of(TWO, "ada", "bob", at=NOW), ("ada", "cyd"), "other people"),
        (votes_of(TWO, "ada", "eve", at=NOW), ("ada", "eve"), "has asked for the run"),
        (votes_of(request(), "ada", "bob", at=NOW), ("ada", "bob"), "another question"),
        (votes_of(TWO, "ada", "bob", at=SOON + SKEW_MS + 1), ("ada", "bob"), "ahead"),
        (votes_of(TWO, "ada", "bob", at=NOW - ballot.VOTE_MS), ("ada", "bob"), "too old"),
        (votes_of(TWO, "ada", "bob", action="reject", at=NOW), ("ada", "bob"), "say otherwise"),
    ],
)
def test_a_hijacked_service_makes_no_decision_without_the_votes(
    votes: list[Vote], actors: tuple[str, ...], says: str
) -> None:
    refused = why(hijacked(TWO, votes, *actors))

    assert refused.startswith("unauthorised: ")
    assert says in refused


def test_it_cannot_sign_the_votes_itself() -> None:
    votes = votes_of(TWO, "ada", "bob", at=NOW)

    assert "does not hold" in why(hijacked(TWO, votes, "ada", "bob", key=replace(SERVICE, use="vote")))


def test_a_key_that_is_bound_to_a_name_speaks_for_nobody_else() -> None:
    assert "does not speak for bob" in why(honest(), actors=("ada",))


@pytest.mark.parametrize("roles", [Roles({"lead": frozenset({"ada"})}), replace(ROLES, revoked=frozenset({"bob"}))])
def test_who_has_lost_what_entitled_them_is_asked_again(roles: Roles) -> None:
    assert why(honest(), roles) == "decision_revoked: bob may not decide any more"


@pytest.mark.parametrize("withdrawn", [{"revoked": True}, {"retired_ms": NOW}])
def test_so_are_people_whose_key_was_withdrawn(withdrawn: dict[str, Any]) -> None:
    assert why(honest(), **withdrawn).startswith("decision_revoked: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"requirement": replace(TWO.requirement, quorum=1)},
        {"requirement": replace(TWO.requirement, approvers=["*"])},
        {"requirement": replace(TWO.requirement, not_requester=False)},
        {"requester": "zoe"},
        {"level": 1},
        {"args": '{"service":"db"}'},
    ],
)
def test_the_question_that_people_answered_cannot_be_made_softer(changes: dict[str, Any]) -> None:
    """Neither in what the decision carries of it, nor as a question of its own."""
    found, softer = honest(), named(replace(TWO, **changes))

    assert why(replace(found, asked=bound(softer))).startswith("unauthorised: ")
    moved = replace(found, asked=bound(softer), question=softer.question, approval=softer.approval_id)
    assert why(moved).startswith("unauthorised: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "edit", "edited": '{"service":"db"}'},
        {"args": "0" * 64},
        {"key": "0" * 64},
        {"covers": 9},
        {"attempt": 2},
        {"policy": "another"},
        {"environment": "prod"},
        {"expires": SOON + 10**9},
        {"message": "ada says so"},
        {"votes": ()},
        {"tokens": ()},
        {"asked": {}},
        {"asked": {**bound(TWO), "more": 1}},
        {"asked": {**bound(TWO), "requirement": None}},
        {"asked": {**bound(TWO), "expires_ms": "0"}},
        {"asked": {**bound(TWO), "question": TWO.question}},
        {"approval": f"{TWO.call_id}~{'0' * 32}"},
    ],
)
def test_nothing_of_a_decision_is_the_word_of_who_signs_it(changes: dict[str, Any]) -> None:
    assert why(replace(honest(), **changes)).startswith("unauthorised: ")


def test_a_decision_after_the_expiry_of_its_question_is_none() -> None:
    asked = request(expires_ms=SOON, needs=Requirement(["role:lead"]))
    found = made(asked, votes_of(asked, "ada", at=NOW), ROLES, now=SOON)

    assert "after its question had expired" in why(found)


class TestGrants:
    """The use of a grant carries the decision that gave it."""

    asked = request(needs=Requirement(["role:lead"], remember_ms=10_000, remember_uses=3))
    again = request("run-1/9", step=2)

    def given(self, **more: Any) -> Decision:
        votes = votes_of(self.asked, "ada", at=NOW, remember=Remember(10_000, 2))
        return replace(made(self.asked, votes, ROLES, now=SOON), **more)

    def used(self, again: ApprovalRequest, *, use: int = 1, now: int = SOON, **more: Any) -> str:
        given = self.given(**more)
        return why(use_of(given, signature.sign(given.payload(), SERVICE), again, use=use, now=now))

    def test_it_is_counted_with_the_votes_that_gave_it(self) -> None:
        assert self.used(self.again) == ""

    @pytest.mark.parametrize("more", [{"tokens": ()}, {"verdict": "reject"}])
    def test_nobody_has_given_it(self, more: dict[str, Any]) -> None:
        assert self.used(self.again, **more).startswith("unauthorised: ")

    @pytest.mark.parametrize(
        "changes",
        [
            {"args": '{"service":"db"}'},
            {"tool": "erase"},
            {"rule": "other"},
            {"requester": "ada"},
            {"attempt": 2},
            {"about": "doubt"},
        ],
    )
    def test_it_is_for_another_call(self, changes: dict[str, Any]) -> None:
        assert "not for this call" in self.used(request("run-1/9", step=2, **changes))

    @pytest.mark.parametrize(("use", "now"), [(3, SOON), (1, NOW + 10_000)])
    def test_it_is_used_up_or_over(self, use: int, now: int) -> None:
        assert "not for this call" in self.used(self.again, use=use, now=now)

    def test_a_use_gives_no_further_one(self) -> None:
        given = self.given()
        token = signature.sign(given.payload(), SERVICE)
        first = use_of(given, token, self.again, now=SOON)

        second = use_of(first, signature.sign(first.payload(), SERVICE), request("run-1/11", step=3), now=SOON)

        assert "gives no grant" in why(second)


class TestClaims:
    """A key claims the roles that its entry lists, and no others."""

    asked = request(needs=Requirement(["role:cfo"]))

    def counted(self, *claims: str, **key: Any) -> str:
        (token,) = signed(votes_of(self.asked, "ida", at=NOW, roles=claims)).values()
        vote = ballot.open_vote(token, {VOTING.kid: VOTING.public(**key)})
        return "counts" if ballot.count(self.asked, [vote], ROLES, SOON).settled else "void"

    def test_a_key_claims_what_its_entry_lists(self) -> None:
        assert self.counted("cfo", roles=("cfo",)) == "counts"

    @pytest.mark.parametrize("key", [{}, {"actors": ("ida",)}, {"roles": ("lead",)}])
    def test_and_nothing_else(self, key: dict[str, Any]) -> None:
        assert self.counted("cfo", **key) == "void"


@given(ballots())
def test_the_votes_behind_a_verdict_give_the_same_verdict_by_themselves(
    drawn: tuple[ApprovalRequest, list[Vote]],
) -> None:
    asked, votes = drawn
    now = NOW + 3  # before some of these questions expire
    settled = ballot.count(asked, votes, ROLES, now).settled

    if settled:
        assert ballot.count(asked, settled.said, ROLES, now).settled == settled
        assert why(made(asked, votes, ROLES, now=now)) == ""
