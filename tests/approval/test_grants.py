"""Standing grants: what they cover, where they are known, and how they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.approval import outbox
from refold.core.approval import decision, signature
from refold.core.approval.ballot import Remember
from refold.core.approval.decision import Cast, Grant
from refold.core.approval.signature import SigningKey
from refold.core.ids import home
from refold.core.messages import ApprovalRequest
from refold.core.topics import APPROVAL_DECIDED
from refold.ports.log import Delivery, Outgoing
from tests.approval.driving import PARTITIONS, ROLES, Process, World, request
from tests.approval.questions import NOW

HOUR = 3_600_000
ELSEWHERE = next(f"run-{n}" for n in range(2, 99) if home(f"run-{n}", PARTITIONS) != home("run-1", PARTITIONS))


class Slow(Process):
    """The log takes what is told of a grant elsewhere, and its answer is late and says nothing."""

    late: int | None = None

    def answer_late(self) -> None:
        """The answer comes."""
        assert self.late is not None, "nothing was told elsewhere"
        self._answers.append(Delivery(self.late, None))

    def _carry_out(self, record: Outgoing) -> None:
        elsewhere = record.partition == home(ELSEWHERE, PARTITIONS)
        if self.late is None and elsewhere and record.value and record.key.startswith(b"grant/"):
            self.world.broker.write(record)
            self.late = record.token
        else:
            super()._carry_out(record)


def give(world: World, process: Process, scope: str = "run", *, uses: int = 2, for_ms: int = HOUR) -> ApprovalRequest:
    """A grant: an approval that is to be remembered, decided."""
    asked = request()
    world.ask(asked)
    world.vote(asked, "ada", remember=Remember(scope, for_ms, uses))
    process.run()
    assert world.verdicts(asked) == ["approve"]
    return asked


def ask(world: World, process: Process, approval: str = "run-1/9", **more: Any) -> list[str]:
    """What becomes of another request, without any vote."""
    asked = request(approval, **more)
    world.ask(asked)
    process.run()
    return world.verdicts(asked)


class TestOneRun:
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
        give(world, process, "session")

        assert ask(world, process, f"{ELSEWHERE}/5", requester="ada") == []

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
        grant = Grant(asked.approval_id, "run", NOW + HOUR, 9, 0, "s1", asked.rule)
        by = Cast("ada", "role:lead", "", "v1", NOW)
        found = decision.build(asked, "approve", votes=(by,), issued_ms=NOW, nonce="n", grant=grant)
        token = signature.sign(found.payload(), old)
        number = home(asked.run_id, PARTITIONS)
        world.broker.write(outbox.decided(found, token, partition=number, actor="before", trace=""))
        world.close(asked)
        world.ask(request("run-1/9", step=2))
        process.run()
        assert process.service.counts["grant.used"] == 1

        world.publish("key/approval-old", "key", old.public(revoked=True).content())
        world.ask(request("run-1/12", step=3))
        process.run()

        assert process.service.counts["grant.used"] == 1

    def test_an_approval_without_remembering_gives_none(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        assert ask(world, process) == []

    def test_a_rejection_goes_before_a_grant(self, world: World, process: Process) -> None:
        give(world, process)
        later = request("run-1/9", step=2)
        world.vote(later, "bob", "reject")
        process.run()
        world.ask(later)
        process.run()

        assert world.verdicts(later) == ["reject"]


class TestSessions:
    def test_it_stands_in_every_partition_and_is_used_there(self, world: World, process: Process) -> None:
        given = give(world, process, "session")

        assert world.grants() == [{f"grant/{given.approval_id}"}] * PARTITIONS
        assert ask(world, process, f"{ELSEWHERE}/5") == ["approve"]
        assert ask(world, process, f"{ELSEWHERE}/9", session="another") == []

    def test_a_run_without_a_session_is_in_none(self, world: World, process: Process) -> None:
        asked = request(session="")
        world.ask(asked)
        world.vote(asked, "ada", remember=Remember("session", HOUR, 2))
        process.run()

        assert world.grants() == [set()] * PARTITIONS
        assert ask(world, process, f"{ELSEWHERE}/5", session="") == []

    def test_uses_are_counted_for_each_run(self, world: World, process: Process) -> None:
        give(world, process, "session", uses=1)

        assert ask(world, process, "run-1/9", step=2) == ["approve"]
        assert ask(world, process, f"{ELSEWHERE}/5") == ["approve"]
        assert ask(world, process, f"{ELSEWHERE}/9", step=2) == []

    def test_a_death_between_the_decision_and_its_broadcast_is_made_good(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada", remember=Remember("session", HOUR, 2))
        process.turn()
        assert world.grants() == [set()] * PARTITIONS

        Process(world).run()

        assert world.grants() == [{f"grant/{asked.approval_id}"}] * PARTITIONS

    def test_a_death_in_the_middle_of_the_broadcast_is_made_good(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada", remember=Remember("session", HOUR, 2))
        process.turn()
        process.turn()
        own = home(asked.run_id, PARTITIONS)
        assert [bool(found) for found in world.grants()] == [number != own for number in range(PARTITIONS)]

        Process(world).run()

        assert world.grants() == [{f"grant/{asked.approval_id}"}] * PARTITIONS

    def test_it_is_told_once_though_its_decision_is_written_twice(self, world: World, process: Process) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada", remember=Remember("session", HOUR, 2))
        process.fate = "unsure"
        process.turn()
        process.fate = "sent"
        process.run()

        assert len(world.decisions(asked)) == 2
        assert (
            sum((record.key or b"").startswith(b"grant/") for record in world.records(APPROVAL_DECIDED)) == PARTITIONS
        )

    def test_a_successor_does_not_tell_what_stands_already(self, world: World, process: Process) -> None:
        give(world, process, "session")
        before = sum(1 for _ in world.records(APPROVAL_DECIDED))

        Process(world).run()

        assert sum(1 for _ in world.records(APPROVAL_DECIDED)) == before


class TestRevocation:
    @pytest.mark.parametrize("scope", ["run", "session"])
    def test_a_revoked_grant_is_gone_everywhere_and_not_used_again(
        self, scope: str, world: World, process: Process
    ) -> None:
        given = give(world, process, scope)
        world.close(given)
        world.vote(given, "bob", "revoke-grant", at=5)
        process.run()

        assert world.grants() == [set()] * PARTITIONS
        assert ask(world, process, step=2) == []
        assert ask(world, process, f"{ELSEWHERE}/5") == []
        assert world.letters() == []

    @pytest.mark.parametrize("scope", ["run", "session"])
    def test_a_successor_knows_that_it_is_revoked(self, scope: str, world: World, process: Process) -> None:
        given = give(world, process, scope)
        world.close(given)
        world.vote(given, "bob", "revoke-grant", at=5)
        process.turn()  # dies with the tombstones on their way

        again = Process(world).run()

        assert world.grants() == [set()] * PARTITIONS
        assert ask(world, again, step=2) == []

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

    def test_what_was_told_of_it_before_is_not_told_again_after_its_end(self, world: World) -> None:
        process = Slow(world).run()
        given = give(world, process, "session")
        world.vote(given, "bob", "revoke-grant", at=5)
        process.run()
        assert process.late is not None

        process.answer_late()
        process.run()

        assert world.grants() == [set()] * PARTITIONS
        assert ask(world, process, f"{ELSEWHERE}/5") == []

    def test_what_was_told_of_it_is_told_again_as_long_as_it_holds(self, world: World) -> None:
        process = Slow(world).run()
        given = give(world, process, "session")
        before = sum(1 for _ in world.records(APPROVAL_DECIDED))

        process.answer_late()
        process.run()

        # The one that nobody knew of, and then the one at home: what stands there stands everywhere.
        assert sum(1 for _ in world.records(APPROVAL_DECIDED)) == before + 2
        assert world.grants() == [{f"grant/{given.approval_id}"}] * PARTITIONS

    @pytest.mark.parametrize("restart", [False, True], ids=["alive", "restarted"])
    def test_an_owner_that_has_not_heard_of_its_end_does_not_bring_it_back(
        self, restart: bool, world: World, process: Process
    ) -> None:
        given = give(world, process, "session")
        number = home(ELSEWHERE, PARTITIONS)
        [told] = [r for r in world.broker.log(APPROVAL_DECIDED, number).records if (r.key or b"").startswith(b"grant/")]
        world.vote(given, "bob", "revoke-grant", at=5)
        process.run()
        world.broker.write(Outgoing(APPROVAL_DECIDED, number, told.key or b"", told.value, (), 0))

        again = Process(world) if restart else process

        assert ask(world, again, f"{ELSEWHERE}/5") == []
        assert world.grants() == [set()] * PARTITIONS
        ends = [world.broker.log(APPROVAL_DECIDED, each).end for each in range(PARTITIONS)]
        Process(world).run()
        assert [world.broker.log(APPROVAL_DECIDED, each).end for each in range(PARTITIONS)] == ends

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

    def test_a_grant_that_has_expired_is_cleared_away_at_the_next_start(self, world: World, process: Process) -> None:
        give(world, process, "session", for_ms=5_000)
        world.now = NOW + HOUR

        Process(world).run()

        assert world.grants() == [set()] * PARTITIONS
