"""Standing grants: what they cover, where they are known, and how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval import decision, signature
from refold.core.approval.ballot import Remember
from refold.core.approval.decision import Cast, Decision, Grant
from refold.core.approval.signature import SigningKey
from refold.core.errors import MalformedError
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ApprovalVote
from refold.core.topics import APPROVAL_REQUESTED, APPROVAL_VOTED
from refold.core.wire import codec
from refold.engine.approval import outbox
from tests.approval import questions
from tests.approval.driving import GATEWAY, PARTITIONS, ROLES, SERVICE, Process, World, request
from tests.approval.questions import NOW
from tests.core.decisions import made, votes_of

HOUR = 3_600_000
ELSEWHERE = next(f"run-{n}" for n in range(2, 99) if home(f"run-{n}", PARTITIONS) != home("run-1", PARTITIONS))


def give(world: World, process: Process, *, uses: int = 2, for_ms: int = HOUR) -> ApprovalRequest:
    """A grant: an approval that is to be remembered, decided."""
    asked = request()
    world.ask(asked)
    world.vote(asked, "ada", remember=Remember(for_ms, uses))
    process.run()
    assert world.verdicts(asked) == ["approve"]
    return asked


def ask(world: World, process: Process, approval: str = "run-1/9", **more: Any) -> list[str]:
    """What becomes of another request, without any vote."""
    asked = request(approval, **more)
    world.ask(asked)
    process.run()
    return world.verdicts(asked)


def write_decision(world: World, asked: ApprovalRequest, grant: Grant, key: SigningKey) -> Decision:
    """A decision that was made before, whoever has made it."""
    by = Cast("ada", "role:lead", "", "v1", NOW)
    found = decision.build(asked, "approve", votes=(by,), issued_ms=NOW, nonce="n", grant=grant)
    write(world, found, key)
    return found


def write(world: World, found: Decision, key: SigningKey) -> None:
    """Writes a decision, as a predecessor did."""
    token, number = signature.sign(found.payload(), key), home(found.run, PARTITIONS)
    world.broker.write(outbox.decision_record(found, token, partition=number, actor="before", trace=""))


class TestWhatItCovers:
    def test_the_same_call_again_is_decided_without_asking(self, world: World, process: Process) -> None:
        given = give(world, process)
        assert ask(world, process, step=2) == ["approve"]

        again = world.decisions()[-1]
        assert again.grant is not None
        assert (again.grant.id, again.grant.use) == (given.approval_id, 1)
        assert again.votes == world.decisions(given)[0].votes
        assert process.service.counts["grant.used"] == 1

    def test_it_is_used_so_many_times_and_every_use_has_its_number(self, world: World, process: Process) -> None:
        give(world, process, uses=2)

        verdicts = [ask(world, process, f"run-1/{number}", step=number) for number in (9, 12, 15)]

        assert verdicts == [["approve"], ["approve"], []]
        assert [found.grant.use for found in world.decisions() if found.grant] == [0, 1, 2]

    def test_a_successor_counts_the_uses_of_its_predecessor(self, world: World, process: Process) -> None:
        give(world, process, uses=2)
        ask(world, process, "run-1/9", step=2)
        again = Process(world).run()

        verdicts = [ask(world, again, f"run-1/{number}", step=number) for number in (12, 15)]

        assert verdicts == [["approve"], []]

    def test_no_number_is_given_twice_though_a_use_was_never_written(self, world: World, process: Process) -> None:
        give(world, process, uses=9)
        process.fate = "held"
        world.ask(request("run-1/9", step=2))
        process.turn()
        process.fate = "sent"
        ask(world, process, "run-1/12", step=3)  # dies with the decision before this one on its way

        Process(world).run()

        assert sorted(found.grant.use for found in world.decisions() if found.grant) == [0, 2, 3]

    @pytest.mark.parametrize(
        "other",
        [
            {"args": '{"service":"db"}'},
            {"version": "2"},
            {"schema": "another"},
            {"effect": "pure"},
            {"tool": "erase"},
            {"by": "rising"},
        ],
        ids=str,
    )
    def test_another_call_has_to_be_asked(self, other: dict[str, Any], world: World, process: Process) -> None:
        give(world, process)

        assert ask(world, process, **other) == []

    def test_another_run_of_the_session_has_to_be_asked(self, world: World, process: Process) -> None:
        give(world, process)

        assert ask(world, process, f"{ELSEWHERE}/5") == []

    def test_it_ends_with_its_time(self, world: World, process: Process) -> None:
        give(world, process, for_ms=5_000)
        world.now = NOW + 1 + 5_000

        assert ask(world, process) == []

    @pytest.mark.parametrize("roles", [{"roles": {"lead": ["bob"]}}, {**ROLES, "revoked": ["ada"]}], ids=str)
    def test_it_ends_when_whoever_gave_it_may_not_decide_any_more(
        self, roles: dict[str, Any], world: World, process: Process
    ) -> None:
        give(world, process)
        world.publish("roles", "roles", roles)

        assert ask(world, process) == []

    def test_it_does_not_serve_a_run_that_its_giver_has_asked_for(self, world: World, process: Process) -> None:
        give(world, process)

        assert ask(world, process, step=2, requester="ada") == []

    def test_it_answers_for_the_first_attempt_and_people_for_the_others(self, world: World, process: Process) -> None:
        give(world, process)
        asked = request("run-1/9", step=2, attempt=2)
        world.ask(asked)
        process.run()
        assert world.verdicts(asked) == []

        world.vote(asked, "bob", at=9)
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_it_ends_with_the_key_that_its_decision_was_signed_with(self, world: World, process: Process) -> None:
        old = SigningKey("approval-old", "decision", bytes(31) + b"o")
        world.publish("key/approval-old", "key", old.public().content())
        process.run()
        asked = request()
        world.ask(asked)
        votes = votes_of(asked, "ada", at=NOW, remember=Remember(HOUR, 9))
        write(world, made(asked, votes, questions.ROLES, now=NOW, key=GATEWAY), old)
        world.close(asked)
        world.ask(request("run-1/9", step=2))
        process.run()
        assert process.service.counts["grant.used"] == 1

        world.publish("key/approval-old", "key", old.public(revoked=True).content())
        world.ask(request("run-1/12", step=3))
        process.run()

        assert process.service.counts["grant.used"] == 1

    def test_a_grant_that_nobody_has_given_is_not_used_whoever_has_signed_it(
        self, world: World, process: Process
    ) -> None:
        asked = request()
        world.ask(asked)
        write_decision(world, asked, Grant(asked.approval_id, "run", NOW + HOUR, 9, 0, rule=asked.rule), SERVICE)
        world.close(asked)
        again = request("run-1/9", step=2)
        world.ask(again)
        process.run()

        assert world.decisions(again) == []

    def test_an_approval_without_remembering_gives_none(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        assert ask(world, process) == []

    def test_a_rejection_goes_before_a_grant(self, world: World, process: Process) -> None:
        give(world, process)
        later = request("run-1/9", step=2)
        place = APPROVAL_REQUESTED, home(later.run_id, PARTITIONS)
        process.log.pause(*place)
        world.ask(later)
        world.vote(later, "bob", "reject")
        process.run()
        process.log.resume(*place)
        process.run()

        assert world.verdicts(later) == ["reject"]


class TestNothingWider:
    def test_a_vote_that_is_to_be_remembered_in_the_session_is_void(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        payload = questions.vote(asked, "ada", remember=Remember(HOUR, 2)).payload()
        payload["remember"]["scope"] = "session"
        message = ApprovalVote(asked.approval_id, payload["vote"], "run-1", signature.sign(payload, GATEWAY))
        key = f"{asked.approval_id}/{payload['vote']}"
        world.write(APPROVAL_VOTED, home("run-1", PARTITIONS), key, codec.encode(message))
        process.run()

        assert [code for _, _, code in world.letters()] == ["malformed"]
        assert world.verdicts(asked) == []

    def test_a_grant_of_a_session_that_is_in_the_log_decides_nothing(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        grant = Grant(asked.approval_id, "session", NOW + HOUR, 9, 0, "s1", asked.rule)
        write_decision(world, asked, grant, SERVICE)
        world.close(asked)

        assert ask(world, process, step=2) == []
        assert ask(world, process, f"{ELSEWHERE}/5") == []

    def test_the_use_of_a_grant_of_another_run_is_no_decision(self, world: World, process: Process) -> None:
        given = give(world, process)
        other = request(f"{ELSEWHERE}/5")
        world.ask(other)
        grant = Grant(given.approval_id, "run", NOW + HOUR, 9, 1, rule=other.rule)
        with pytest.raises(MalformedError, match="uses a grant of another run"):
            Decision.parse(write_decision(world, other, grant, SERVICE).payload())
        process.run()

        assert process.service.counts["unauthorised"] == 1
        world.vote(other, "bob", at=9)
        process.run()
        assert process.service.counts["approval.decided"] == 2


class TestRevocation:
    def test_a_revoked_grant_is_not_used_again(self, world: World, process: Process) -> None:
        given = give(world, process)
        world.close(given)
        world.vote(given, "bob", "revoke-grant", at=5)
        process.run()

        assert ask(world, process, step=2) == []
        assert world.letters() == []

    def test_a_successor_knows_that_it_is_revoked(self, world: World, process: Process) -> None:
        given = give(world, process)
        world.close(given)
        world.vote(given, "bob", "revoke-grant", at=5)
        process.run()

        assert ask(world, Process(world).run(), step=2) == []

    def test_a_successor_ends_it_before_it_judges_what_was_asked_earlier(self, world: World, process: Process) -> None:
        waiting = request("run-1/3", step=2, requester="ada")
        world.ask(waiting)
        given = give(world, process)
        world.vote(given, "bob", "revoke-grant", at=5)
        process.run()
        world.ask(replace(waiting, level=1, requester="rita"))
        process.run()
        assert world.verdicts(waiting) == []

        Process(world).run()

        assert world.verdicts(waiting) == []

    def test_only_who_might_have_given_it_revokes_it(self, world: World, process: Process) -> None:
        given = give(world, process)
        world.vote(given, "zoe", "revoke-grant", at=5)
        process.run()

        assert [code for _, _, code in world.letters()] == ["unentitled"]
        assert ask(world, process, step=2) == ["approve"]

    def test_a_vote_on_another_question_revokes_nothing(self, world: World, process: Process) -> None:
        given = give(world, process)
        world.vote(replace(given, question="another"), "bob", "revoke-grant", at=5)
        process.run()

        assert [code for _, _, code in world.letters()] == ["wrong_question"]
        assert ask(world, process, step=2) == ["approve"]
