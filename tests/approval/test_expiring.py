"""What time makes of an approval: it expires, or more people are asked."""

from __future__ import annotations

import pytest

from refold.core.approval.ballot import VOTE_MS
from refold.core.approval.decision import SKEW_MS
from refold.core.events import Requirement
from refold.core.topics import APPROVAL_VOTED
from tests.approval.driving import ROLES, Process, World, request
from tests.approval.questions import NOW


class TestTime:
    def test_nothing_is_decided_at_the_expiry_or_after_it(self, world: World, process: Process) -> None:
        asked = request(expires_ms=NOW + 5_000)
        world.ask(asked)
        process.run()
        world.now = NOW + 5_000
        world.vote(asked, "ada", at=4_999)
        process.run()

        assert world.decisions() == []

    @pytest.mark.parametrize("ahead_ms", [-86_400_000, 86_400_000])
    def test_the_clock_of_its_machine_decides_nothing(self, world: World, process: Process, ahead_ms: int) -> None:
        asked = request(expires_ms=NOW + 5_000)
        process.ahead_ms = ahead_ms
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        [decided] = world.decisions()

        assert decided.issued == world.now

    def test_an_escalation_is_another_question_and_takes_no_word_about_the_first(
        self, world: World, process: Process
    ) -> None:
        asked = request(by="rising", expires_ms=NOW + 5_000)
        world.ask(asked)
        unentitled = world.vote(asked, "ada")
        process.run()
        assert world.letters() == [(APPROVAL_VOTED, unentitled, "unentitled")]

        world.close(asked)
        escalated = request(by="rising", level=1, expires_ms=NOW + 90_000)
        world.ask(escalated)
        process.run()
        assert world.decisions() == []

        world.vote(escalated, "ada")
        process.run()
        assert world.verdicts(escalated) == ["approve"]

    def test_a_question_without_an_expiry_forgets_a_vote_after_some_days(self, world: World, process: Process) -> None:
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        world.now = NOW + VOTE_MS + 1
        world.vote(asked, "bob", at=VOTE_MS + 1)
        process.run()
        assert world.decisions() == []

        world.vote(asked, "ada", at=VOTE_MS + 2)
        process.run()
        assert world.verdicts(asked) == ["approve"]

    def test_a_vote_lives_no_longer_than_its_policy_gives_people_whatever_the_planner_says(
        self, world: World, process: Process
    ) -> None:
        hour = 3_600_000
        asked = request(needs=Requirement(["role:lead"], quorum=2, expires_ms=hour), expires_ms=NOW + 365 * 24 * hour)
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()
        world.now = NOW + hour + 10
        late = world.vote(asked, "ada", at=2)
        process.run()

        assert world.letters() == [(APPROVAL_VOTED, late, "outlived")]

    def test_a_request_that_leaves_out_the_expiry_of_its_policy_is_put_away(
        self, world: World, process: Process
    ) -> None:
        asked = request(needs=Requirement(["role:lead"], expires_ms=1_000), expires_ms=0)
        world.ask(asked)
        process.run()

        assert [letter[2] for letter in world.letters()] == ["malformed"]

    @pytest.mark.parametrize("successor", [False, True])
    def test_a_vote_of_the_future_is_void_for_ever(self, world: World, process: Process, *, successor: bool) -> None:
        """Else it would outrank whatever its person says until then, a withdrawal too."""
        asked = request()
        world.ask(asked)
        ahead = world.vote(asked, "ada", at=1_000 + SKEW_MS + 1)
        process.run()
        world.now += SKEW_MS + 2
        later = Process(world, "b") if successor else process
        world.publish("roles", "roles", ROLES)
        later.run()

        assert world.letters() == [(APPROVAL_VOTED, ahead, "future")]
        assert world.decisions() == []
