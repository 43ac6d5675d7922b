"""Nobody is two people by another spelling, and who asked is left out however the request spells it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.approval import ballot
from refold.core.approval.catalog import Roles, is_person
from refold.core.approval.requester import has_asked, quorum_of
from refold.core.confusables import spelt
from refold.core.errors import MalformedError, UsageError
from refold.core.events import Requirement
from tests.approval.questions import NOW, ROLES, request, vote

NOBODY = [
    *("", " ", "*", "role:lead", "handed:x", "Ada", "ADA", "ada "),
    *("\uff41da", "a\u200bda", "\u0430da", "\u0430\u0435", "a\nb"),
]
"""Names that nobody has: another spelling of one, or one that looks like another."""


@pytest.mark.parametrize("name", NOBODY)
def test_a_name_has_one_spelling_and_one_alphabet(name: str) -> None:
    assert not is_person(name)
    with pytest.raises(UsageError):
        Roles.parse({"roles": {"lead": [name]}})
    with pytest.raises(MalformedError):
        ballot.check_vote(vote(request(), name))


@pytest.mark.parametrize(
    "name", ["ada", "ada.lovelace@corp.example", "zoë", "анна", "山田太郎", "ada lovelace", "o'neil"]
)
def test_what_people_are_called_is_a_name(name: str) -> None:
    assert is_person(name)


@pytest.mark.parametrize(
    "asked", ["ada", "Ada", " ADA ", "\uff41\uff44\uff41", "ada@corp.example", "Ada@CORP.example", "\U0001d41ada"]
)
def test_whoever_asked_may_not_decide_however_the_request_spells_it(asked: str) -> None:
    question = request(requester=asked)

    count = ballot.count(question, [vote(question, "ada")], ROLES, NOW + 1_000)

    assert [problem.code for problem in count.void.values()] == ["requester"]
    assert count.settled is None
    assert not ballot.may_decide(question, [], ROLES, "ada", NOW + 1_000)


def test_two_addresses_are_two_people() -> None:
    question = request(requester="ada@corp.example")

    assert has_asked(question, "ada@corp.example")
    assert not has_asked(question, "ada@other.example")
    assert not has_asked(question, "bob")


@pytest.mark.parametrize("asked", ["", " ", "\u0430da", "a\u200bda", "\u0430\u0435", "a\u202eda"])
def test_where_nobody_can_tell_who_asked_one_more_has_to_agree(asked: str) -> None:
    question = request(requester=asked)

    alone = ballot.count(question, [vote(question, "ada")], ROLES, NOW + 1_000)
    both = ballot.count(question, [vote(question, "ada"), vote(question, "bob")], ROLES, NOW + 1_000)

    assert (alone.settled, alone.leading) == (None, 1)
    assert both.settled is not None
    assert [by.actor for by in both.settled.votes] == ["ada", "bob"]


def test_where_the_requester_may_decide_nobody_more_is_asked() -> None:
    assert quorum_of(request(requester="", needs=Requirement(["role:lead"], not_requester=False)), {}) == 1
    assert quorum_of(request(requester="eve"), {}) == 1
    assert quorum_of(request(requester="", needs=Requirement(["role:lead"], quorum=2)), {}) == 3


@given(st.text())
def test_a_name_is_spelt_once(name: str) -> None:
    assert spelt(spelt(name)) == spelt(name)
