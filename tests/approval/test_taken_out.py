"""A vote that somebody takes out of the log by a tombstone, which every writer of the topic may write."""

from __future__ import annotations

from refold.core.ids import home
from refold.core.topics import APPROVAL_VOTED
from tests.approval.driving import PARTITIONS, Process, World, request


def test_a_service_that_has_read_a_vote_keeps_it(world: World, process: Process) -> None:
    asked = request(by="two")
    world.ask(asked)
    world.vote(asked, "ada")
    process.run()
    (vote,) = world.records(APPROVAL_VOTED)

    world.write(APPROVAL_VOTED, home(asked.run_id, PARTITIONS), (vote.key or b"").decode(), None)
    world.vote(asked, "bob")
    process.run()

    assert world.verdicts(asked) == ["approve"]
