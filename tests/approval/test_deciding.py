"""What the service decides, and what it refuses, while it lives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval import decision, signature
from refold.core.approval.signature import SigningKey
from refold.core.events import Requirement
from refold.core.ids import home
from refold.core.messages import ApprovalRequest
from refold.core.topics import APPROVAL_REQUESTED, APPROVAL_VOTED
from refold.core.wire.canonical import hex_digest
from refold.engine.approval import outbox
from refold.engine.approval.settings import ApprovalLimits
from refold.sdk.app import App
from tests.approval import questions
from tests.approval.driving import GATEWAY, PARTITIONS, ROLES, SERVICE, Process, World, request
from tests.approval.questions import NOW


class TestDeciding:
    def test_a_quorum_becomes_one_signed_decision_on_the_very_call(self, world: World, process: Process) -> None:
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        assert world.decisions() == []

        world.vote(asked, "bob", at=2)
        process.run()

        [found] = world.decisions()
        assert (found.verdict, found.question, found.args) == ("approve", asked.question, hex_digest(asked.args))
        assert [(by.actor, by.via) for by in found.votes] == [("ada", "role:lead"), ("bob", "role:lead")]
        assert (found.issued, found.expires) == (world.now, world.now + asked.requirement.valid_ms)

    def test_a_rejection_carries_its_message(self, world: World, process: Process) -> None:
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada", "reject", message="not on a Friday")
        process.run()

        assert [(each.verdict, each.message) for each in world.decisions()] == [("reject", "not on a Friday")]

    def test_an_edit_that_the_tool_takes_binds_the_new_arguments(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        edited = '{"service":"db","times":2}'
        world.vote(asked, "ada", "edit", args=edited)
        process.run()

        [found] = world.decisions()
        assert (found.verdict, found.edited, found.args) == ("amend", edited, hex_digest(edited))
        assert found.key != asked.key

    def test_an_answer_that_the_tool_might_give_is_taken(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada", "answer", result="7")
        process.run()

        assert [(each.verdict, each.result) for each in world.decisions()] == [("answer", "7")]

    def test_nothing_is_decided_twice_whatever_comes_later(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        late = world.vote(asked, "bob", "reject", at=9)
        world.ask(asked)
        process.run()

        assert world.verdicts(asked) == ["approve"]
        assert world.letters() == [(APPROVAL_VOTED, late, "late")]

    def test_the_same_votes_again_change_nothing(self, world: World, process: Process) -> None:
        asked = request(by="two")
        world.ask(asked)
        for _ in range(3):
            world.vote(asked, "ada")
        process.run()

        assert (world.decisions(), world.letters()) == ([], [])

    def test_a_closed_approval_is_forgotten_and_not_asked_again(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        world.close(asked)
        world.ask(asked)
        late = world.vote(asked, "bob", at=5)
        process.run()

        assert world.verdicts(asked) == ["approve"]
        assert world.letters() == [(APPROVAL_VOTED, late, "late")]
        assert not any(lane.questions for lane in process.service.lanes)

    def test_a_vote_that_is_read_before_its_request_waits_for_it_however_long_that_takes(
        self, world: World, process: Process
    ) -> None:
        asked = request()
        place = APPROVAL_REQUESTED, home(asked.run_id, PARTITIONS)
        process.log.pause(*place)
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        world.now += 6 * 86_400_000
        process.run()
        before = world.letters()

        process.log.resume(*place)
        process.run()

        assert before == []
        assert world.verdicts(asked) == ["approve"]

    def test_a_vote_on_what_nobody_asked_is_put_away_at_once(self, world: World, process: Process) -> None:
        offset = world.vote(request(), "ada")
        process.run()

        assert world.letters() == [(APPROVAL_VOTED, offset, "unknown")]

    def test_beyond_so_many_bytes_of_votes_that_wait_no_more_are_read_and_none_is_dropped(self, world: World) -> None:
        process = Process(world, limits=ApprovalLimits(waiting_bytes=4_000)).run()
        questions = [request(f"run-1/{number}") for number in range(5, 25, 2)]
        place = APPROVAL_REQUESTED, home(questions[0].run_id, PARTITIONS)
        process.log.pause(*place)
        for asked in questions:
            world.ask(asked)
            world.vote(asked, "ada")
        for _ in range(20):
            process.turn(limit=1)
        waiting = max(lane.waiting_bytes() for lane in process.service.lanes)

        process.log.resume(*place)
        process.run()

        assert 4_000 < waiting < 8_000  # and one vote more
        assert world.letters() == []
        assert [world.verdicts(asked) for asked in questions] == [["approve"]] * 10


class TestWhatIsVoid:
    @pytest.mark.parametrize(
        ("code", "actor", "more"),
        [
            ("unentitled", "zoe", {}),
            ("requester", "eve", {}),
            ("wrong_question", "ada", {"question": "another"}),
            ("wrong_question", "ada", {"environment": "prod"}),
            ("edit_not_possible", "ada", {"action": "edit", "args": '{"service":1}'}),
            ("edit_not_possible", "ada", {"action": "edit", "args": '{"force":true,"service":"a"}'}),
            ("edit_not_possible", "ada", {"action": "edit", "args": '{"$run":{"deps":"ann"},"service":"db"}'}),
            ("edit_not_possible", "ada", {"action": "answer", "result": '"no number"'}),
            ("no_grant", "ada", {"action": "revoke-grant"}),
        ],
        ids=str,
    )
    def test_a_void_vote_becomes_a_dead_letter_with_its_reason(
        self, code: str, actor: str, more: dict[str, Any], world: World, process: Process
    ) -> None:
        asked = request()
        world.ask(asked)
        offset = world.vote(asked, actor, **more)
        process.run()

        assert world.decisions() == []
        assert world.letters() == [(APPROVAL_VOTED, offset, code)]
        assert process.service.counts["vote.void"] == 1

    def test_an_edit_of_a_tool_that_has_changed_since_is_void(self, world: World) -> None:
        changed = App("changed")

        @changed.tool(version="2")
        def restart(service: str, times: int = 1) -> int:
            return times

        process = Process(world, app_=changed).run()
        asked = request()
        world.ask(asked)
        offset = world.vote(asked, "ada", "edit", args='{"service":"db"}')
        process.run()

        assert world.letters() == [(APPROVAL_VOTED, offset, "edit_not_possible")]

    def test_an_approval_needs_no_knowledge_of_the_tool(self, world: World) -> None:
        process = Process(world, app_=App("empty")).run()
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        assert world.verdicts(asked) == ["approve"]

    @pytest.mark.parametrize(
        "key",
        [SigningKey("gateway", "vote", bytes(32)), SigningKey("nobody", "vote", bytes(32)), SERVICE],
        ids=["another key of that name", "an unknown key", "a key for decisions"],
    )
    def test_a_vote_with_a_bad_signature_is_void_and_an_alarm(
        self, key: SigningKey, world: World, process: Process
    ) -> None:
        asked = request()
        world.ask(asked)
        offset = world.say(questions.vote(asked, "ada"), key=key)
        process.run()

        assert world.decisions() == []
        assert world.letters() == [(APPROVAL_VOTED, offset, "unauthorised")]
        assert process.service.counts["unauthorised"] == 1
        assert "unauthorised" in [name for name, _ in process.service.news]

    def test_a_revoked_key_takes_its_votes_along(self, world: World, process: Process) -> None:
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        world.publish("key/gateway", "key", GATEWAY.public(revoked=True).content())
        other = SigningKey("other", "vote", bytes(30) + b"no")
        world.publish("key/other", "key", other.public().content())
        world.say(questions.vote(asked, "bob"), key=other)
        process.run()

        assert world.decisions() == []

    @pytest.mark.parametrize("value", [b"", b"\0", b"{}", b"\0\0\0\0\1junk", b"\0\xff\xff\xff\xff"])
    @pytest.mark.parametrize("topic", [APPROVAL_REQUESTED, APPROVAL_VOTED])
    def test_an_unreadable_record_is_put_away_and_the_lane_goes_on(
        self, topic: str, value: bytes, world: World, process: Process
    ) -> None:
        asked = request()
        offset = world.write(topic, home(asked.run_id, PARTITIONS), "poison", value)
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        assert world.verdicts(asked) == ["approve"]
        assert [(each[0], each[1]) for each in world.letters()] == [(topic, offset)]

    @pytest.mark.parametrize(
        "other",
        [
            {"question": "another"},
            {"args": '{"service":"db"}'},
            {"args": '{ "service":"api"}'},
            {"key": "another"},
            {"run_id": "run-2"},
            {"call_id": "run-2/4"},
            {"environment": "prod"},
            {"covers": 9},
            {"step": 2**60},
            {"requirement": Requirement(["role:lead"], valid_ms=2**60)},
        ],
        ids=str,
    )
    def test_a_request_that_does_not_hold_together_is_put_away(
        self, other: dict[str, Any], world: World, process: Process
    ) -> None:
        good = request()
        bad = ApprovalRequest(**{**{name: getattr(good, name) for name in ApprovalRequest.__slots__}, **other})
        offset = world.ask(bad, partition=home(good.run_id, PARTITIONS))
        process.run()

        assert world.letters() == [(APPROVAL_REQUESTED, offset, "malformed")]

    def test_a_request_away_from_home_is_put_away(self, world: World, process: Process) -> None:
        asked = request()
        offset = world.ask(asked, partition=(home(asked.run_id, PARTITIONS) + 1) % PARTITIONS)
        process.run()

        assert world.letters() == [(APPROVAL_REQUESTED, offset, "malformed")]

    def test_another_question_under_the_id_of_an_approval_is_put_away(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        other = request(args='{"service":"db"}', level=1)
        offset = world.ask(replace(other, approval_id=asked.approval_id))
        world.vote(asked, "ada")
        process.run()

        assert world.letters() == [(APPROVAL_REQUESTED, offset, "malformed")]
        assert [each.question for each in world.decisions()] == [asked.question]

    def test_a_second_question_about_a_call_is_an_alarm_and_takes_no_vote_of_the_first(
        self, world: World, process: Process
    ) -> None:
        asked, other = request(), request(args='{"service":"db"}')
        world.ask(asked)
        process.run()
        world.ask(other)
        world.vote(asked, "ada")
        process.run()

        told = [fields for name, fields in process.service.news if name == "question.second"]
        assert told == [{"approval_id": other.approval_id, "others": [asked.approval_id]}]
        assert [each.question for each in world.decisions()] == [asked.question]

    def test_the_question_that_follows_another_one_is_no_alarm(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        process.run()
        world.close(asked)
        world.ask(request(round=2))
        process.run()

        assert [name for name, _ in process.service.news if name == "question.second"] == []


class TestAuthority:
    def test_nothing_is_decided_before_the_key_is_in_the_catalog(self, world: World, process: Process) -> None:
        world.publish("key/approval", "key", SERVICE.public(revoked=True).content())
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        assert world.decisions() == []
        assert "approval.held" in [name for name, _ in process.service.news]

        world.publish("key/approval", "key", SERVICE.public().content())
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_a_key_that_may_not_sign_yet_decides_when_its_time_has_come(self, world: World, process: Process) -> None:
        world.publish("key/approval", "key", SERVICE.public(not_before_ms=NOW + 9_000).content())
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        assert world.decisions() == []

        world.now = NOW + 9_000
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_a_planner_cannot_make_up_who_may_decide(self, world: World, process: Process) -> None:
        asked = request(needs=Requirement(["mallory"]))
        world.ask(asked)
        world.vote(asked, "mallory")
        process.run()

        assert world.decisions() == []
        assert [fields["approval_id"] for name, fields in process.service.news if name == "approval.held"] == [
            asked.approval_id
        ]

    def test_a_role_that_is_given_later_counts_for_the_votes_that_are_there(
        self, world: World, process: Process
    ) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "zoe")
        process.run()
        assert world.decisions() == []

        world.publish("roles", "roles", {**ROLES, "roles": {"lead": ["zoe"]}})
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_what_others_write_as_a_decision_is_no_decision_but_an_alarm(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        forger = SigningKey("approval", "decision", bytes(32))
        found = decision.build(asked, "approve", votes=(), issued_ms=NOW, nonce="x")
        forged = outbox.decision_record(
            found,
            signature.sign(found.payload(), forger),
            partition=home(asked.run_id, PARTITIONS),
            actor="mallory",
            trace="",
        )
        world.broker.write(forged)
        process.run()
        world.vote(asked, "ada", "reject")
        process.run()

        assert process.service.counts["unauthorised"] == 1
        decided = [r for r in world.records("approval-decided") if (r.value or b"x").startswith(b"\0")]
        assert len(decided) == 2
