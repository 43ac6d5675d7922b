"""How a run asks people, and what their decision makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval.decision import Grant
from refold.core.approval.signature import SigningKey
from refold.core.events import (
    ApprovalDecided,
    ApprovalEscalated,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    CallProposed,
    Event,
    Failure,
    RetryPolicy,
    RunFailed,
)
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.planning.commands import commands
from refold.core.planning.decide import decide
from refold.core.planning.pausing import RequestedAt
from refold.core.planning.verdict import Ignore, Park, Refuse
from tests.core import approvals
from tests.core.approvals import CONTENT, decided
from tests.core.asked import asks, decide_on, events, judged_by, kinds, ordered
from tests.core.histories import JUDGED, NOW, Log, asking, signal, start


def test_a_call_that_needs_people_suspends_its_run_and_reaches_no_executor() -> None:
    log = asking()

    assert kinds(log) == [CallProposed, ApprovalRequested]
    assert log.live.status == "suspended"
    (request,) = ordered(log)
    assert isinstance(request, ApprovalRequest)
    assert (request.call_id, request.tool, request.rule) == ("run-1/3", "push", "asks")
    assert request.approval_id == f"run-1/3~{request.question[:32]}" == log.live.waits_for(1)


def test_what_a_policy_allows_goes_out_in_the_entry_that_proposes_it() -> None:
    log = asking("pure")

    assert kinds(log) == [CallProposed, CallDispatched]
    (order,) = ordered(log)
    assert isinstance(order, ToolRequest)
    assert (order.policy, order.decision) == (approvals.POLICY.digest, "")


def test_what_a_policy_denies_is_an_observation_of_the_agent() -> None:
    log = asking("probed")

    assert kinds(log) == [CallProposed, CallFailed]
    assert events(log)[1] == CallFailed(1, 0, Failure("denied", "not in this house", "never"))


ALLOWS, ANYBODY = {"rules": [{"name": "all", "when": "true", "allow": True}]}, {"approvers": ["*"]}


@pytest.mark.parametrize("fallback", [True, False])
def test_a_tool_that_says_so_needs_a_decision_whatever_the_policy_allows(*, fallback: bool) -> None:
    log = Log(rules=judged_by({**ALLOWS, **({"fallback": ANYBODY} if fallback else {})}))
    log.feed(start())
    call = CallProposed(1, "wipe", "{}", "key", "default", "once", 1_000, RetryPolicy())

    found = log.rules.authority and log.rules.authority.judge(log.live, call, log.live.request.policy)  # type: ignore[union-attr]

    assert found
    assert found.outcome == ("require" if fallback else "deny")


def test_an_approval_lets_the_call_out_with_the_decision() -> None:
    log = asking()
    name = log.live.waits_for(1)

    decide_on(log)

    assert kinds(log) == [ApprovalDecided, CallDispatched]
    order, closed = ordered(log)
    assert isinstance(order, ToolRequest)
    assert (order.args, order.attempt, order.decision, closed) == ('{"n":1}', 1, events(log)[0].token, name)  # type: ignore[union-attr]


def test_an_edit_changes_what_goes_out_and_not_what_was_proposed() -> None:
    log = asking()

    decide_on(log, "edit", edited='{"n":7}')
    decide_on(log)

    order = ordered(log)[0]
    assert isinstance(order, ToolRequest)
    assert order.args == '{"n":7}'
    assert order.key != "key-1"
    assert log.live.steps[0].args == '{"n":1}'  # type: ignore[union-attr]


def test_a_rejection_is_an_observation_with_the_reason() -> None:
    log = asking()

    decide_on(log, "reject", message="not on a Friday")

    assert events(log)[1] == CallFailed(1, 0, Failure("rejected", "not on a Friday", "ada"))


def test_an_answer_stands_in_the_place_of_the_result() -> None:
    log = asking()

    decide_on(log, "answer", result='"by hand"')

    assert events(log)[1] == CallCompleted(1, 0, '"by hand"')


def test_a_second_decision_changes_nothing() -> None:
    log = asking()
    first, second = (decided(log.live, 1, verdict, now=NOW) for verdict in ("approve", "reject"))
    log.feed(first)

    assert isinstance(log.feed(second), Ignore)
    assert isinstance(log.feed(first), Ignore)


@pytest.mark.parametrize("changes", [{"question": "another"}, {"approval": "run-1/9"}, {"approval": "run-2/4"}])
def test_an_answer_to_another_question_is_refused(changes: dict[str, str]) -> None:
    log = asking()

    found = decide_on(log, changes=changes)

    assert isinstance(found, Refuse)
    assert found.code == "unauthorised"


def test_a_decision_by_a_stranger_is_refused_and_one_by_an_unknown_key_waits() -> None:
    log = asking()

    of_other_pool = decide_on(log, key=replace(approvals.KEY, seed=bytes(32)))
    unknown = decide_on(log, key=SigningKey("test-2", "decision", bytes(32)))

    assert isinstance(of_other_pool, Refuse)
    assert isinstance(unknown, Park)


def test_a_decision_that_comes_after_the_expiry_changes_nothing() -> None:
    log = asking()
    late = decided(log.live, 1, now=NOW)
    log.now = NOW + 60_000

    assert isinstance(log.feed(late), Ignore)


def test_an_approval_escalates_and_then_expires() -> None:
    log = asking()
    first = log.live.waits_for(1)
    log.now = log.due().due_ms
    log.feed(log.due())

    question = log.live.open[1].question.question
    assert log.now == NOW + 20_000
    assert events(log) == [ApprovalEscalated(1, 4, ["*", "role:lead"], NOW + 60_000, question)]
    closed, asked = ordered(log)
    assert (closed, asked.level, asked.question) == (first, 1, question)
    assert asked.approval_id == log.live.waits_for(1) != first
    log.now = log.due().due_ms
    log.feed(log.due())
    assert kinds(log) == [ApprovalDecided, CallFailed]


def test_an_escalation_that_is_repeated_closes_no_later_question() -> None:
    escalates = asks(escalate={"after": "20s", "to": ["role:lead"]})
    log = asking("once", rules=judged_by({**escalates, "doubt": {"approvers": ["role:lead"]}}))
    log.now = log.due().due_ms
    log.feed(log.due())
    escalated = log.entries[-1][1]
    decide_on(log)
    log.feed(log.result(status="doubt"))
    doubt = log.live.waits_for(1)

    again = commands(log.live, escalated, 7)

    assert doubt
    assert doubt not in [command.key for command in again if command.message is None]


def test_an_approval_that_escalates_on_expiry_gets_its_time_again() -> None:
    log = asking(rules=judged_by(asks(expires="60s", on_expiry="escalate", escalate={"to": ["role:lead"]})))
    log.now = log.due().due_ms
    log.feed(log.due())

    (escalated,) = events(log)
    assert (escalated.approvers, escalated.expires_ms) == (["*", "role:lead"], NOW + 120_000)


@pytest.mark.parametrize(("after_ms", "taken"), [(59_999, True), (60_000, False)])
def test_a_decision_counts_by_when_it_was_made_and_not_by_when_it_is_read(after_ms: int, taken: bool) -> None:
    log = asking(rules=judged_by(asks(expires="60s")))
    made = decided(log.live, 1, now=log.now)
    sent = RequestedAt(log.now + after_ms, 0)

    ruling = decide(log.live, made, log.now + 3_000_000, log.rules, sent=sent)

    assert isinstance(ruling, list) is taken


def test_an_expiry_may_fail_the_run() -> None:
    log = asking(rules=judged_by(asks(expires="60s", on_expiry="fail")))
    log.now = log.due().due_ms
    log.feed(log.due())

    assert kinds(log) == [ApprovalDecided, RunFailed]


def test_a_decision_covers_all_retries_of_a_keyed_call_and_one_attempt_of_a_once_call() -> None:
    keyed, once = asking("keyed"), asking("once")

    assert [log.live.open[1].question.event.covers for log in (keyed, once)] == [3, 1]  # type: ignore[union-attr]


def test_a_forgery_ends_the_call_and_its_run_goes_on() -> None:
    log = asking("once")
    decide_on(log)

    log.feed(log.result(status="unauthorised", failure=Failure("unauthorised", "signed by nobody")))

    assert events(log) == [CallFailed(1, 1, Failure("unauthorised", "signed by nobody"))]


def test_a_forgery_that_follows_another_order_leaves_the_call_in_doubt() -> None:
    log = asking("once")
    decide_on(log)

    log.feed(log.result(status="unauthorised", failure=Failure("unauthorised", "signed by nobody"), again=True))

    assert kinds(log) == [CallDoubted, ApprovalRequested]


def test_a_call_that_may_have_happened_is_in_doubt_when_people_reject_it() -> None:
    log = asking("keyed", rules=judged_by(asks(valid="1s")))
    decide_on(log)
    log.now += 2_000
    log.feed(log.result(status="unknown"))
    log.now = log.due().due_ms
    log.feed(log.due())
    assert kinds(log) == [ApprovalRequested]

    decide_on(log, "reject")

    assert kinds(log) == [ApprovalDecided, CallDoubted]


@pytest.mark.parametrize("on_expiry", ["reject", "fail"])
def test_a_call_that_may_have_happened_is_in_doubt_when_nobody_decides(on_expiry: str) -> None:
    log = asking("keyed", rules=judged_by(asks(valid="1s", expires="60s", on_expiry=on_expiry)))
    decide_on(log)
    log.now += 2_000
    log.feed(log.result(status="unknown"))
    for _ in range(2):  # the pause before the next attempt, then the time that people have
        log.now = log.due().due_ms
        log.feed(log.due())

    assert kinds(log) == [ApprovalDecided, CallDoubted]


def test_a_call_that_was_sent_is_not_edited_any_more() -> None:
    log = asking("keyed", rules=judged_by(asks(valid="1s")))
    decide_on(log)
    log.now += 2_000
    log.feed(log.result(status="unknown"))
    log.now = log.due().due_ms
    log.feed(log.due())

    assert isinstance(decide_on(log, "edit", edited='{"n":7}'), Refuse)
    assert isinstance(decide_on(log, "answer", result="1"), Refuse)


@pytest.mark.parametrize(("effect", "ends"), [("keyed", CallDoubted), ("pure", CallFailed)])
def test_a_call_of_two_orders_is_in_doubt_when_a_newer_policy_denies_it(effect: str, ends: type[Event]) -> None:
    rules = judged_by(asks())
    log = asking(effect, rules=rules)
    decide_on(log)
    assert rules.authority
    denying = {"recheck": True, "rules": [{"name": "never", "when": "true", "deny": "not any more"}]}
    approvals.put_in_force(rules.authority.catalog, denying)

    log.feed(log.result(status="unauthorised", failure=Failure("policy_changed", ""), again=True))

    assert kinds(log) == [AttemptFailed, ends]


def test_a_cancelled_run_closes_its_question() -> None:
    log = asking()
    name = log.live.waits_for(1)

    log.feed(signal("cancel"))

    assert name in ordered(log)


def test_a_use_of_a_grant_counts_once_in_a_run() -> None:
    log = asking("keyed", rules=judged_by(asks()))
    grant = Grant(log.live.waits_for(1), "run", NOW + 60_000, 3, 1)
    decide_on(log, grant=grant)
    log.propose("keyed")

    log.feed(decided(log.live, 2, now=log.now, grant=grant))

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]
    assert dict(log.live.uses) == {(grant.id, 1): 1}


def test_without_a_policy_calls_go_out_as_they_always_did() -> None:
    log = asking("once", rules=judged_by_nobody())

    assert kinds(log) == [CallProposed, CallDispatched]


def judged_by_nobody() -> Any:
    return replace(JUDGED, authority=approvals.authority(None))


def test_a_policy_that_is_not_in_the_catalog_any_more_lets_nothing_out() -> None:
    rules = judged_by(CONTENT)
    log = Log(rules=rules)
    log.feed(start())
    assert rules.authority
    rules.authority.catalog.policies.clear()

    log.propose("pure")

    assert kinds(log) == [CallProposed, CallFailed]


def test_where_a_run_has_no_policy_the_one_in_force_says_whom_a_tool_asks_for() -> None:
    rules = judged_by_nobody()
    leads = {"rules": [{"name": "leads", "when": "true", "require": {"approvers": ["role:lead"]}}]}
    policy = approvals.put_in_force(rules.authority.catalog, leads)
    rules.authority.catalog.current = ""
    log = Log(rules=rules)
    log.feed(start())
    rules.authority.catalog.current = policy.digest
    call = CallProposed(1, "wipe", "{}", "key", "default", "once", 1_000, RetryPolicy())

    found = rules.authority.judge(log.live, call, "")

    assert (found.policy, found.rule) == (policy.digest, "leads")


def test_a_result_of_a_call_that_was_never_ordered_says_so_in_the_history() -> None:
    made_up, late = asking(), asking()
    decide_on(late)
    late.feed(late.result(status="unauthorised", failure=Failure("decision_expired", "")))

    for log in (made_up, late):
        log.feed(log.result(attempt=1))

    whys = [event.message for log in (made_up, late) for event in events(log) if isinstance(event, ApprovalDecided)]
    assert whys == ["an executor sent a result, and no attempt was ordered", "an earlier attempt had its result"]
