"""Decisions that hold no longer when their call goes out: people are asked once more."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    CallDispatched,
    CallFailed,
    CallJudged,
    Failure,
)
from tests.core import approvals
from tests.core.approvals import CONTENT, decided
from tests.core.asked import asks, decide_on, events, judged_by, kinds
from tests.core.histories import NOW, Log, asking, start

ASKED = {"approvers": ["*"]}


def test_another_attempt_of_a_once_call_needs_another_decision() -> None:
    log = asking("once")
    decide_on(log)
    log.feed(log.result(status="failed"))
    log.now = log.due().due_ms

    log.feed(log.due())

    assert kinds(log) == [ApprovalRequested]
    assert log.live.open[1].question.event.attempt == 2  # type: ignore[union-attr]


def test_a_retry_after_the_decision_has_expired_is_asked_for_again() -> None:
    log = asking(rules=judged_by(asks(valid="1s")))
    decide_on(log)
    log.now += 2_000
    log.feed(log.result(status="failed"))
    log.now = log.due().due_ms

    log.feed(log.due())

    assert kinds(log) == [ApprovalRequested]


def test_a_decision_that_has_expired_on_its_way_is_asked_for_again() -> None:
    log = asking(rules=judged_by(asks(valid="1s")))
    token = decided(log.live, 1, now=NOW)
    log.now += 1_000

    log.feed(token)

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]
    assert events(log)[0].verdict == "expire"  # type: ignore[union-attr]


@pytest.mark.parametrize("code", ["decision_expired", "decision_revoked", "tool_changed"])
def test_what_an_executor_sends_back_goes_back_to_people(code: str) -> None:
    log = asking("once", attempts=1)
    decide_on(log)

    log.feed(log.result(status="unauthorised", failure=Failure(code, "not now")))

    assert kinds(log) == [AttemptFailed, ApprovalRequested]
    assert log.live.status == "suspended"


def test_a_refused_attempt_costs_no_retry() -> None:
    log = asking("keyed", attempts=2)
    decide_on(log)
    log.feed(log.result(status="unauthorised", failure=Failure("decision_expired", "")))
    decide_on(log)
    log.feed(log.result(status="failed", attempt=2))

    assert kinds(log) == [AttemptFailed]
    assert log.live.open[1].question is None


def test_a_policy_that_rechecks_sees_calls_that_another_has_judged() -> None:
    rules = judged_by(CONTENT)
    log = asking("keyed", rules=rules)
    token = decided(log.live, 1, now=NOW)
    assert rules.authority
    allowing = {"recheck": True, "rules": [{"name": "all", "when": "true", "allow": True}]}
    policy = approvals.put_in_force(rules.authority.catalog, allowing)

    log.feed(token)

    assert kinds(log) == [ApprovalDecided, CallJudged, CallDispatched]
    assert log.live.open[1].policy == policy.digest


def test_an_executor_that_knows_a_newer_policy_makes_the_planner_wait_for_it() -> None:
    log = asking("pure")

    log.feed(log.result(status="unauthorised", failure=Failure("policy_changed", "")))

    assert events(log) == [AttemptFailed(1, 1, Failure("policy_changed", ""), False, NOW + 1_000)]


def test_a_revoked_approver_makes_a_decision_void_on_its_way() -> None:
    rules = judged_by(CONTENT)
    log = asking("keyed", rules=rules)
    token = decided(log.live, 1, now=NOW)
    assert rules.authority
    approvals.publish(rules.authority.catalog, "roles", "roles", {"revoked": ["ada"]})  # type: ignore[attr-defined]

    log.feed(token)

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]


@pytest.mark.parametrize("withdrawn", [{"revoked": True, "reason": "stolen"}, {"retired_ms": NOW}])
def test_a_decision_whose_key_is_withdrawn_on_its_way_is_asked_for_again(withdrawn: dict[str, Any]) -> None:
    rules = judged_by(CONTENT)
    log = asking("keyed", rules=rules)
    token = decided(log.live, 1, now=NOW)
    assert rules.authority
    public = approvals.KEY.public(**withdrawn)
    approvals.publish(rules.authority.catalog, f"key/{approvals.KEY.kid}", "key", public.content())  # type: ignore[attr-defined]

    log.feed(token)

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]


@pytest.mark.parametrize("says", [{"allow": True}, {"require": {"approvers": ["*"]}}, {"deny": "no"}])
def test_a_rule_about_an_input_that_lies_in_the_blob_store_fails_and_what_is_stricter_holds(says: Any) -> None:
    log = Log(rules=judged_by({"rules": [{"name": "all", "when": "true", "allow": True}]}))
    log.feed(start(input=f"blob:{'ab' * 32}:70000"))
    log.propose()
    rule = {"name": "small", "when": "run.input.amount < 10", **says}
    assert log.rules.authority
    approvals.put_in_force(log.rules.authority.catalog, {"recheck": True, "rules": [rule], "fallback": ASKED})

    log.feed(log.result(status="failed"))
    log.now = log.due().due_ms
    log.feed(log.due())

    assert kinds(log) == [CallFailed if "deny" in says else ApprovalRequested]
