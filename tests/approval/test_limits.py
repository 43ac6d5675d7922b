"""What one approval may cost the others: its votes are bounded in size and number, and so is a turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator

from refold.core.approval import signature
from refold.core.approval.ballot import most_said, oversized
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ApprovalVote, DeadLetter
from refold.core.topics import APPROVAL_VOTED
from refold.core.wire import canonical, codec
from refold.engine.approval.settings import ApprovalLimits
from refold.sdk.app import App
from tests.approval import planning, questions
from tests.approval.driving import GATEWAY, PARTITIONS, ROLES, Process, World, request
from tests.approval.planning import PAYLOAD_BYTES, Planning
from tests.approval.questions import NOW

EDITS = ('{"service":"db"}', "")
MOST = most_said(ApprovalLimits().payload_bytes, 1)


def full(action: str, *, over: int = 0) -> dict[str, Any]:
    """Fields of a vote that says as much as it may, and so many bytes more; a byte of a message counts twice."""
    blank = {"edit": ['{"text":""}', "", "", ""], "answer": ["", '""', "", ""], "reject": ["", "", "", ""]}[action]
    room = MOST - len(canonical.dumps(blank))
    text = "x" * ((room // 2 if action == "reject" else room) + over)
    return {
        "edit": {"args": canonical.dumps({"text": text})},
        "answer": {"result": canonical.dumps(text)},
        "reject": {"message": text},
    }[action]


@pytest.mark.parametrize("action", ["edit", "answer", "reject"])
class TestSize:
    def test_what_a_decision_just_holds_is_decided_and_the_planner_takes_it(self, action: str) -> None:
        running = Planning(planning.world())
        asked = running.ask()
        running.world.vote(asked, "ada", action, **full(action))
        running.run()

        state, events = running.state()
        kinds = [type(event).__name__ for event in events]
        [record] = [each for each in running.world.records("approval-decided") if each.value]
        assert running.world.letters() == []
        assert len(record.value or b"") <= PAYLOAD_BYTES
        assert kinds.count("ApprovalDecided") == 1
        assert [each for each in kinds if each != "RunResumed"][-1] == {
            "edit": "ApprovalRequested",
            "answer": "RunCompleted",
            "reject": "RunFailed",
        }[action]
        assert state.status == {"edit": "suspended", "answer": "completed", "reject": "failed"}[action]

    def test_one_byte_more_is_void_and_the_run_can_still_be_decided(self, action: str) -> None:
        running = Planning(planning.world())
        asked = running.ask()
        offset = running.world.vote(asked, "ada", action, **full(action, over=1))
        running.run()
        assert running.world.letters() == [(APPROVAL_VOTED, offset, "too_large")]
        assert running.world.decisions() == []

        running.world.vote(asked, "ada", "reject", at=2)
        running.run()

        assert running.state()[0].status == "failed"


def test_the_reason_says_what_the_limit_is() -> None:
    vote = questions.vote(request(), "ada", "reject", message='"\n')

    found = oversized(vote, 20)

    assert found is not None
    assert "have 21 bytes as JSON, and a decision takes at most 20" in found.reason
    assert oversized(vote, 21) is None


@pytest.mark.parametrize("cause", ["planner", "signature"])
def test_a_decision_that_cannot_be_is_held_and_kills_nobody(
    cause: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cause == "signature":
        monkeypatch.setattr(signature, "TOKEN_BYTES", 5_500)
    process = Process(world, limits=ApprovalLimits(payload_bytes=5_500 if cause == "planner" else 2**20)).run()
    asked, other = request("run-1/5"), request("run-1/9", step=2)
    for each in (asked, other):
        world.ask(each)
    # As long as the name of who votes is, no limit on what they say keeps the decision short.
    world.publish("roles", "roles", {**ROLES, "roles": {"lead": ["ada", "a" * 1_400]}})
    world.vote(asked, "a" * 1_400)
    world.vote(other, "ada")
    process.run()
    assert world.verdicts(asked) == []
    assert world.verdicts(other) == ["approve"]
    [held] = [fields for name, fields in process.service.news if name == "approval.held"]
    assert held["approval_id"] == asked.approval_id

    world.vote(asked, "ada", "reject", at=9)
    process.run()

    assert world.verdicts(asked) == ["reject"]


PORTS = {"http": 80}


def by_name(port: int | str) -> int:
    """A port, by its number or its name."""
    return PORTS[port] if isinstance(port, str) else port


def test_a_type_of_the_tool_that_raises_what_it_likes_makes_the_edit_void(world: World) -> None:
    own = App("own")

    @own.tool(version="1")
    def expose(port: Annotated[int, BeforeValidator(by_name)]) -> None:
        """Open a port."""

    process = Process(world, app_=own).run()
    schema = own.tools["expose"].facts.schema
    asked = request("run-1/5", args='{"port":80}', tool="expose", schema=schema)
    other = request("run-1/9", args='{"port":80}', tool="expose", schema=schema, step=2)
    for each in (asked, other):
        world.ask(each)
    offset = world.vote(asked, "ada", "edit", args='{"port":"ssh"}')
    world.vote(other, "ada", "edit", args='{"port":"http"}')
    process.run()

    assert world.letters() == [(APPROVAL_VOTED, offset, "edit_not_possible")]
    assert world.verdicts(other) == ["amend"]


def junk(world: World, asked: ApprovalRequest, number: int) -> int:
    """A vote that nobody signed."""
    message = ApprovalVote(asked.approval_id, str(number), asked.run_id, f"junk{number}")
    name = f"{asked.approval_id}/{number}"
    return world.write(APPROVAL_VOTED, home(asked.run_id, PARTITIONS), name, codec.encode(message))


class TestNumber:
    @pytest.mark.parametrize("what", ["unsigned", "approve", "comment", "withdraw", "changes"])
    @pytest.mark.parametrize("restart", [False, True], ids=["alive", "restarted"])
    def test_what_does_not_count_keeps_nobody_from_deciding(self, what: str, restart: bool, world: World) -> None:
        limits = ApprovalLimits(votes=5)
        process = Process(world, limits=limits).run()
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada")
        for number in range(12):
            if what == "unsigned":
                junk(world, asked, number)
            elif what == "changes":
                world.vote(asked, "cyd", ("edit", "withdraw")[number % 2], at=number + 2, args=EDITS[number % 2])
            else:
                world.vote(asked, f"zoe{number}", what, at=number + 2)
            if not restart:
                process.run()
        world.vote(asked, "bob", at=99)
        if restart:
            process = Process(world, limits=limits)
        process.run()

        assert world.verdicts(asked) == ["approve"]
        assert "too_many" not in [code for _, _, code in world.letters()]

    def test_what_does_not_count_goes_oldest_first(self, world: World) -> None:
        process = Process(world, limits=ApprovalLimits(votes=2)).run()
        asked = request()
        world.ask(asked)
        for at, who in enumerate(("zoe", "yan", "xia"), 1):
            world.vote(asked, who, at=at)
        process.run()
        world.publish("roles", "roles", {"roles": {"lead": ["zoe"]}})
        process.run()
        assert world.verdicts(asked) == []

        world.publish("roles", "roles", {"roles": {"lead": ["yan"]}})
        process.run()

        assert world.verdicts(asked) == ["approve"]

    def test_votes_that_count_are_no_more_than_the_limit_and_the_latest_is_refused(self, world: World) -> None:
        process = Process(world, limits=ApprovalLimits(votes=2)).run()
        asked = request(by="two")
        world.ask(asked)
        offsets = [
            world.vote(asked, who, "edit", args=f'{{"service":"{who}"}}', at=at)
            for at, who in enumerate(("ada", "bob", "cyd"), 1)
        ]
        process.run()

        assert world.letters() == [(APPROVAL_VOTED, offsets[2], "too_many")]

    def test_a_comment_is_answered_and_not_kept(self, world: World) -> None:
        process = Process(world).run()
        asked = request(by="two")
        world.ask(asked)
        world.vote(asked, "ada")
        for at in (2, 3):
            world.vote(asked, "zoe", "comment", at=at)
        world.vote(asked, "zoe", "remind", at=4)
        process.run()

        [poll] = [poll for lane in process.service.lanes for poll in lane.questions.values()]
        assert (len(poll.tokens), process.service.counts["vote.counted"]) == (1, 4)
        assert world.letters() == []


class TestTurns:
    def asked(self, world: World, number: int = 7) -> list[ApprovalRequest]:
        found = [request(f"run-1/{5 + each}", by="two", step=each + 1) for each in range(number)]
        for each in found:
            world.ask(each)
            world.vote(each, "ada")
        return found

    def test_a_turn_judges_no_more_than_so_much_and_does_not_sleep_on_the_rest(self, world: World) -> None:
        process = Process(world, limits=ApprovalLimits(turn_votes=4)).run()
        asked = self.asked(world)
        process.run()
        for each in asked:
            world.vote(each, "zoe", at=2)
        process.run()

        world.publish("roles", "roles", {"roles": {"lead": ["ada", "zoe"]}})
        decided = []
        for _ in range(5):
            process.turn()
            decided.append(len(world.decisions()))
            if decided[-1] < len(asked):
                assert process.service.next_due_ms() == world.now

        # Two votes and the approval itself: after two of them a turn has had its four.
        assert decided == [2, 4, 6, 7, 7]
        assert process.service.next_due_ms() is None

    def test_all_lanes_share_a_turn_and_every_lane_gets_on(self, world: World) -> None:
        process = Process(world, limits=ApprovalLimits(turn_votes=4)).run()
        runs = {home(run, PARTITIONS): run for run in (f"run-{number}" for number in range(20))}
        for run in runs.values():
            for number in (5, 9):
                asked = request(f"{run}/{number}", step=number)
                world.ask(asked)
                world.vote(asked, "ada")

        decided = []
        for _ in range(4):
            process.turn()
            decided.append(len(world.decisions()))

        # The first lane takes the turn's four with two approvals of a vote each, the others one each.
        assert len(runs) == PARTITIONS
        assert decided == [4, 6, 6, 6]

    @pytest.mark.parametrize(("entry", "verified"), [("roles", 0), ("key/gateway", 7)])
    def test_signatures_are_verified_again_only_when_keys_have_changed(
        self, entry: str, verified: int, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        process = Process(world).run()
        self.asked(world)
        process.run()
        seen: list[str] = []
        original = signature.verified

        def counting(token: str, *args: Any, **how: Any) -> dict[str, Any]:
            seen.extend([token] if how["use"] != "root" else [])
            return original(token, *args, **how)

        monkeypatch.setattr(signature, "verified", counting)
        content = ROLES if entry == "roles" else replace(GATEWAY.public(), not_before_ms=NOW - 9).content()
        world.publish(entry, entry.partition("/")[0], content)
        process.run()

        assert len(seen) == verified


def test_a_dead_letter_that_the_log_does_not_take_is_written_short() -> None:
    world = World(max_bytes=6_000)
    process = Process(world).run()
    world.write(APPROVAL_VOTED, 0, "k", b"x" * 5_900)

    process.run()

    [letter] = [codec.decode(DeadLetter, record.value or b"") for record in world.records("dead-letter-approval")]
    assert letter.value == b"x" * 1_000
    assert process.service.counts["publish.refused"] == 1
