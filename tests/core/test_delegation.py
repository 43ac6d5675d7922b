"""Who decides once somebody has handed that on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.approval import decision
from refold.core.approval.ballot import count
from refold.core.approval.catalog import Roles
from refold.core.approval.decision import lineage
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from tests.approval.questions import NOW, ROLES, request, vote
from tests.core.ballots import ONE, SOON, TWO, reservation, verdict, why


class TestHandingOver:
    def test_a_deputy_decides_in_the_place_of_an_approver(self) -> None:
        votes = [vote(ONE, "ada", "delegate", to=("zoe",)), vote(ONE, "zoe", at=2)]

        found = reservation(ONE, votes, ROLES)

        assert found is not None
        assert [(by.actor, by.via) for by in found.votes] == [("zoe", 'handed:["zoe","ada","role:lead"]')]

    def test_whoever_hands_over_does_not_count_beside_the_deputy(self) -> None:
        votes = [vote(TWO, "ada"), vote(TWO, "ada", "delegate", at=2, to=("zoe",)), vote(TWO, "zoe")]

        assert verdict(TWO, *votes) == "open"

    def test_an_own_vote_takes_the_place_back(self) -> None:
        votes = [vote(TWO, "ada", "delegate", to=("zoe",)), vote(TWO, "zoe", at=2), vote(TWO, "ada", at=3)]

        assert (verdict(TWO, *votes), why(TWO, *votes)) == ("open", {"zoe": "unentitled"})

    @pytest.mark.parametrize("first", ["delegate", "reassign"])
    @pytest.mark.parametrize("second", ["delegate", "reassign"])
    def test_what_was_handed_on_is_not_handed_on_again(self, first: str, second: str) -> None:
        given = vote(ONE, "ada", first, at=1, to=("yan",))
        again = vote(ONE, "yan", second, at=3, to=("zoe",))
        votes = [given, vote(ONE, "yan", "comment", at=2), again]

        counted = count(ONE, [*votes, vote(ONE, "zoe", at=4)], ROLES, SOON)

        assert counted.settled is None
        assert counted.void[again] == (
            "handed_on",
            "yan decides on the word of ada, and what was handed on is not handed on again",
        )

    @pytest.mark.parametrize("action", ["delegate", "reassign"])
    def test_who_may_not_hand_on_has_said_nothing_by_it(self, action: str) -> None:
        given = vote(ONE, "ada", "delegate", at=1, to=("zoe",))
        votes = [given, vote(ONE, "zoe", at=2), vote(ONE, "zoe", action, at=3, to=("yan",))]

        assert (verdict(ONE, *votes), why(ONE, *votes)) == ("approve", {"zoe": "handed_on"})

    @pytest.mark.parametrize("action", ["delegate", "reassign"])
    def test_a_deputy_whom_the_policy_names_too_hands_on_what_is_their_own(self, action: str) -> None:
        votes = [vote(ONE, "ada", "delegate", to=("bob",)), vote(ONE, "bob", action, at=2, to=("zoe",))]

        found = reservation(ONE, [*votes, vote(ONE, "zoe", at=3)], ROLES)

        assert found is not None
        assert [by.via for by in found.votes] == ['handed:["zoe","bob","role:lead"]']

    def test_two_who_hand_over_to_each_other_decide_nothing(self) -> None:
        votes = [vote(ONE, "ada", "delegate", to=("bob",)), vote(ONE, "bob", "delegate", to=("ada",))]

        assert verdict(ONE, *votes) == "open"

    def test_nobody_hands_over_what_they_do_not_have(self) -> None:
        assert verdict(ONE, vote(ONE, "zoe", "delegate", to=("yan",)), vote(ONE, "yan")) == "open"

    def test_the_requester_is_no_deputy(self) -> None:
        assert verdict(ONE, vote(ONE, "ada", "delegate", to=("eve",)), vote(ONE, "eve", at=2)) == "open"

    def test_an_approver_replaces_the_approvers(self) -> None:
        handed = vote(ONE, "ada", "reassign", to=("dan",))

        assert verdict(ONE, handed, vote(ONE, "bob")) == "open"
        assert verdict(ONE, handed, vote(ONE, "dan")) == "approve"

    def test_only_whom_the_policy_names_replaces_the_approvers(self) -> None:
        votes = [
            vote(ONE, "ada", "reassign", at=1, to=("dan",)),
            vote(ONE, "zoe", "reassign", at=2, to=("zoe",)),
            vote(ONE, "dan", "reassign", at=3, to=("yan",)),
        ]

        assert verdict(ONE, *votes, vote(ONE, "yan", at=5)) == "open"
        assert why(ONE, *votes) == {"zoe": "unentitled", "dan": "handed_on"}
        assert verdict(ONE, *votes, vote(ONE, "dan", at=6)) == "approve"

    @pytest.mark.parametrize("to", [("lead",), ("role:laed",), ("eve",), ("role:lead:x", "ghost")])
    def test_an_approver_of_the_policy_takes_back_what_was_reassigned_to_nobody(self, to: tuple[str, ...]) -> None:
        away = vote(ONE, "ada", "reassign", to=to)
        back = vote(ONE, "bob", "reassign", at=2, to=("role:lead",))

        assert verdict(ONE, away, vote(ONE, "bob", at=3)) == "open"
        assert verdict(ONE, away, back, vote(ONE, "bob", at=3)) == "approve"

    def test_one_of_several_who_have_to_agree_does_not_choose_the_others(self) -> None:
        votes = [
            vote(TWO, "ada", "reassign", to=("zoe", "yan")),
            vote(TWO, "zoe", at=2),
            vote(TWO, "yan", at=3),
        ]

        assert verdict(TWO, *votes) == "open"
        assert why(TWO, *votes) == dict.fromkeys(("ada", "zoe", "yan"), "unentitled")

    def test_people_to_whom_it_escalated_may_replace_the_approvers(self) -> None:
        asked = request(needs=Requirement(["role:lead"], escalate_to=["role:owner"]))
        votes = [vote(asked, "dan", "reassign", to=("zoe",)), vote(asked, "zoe", at=2)]

        assert verdict(asked, *votes) == "open"
        assert verdict(replace(asked, level=1), *votes) == "approve"

    def test_the_requester_does_not_replace_the_approvers(self) -> None:
        asked = request(requester="ada")
        votes = [vote(asked, "ada", "reassign", to=("zoe",)), vote(asked, "zoe", at=2)]

        assert (verdict(asked, *votes), why(asked, *votes)) == ("open", {"ada": "requester", "zoe": "unentitled"})

    def test_people_to_whom_it_escalates_are_asked_whatever_was_reassigned(self) -> None:
        asked = request(needs=Requirement(["role:lead"], escalate_to=["role:owner"]), level=1)

        assert verdict(asked, vote(asked, "ada", "reassign", to=("bob",)), vote(asked, "dan")) == "approve"


def handed(*words: tuple[str, str, str], by: str, asked: ApprovalRequest = ONE) -> decision.Decision:
    """The decision that somebody made after these words on who decides."""
    votes = [vote(asked, who, action, at=at, to=(to,)) for at, (who, action, to) in enumerate(words)]
    found = reservation(asked, [*votes, vote(asked, by, at=50)], ROLES)
    assert found is not None
    return decision.build(asked, found.verdict, votes=found.votes, issued_ms=NOW, nonce="")


def leads(*people: str, revoked: tuple[str, ...] = ()) -> Roles:
    return Roles({"lead": frozenset(people), "owner": frozenset({"dan"})}, frozenset(revoked))


DELEGATED = (("ada", "delegate", "zoe"),)


REASSIGNED = (("ada", "reassign", "zoe"),)


class TestAuthorityThatWasHandedOn:
    @pytest.mark.parametrize("words", [DELEGATED, REASSIGNED])
    def test_it_is_gone_once_either_has_lost_theirs(self, words: tuple[tuple[str, str, str], ...]) -> None:
        found = handed(*words, by="zoe")
        both = {"zoe", "ada"}

        lost = {who: decision.disowned(found, leads("ada", revoked=(who,))) for who in both}
        without_role = decision.disowned(found, leads("bob"))

        assert decision.disowned(found, leads("ada")) is None
        assert {who: refused and refused.message for who, refused in lost.items()} == {
            who: f"{who} may not decide any more" for who in both
        }
        assert without_role == ("decision_revoked", "ada may not decide any more", True)

    def test_whoever_was_reassigned_a_role_needs_to_keep_it(self) -> None:
        found = handed(("ada", "reassign", "role:owner"), by="dan")

        refused = decision.disowned(found, Roles({"lead": frozenset({"ada"}), "owner": frozenset({"bob"})}))

        assert refused == ("decision_revoked", "dan may not decide any more", True)

    def test_people_whom_the_policy_names_decide_by_themselves_whoever_put_them_on_the_list(self) -> None:
        found = handed(("ada", "reassign", "bob"), by="bob")

        assert found.votes[0].via == "role:lead"
        assert decision.disowned(found, leads("bob", revoked=("ada",))) is None

    def test_a_role_that_only_logins_have_is_not_asked_again_but_names_are(self) -> None:
        asked = request(needs=Requirement(["role:oncall"]))
        votes = [vote(asked, "ada", "delegate", roles=("oncall",), to=("zoe",)), vote(asked, "zoe", at=2)]

        found = reservation(asked, votes, ROLES)

        assert found is not None
        made = decision.build(asked, "approve", votes=found.votes, issued_ms=NOW, nonce="")
        assert decision.disowned(made, leads()) is None
        assert decision.disowned(made, leads(revoked=("ada",))) is not None

    def test_everybody_behind_a_vote_is_told(self) -> None:
        direct, given = handed(by="ada"), handed(("ada", "reassign", "role:owner"), by="dan")

        assert decision.behind(direct) == ["ada", "role:lead"]
        assert decision.behind(given) == ["ada", "dan", "role:lead", "role:owner"]

    @pytest.mark.parametrize("odd", ['y","b', "handed", "a,b]", "é:x"])
    def test_names_with_any_letters_come_out_as_they_went_in(self, odd: str) -> None:
        (found,) = handed(("ada", "delegate", odd), by=odd).votes

        assert lineage(found) == ((odd, odd), ("ada", "role:lead"))

    @pytest.mark.parametrize(
        "via",
        [
            *("handed:", "handed:[]", "handed:[1]", 'handed:["a","b"]', "handed:{}", 'handed:["zoe","ada"]'),
            *('handed:["zoe","yan","yan","ada","ada"]', "ada", "delegate:ada", "role:"),
        ],
    )
    def test_a_vote_does_not_hold_when_nobody_can_tell_what_entitled_it(self, via: str) -> None:
        made = handed(by="ada")
        other = replace(made, votes=(made.votes[0]._replace(actor="zoe", via=via),))

        assert decision.disowned(other, leads("ada", "zoe")) == (
            "decision_revoked",
            "zoe may not decide any more",
            True,
        )
