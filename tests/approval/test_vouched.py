"""A planner may not make up who decides: the service asks the policy itself, as far as it can know the call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval.catalog import Catalog
from refold.core.approval.policy import Policy
from refold.core.approval.policy_check import vouched
from refold.core.approval.question import question_digest, received
from refold.core.errors import MalformedError
from refold.core.events import Requirement
from refold.core.messages import ApprovalRequest
from refold.core.wire import codec
from tests.approval import questions
from tests.approval.driving import app
from tests.core import approvals

CONTENT: dict[str, Any] = {
    "fallback": {"approvers": ["*"], "not_requester": False},
    "rules": [
        {"name": "others", "when": "tool.name == 'look'", "require": {"approvers": ["*"]}},
        {"name": "leads", "when": "tool.name == 'restart'", "require": {"approvers": ["role:lead"], "quorum": 2}},
        {"name": "rest", "when": "true", "require": {"approvers": ["*"], "quorum": 3}},
    ],
}
POLICY = Policy.parse(CONTENT)
TOOLS = {name: tool.facts for name, tool in app.tools.items()}


def known(content: dict[str, Any] | None = CONTENT) -> Catalog:
    return approvals.catalog(content)


def asked(rule: str = "leads", **changes: Any) -> ApprovalRequest:
    found = next((each.requirement for each in POLICY.rules if each.name == rule), POLICY.fallback)
    return questions.request(**{"needs": found, "policy": POLICY.digest, "rule": rule, "effect": "keyed", **changes})


def test_what_the_first_rule_about_the_call_asks_for_is_asked() -> None:
    assert vouched(asked(), known(), TOOLS)


@pytest.mark.parametrize("rule", ["fallback", "others", "rest"])
def test_a_rule_about_another_call_is_not_taken_for_it(rule: str) -> None:
    assert not vouched(asked(rule), known(), TOOLS)


@pytest.mark.parametrize("policy", ["", "0" * 64])
def test_nobody_decides_on_a_request_without_a_known_policy(policy: str) -> None:
    request = asked(policy=policy, rule="", needs=Requirement(["*"]))

    assert not vouched(request, known(), TOOLS)
    assert not vouched(request, known(None), TOOLS)


def test_made_up_approvers_are_never_asked() -> None:
    assert not vouched(asked(needs=replace(asked().requirement, approvers=["eve"])), known(), TOOLS)


def test_a_rule_that_looks_at_what_only_the_planner_knows_may_apply() -> None:
    content = {
        "rules": [{"name": "big", "when": "run.calls > 9", "require": {"approvers": ["dan"]}}, *CONTENT["rules"]]
    }
    policy = Policy.parse(content)
    request = asked(policy=policy.digest, rule="big", needs=policy.rules[0].requirement)

    assert vouched(request, known(content), TOOLS)
    assert vouched(asked(policy=policy.digest), known(content), TOOLS)


@pytest.mark.parametrize("outcome", [{"allow": True}, {"require": {"approvers": ["*"]}}])
def test_a_rule_that_fails_leaves_what_stands_behind_it(outcome: dict[str, Any]) -> None:
    content = {**CONTENT, "rules": [{"name": "fails", "when": "args.gone == 1", **outcome}, *CONTENT["rules"]]}
    policy = Policy.parse(content)

    assert vouched(asked(policy=policy.digest), known(content), TOOLS)
    assert not vouched(asked("fallback", policy=policy.digest), known(content), TOOLS)
    assert not vouched(asked("others", policy=policy.digest), known(content), TOOLS)


def test_a_rule_about_another_tool_is_not_taken_for_it_whatever_else_it_looks_at() -> None:
    other = {"name": "other", "when": "tool.name == 'look' && agent == 'x'", "require": {"approvers": ["dan"]}}
    content = {"rules": [other, *CONTENT["rules"]]}
    policy = Policy.parse(content)

    assert not vouched(asked(policy=policy.digest, needs=policy.rules[0].requirement), known(content), TOOLS)


def test_the_question_binds_the_rule_and_what_it_asks_for() -> None:
    request = asked()

    assert question_digest(request) != question_digest(replace(request, rule="rest"))
    assert question_digest(request) != question_digest(replace(request, requirement=Requirement(["*"])))


def test_a_once_call_is_asked_for_one_attempt_at_a_time() -> None:
    request = asked(effect="once", covers=2)

    with pytest.raises(MalformedError, match="number of attempts"):
        received(request.approval_id.encode(), codec.encode(request), partition=0, partitions=1)
