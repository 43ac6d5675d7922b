"""What time makes of an approval: it expires, or more people are asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.topics import APPROVAL_VOTED
from tests.approval.driving import Process, World, request
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

    def test_an_escalation_keeps_the_votes_and_asks_more_people(self, world: World, process: Process) -> None:
        asked = request(by="rising", expires_ms=NOW + 5_000)
        world.ask(asked)
        unentitled = world.vote(asked, "ada")
        process.run()
        assert world.letters() == [(APPROVAL_VOTED, unentitled, "unentitled")]

        world.ask(replace(asked, level=1, expires_ms=NOW + 90_000))
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_an_older_level_that_comes_late_does_not_come_back(self, world: World, process: Process) -> None:
        asked = request(by="rising")
        world.ask(replace(asked, level=1))
        world.ask(asked)
        world.vote(asked, "ada")
        process.run()

        assert world.verdicts(asked) == ["approve"]
