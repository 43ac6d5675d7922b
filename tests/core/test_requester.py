"""Who asked for a run: a name is believed where a key of the catalog vouches for it, and nowhere else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from refold.core.approval import ballot
from refold.core.approval.authority import Authority
from refold.core.approval.catalog import Catalog, Roles
from refold.core.approval.policy_check import unfounded
from refold.core.approval.question import bound, bound_request, named, question_digest
from refold.core.approval.requester import (
    FRESH_MS,
    TOKEN_CHARS,
    check_token,
    is_verified,
    quorum_of,
    signed,
    signed_ms,
    why_refused,
)
from refold.core.approval.signature import KeyRing, PublicKey, SigningKey
from refold.core.errors import MalformedError, UsageError
from refold.core.events import Requirement, RunCancelled, RunPaused, Spendable
from refold.core.messages import ApprovalRequest, RunRequest, RunSignal
from refold.core.planning.verdict import Ignore, Refuse, Rules
from tests.approval.questions import NOW, ROLES, request, vote
from tests.core.decisions import VOTING, made, votes_of
from tests.core.histories import RUN, Log, signal, start
from tests.roots import TRUST, publish

ADA, EVE = (SigningKey(f"{name}-key", "request", bytes([number]) * 32) for number, name in enumerate(("ada", "eve"), 1))
KEYS: Mapping[str, PublicKey] = {
    ADA.kid: ADA.public(actors=("ada",)),
    EVE.kid: EVE.public(actors=("eve",)),
}
ASKED = RunRequest("run-1", "deploy", '{"a":1}', "ada")
TOKEN = signed(ASKED, ADA, NOW).token


def asked(**changes: Any) -> ApprovalRequest:
    return request(**{"requester": "ada", "token": TOKEN, **changes})


def test_a_request_that_the_requester_signed_is_verified() -> None:
    check_token(signed(ASKED, ADA, NOW))
    assert is_verified(asked(), KEYS)


def test_the_token_is_bound_by_the_question() -> None:
    assert asked().question != asked(token="").question


@pytest.mark.parametrize("run", ["run-1.3", "run-1.3.12", "run-1.7_2"])
def test_who_has_signed_the_request_of_a_family_has_asked_for_its_children(run: str) -> None:
    assert is_verified(asked(run_id=run, agent="another"), KEYS)
    assert not is_verified(asked(run_id=run, agent="another", requester="eve"), KEYS)


@pytest.mark.parametrize("run", ["run-1", "run-1.3"])
def test_who_has_signed_a_word_on_a_run_has_not_asked_for_it(run: str) -> None:
    word = signed(dataclasses.replace(signal("cancel", '{"reason":"not mine"}'), actor="ada"), ADA, NOW)

    assert word.run_id == "run-1"
    assert not is_verified(asked(run_id=run, token=word.token), KEYS)


@pytest.mark.parametrize("run", ["run-11.3", "run-2.1", "run-1-1.3", ".run-1"])
def test_a_token_is_for_its_own_family(run: str) -> None:
    assert not is_verified(asked(run_id=run, agent="another"), KEYS)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "run-2"},
        {"agent": "other"},
        {"requester": "eve"},
        {"requester": "Ada"},
        {"token": ""},
        {"token": "x"},
        {"token": signed(ASKED, EVE, NOW).token},
        {"token": signed(dataclasses.replace(ASKED, requester="eve"), ADA, NOW).token, "requester": "eve"},
    ],
)
def test_what_somebody_else_has_signed_or_for_something_else_verifies_nobody(changes: dict[str, str]) -> None:
    assert not is_verified(dataclasses.replace(asked(), **changes), KEYS)


@pytest.mark.parametrize(
    "more",
    [{"revoked": True}, {"retired_ms": NOW}, {"not_before_ms": NOW + 1}, {"actors": ("eve",)}, {"use": "vote"}],
)
def test_a_key_that_may_not_say_so_verifies_nobody(more: dict[str, Any]) -> None:
    assert not is_verified(asked(), {ADA.kid: dataclasses.replace(KEYS[ADA.kid], **more)})


def test_a_gateway_vouches_for_everybody_with_a_name() -> None:
    gateway = {ADA.kid: ADA.public()}

    for name, verified in (("eve", True), ("", False), ("\u0430da", False)):
        token = signed(dataclasses.replace(ASKED, requester=name), ADA, NOW).token
        assert is_verified(asked(requester=name, token=token), gateway) is verified


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "run-2"},
        {"agent": "other"},
        {"input": '{"a":2}'},
        {"requester": "eve"},
        {"token": "a.b.c"},
        {"token": "x" * (TOKEN_CHARS + 1)},
        {"token": "e30.W10.e30"},
        {"token": "e30.e30.e30"},
    ],
)
def test_a_token_of_another_request_is_not_taken(changes: dict[str, str]) -> None:
    with pytest.raises(MalformedError):
        check_token(dataclasses.replace(ASKED, **{"token": TOKEN, **changes}))


def test_what_would_not_be_taken_is_not_signed() -> None:
    with pytest.raises(UsageError):
        signed(dataclasses.replace(ASKED, agent="\u5b57" * 2_000), ADA, NOW)


def test_while_nobody_signs_a_clear_name_is_believed_and_then_no_more() -> None:
    claimed, free = asked(token=""), asked(token="", requirement=Requirement(["role:lead"], not_requester=False))

    assert quorum_of(claimed, {}) == 1
    assert quorum_of(claimed, KEYS) == 2
    assert quorum_of(asked(), KEYS) == 1
    assert quorum_of(asked(), {ADA.kid: ADA.public(revoked=True)}) == 2
    assert quorum_of(free, KEYS) == 1


def test_one_person_decides_where_the_requester_is_verified() -> None:
    roles = dataclasses.replace(ROLES, askers=KEYS)
    alone, claimed = asked(requester="ada"), asked(token="")

    assert ballot.count(alone, [vote(alone, "bob")], roles, NOW + 1_000).settled
    assert not ballot.count(claimed, [vote(claimed, "bob")], roles, NOW + 1_000).settled
    assert ballot.count(claimed, [vote(claimed, "bob"), vote(claimed, "cyd")], roles, NOW + 1_000).settled


def catalog(**more: Any) -> Catalog:
    """What the root key has said of keys and roles."""
    found = Catalog(TRUST)
    public = {**KEYS, ADA.kid: dataclasses.replace(KEYS[ADA.kid], **more), VOTING.kid: VOTING.public()}
    for key in public.values():
        assert publish(found, f"key/{key.kid}", "key", key.content()) == ""
    return found


def test_an_executor_counts_by_its_own_catalog() -> None:
    good, one = catalog(), named(asked())
    good.roles = dataclasses.replace(ROLES, askers=good.roles.askers)
    decided = made(one, votes_of(one, "bob", at=NOW), good.roles, now=NOW)

    assert unfounded(decided, good) is None

    bad = catalog(revoked=True)
    bad.roles = dataclasses.replace(ROLES, askers=bad.roles.askers)
    refused = unfounded(decided, bad)
    assert refused is not None
    assert refused.stale  # people are asked again, one more of them

    claimed = named(asked(token=""))
    hijacked = made(claimed, votes_of(claimed, "bob", at=NOW), ROLES, now=NOW)
    refused = unfounded(hijacked, good)
    assert refused is not None
    assert not refused.stale


def test_the_catalog_forgets_no_key_for_requests() -> None:
    found = catalog()

    assert publish(found, "roles", "roles", {"roles": {"lead": ["bob"]}}) == ""
    assert found.roles.askers.keys() == KEYS.keys()
    found.follow(10, f"key/{ADA.kid}".encode(), b"nobody can read this")
    assert found.roles.askers[ADA.kid].revoked
    found.follow(11, b"roles", b"nor this")
    assert found.roles.lost
    assert found.roles.askers.keys() == KEYS.keys()


def test_a_key_that_nobody_could_ever_read_may_be_one_for_requests() -> None:
    found = Catalog(TRUST)

    found.follow(0, b"key/newer", b"nobody can read this")

    assert quorum_of(asked(token=""), found.roles.askers) == 2


def test_a_key_for_votes_says_nothing_of_requesters() -> None:
    assert catalog().roles.askers.keys() == KEYS.keys()
    assert Roles().askers == {}


# What a user says of a run


def own(token: str) -> Log:
    """A run of ann's that lives where there are keys for requests."""
    log = Log(now=NOW, rules=Rules(authority=Authority({}, "test", catalog())))
    log.feed(start(requester="ada", token=token))
    return log


@pytest.mark.parametrize("first", ["", signed(dataclasses.replace(ASKED, requester="eve"), EVE, NOW).token])
def test_whoever_copies_a_request_first_does_not_take_its_signature_from_it(first: str) -> None:
    mine = start(requester="ada", token=TOKEN)

    taken = own(first).feed(mine)

    assert isinstance(taken, Refuse)
    assert "not signed" in taken.reason
    assert isinstance(own(TOKEN).feed(mine), Ignore)
    assert isinstance(own(TOKEN).feed(start(requester="ada")), Ignore)


def cancel(key: SigningKey | None = ADA, **changes: str) -> RunSignal:
    word = dataclasses.replace(signal("cancel", '{"reason":"enough"}'), actor="ada", **changes)
    return signed(word, key, NOW) if key else word


def test_who_has_signed_a_request_signs_its_end() -> None:
    assert signed_ms(cancel(), KEYS)
    assert own(TOKEN).feed(cancel()) == [RunCancelled("enough", "ada")]


@pytest.mark.parametrize(
    "word",
    [
        cancel(None),
        cancel(EVE),
        dataclasses.replace(cancel(), data='{"reason":"mine"}'),
        dataclasses.replace(cancel(), run_id="run-2"),
        dataclasses.replace(cancel(None), token=TOKEN),
        dataclasses.replace(cancel(None), token=signed(dataclasses.replace(ASKED, run_id=RUN), ADA, NOW).token),
    ],
)
def test_a_name_alone_does_not_end_it(word: RunSignal) -> None:
    found = own(TOKEN).feed(word)

    assert isinstance(found, Refuse)
    assert found.code == "operators_only"


@pytest.mark.parametrize("kind", ["cancel", "pause", "resume"])
@pytest.mark.parametrize("off_ms", [FRESH_MS + 1, -FRESH_MS - 1])
def test_what_was_signed_on_another_day_says_nothing_of_a_run(kind: str, off_ms: int) -> None:
    word = dataclasses.replace(signal(kind, "{}"), actor="ada")

    refused = own(TOKEN).feed(signed(word, ADA, NOW + off_ms))

    assert isinstance(refused, Refuse)
    assert "another day" in refused.reason


def test_a_run_that_nobody_signed_ends_by_the_name() -> None:
    assert own("").feed(cancel(None)) == [RunCancelled("enough", "ada")]


def test_a_signal_with_a_token_of_another_is_not_taken() -> None:
    check_token(cancel())
    with pytest.raises(MalformedError):
        check_token(dataclasses.replace(cancel(), token=TOKEN))


def says(kind: str, at_ms: int) -> RunSignal:
    """What ada says of her run, signed then."""
    return signed(dataclasses.replace(signal(kind), actor="ada"), ADA, at_ms)


def test_what_somebody_has_signed_once_is_not_said_again_by_others() -> None:
    log = own(TOKEN)
    pause, resume = says("pause", NOW + 1), says("resume", NOW + 2)
    log.feed(pause)
    log.feed(resume)

    for replayed in (pause, resume):
        assert isinstance(log.feed(replayed), Ignore)
    assert not log.live.paused
    assert log.feed(says("pause", NOW + 3)) == [RunPaused("ada", "", "requester", signed_ms=NOW + 3)]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"tenant": "acme"}},
        {"sessions": ["s"]},
        {"deadline_ms": 1 << 60},
        {"not_before_ms": 5},
        {"budget": Spendable(nano_usd=1 << 60)},
    ],
)
def test_a_token_is_for_all_that_was_asked(changes: dict[str, Any]) -> None:
    wanted = dataclasses.replace(ASKED, **changes)
    check_token(signed(wanted, ADA, NOW))

    with pytest.raises(MalformedError, match="another message"):
        check_token(dataclasses.replace(ASKED, token=signed(wanted, ADA, NOW).token))


@pytest.mark.parametrize("late_ms", [-FRESH_MS - 1, FRESH_MS + 1])
def test_what_was_signed_on_another_day_starts_nothing(late_ms: int) -> None:
    sent = signed(ASKED, ADA, NOW)

    assert not why_refused(sent, KEYS, NOW + FRESH_MS, set())
    assert "another day" in why_refused(sent, KEYS, NOW + late_ms, set())


def test_labels_that_limit_are_signed_once_there_are_keys() -> None:
    wanted = dataclasses.replace(ASKED, labels={"tenant": "acme", "colour": "red"})

    assert not why_refused(wanted, {}, NOW, {"tenant"})
    assert not why_refused(wanted, KEYS, NOW, {""})
    assert not why_refused(signed(wanted, ADA, NOW), KEYS, NOW, {"tenant"})
    for token in ("", signed(dataclasses.replace(wanted, requester="eve"), ADA, NOW).token):
        assert "label tenant" in why_refused(dataclasses.replace(wanted, token=token), KEYS, NOW, {"tenant"})


def test_limits_count_by_those_labels_alone_that_the_signer_vouches_for() -> None:
    wanted = dataclasses.replace(ASKED, labels={"tenant": "acme", "colour": "red"})
    sent = signed(wanted, ADA, NOW, labels=["tenant"])

    check_token(sent)
    assert not why_refused(sent, KEYS, NOW, {"tenant"})
    assert "label colour" in why_refused(sent, KEYS, NOW, {"colour", "tenant"})
    assert "label tenant" in why_refused(signed(wanted, ADA, NOW, labels=[]), KEYS, NOW, {"tenant"})
    with pytest.raises(MalformedError, match="another message"):
        check_token(dataclasses.replace(sent, labels={"tenant": "acme", "colour": "blue"}))


def test_who_wrote_the_arguments_is_left_out_and_nobody_is_verified() -> None:
    needs = Requirement(["*"])
    said = asked(token=signed(ASKED, ADA, NOW).token)
    edited = named(dataclasses.replace(said, requirement=needs, writers=["zoe"]))

    assert is_verified(said, KEYS)
    assert not is_verified(edited, KEYS)
    for name, counts in (("ada", False), ("zoe", False), ("zoe@corp.example", False), ("bob", True)):
        assert ballot.may_decide(edited, (), ROLES, name, NOW) is counts
        votes = [vote(edited, name)]
        assert (ballot.count(edited, votes, ROLES, NOW).settled is not None) is counts


def test_a_question_in_which_nobody_wrote_arguments_has_the_digest_of_before() -> None:
    said = asked(token="")

    assert "writers" not in bound(said)
    assert bound_request(bound(said)).writers == []
    edited = dataclasses.replace(said, writers=["zoe"])
    assert bound_request(bound(edited)).writers == ["zoe"]
    assert question_digest(edited) != question_digest(said)


def test_who_leaves_the_label_out_is_vouched_for_or_would_count_for_a_name_made_up() -> None:
    for name in ("ada", "nobody-1", ""):
        unsigned = dataclasses.replace(ASKED, requester=name)
        assert "without the label tenant" in why_refused(unsigned, KEYS, NOW, {"", "tenant"})
        assert not why_refused(unsigned, {}, NOW, {"tenant"})
    assert not why_refused(signed(ASKED, ADA, NOW), KEYS, NOW, {"", "tenant"})


def test_a_token_of_another_platform_verifies_nobody() -> None:
    here = KeyRing(KEYS, "production/refold.")

    for platform, counts in (("production/refold.", True), ("staging/refold.", False), ("", True)):
        token = signed(ASKED, ADA, NOW, platform).token
        word = signed(RunSignal("run-1", "s-1", "cancel", actor="ada"), ADA, NOW, platform)
        check_token(dataclasses.replace(ASKED, token=token))
        assert is_verified(asked(token=token), here) is counts
        assert (signed_ms(word, here) == NOW) is counts
        assert is_verified(asked(token=token), KEYS)
