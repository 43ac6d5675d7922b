"""The people of a test: whom a policy names, as many as it takes, and signed so that an executor believes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold import App, CallFailed, Context, UsageError
from refold.core.approval import signature
from refold.core.approval.decision import Decision
from refold.core.events import ApprovalDecided
from refold.core.messages import ApprovalRequest
from refold.core.planning.verdict import Decided
from refold.testing import AgentRun, answer, attempts, edit, run, start
from refold.testing.people import _KEY, Says

app = App("desk")


@app.tool(effect="once", pool="far")
def drop(table: str) -> int:
    return len(table)


@app.agent
async def cleanup(ctx: Context, table: str) -> int:
    return await ctx.call(drop, table)


def asking(*approvers: str, quorum: int = 1, **more: Any) -> dict[str, Any]:
    needed = {"approvers": list(approvers), "quorum": quorum, **more}
    return {"rules": [{"name": "asks", "when": "true", "require": needed}], "doubt": {"approvers": ["role:lead"]}}


def deciders(result: AgentRun) -> list[str]:
    """Who stands behind the decision that the executor acted on."""
    [order] = result.executors.ran
    votes = Decision.parse(signature.verified(order.decision, {_KEY.kid: _KEY.public()}, use="decision")).votes
    return [vote.actor for vote in votes]


@pytest.mark.parametrize(
    ("policy", "who"),
    [
        (asking("*"), ["tester-1"]),
        (asking("role:lead", quorum=2), ["tester-1", "tester-2"]),
        (asking("ada", "role:lead", quorum=3, not_requester=True), ["ada", "tester-1", "tester-2"]),
        (asking("ada", "bob"), ["ada"]),
    ],
)
def test_as_many_people_decide_as_the_policy_asks_for_and_the_executor_counts_them(
    policy: dict[str, Any], who: list[str]
) -> None:
    result = run(app, "cleanup", policy=policy, table="abc")

    assert result.value == 3
    assert deciders(result) == who


def test_one_person_is_enough_to_reject() -> None:
    result = run(app, "cleanup", policy=asking("role:lead", quorum=2), decisions={"drop": "reject"}, table="abc")

    assert [event.verdict for event in result.events if isinstance(event, ApprovalDecided)] == ["reject"]
    assert result.executors.ran == []


def test_people_who_are_too_few_for_the_policy_end_the_test() -> None:
    with pytest.raises(UsageError, match="nobody can approve the call of drop"):
        run(app, "cleanup", policy=asking("ada", "requester", quorum=2, not_requester=True), table="abc")


def test_a_decision_without_its_votes_reaches_no_tool() -> None:
    waits = start(app, "cleanup", policy=asking("role:lead", quorum=2), table="abc")
    order = waits._orders[1]
    assert isinstance(order, ApprovalRequest)
    good = waits._panel.decide(order, Says("approve"), waits.now_ms)
    decision = Decision.parse(signature.verified(good.token, {_KEY.kid: _KEY.public()}, use="decision"))
    forged = signature.sign(replace(decision, tokens=decision.tokens[:1]).payload(), _KEY)

    waits._send(Decided(good.run_id, good.approval, forged))
    waits.finish()

    assert waits.executors.ran == []
    assert waits.failure is not None
    assert "1 of 2 people stand behind the decision" in waits.failure.message


def test_people_say_what_came_of_a_call_in_doubt() -> None:
    def doubted() -> AgentRun:
        lost = attempts(ConnectionError("lost"), 5)
        return run(app, "cleanup", policy=asking("*"), tools={"drop": lost}, table="abc")

    again = doubted().resolve(1, "did_not_happen").finish()
    happened = doubted().resolve(1, "happened", 7)
    given_up = doubted().resolve(1, "give_up")

    assert (again.value, again.ran["drop"], again.calls[0].attempts) == (5, 2, 2)
    assert (happened.value, happened.ran["drop"]) == (7, 1)
    with pytest.raises(CallFailed):
        _ = given_up.value


def test_where_no_policy_names_people_for_a_doubt_an_operator_settles_it() -> None:
    policy = {"rules": [{"name": "all", "when": "true", "allow": True}]}
    doubted = run(app, "cleanup", policy=policy, tools={"drop": ConnectionError("lost")}, table="abc")

    with pytest.raises(UsageError, match="only people whom a policy names"):
        doubted.resolve(1, "did_not_happen")
    with pytest.raises(UsageError, match="cannot have had this result"):
        doubted.resolve(1, "happened", "seven")
    with pytest.raises(UsageError, match="step 2 is neither in doubt nor held"):
        doubted.resolve(2, "happened")
    assert doubted.resolve(1, "happened", 7).value == 7


def test_people_edit_a_call_or_answer_it_themselves() -> None:
    edited = run(app, "cleanup", policy=asking("*"), decisions={"drop": edit(table="abcd")}, table="abc")
    answered = run(app, "cleanup", policy=asking("*"), decisions={"drop": answer(17)}, table="abc")

    assert (edited.value, edited.calls[0].args) == (4, {"table": "abcd"})
    assert (answered.value, answered.ran) == (17, {})


def test_an_edit_about_which_the_policy_asks_others_is_their_question() -> None:
    needed = [{"name": "edited", "when": 'args.table == "abcd"', "require": {"approvers": ["ada"]}}]
    policy = asking("role:lead", quorum=2)
    policy["rules"] = [*needed, *policy["rules"]]

    result = run(app, "cleanup", policy=policy, decisions={"drop": edit(table="abcd")}, table="abc")

    assert result.value == 4
    assert deciders(result) == ["ada"]
    assert [event.verdict for event in result.events if isinstance(event, ApprovalDecided)] == ["amend", "approve"]


def test_what_people_may_not_say_of_a_call_ends_the_test() -> None:
    with pytest.raises(UsageError, match="nobody can answer the call of drop: .*result of tool drop"):
        run(app, "cleanup", policy=asking("*"), decisions={"drop": answer("much")}, table="abc")
