"""What survives: deaths, successors, zombies, lost answers, compaction and poison."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core.ids import home
from refold.core.topics import APPROVAL_DECIDED, APPROVAL_REQUESTED, APPROVAL_VOTED
from tests.approval.driving import PARTITIONS, SERVICE, Process, World, request
from tests.approval.questions import NOW


def successor(world: World, member: str = "a") -> Process:
    """A process that has taken the partitions of whoever had the name before."""
    return Process(world, member).run()


class TestSuccessors:
    def test_a_fold_that_finds_a_quorum_and_no_decision_decides_now(self, world: World) -> None:
        asked = request(by="two")
        world.ask(asked)
        for actor in ("ada", "bob"):
            world.vote(asked, actor)

        successor(world)

        assert world.verdicts(asked) == ["approve"]

    def test_what_is_decided_stays_decided_though_the_votes_say_otherwise_now(self, world: World) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        Process(world).run()
        world.vote(asked, "bob", "reject", at=9)

        successor(world)

        assert world.verdicts(asked) == ["approve"]

    def test_votes_of_both_lives_make_one_quorum(self, world: World) -> None:
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada")
        Process(world).run()

        process = successor(world)
        world.vote(asked, "bob")
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_what_expired_while_nobody_lived_is_not_decided(self, world: World) -> None:
        asked = request(expires_ms=NOW + 5_000)
        world.ask(asked)
        world.vote(asked, "ada")
        world.now = NOW + 5_000

        successor(world)

        assert world.decisions() == []

    def test_a_closed_approval_is_not_decided_again(self, world: World) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        world.close(asked)

        process = successor(world)

        assert world.decisions() == []
        assert not any(lane.questions for lane in process.service.lanes)

    def test_a_decision_of_a_key_that_was_revoked_does_not_hold_and_is_made_anew(self, world: World) -> None:
        asked = request()
        world.ask(asked)
        world.vote(asked, "ada")
        Process(world).run()
        before = world.decisions(asked)
        world.publish("key/approval", "key", SERVICE.public(revoked=True).content())
        process = successor(world)
        assert world.decisions(asked) == before

        world.publish("key/approval", "key", SERVICE.public().content())
        process.run()

        # The same key in force again: what it signed before is good again for whoever reads it, and one comes anew.
        assert world.verdicts(asked) == ["approve", "approve"]

    def test_the_order_in_which_the_topics_are_read_changes_nothing(self, world: World) -> None:
        asked = request(by="two")
        world.ask(asked)
        for actor in ("ada", "bob"):
            world.vote(asked, actor)
        for first in range(4 * PARTITIONS):
            process = Process(world, "a")
            process.log.first = first
            for _ in range(60):
                process.turn(limit=1)
            process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_compaction_changes_nothing(self, world: World) -> None:
        done, waiting = request("run-1/5"), request("run-1/9", by="two")
        for asked in (done, waiting):
            world.ask(asked)
            world.vote(asked, "ada")
        Process(world).run()
        world.close(done)
        for topic in (APPROVAL_REQUESTED, APPROVAL_VOTED, APPROVAL_DECIDED, "catalog"):
            for number in range(PARTITIONS):
                world.broker.compact(topic, number, tombstones=True)

        process = successor(world)
        world.vote(waiting, "bob")
        process.run()

        assert (world.verdicts(done), world.verdicts(waiting)) == (["approve"], ["approve"])


class TestPoison:
    def test_poison_is_put_away_once_and_not_by_every_successor(self, world: World) -> None:
        asked = request()
        number = home(asked.run_id, PARTITIONS)
        process = Process(world).run()
        offsets = [world.write(topic, number, "poison", b"\0") for topic in (APPROVAL_REQUESTED, APPROVAL_VOTED)]
        world.ask(asked)
        void = world.vote(asked, "zoe")
        process.run()
        told = world.letters()

        again = successor(world)

        assert told == [
            (APPROVAL_REQUESTED, offsets[0], "malformed"),
            (APPROVAL_VOTED, offsets[1], "malformed"),
            (APPROVAL_VOTED, void, "unentitled"),
        ]
        assert world.letters() == told
        assert again.service.counts["void.known"] == 3

    def test_what_came_while_a_successor_was_reading_is_put_away(self, world: World) -> None:
        asked = request()
        world.ask(asked)
        process = Process(world)
        process.turn(limit=1)
        offset = world.write(APPROVAL_VOTED, home(asked.run_id, PARTITIONS), "poison", b"\0")
        process.run()

        assert world.letters() == [(APPROVAL_VOTED, offset, "malformed")]


class TestWrites:
    @pytest.mark.parametrize("fate", ["lost", "unsure"])
    def test_a_decision_whose_delivery_is_unknown_is_published_again_and_is_the_same(
        self, fate: str, world: World
    ) -> None:
        asked = request()
        process = Process(world).run()
        world.ask(asked)
        world.vote(asked, "ada")
        process.fate = "lost" if fate == "lost" else "unsure"
        process.turn()
        process.turn()
        process.fate = "sent"
        process.run()

        found = world.decisions(asked)
        assert len(found) == (1 if fate == "lost" else 3)
        assert all(each == found[0] for each in found)

    def test_a_dead_letter_whose_delivery_is_unknown_is_written_again(self, world: World) -> None:
        process = Process(world).run()
        process.fate = "lost"
        asked = request()
        world.ask(asked)
        offset = world.vote(asked, "zoe")
        process.turn()
        process.fate = "sent"
        process.run()

        assert world.letters() == [(APPROVAL_VOTED, offset, "unentitled")]


class TestZombies:
    def test_a_zombie_beside_its_successor_keeps_to_what_the_log_says_first(self, world: World) -> None:
        asked = request()
        old = Process(world, "old").run()
        old.log.deaf = True
        world.broker.expire("refold-approval", "old")
        new = Process(world, "new").run()
        world.ask(asked)
        world.vote(asked, "ada")
        new.run()
        world.vote(asked, "bob", "reject", at=2)
        old.run()
        new.run()

        # The zombie reads the votes together, so it would reject; the decision lies before it in the log.
        assert world.verdicts(asked)[0] == "approve"
        assert new.service.counts["approval.decided"] == 1

    def test_two_owners_that_decide_at_once_both_rest_on_the_votes(self, world: World) -> None:
        asked = request()
        old = Process(world, "old").run()
        old.log.deaf = True
        world.broker.expire("refold-approval", "old")
        new = Process(world, "new").run()
        world.ask(asked)
        world.vote(asked, "ada")
        old.fate = "held"
        old.turn()
        new.turn()
        old.let_go()
        old.run()
        new.run()

        found = world.decisions(asked)
        assert [each.verdict for each in found] == ["approve", "approve"]
        assert len({each.nonce for each in found}) == 2
        assert {each.votes[0].actor for each in found} == {"ada"}

    def test_a_successor_keeps_the_first_of_two_decisions(self, world: World) -> None:
        self.test_two_owners_that_decide_at_once_both_rest_on_the_votes(world)

        process = successor(world, "new")

        assert process.service.counts["approval.decided"] == 0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_whatever_dies_whenever_there_is_one_verdict_and_it_is_the_votes(seed: int) -> None:
    chance = random.Random(seed)
    world, member = World(), "a"
    process = Process(world, member)
    asked = [request(f"run-{number}/5", by="two") for number in range(3)]
    votes = [partial(world.vote, each, who) for each in asked for who in ("ada", "bob", "zoe")]
    chance.shuffle(votes)
    steps: list[partial[int]] = [*votes]
    for each in asked:  # people have seen what they vote on; in which order it is read is another matter
        first = min(steps.index(vote) for vote in votes if vote.args[0] is each)
        steps.insert(chance.randint(0, first), partial(world.ask, each))
    for step in steps:
        step()
        process.fate = chance.choice(["sent", "lost", "unsure"])
        for _ in range(chance.randrange(4)):
            process.turn(limit=chance.choice([1, 5, 500]))
        if chance.random() < 0.3:
            process = Process(world, member)
    process.fate = "sent"
    process.run()

    for each in asked:
        assert set(world.verdicts(each)) == {"approve"}
        assert all({by.actor for by in found.votes} == {"ada", "bob"} for found in world.decisions(each))
