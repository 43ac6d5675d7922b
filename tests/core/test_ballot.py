"""What votes add up to, by example and for any order of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.approval import decision, signature
from refold.core.approval.ballot import BallotResult, Remember, Vote, count, open_vote
from refold.core.approval.catalog import Roles
from refold.core.approval.decision import Cast
from refold.core.approval.signature import SigningKey
from refold.core.errors import MalformedError, UnauthorisedError, UsageError
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from tests.approval.questions import NOW, ROLES, request, vote
from tests.core.ballots import ONE, SOON, TWO, reservation, verdict, why

KEY = SigningKey("gateway", "vote", bytes(32))


class TestWhoCounts:
    def test_nothing_is_decided_without_votes(self) -> None:
        assert reservation(ONE, [], ROLES) is None

    def test_one_person_of_the_role_decides(self) -> None:
        said = vote(ONE, "ada", strength="mfa")

        found = reservation(ONE, [said], ROLES)

        cast = Cast("ada", "role:lead", "mfa", "ada-approve-1", NOW + 1)
        assert found == BallotResult("approve", (cast,), said=(said,))

    def test_somebody_else_does_not_count(self) -> None:
        said = vote(ONE, "dan")

        assert (verdict(ONE, said), why(ONE, said)) == ("open", {"dan": "unentitled"})

    def test_the_requester_does_not_count_though_entitled(self) -> None:
        asked = request(requester="ada")

        assert (verdict(asked, vote(asked, "ada")), why(asked, vote(asked, "ada"))) == ("open", {"ada": "requester"})

    def test_the_requester_counts_where_the_policy_says_so(self) -> None:
        asked = request(requester="ada", needs=Requirement(["role:lead"], not_requester=False))

        assert verdict(asked, vote(asked, "ada")) == "approve"

    def test_a_claimed_role_counts_only_where_nobody_keeps_it(self) -> None:
        asked = request(needs=Requirement(["role:lead", "role:oncall"], quorum=2))
        votes = [vote(asked, "ada"), vote(asked, "eli", roles=("lead",)), vote(asked, "fay", roles=("oncall",))]

        found = count(asked, votes, ROLES, SOON)

        assert [by.actor for _, by in found.cast] == ["ada", "fay"]

    def test_anybody_may_be_asked(self) -> None:
        asked = request(needs=Requirement(["*"]))

        assert verdict(asked, vote(asked, "zoe")) == "approve"

    def test_a_revoked_person_does_not_count(self) -> None:
        assert verdict(ONE, vote(ONE, "ada"), roles=replace(ROLES, revoked=frozenset({"ada"}))) == "open"

    def test_escalation_adds_people(self) -> None:
        asked = request(needs=Requirement(["role:lead"], escalate_to=["role:owner"]))
        said = vote(asked, "dan")

        assert verdict(asked, said) == "open"
        assert verdict(replace(asked, level=1), said) == "approve"


class TestOneVoteAPerson:
    def test_two_votes_of_one_person_are_one(self) -> None:
        assert verdict(TWO, vote(TWO, "ada", at=1), vote(TWO, "ada", at=2)) == "open"

    def test_two_people_are_a_quorum_of_two(self) -> None:
        assert verdict(TWO, vote(TWO, "ada"), vote(TWO, "dan")) == "approve"

    def test_the_latest_word_counts(self) -> None:
        assert verdict(ONE, vote(ONE, "ada", "reject", at=1), vote(ONE, "ada", at=2)) == "approve"

    def test_a_vote_can_be_withdrawn(self) -> None:
        assert verdict(TWO, vote(TWO, "ada"), vote(TWO, "ada", "withdraw", at=2), vote(TWO, "dan")) == "open"

    def test_comments_and_reminders_decide_nothing_and_are_not_void(self) -> None:
        votes = [vote(ONE, "zoe", "comment", message="hm"), vote(ONE, "eve", "remind")]

        assert (verdict(ONE, *votes), why(ONE, *votes)) == ("open", {})


class TestVerdicts:
    def test_one_rejection_decides_and_says_why(self) -> None:
        votes = [vote(TWO, "ada"), vote(TWO, "dan"), vote(TWO, "bob", "reject", at=9, message="not on a Friday")]

        found = reservation(TWO, votes, ROLES)

        assert found is not None
        assert (found.verdict, found.message, [by.actor for by in found.votes]) == (
            "reject",
            "not on a Friday",
            ["bob"],
        )

    def test_people_have_to_want_the_same_edit(self) -> None:
        edits = [vote(TWO, who, "edit", args=f'{{"n":{n}}}') for who, n in (("ada", 1), ("bob", 2), ("dan", 1))]

        assert verdict(TWO, *edits[:2]) == "open"
        found = reservation(TWO, edits, ROLES)
        assert found is not None
        assert (found.verdict, found.edited, [by.actor for by in found.votes]) == ("edit", '{"n":1}', ["ada", "dan"])

    def test_of_two_quorums_the_one_that_was_there_first_decides(self) -> None:
        asked = request(needs=Requirement(["*"], quorum=2))
        votes = [
            vote(asked, "ada", at=1),
            vote(asked, "bob", "answer", at=2, result="1"),
            vote(asked, "cyd", "answer", at=3, result="1"),
            vote(asked, "dan", at=4),
        ]

        assert verdict(asked, *votes) == "answer"

    @pytest.mark.parametrize("more", [{"action": "edit", "args": "{}"}, {"action": "answer", "result": "1"}])
    def test_what_was_sent_before_cannot_be_changed_any_more(self, more: dict[str, Any]) -> None:
        asked = request(attempt=2)
        said = vote(asked, "ada", **more)

        assert (verdict(asked, said), why(asked, said)) == ("open", {"ada": "edit_not_possible"})

    @pytest.mark.parametrize(("late", "decided"), [(-1, "approve"), (0, "open")])
    def test_a_vote_at_the_expiry_is_late(self, late: int, decided: str) -> None:
        asked = request(expires_ms=NOW + 100)
        said = vote(asked, "ada", at=100 + late)

        assert verdict(asked, said) == decided
        assert why(asked, said) == ({} if decided == "approve" else {"ada": "late"})

    def test_what_came_too_late_counts_once_the_question_is_prolonged_unless_it_is_withdrawn(self) -> None:
        asked = request(needs=Requirement(["role:lead"]), expires_ms=NOW + 100)
        longer = replace(asked, level=1, expires_ms=NOW + 900)
        late, back = vote(asked, "ada", at=150), vote(asked, "ada", "withdraw", at=160)

        assert (verdict(asked, late, back), why(asked, late, back)) == ("open", {"ada": "late"})
        assert why(asked, back) == {}
        assert (verdict(longer, late), verdict(longer, late, back)) == ("approve", "open")

    def test_a_vote_of_somebody_who_gets_the_role_later_counts_unless_it_is_withdrawn(self) -> None:
        early, back = vote(ONE, "zoe"), vote(ONE, "zoe", "withdraw", at=2)
        roles = replace(ROLES, by_role={"lead": frozenset({"zoe"})})

        assert why(ONE, early) == {"zoe": "unentitled"}
        assert (verdict(ONE, early, roles=roles), verdict(ONE, early, back, roles=roles)) == ("approve", "open")

    @pytest.mark.parametrize("other", [{"question": "another"}, {"approval": "run-1/7"}, {"environment": "prod"}])
    def test_a_vote_on_another_question_is_void(self, other: dict[str, Any]) -> None:
        said = vote(ONE, "ada", **other)

        assert (verdict(ONE, said), why(ONE, said)) == ("open", {"ada": "wrong_question"})


class TestNamesThatAreNoPersons:
    @pytest.mark.parametrize("name", ["role:lead", "role:", "handed:zoe", "*"])
    def test_nobody_is_called_like_a_role_or_a_lineage(self, name: str) -> None:
        roles = Roles({"lead": frozenset({"ada", name})})

        token = signature.sign({**vote(ONE, "ada").payload(), "actor": name}, KEY)

        with pytest.raises(MalformedError, match="is not the name of a person"):
            open_vote(token, {KEY.kid: KEY.public()})
        assert not roles.entitled([name, "role:lead", "*"], name, ("lead",))
        assert not roles.still(name, name)

    @pytest.mark.parametrize("name", ["role:lead", "handed:zoe", "*"])
    def test_nobody_decides_in_place_of_another_under_such_a_name(self, name: str) -> None:
        token = signature.sign(vote(ONE, "ada", "delegate", to=(name,)).payload(), KEY)

        with pytest.raises(MalformedError):
            open_vote(token, {KEY.kid: KEY.public()})

    @pytest.mark.parametrize("content", [{"roles": {"lead": ["ada", "role:owner"]}}, {"revoked": ["role:owner"]}])
    def test_roles_name_persons(self, content: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="'role:owner' is not the name of a person"):
            Roles.parse(content)


class TestRemembering:
    def test_an_approval_that_is_to_hold_again_gives_a_grant(self) -> None:
        said = vote(ONE, "ada", remember=Remember(60_000, 3))

        found = reservation(ONE, [said], ROLES)

        assert found is not None
        assert found.grant == (ONE.approval_id, "run", NOW + 1 + 60_000, 3, 0, "", "")

    @pytest.mark.parametrize("scope", ["session", "world", ""])
    def test_what_is_to_hold_beyond_its_run_is_no_vote(self, scope: str) -> None:
        payload = vote(ONE, "ada", remember=Remember(60_000, 3)).payload()
        payload["remember"]["scope"] = scope
        token = signature.sign(payload, KEY)

        with pytest.raises(MalformedError, match="a grant is for one run: what is wider is for a policy to allow"):
            open_vote(token, {KEY.kid: KEY.public()})

    @pytest.mark.parametrize("asked", [Remember(90_001, 1), Remember(1, 4), Remember(90_000, 3)])
    def test_more_than_the_rule_lets_be_remembered_is_void(self, asked: Remember) -> None:
        none = request(needs=Requirement(["role:lead"]))
        said, other = vote(ONE, "ada", remember=asked), vote(none, "ada", remember=asked)

        assert why(ONE, said) == ({} if asked == (90_000, 3) else {"ada": "not_remembered"})
        assert why(none, other) == {"ada": "not_remembered"}

    def test_a_grant_needs_the_quorum_and_is_the_narrowest_of_what_was_asked(self) -> None:
        votes = [
            vote(TWO, "ada", remember=Remember(60_000, 3)),
            vote(TWO, "dan", at=3),
            vote(TWO, "bob", at=2, remember=Remember(90_000, 2)),
        ]

        alone, both = reservation(TWO, votes[:2], ROLES), reservation(TWO, votes, ROLES)

        assert alone is not None
        assert alone.grant is None
        assert both is not None
        assert both.grant == (TWO.approval_id, "run", NOW + 1 + 60_000, 2, 0, "", "")


PEOPLE = ("ada", "bob", "cyd", "dan", "eve", "zoe")
SAID: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.sampled_from(
    [
        ("approve", {}),
        ("approve", {"remember": Remember(10, 2)}),
        ("edit", {"args": "{}"}),
        ("answer", {"result": "1"}),
        ("reject", {}),
        ("withdraw", {}),
        ("delegate", {"to": ("zoe",)}),
        ("delegate", {"to": ("ada",)}),
        ("reassign", {"to": ("zoe", "bob")}),
        ("reassign", {"to": ("zoe",)}),
        ("reassign", {"to": ("eve", "role:owner")}),
        ("comment", {}),
    ]
)


@st.composite
def ballots(draw: st.DrawFn) -> tuple[ApprovalRequest, list[Vote]]:
    """A request and votes of any kind, some with one id or one time."""
    asked = request(
        needs=Requirement(["role:lead", "dan"], quorum=draw(st.integers(1, 3)), escalate_to=["zoe"]),
        level=draw(st.integers(0, 1)),
        expires_ms=draw(st.sampled_from([0, NOW + 4])),
    )
    said = draw(st.lists(st.tuples(st.sampled_from(PEOPLE), SAID, st.integers(1, 5), st.integers(0, 2)), max_size=12))
    votes = [vote(asked, who, what, at=at, vote=f"v{number}", **more) for who, (what, more), at, number in said]
    return asked, votes


@given(ballots(), st.data())
def test_any_order_and_any_duplication_of_the_same_votes_gives_the_same_verdict(
    drawn: tuple[ApprovalRequest, list[Vote]], data: st.DataObject
) -> None:
    asked, votes = drawn
    again = data.draw(st.lists(st.sampled_from(votes), max_size=6)) if votes else []

    shuffled = data.draw(st.permutations(votes + again))

    assert count(asked, shuffled, ROLES, SOON) == count(asked, votes, ROLES, SOON)


@given(ballots(), st.integers(0, 12))
def test_votes_that_come_in_parts_give_the_verdict_of_the_whole(
    drawn: tuple[ApprovalRequest, list[Vote]], cut: int
) -> None:
    asked, votes = drawn
    first, second = set(votes[:cut]), set(votes[cut:])

    assert count(asked, second | first, ROLES, SOON) == count(asked, votes, ROLES, SOON)


@given(ballots())
def test_no_approval_rests_on_fewer_people_than_the_quorum_or_on_the_requester(
    drawn: tuple[ApprovalRequest, list[Vote]],
) -> None:
    asked, votes = drawn

    found = reservation(asked, votes, ROLES)

    if found and found.verdict != "reject":
        people = {by.actor for by in found.votes}
        assert len(people) == len(found.votes) >= asked.requirement.quorum
        assert "eve" not in people


@given(ballots())
def test_nobody_decides_on_the_word_of_somebody_who_has_lost_theirs(
    drawn: tuple[ApprovalRequest, list[Vote]],
) -> None:
    asked, votes = drawn

    for _, by in count(asked, votes, ROLES, SOON).cast:
        made = decision.build(asked, "approve", votes=(by,), issued_ms=NOW, nonce="")
        behind = decision.behind(made)
        people = [name for name in behind if name in PEOPLE]
        assert decision.disowned(made, ROLES) is None
        assert all(decision.disowned(made, replace(ROLES, revoked=frozenset({name}))) for name in people)
        without = {role: members - set(people) for role, members in ROLES.by_role.items()}
        assert bool(decision.disowned(made, Roles(without))) == any(name.startswith("role:") for name in behind)


@given(ballots(), st.integers(1, 3))
def test_whoever_the_policy_names_can_always_bring_a_question_to_an_end(
    drawn: tuple[ApprovalRequest, list[Vote]], quorum: int
) -> None:
    asked, votes = drawn
    needed = replace(asked.requirement, quorum=quorum)
    asked = request(needs=needed, level=asked.level)
    votes = [replace(said, question=asked.question, approval=asked.approval_id) for said in votes]
    last = [vote(asked, "bob", "reassign", at=98, to=("role:lead",))]
    last += [vote(asked, who, at=99) for who in ("ada", "bob", "cyd")]

    assert verdict(asked, *votes, *last) != "open"


class TestTokens:
    def signed(self, **more: Any) -> str:
        return signature.sign({**vote(ONE, "ada", remember=Remember(1, 1)).payload(), **more}, KEY)

    def test_a_vote_comes_out_of_its_token_as_it_went_in(self) -> None:
        said = vote(ONE, "ada", "edit", args='{"a":1}', roles=("lead",), strength="password", message="so")

        token = signature.sign(said.payload(), KEY)

        assert open_vote(token, {KEY.kid: KEY.public(roles=("lead",))}) == said
        assert open_vote(token, {KEY.kid: KEY.public(strength="mfa")}).strength == "mfa"

    def test_a_key_speaks_only_for_its_own_people(self) -> None:
        token = self.signed()

        assert open_vote(token, {KEY.kid: KEY.public(actors=("ada", "bob"))}).actor == "ada"
        with pytest.raises(UnauthorisedError, match="does not speak for ada"):
            open_vote(token, {KEY.kid: KEY.public(actors=("bob",))})

    @pytest.mark.parametrize(
        "other",
        [
            {"more": 1},
            {"kind": "decision"},
            {"actor": ""},
            {"actor": 1},
            {"vote": "a/b"},
            {"action": "Approve"},
            {"roles": "lead"},
            {"roles": [""]},
            {"to": ["zoe"]},
            {"action": "delegate", "remember": None},
            {"action": "delegate", "remember": None, "to": ["yan", "zoe"]},
            {"action": "reassign", "remember": None, "to": ["*"]},
            {"action": "reject"},
            {"action": "edit", "remember": None},
            {"action": "edit", "remember": None, "args": '{"b":1, "a":2}'},
            {"action": "edit", "remember": None, "args": "{"},
            {"action": "answer", "remember": None, "result": "01"},
            {"result": "1"},
            {"remember": {"scope": "world", "for_ms": 1, "uses": 1}},
            {"remember": {"scope": "run", "for_ms": 1, "uses": 0}},
            {"remember": {"scope": "run", "for_ms": True, "uses": 1}},
            {"remember": [1]},
        ],
        ids=str,
    )
    def test_anything_that_is_not_exactly_a_vote_is_malformed(self, other: dict[str, Any]) -> None:
        with pytest.raises(MalformedError):
            open_vote(self.signed(**other), {KEY.kid: KEY.public()})
