"""The approval service asks the policy about what people make of a call, before it decides anything."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.approval.policy import Policy
from refold.core.messages import ApprovalRequest
from refold.core.topics import APPROVAL_VOTED
from tests.approval.driving import Process, World, request

LEAD = {"approvers": ["role:lead"]}
TIERS: dict[str, Any] = {
    "rules": [
        {"name": "debugging", "when": "run.session == 'debugging' && args.times > 500", "require": LEAD},
        {"name": "never", "when": "args.times > 1000", "deny": "by hand"},
        {"name": "many", "when": "args.times >= 100", "require": {"approvers": ["role:owner"], "quorum": 2}},
        {"name": "few", "when": "args.times > 1", "require": LEAD},
        {"name": "once", "when": "true", "allow": True},
    ]
}
POLICY = Policy.parse(TIERS)
FEW = next(rule.requirement for rule in POLICY.rules if rule.name == "few")


def asked(**more: Any) -> ApprovalRequest:
    """What leads are asked: to restart five times."""
    given = {"args": '{"service":"api","times":5}', "policy": POLICY.digest, "rule": "few", "needs": FEW}
    return request(**{**given, **more})


def edits(times: int) -> dict[str, str]:
    return {"action": "edit", "args": f'{{"service":"api","times":{times}}}'}


@pytest.fixture(autouse=True)
def policy(world: World) -> None:
    """Publish the policy."""
    world.publish(f"policy/{POLICY.digest}", "policy", POLICY.content)


@pytest.mark.parametrize(("not_requester", "verdict"), [(True, "amend"), (False, "edit")])
def test_whoever_edits_decides_alone_only_where_those_who_ask_may(
    not_requester: bool, verdict: str, world: World, process: Process
) -> None:
    rules = [{"name": "few", "when": "true", "require": {**LEAD, "not_requester": not_requester}}]
    policy = Policy.parse({"rules": rules})
    world.publish(f"policy/{policy.digest}", "policy", policy.content)
    process.run()
    question = asked(policy=policy.digest, needs=policy.rules[0].requirement)
    world.ask(question)
    world.vote(question, "ada", **edits(99))
    process.run()

    assert [(each.verdict, each.edited) for each in world.decisions()] == [(verdict, edits(99)["args"])]


def test_whoever_wrote_the_arguments_does_not_decide_on_them(world: World, process: Process) -> None:
    question = asked(writers=["ada"], proposed_args='{"service":"api","times":4}')
    world.ask(question)
    offset = world.vote(question, "ada", "approve")
    process.run()
    assert (world.decisions(), world.letters()) == ([], [(APPROVAL_VOTED, offset, "requester")])

    world.vote(question, "bob", "approve", at=2)
    process.run()
    assert world.verdicts(question) == ["approve"]


def test_an_edit_for_which_nobody_is_needed_is_decided(world: World, process: Process) -> None:
    world.ask(asked())
    world.vote(asked(), "ada", **edits(1))
    process.run()

    assert world.verdicts(asked()) == ["edit"]


def test_an_edit_that_needs_others_lets_nothing_out(world: World, process: Process) -> None:
    world.ask(asked())
    world.vote(asked(), "ada", **edits(100))
    process.run()

    assert [(each.verdict, each.edited) for each in world.decisions()] == [("amend", edits(100)["args"])]


@pytest.mark.parametrize("times", [501, 1_001])
def test_a_rule_that_looks_at_what_only_the_planner_knows_may_ask_these_people(
    times: int, world: World, process: Process
) -> None:
    """The planner, who knows, judges it once more."""
    world.ask(asked())
    world.vote(asked(), "ada", **edits(times))
    process.run()

    assert world.verdicts(asked()) == ["amend"]


def test_an_edit_that_is_denied_is_void_with_the_words_of_the_rule(world: World) -> None:
    strict = Policy.parse({"rules": TIERS["rules"][1:]})
    world.publish(f"policy/{strict.digest}", "policy", strict.content)
    process = Process(world).run()
    question = asked(policy=strict.digest)
    world.ask(question)
    offset = world.vote(question, "ada", **edits(1_001))
    process.run()

    assert world.decisions() == []
    assert world.letters() == [(APPROVAL_VOTED, offset, "edit_denied")]
    said = [fields for name, fields in process.service.news if name == "vote.void"]
    assert [each["reason"] for each in said] == ["the rule 'never' denies it: by hand"]


def test_a_vote_that_was_read_before_the_policy_is_judged_when_it_is_there(world: World, process: Process) -> None:
    strict = Policy.parse({"rules": TIERS["rules"][1:]})
    question = asked(policy=strict.digest)
    world.ask(question)
    world.vote(question, "ada", **edits(1_001))
    process.run()

    world.publish(f"policy/{strict.digest}", "policy", strict.content)
    process.run()

    assert world.decisions() == []
