"""An edit is judged: what people make of a call needs what its policy asks for that, not for what was proposed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval import ballot
from refold.core.approval.catalog import Roles
from refold.core.approval.question import question_digest
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    CallDispatched,
    Failure,
    LateResultRecorded,
    RunFailed,
)
from refold.core.ids import CallId
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.planning.asking import question_of
from refold.core.planning.verdict import Refuse
from tests.core.approvals import ADA
from tests.core.asked import decide_on, events, judged_by, kinds, ordered
from tests.core.histories import Log, asking, operation

LEAD = {"approvers": ["role:lead"]}
OWNERS = {"approvers": ["role:owner"], "quorum": 2}
TIERS: dict[str, Any] = {
    "rules": [
        {"name": "never", "when": "args.n > 1000", "deny": "by hand"},
        {"name": "many", "when": "args.n >= 100", "require": OWNERS},
        {"name": "few", "when": "args.n > 0", "require": LEAD},
        {"name": "none", "when": "true", "allow": True},
    ]
}


@pytest.fixture
def log() -> Log:
    """Give a run whose call of one needs a lead."""
    return asking(rules=judged_by(TIERS))


def test_an_edit_about_which_the_policy_asks_the_same_people_is_a_question_to_the_others(log: Log) -> None:
    decide_on(log, "edit", edited='{"n":99}')

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]
    asked = next(order for order in ordered(log) if isinstance(order, ApprovalRequest))
    assert (asked.args, asked.writers) == ('{"n":99}', ["ada"])
    assert not ballot.may_decide(asked, (), Roles({"lead": frozenset({"ada"})}), "ada", log.now)
    assert ballot.may_decide(asked, (), Roles({"lead": frozenset({"bob"})}), "bob", log.now)
    decide_on(log)
    assert isinstance(order := ordered(log)[0], ToolRequest)
    assert order.args == '{"n":99}'


def test_an_edit_goes_out_where_those_who_ask_may_decide_themselves() -> None:
    rules = {"rules": [{**TIERS["rules"][2], "require": {**LEAD, "not_requester": False}}, TIERS["rules"][3]]}
    log = asking(rules=judged_by(rules))

    decide_on(log, "edit", edited='{"n":99}')

    assert kinds(log) == [ApprovalDecided, CallDispatched]
    assert isinstance(order := ordered(log)[0], ToolRequest)
    assert order.args == '{"n":99}'


def test_everybody_who_wrote_arguments_is_named_and_asked_again_it_is_the_same_question(log: Log) -> None:
    decide_on(log, "edit", edited='{"n":99}')
    decide_on(log, "edit", edited='{"n":98}', changes={"votes": (ADA[0]._replace(actor="bob"),)})

    asked = next(order for order in ordered(log) if isinstance(order, ApprovalRequest))
    assert asked.writers == ["ada", "bob"]
    step = log.live.open[1]
    assert question_of(log.live, log.live.call(1), step) == asked


def test_a_question_that_an_earlier_release_asked_stays_as_it_was(log: Log) -> None:
    decide_on(log, "amend", edited='{"n":100}')
    opened = log.live.open[1]
    assert opened.question is not None
    asked = question_of(log.live, log.live.call(1), opened)
    before = question_digest(replace(asked, writers=[]))

    again = question_of(log.live, log.live.call(1), opened._replace(question=opened.question._replace(question=before)))

    assert (again.writers, again.question, question_digest(again)) == ([], before, before)
    assert asked.writers == ["ada"]


def test_an_edit_that_needs_nobody_goes_out(log: Log) -> None:
    decide_on(log, "edit", edited='{"n":0}')

    assert kinds(log) == [ApprovalDecided, CallDispatched]


@pytest.mark.parametrize("verdict", ["edit", "amend"])
def test_an_edit_that_needs_others_is_a_question_to_them_and_lets_nothing_out(log: Log, verdict: Any) -> None:
    first = ordered(log)[0]
    assert isinstance(first, ApprovalRequest)

    decide_on(log, verdict, edited='{"n":100}')

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]
    assert [event.verdict for event in events(log) if isinstance(event, ApprovalDecided)] == ["amend"]
    asked = next(order for order in ordered(log) if isinstance(order, ApprovalRequest))
    assert (asked.args, asked.proposed_args, asked.rule) == ('{"n":100}', first.args, "many")
    assert (asked.requirement.approvers, asked.requirement.quorum) == (["role:owner"], 2)
    assert asked.question != first.question
    assert asked.key != first.key


def test_what_they_approve_of_is_the_edited_call(log: Log) -> None:
    decide_on(log, "amend", edited='{"n":100}')
    decide_on(log, "approve")

    assert kinds(log) == [ApprovalDecided, CallDispatched]
    assert isinstance(order := ordered(log)[0], ToolRequest)
    assert (order.args, order.attempt) == ('{"n":100}', 1)


def test_what_they_reject_never_goes_out(log: Log) -> None:
    decide_on(log, "amend", edited='{"n":100}')
    decide_on(log, "reject", message="no")

    assert not log.live.open


def test_an_edit_of_their_own_is_judged_as_well(log: Log) -> None:
    decide_on(log, "amend", edited='{"n":100}')
    decide_on(log, "edit", edited='{"n":7}')

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]
    asked = next(order for order in ordered(log) if isinstance(order, ApprovalRequest))
    assert (asked.args, asked.requirement.approvers) == ('{"n":7}', ["role:lead"])


@pytest.mark.parametrize("verdict", ["edit", "amend"])
def test_an_edit_that_is_denied_comes_to_nothing_and_people_are_asked_about_the_call_as_it_was(
    log: Log, verdict: Any
) -> None:
    decide_on(log, verdict, edited='{"n":1001}')

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]
    ended = events(log)[0]
    assert isinstance(ended, ApprovalDecided)
    assert (ended.verdict, ended.message) == ("expire", "the edit is denied: by hand")
    asked = next(order for order in ordered(log) if isinstance(order, ApprovalRequest))
    assert (asked.args, asked.proposed_args, asked.rule) == ('{"n":1}', "", "few")


def test_a_proposal_by_people_that_binds_other_arguments_is_refused(log: Log) -> None:
    assert isinstance(decide_on(log, "amend", edited='{"n":100}', changes={"edited": '{"n":5}'}), Refuse)


def test_an_edit_that_the_service_took_for_another_question_is_asked_about_anew(log: Log) -> None:
    """The service knows less of the run than the planner: what it is not sure of is asked."""
    decide_on(log, "amend", edited='{"n":5}')

    assert kinds(log) == [ApprovalDecided, ApprovalRequested]


def retried(edited: str = "") -> tuple[Log, CallId]:
    """Give a run that failed by its call, was retried, and whose call people have let out once more; its first id."""
    log = asking(attempts=1, rules=judged_by(TIERS))
    first = log.live.call_id(1)
    decide_on(log)
    log.feed(log.result(status="failed"))
    log.append([RunFailed(Failure("failed", "no"))])
    log.feed(operation("retry", json.dumps({"seq": log.live.head.seq, "from": 0})))
    decide_on(log, "edit" if edited else "approve", **({"edited": edited} if edited else {}))
    return log, first


def test_what_comes_late_of_a_call_is_no_result_of_what_people_have_made_of_it_since() -> None:
    log, first = retried('{"n":7}')

    log.feed(replace(log.result(), call_id=first))

    assert kinds(log) == [LateResultRecorded]
    assert 1 in log.live.open
    log.feed(log.result())
    assert CallCompleted in kinds(log)


def test_what_comes_late_of_a_call_is_the_result_of_the_same_call_that_was_asked_for_anew() -> None:
    log, first = retried()

    log.feed(replace(log.result(), call_id=first))

    assert CallCompleted in kinds(log)
