"""What becomes of a vote, with the service on the log in memory, and the words that say it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refold.cli.commands import approval as voting
from refold.client.operations.approvals import changed
from refold.core.approval.ballot import Remember
from refold.core.approval.signature import SigningKey
from refold.core.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RefoldError,
    TimedOutError,
    UnauthorisedError,
    UsageError,
)
from refold.core.wire import canonical
from refold.engine.runtime import keys
from refold.engine.runtime.addresses import vote_key
from tests.approval.driving import GATEWAY, POLICY, SERVICE, World, request
from tests.cli.desk import Desk
from tests.cli.terminal import refold


class TestVoting:
    def test_the_last_vote_of_a_quorum_learns_of_the_decision(self, world: World, desk: Desk) -> None:
        asked = request(by="two")
        world.ask(asked)

        first, second = desk.vote(asked, "ada", "approve"), desk.vote(asked, "bob", "approve")

        assert (first.what, first.leading, first.quorum) == ("counted", 1, 2)
        assert second.what == "decided"
        assert second.decision is not None
        assert {vote.actor for vote in second.decision.votes} == {"ada", "bob"}

    @pytest.mark.parametrize(
        ("actor", "action", "more", "error", "says"),
        [
            ("ada", "edit", {"args": '{"service":1}'}, UsageError, "edit_not_possible"),
        ],
        ids=str,
    )
    def test_a_void_vote_says_why(
        self,
        actor: str,
        action: str,
        more: dict[str, Any],
        error: type[RefoldError],
        says: str,
        world: World,
        desk: Desk,
    ) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(error, match=says):
            desk.vote(asked, actor, action, **more)

    def test_a_vote_that_no_service_was_there_to_refuse_is_called_void_all_the_same(self, world: World) -> None:
        asked = request()
        world.ask(asked)

        alone = Desk(world, None)
        with pytest.raises(UsageError, match="unentitled.*no approval service answered"):
            alone.approvals.answered(*alone.force(asked, "zoe"), 0)

    @pytest.mark.parametrize("actor", ["ada", "bob", "zoe", "eve"])
    @pytest.mark.parametrize("before", ["nothing", "remind", "approve", "close"])
    def test_pages_offer_exactly_what_is_taken(self, actor: str, before: str, world: World, desk: Desk) -> None:
        asked = request(by="two")
        world.ask(asked)
        if before == "close":
            world.close(asked)
        elif before != "nothing":
            desk.vote(asked, "ada", before)
        words: dict[str, dict[str, Any]] = {
            "edit": {"args": asked.args},
            "answer": {"result": "null"},
            "comment": {"message": "why?"},
            "delegate": {"to": ("bea",)},
            "reassign": {"to": tuple(asked.requirement.approvers)},
        }

        def taken(action: str) -> bool:
            try:
                vote = desk.approvals.vote(
                    asked.approval_id, action, question=asked.question, actor=actor, **words.get(action, {})
                )
                desk.approvals.send(vote, GATEWAY, Desk(world, None))  # type: ignore[arg-type]
            except RefoldError:
                return False
            return True

        index = desk.approvals.read()
        known = index.find(asked.approval_id)
        assert known is not None
        offered = desk.approvals.offered(index, known, actor, (), GATEWAY)
        # In this order, so that no vote takes from another what it needs.
        actions = ("comment", "remind", "withdraw", "reassign", "delegate", "edit", "answer", "approve", "reject")
        assert {action for action in actions if taken(action)} == offered
        assert not desk.approvals.offered(index, known, actor, (), SERVICE), "the key is for no votes"

    def test_a_vote_by_an_unknown_key_is_not_sent(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(UnauthorisedError, match="no key x is known"):
            desk.vote(asked, "ada", "approve", key=SigningKey("x", "vote", bytes(32)))

        assert list(world.records("approval-voted")) == []

    @pytest.mark.parametrize(
        ("actor", "action", "more", "says"),
        [
            ("", "approve", {}, "'' is not a name"),
            (" ", "approve", {}, "' ' is not a name"),
            ("a\u202eda", "approve", {}, "is not a name"),
            ("ada", "delegate", {"to": ("",)}, "lists of names"),
            ("ada", "delegate", {"to": (" ",)}, "' ' is not the name of a person"),
            ("ada", "delegate", {"to": ("ada",)}, "cannot delegate to ada"),
            ("ada", "delegate", {"to": ("eve",)}, "eve has asked for the run"),
            ("ada", "delegate", {"to": ("mal",)}, "mal is revoked"),
            ("ada", "reassign", {"to": ("role: ",)}, "'role: ' is not a name"),
            ("ada", "reassign", {"to": ("eve",)}, "1 must agree, and eve are 0 who may decide"),
            ("ada", "reassign", {"to": ("role:empty", "mal")}, "are 0 who may decide"),
            ("zoe", "reassign", {"to": ("bob",)}, "would be void: zoe is none of role:lead"),
            ("zoe", "approve", {}, "would be void: zoe is none of role:lead; ada, bob may decide"),
            ("zoe", "reject", {}, "would be void: zoe is none of role:lead"),
            ("zoe", "delegate", {"to": ("ada",)}, "would be void: zoe is none of role:lead"),
            ("ada", "withdraw", {}, "said nothing"),
            ("ada", "comment", {"message": " "}, "empty comment"),
        ],
        ids=str,
    )
    def test_what_nothing_can_come_of_is_not_sent(
        self, actor: str, action: str, more: dict[str, Any], says: str, world: World, desk: Desk
    ) -> None:
        people = {"lead": ["ada", "bob"], "empty": []}
        world.publish("roles", "roles", {"roles": people, "revoked": ["mal"]})
        asked = request()
        world.ask(asked)

        with pytest.raises((UsageError, MalformedError), match=re.escape(says)):
            desk.vote(asked, actor, action, **more)

        assert list(world.records("approval-voted")) == []

    def test_a_role_that_only_logins_tell_may_be_reassigned_to(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        assert desk.vote(asked, "ada", "reassign", to=("role:night",)).what == "recorded"

    def test_a_void_vote_says_that_it_may_count_later_and_what_takes_it_back(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(UsageError, match="does not count now.*will count if zoe.*approval withdraw run-1/5"):
            desk.approvals.answered(*desk.force(asked, "zoe"))
        moved = desk.vote(asked, "ada", "reassign", to=("zoe",))

        assert moved.what == "recorded"
        assert moved.decision is not None
        assert "which is decided: approve by zoe" in voting.answer_text(moved, "reassign")

    def test_a_vote_by_somebody_revoked_says_so(self, world: World, desk: Desk) -> None:
        world.publish("roles", "roles", {"roles": {"lead": ["ada"]}, "revoked": ["ada"]})
        asked = request()
        world.ask(asked)

        with pytest.raises(UsageError, match="ada is revoked by the catalog"):
            desk.vote(asked, "ada", "approve")

    def test_a_vote_under_a_dropped_policy_says_that_the_approval_is_held(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        world.publish("current", "current", POLICY.digest)
        world.publish(f"policy/{POLICY.digest}", "policy", None)

        with pytest.raises(TimedOutError, match=f"held: its policy {POLICY.digest[:12]} is not in the catalog"):
            desk.vote(asked, "ada", "approve")

    def test_a_vote_without_a_key_for_decisions_says_that_the_approval_is_held(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        world.publish(f"key/{SERVICE.kid}", "key", SERVICE.public(revoked=True, reason="lost").content())

        with pytest.raises(TimedOutError, match="held: no key that signs decisions is in force.*keys new"):
            desk.vote(asked, "ada", "approve")

    def test_a_comment_after_all_is_over_is_not_sent(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve")
        world.close(asked)

        with pytest.raises(ConflictError, match="is closed"):
            desk.vote(asked, "bob", "comment", message="late")

    def test_a_vote_on_a_closed_question_names_the_one_that_waits_now(self, world: World, desk: Desk) -> None:
        before, after = request(), request(attempt=2, covers=2)
        world.ask(before)
        world.close(before)
        world.ask(after)

        with pytest.raises(ConflictError, match="is closed") as refused:
            desk.vote(before, "ada", "approve")

        assert refused.value.hint == f"the run waits under {after.approval_id} now"

    def test_the_id_of_a_call_names_its_approval(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        beginnings = (asked.call_id, asked.approval_id[:12], asked.approval_id)
        assert {desk.approvals.named(name) for name in beginnings} == {asked.approval_id}
        with pytest.raises(NotFoundError):
            desk.approvals.named("run-1/4")

    def test_a_vote_names_the_question_that_was_shown_and_no_other(self, world: World, desk: Desk) -> None:
        asked, other = request(), request(args='{"service":"other"}')
        world.ask(asked)

        with pytest.raises(ConflictError, match="is not the one that was shown"):
            desk.approvals.vote(asked.approval_id, "approve", question=other.question, actor="ada")

    def test_where_two_questions_are_open_the_call_names_none_of_them(self, world: World, desk: Desk) -> None:
        asked, other = request(), request(args='{"service":"other"}')
        world.ask(asked)
        world.ask(other)

        with pytest.raises(UsageError, match="has 2 open approvals"):
            desk.approvals.named(asked.call_id)
        assert desk.approvals.named(other.approval_id) == other.approval_id

    def test_the_requester_is_told_before_anything_is_sent(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(UsageError, match="may not decide"):
            desk.vote(asked, "eve", "approve")

        assert list(world.records("approval-voted")) == []

    def test_a_vote_on_what_is_decided_is_a_conflict(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "reject", message="no")

        with pytest.raises(ConflictError, match="decided already: reject by ada"):
            desk.vote(asked, "bob", "approve")

    def test_nobody_votes_on_a_question_that_is_not_what_is_shown(self, world: World, desk: Desk) -> None:
        world.ask(replace(request(), args='{"service":"other"}'))

        with pytest.raises(ConflictError, match="no service accepts the question"):
            desk.vote(request(), "ada", "approve")

    def test_without_a_service_the_vote_times_out_and_says_that_it_stays(self, world: World) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(TimedOutError, match="is recorded, and nothing has come of it"):
            Desk(world, None).vote(asked, "ada", "approve")

    def test_what_decides_nothing_is_recorded(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        assert desk.vote(asked, "zoe", "comment", message="hm").what == "recorded"
        assert desk.vote(asked, "ada", "delegate", to=("zoe",)).what == "recorded"

    def test_a_grant_is_revoked_long_after_its_approval_was_closed(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve", remember=Remember(3_600_000, 3))
        world.close(asked)

        assert desk.vote(asked, "bob", "revoke-grant").what == "recorded"
        assert desk.process is not None
        assert desk.process.service.counts["grant.revoked"] == 1

    def test_there_is_no_grant_to_revoke_where_none_was_given(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve")

        with pytest.raises(NotFoundError, match="gave no grant"):
            desk.vote(asked, "bob", "revoke-grant")

    def test_an_unknown_approval_is_not_found(self, desk: Desk) -> None:
        with pytest.raises(NotFoundError, match="there is no approval run-1/77"):
            desk.vote(request("run-1/77"), "ada", "approve")
        with pytest.raises(MalformedError):
            desk.approvals.get("nothing")

    def test_a_vote_that_says_too_much_is_not_sent(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        before = len(list(world.records("approval-voted")))

        with pytest.raises(UsageError, match=r"have 1200\d+ bytes as JSON, and a decision takes at most 252781"):
            desk.vote(asked, "ada", "reject", message="字" * 200_000)

        assert len(list(world.records("approval-voted"))) == before


class TestChanging:
    def test_one_argument_is_changed_and_the_others_stay(self) -> None:
        args = '{"after":"a","n":1,"path":"p"}'

        assert changed(args, {"n": "2", "after": canonical.dumps("2\n")}) == '{"after":"2\\n","n":2,"path":"p"}'
        assert changed(args, {"path": "123"}) == '{"after":"a","n":1,"path":"123"}'
        assert changed(args, {"path": "not json"}) == '{"after":"a","n":1,"path":"not json"}'

    def test_an_argument_that_the_call_does_not_have_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no argument m"):
            changed('{"n":1}', {"m": "2"})


class TestWords:
    def test_the_only_vote_key_of_the_folder_signs(self, tmp_path: Path) -> None:
        made = keys.new("vote", "ada")
        keys.save(made, tmp_path / "keys" / "vote.json")
        keys.save(keys.new("decision", "svc"), tmp_path / "keys" / "decision.json")

        assert vote_key("", str(tmp_path)).kid == made.kid

    @pytest.mark.parametrize("count", [0, 2])
    def test_without_one_key_there_is_no_vote(self, count: int, tmp_path: Path) -> None:
        made = [keys.new("vote", f"ada{number}") for number in range(count)]
        for key in made:
            keys.save(key, tmp_path / "keys" / f"{key.kid}.json")

        result = refold("approval", "approve", "r/5", "--data", str(tmp_path))

        assert result.exit_code == 2
        assert f"there are {count} keys for votes" in result.output
        assert all(key.kid in result.output for key in made)

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["list", "--state", "waiting"], "is not a state"),
            (["approve", "r/5", "--remember", "world"], "a grant cannot cover 'world'"),
            (["approve", "r/5", "--remember", "run", "--for", "soon"], "is not a duration"),
            (["approve", "r/5", "--remember", "run", "--for", "0"], "--for 0 grants nothing"),
            (["approve", "r/5", "--for", "1h"], "add --remember run"),
            (["approve", "r/5", "--uses", "3"], "add --remember run"),
            (["approve", "r/5", "--args", "{}", "--set", "a=1"], "given twice"),
            (["approve", "r/5", "--set", "a=1", "--remember", "run"], "a grant covers the arguments of the call"),
            (["list", "--grants", "--mine"], "--grants lists all grants"),
            (["delegate", "r/5", "ada", "bob"], "you delegate to one person"),
            (["approve", "r/5", "--args", "{"], "not JSON"),
            (["answer", "r/5", "@nowhere.json"], "cannot read nowhere.json"),
        ],
        ids=str,
    )
    def test_wrong_words_are_told_before_anything_is_asked_of_kafka(
        self, words: list[str], says: str, tmp_path: Path
    ) -> None:
        result = refold("approval", *words, "--data", str(tmp_path))

        assert result.exit_code == 2
        assert says in result.output
