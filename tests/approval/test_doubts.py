"""What came of a call of which nobody knows it is asked of the people whom the policy names, and decided by votes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval.ballot import Remember
from refold.core.approval.policy import Policy
from refold.core.messages import ApprovalRequest
from refold.core.topics import APPROVAL_VOTED
from tests.approval.driving import POLICY, Process, World, doubt, request

TWO = Policy.parse({**POLICY.content, "doubt": {"approvers": ["role:lead"], "quorum": 2}})


@pytest.fixture(autouse=True)
def policy(world: World) -> None:
    """Publish a policy by which two people have to agree."""
    world.publish(f"policy/{TWO.digest}", "policy", TWO.content)


def decided(world: World, process: Process, asked: ApprovalRequest, **vote: Any) -> list[tuple[str, str]]:
    """What a lead's vote makes of a question."""
    world.ask(asked)
    world.vote(asked, "ada", **vote)
    process.run()
    return [(each.verdict, each.result) for each in world.decisions(asked)]


@pytest.mark.parametrize(
    ("vote", "verdict"),
    [
        ({"action": "approve"}, ("approve", "")),
        ({"action": "answer", "result": "3"}, ("answer", "3")),
        ({"action": "reject"}, ("reject", "")),
    ],
)
def test_the_people_of_the_policy_say_what_came_of_a_call(
    world: World, process: Process, vote: dict[str, Any], verdict: tuple[str, str]
) -> None:
    assert decided(world, process, doubt(), **vote) == [verdict]
    assert [each.asked["about"] for each in world.decisions()] == ["doubt"]
    told = [fields for name, fields in process.service.news if name == "approval.decided"]
    assert [each["rule"] for each in told] == ["doubt"]


@pytest.mark.parametrize(
    ("vote", "code"),
    [
        ({"action": "answer", "result": '"three"'}, "edit_not_possible"),
        ({"action": "answer", "result": "null"}, "edit_not_possible"),
        ({"action": "edit", "args": '{"service":"db"}'}, "edit_not_possible"),
        ({"action": "approve", "actor": "dan"}, "unentitled"),
        ({"action": "approve", "actor": "eve"}, "requester"),
    ],
)
def test_what_nobody_can_say_of_a_doubt_is_void(
    world: World, process: Process, vote: dict[str, Any], code: str
) -> None:
    world.ask(asked := doubt())
    offset = world.vote(asked, **{"actor": "ada", **vote})
    process.run()

    assert world.decisions() == []
    assert world.letters() == [(APPROVAL_VOTED, offset, code)]


def test_the_result_of_a_call_is_for_the_tool_as_it_is_now(world: World, process: Process) -> None:
    """Otherwise a deployment would leave nobody who can say that it happened."""
    before = doubt(version="0")

    assert decided(world, process, before, action="answer", result="3") == [("answer", "3")]
    assert decided(world, process, doubt("run-1/9", version="0"), action="answer", result='"three"') == []


def test_a_quorum_has_to_say_the_same(world: World, process: Process) -> None:
    world.ask(asked := doubt(policy=TWO))
    world.vote(asked, "ada", "answer", result="3")
    world.vote(asked, "bob", "answer", result="4")
    process.run()

    assert world.decisions() == []
    world.vote(asked, "cyd", "answer", result="4")
    process.run()
    assert [(each.verdict, each.result) for each in world.decisions()] == [("answer", "4")]


def test_people_whom_the_policy_does_not_name_for_doubts_only_give_up(world: World, process: Process) -> None:
    made_up = doubt(needs=replace(request().requirement, approvers=["dan"]))

    world.ask(made_up)
    world.vote(made_up, "dan", "approve")
    process.run()
    assert world.decisions() == []

    world.vote(made_up, "dan", "reject", at=2)
    process.run()
    assert world.verdicts(made_up) == ["reject"]


def test_a_policy_that_names_nobody_for_doubts_asks_nobody(world: World, process: Process) -> None:
    mute = Policy.parse({"rules": POLICY.content["rules"]})
    world.publish(f"policy/{mute.digest}", "policy", mute.content)

    assert decided(world, process, doubt(policy=mute, needs=POLICY.doubt), action="approve") == []


def test_what_was_remembered_of_a_call_settles_no_doubt_about_it(world: World, process: Process) -> None:
    world.ask(asked := request(effect="once"))
    world.vote(asked, "ada", remember=Remember(3_600_000, 3))
    process.run()
    assert world.verdicts(asked) == ["approve"]

    world.ask(again := doubt())
    process.run()

    assert world.decisions(again) == []


def test_an_approval_of_the_call_is_none_of_the_doubt(world: World, process: Process) -> None:
    """Who says "it may go out" has not said "it did not happen"."""
    asked = request(effect="once", attempt=2, rule="one")
    world.ask(asked)
    world.ask(other := doubt())
    world.vote(asked, "ada", "approve")
    process.run()

    assert (world.verdicts(asked), world.verdicts(other)) == (["approve"], [])
