"""Who may write votes may write anything: what is kept of it is bounded, while the service lives and when it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ApprovalVote
from refold.core.topics import APPROVAL_VOTED
from refold.core.wire import codec
from refold.engine.approval.settings import ApprovalLimits
from tests.approval import questions
from tests.approval.driving import GATEWAY, PARTITIONS, Process, World, request

LIMITS = ApprovalLimits(waiting_bytes=60_000, void_bytes=20_000, votes_bytes=30_000)
JUNK = "x" * 5_000
LATECOMER = replace(GATEWAY, kid="latecomer", seed=bytes(31) + b"l")


def write(world: World, approval: str, number: int) -> None:
    """A vote that nobody has signed."""
    run = approval.partition("/")[0]
    message = ApprovalVote(approval, f"junk{number}", run, f"{number}{JUNK}")
    world.write(APPROVAL_VOTED, home(run, PARTITIONS), f"{approval}/junk{number}", codec.encode(message))


def kept(process: Process) -> int:
    """What all lanes have of votes. **Units**: bytes."""
    lanes = [*process.service.lanes]
    tokens = [token for lane in lanes for question in lane.questions.values() for token in question.tokens]
    return sum(map(len, tokens)) + sum(lane.waiting_bytes() for lane in lanes)


def most_kept(process: Process, turns: int = 60) -> int:
    found = 0
    for _ in range(turns):
        process.turn(limit=5)
        found = max(found, kept(process))
    process.run()
    return max(found, kept(process))


@pytest.mark.parametrize("restarted", [False, True], ids=["alive", "restarted"])
@pytest.mark.parametrize("about", ["open", "closed", "unknown"])
def test_a_flood_of_votes_that_nobody_has_signed_leaves_next_to_nothing(
    world: World, about: str, *, restarted: bool
) -> None:
    process = Process(world, limits=LIMITS).run()
    asked, closed = request(by="two"), request("run-1/9", step=2)
    for each in (asked, closed):
        world.ask(each)
    world.vote(asked, "ada")
    world.close(closed)
    names = {"open": asked.approval_id, "closed": closed.approval_id, "unknown": f"run-1/5~{'0' * 32}"}
    for number in range(200):
        write(world, names[about], number)
    world.vote(asked, "bob")
    if restarted:
        process = Process(world, limits=LIMITS)

    most = most_kept(process)

    assert most < LIMITS.void_bytes + LIMITS.waiting_bytes + 30_000
    assert kept(process) < LIMITS.void_bytes
    assert world.verdicts(asked) == ["approve"]
    assert len(world.letters()) == (0 if restarted else 200)


class TestKeyThatComesLater:
    def asked(self, world: World, process: Process) -> ApprovalRequest:
        asked = request()
        world.ask(asked)
        world.say(questions.vote(asked, "ada"), key=LATECOMER)
        process.run()
        assert [code for *_, code in world.letters()] == ["unauthorised"]
        return asked

    def publish(self, world: World, process: Process) -> None:
        world.publish("key/latecomer", "key", LATECOMER.public().content())
        process.run()

    def test_its_vote_counts(self, world: World) -> None:
        process = Process(world, limits=LIMITS).run()
        asked = self.asked(world, process)

        self.publish(world, process)

        assert world.verdicts(asked) == ["approve"]

    def test_behind_a_flood_it_does_not(self, world: World) -> None:
        process = Process(world, limits=LIMITS).run()
        asked = self.asked(world, process)
        for number in range(10):
            write(world, asked.approval_id, number)
        process.run()

        self.publish(world, process)

        assert world.verdicts(asked) == []

    def test_a_flood_after_it_takes_nothing_back(self, world: World) -> None:
        process = Process(world, limits=LIMITS).run()
        asked = request(by="two")
        world.ask(asked)
        world.say(questions.vote(asked, "ada"), key=LATECOMER)
        process.run()
        self.publish(world, process)
        for number in range(10):
            write(world, asked.approval_id, number)
        process.run()

        world.vote(asked, "bob")
        process.run()

        assert world.verdicts(asked) == ["approve"]


def test_of_votes_that_are_signed_an_approval_keeps_so_much_and_what_counts_first(world: World) -> None:
    process = Process(world, limits=LIMITS).run()
    asked = request(by="two")
    world.ask(asked)
    world.vote(asked, "ada")
    for number in range(50):
        world.vote(asked, "zoe", "edit", at=number + 2, args=f'{{"service":"{JUNK}{number}"}}')

    most_kept(process)
    after = kept(process)
    world.vote(asked, "bob", at=99)
    process.run()

    assert after < LIMITS.votes_bytes
    assert world.verdicts(asked) == ["approve"]
