"""What the service cannot vouch for: people may still end it, and it waits for more only until it can."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from tests.approval.driving import POLICY, SERVICE, Process, World, request


def ask(world: World, process: Process) -> ApprovalRequest:
    """A request whose policy the operator drops then."""
    asked = request(by="two")
    world.ask(asked)
    process.run()
    world.publish(f"policy/{POLICY.digest}", "policy", None)
    world.publish("current", "current", "another")
    process.run()
    return asked


def held(process: Process) -> list[dict[str, Any]]:
    """What was told of approvals that wait for more than votes."""
    return [fields for name, fields in process.service.news if name == "approval.held"]


def test_it_can_be_rejected_by_whom_it_names(world: World, process: Process) -> None:
    asked = ask(world, process)
    world.vote(asked, "ada", "reject", message="asked under a policy that is gone")
    process.run()

    assert [(each.verdict, each.votes[0].via) for each in world.decisions()] == [("reject", "role:lead")]


def test_nobody_else_can_reject_it(world: World, process: Process) -> None:
    asked = ask(world, process)
    world.vote(asked, "zoe", "reject")
    process.run()

    assert world.decisions() == []
    assert [code for _, _, code in world.letters()] == ["unentitled"]


@pytest.mark.parametrize("more", [{}, {"action": "edit", "args": '{"service":"db"}'}], ids=str)
def test_it_cannot_be_approved_until_it_is_vouched_for_again(
    more: dict[str, Any], world: World, process: Process
) -> None:
    asked = ask(world, process)
    for actor in ("ada", "bob"):
        world.vote(asked, actor, **more)
    process.run()
    assert (world.decisions(), world.letters()) == ([], [])

    world.publish(f"policy/{POLICY.digest}", "policy", POLICY.content)
    process.run()

    assert world.verdicts(asked) == ["amend" if more else "approve"]


def test_it_is_told_once_and_says_that_it_can_only_be_rejected(world: World, process: Process) -> None:
    asked = ask(world, process)
    for actor in ("ada", "bob"):
        world.vote(asked, actor)
        process.run()

    [told] = held(process)
    assert told["approval_id"] == asked.approval_id
    assert "can only be rejected" in told["reason"]


def test_who_a_made_up_request_names_can_reject_it_and_nothing_else(world: World, process: Process) -> None:
    asked = request(needs=Requirement(["mallory"]))
    world.ask(asked)
    world.vote(asked, "mallory")
    process.run()
    assert world.decisions() == []

    world.vote(asked, "mallory", "reject", at=2)
    process.run()

    assert world.verdicts(asked) == ["reject"]


def test_a_rejection_waits_for_a_key_that_is_in_force(world: World, process: Process) -> None:
    asked = ask(world, process)
    world.publish("key/approval", "key", SERVICE.public(revoked=True).content())
    world.vote(asked, "ada", "reject")
    process.run()

    assert world.decisions() == []
    assert "key of this service" in held(process)[-1]["reason"]
