"""Whoever gives a call other arguments asks for it, by a retry or a fork; a fork names what its source had begun."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval import ballot
from refold.core.approval.catalog import Roles
from refold.core.approval.policy_check import unasked, unfounded
from refold.core.approval.requester import quorum_of
from refold.core.events import (
    CallDoubted,
    Failure,
    ForkedFrom,
    RunFailed,
    RunForked,
    RunRequested,
    RunRetried,
    RunStarted,
)
from refold.core.ids import EntryId, RunId
from refold.core.messages import ApprovalRequest, RunOperation, ToolRequest
from refold.core.planning.asking import propose, question_of
from refold.core.planning.redrive import retry
from refold.core.planning.verdict import Refuse, Rules, Ruling
from refold.core.run.chain import Head
from refold.core.run.fold import advance
from refold.core.run.state import RunState
from refold.core.wire import canonical
from tests.approval.questions import NOW, ROLES, request
from tests.core.asked import asks, decide_on, judged_by, ordered
from tests.core.ballots import SOON
from tests.core.decisions import made, votes_of
from tests.core.histories import Log, asking, call
from tests.core.test_recount import catalog
from tests.core.test_requester import KEYS

EDITED = '{"n":7}'
HEAD = ForkedFrom("r-1", 3, b"h" * 16)


def edited(how: str) -> tuple[Log, ApprovalRequest]:
    """A run with a call that zoe, an operator, has given other arguments, and the question about it."""
    log = asking(rules=judged_by(asks()))
    if how == "retry":
        log.append([RunFailed(Failure("failed", "no"))])
        log.append([RunRetried("zoe", from_step=1, edit=EDITED)])
    else:
        decide_on(log, "reject")
        log.append([RunForked(HEAD, "zoe", edit=EDITED, tool="charge")])
    authority = log.rules.authority
    assert authority is not None
    step = len(log.live.steps) + 1
    wanted = replace(call(step), args=EDITED, asked='{"n":1}')
    proposed, held = propose(log.live, wanted, authority, log.now, seq=log.live.head.seq + 1, ahead=0)
    assert held is not None
    log.append([proposed, held])
    [asked] = [order for order in ordered(log) if isinstance(order, ApprovalRequest)]
    return log, asked


@pytest.mark.parametrize("how", ["retry", "fork"])
def test_an_operator_who_writes_arguments_is_named_and_may_not_decide(how: str) -> None:
    log, asked = edited(how)

    assert (asked.args, asked.writers) == (EDITED, ["zoe"])
    assert not ballot.may_decide(asked, (), Roles(), "zoe", log.now)
    assert ballot.may_decide(asked, (), Roles(), "bob", log.now)
    for action, more in (("approve", {}), ("delegate", {"to": ("bob",)}), ("reassign", {"to": ("bob",)})):
        [vote] = votes_of(asked, "zoe", action=action, at=log.now, **more)
        found = ballot.objection(asked, vote, log.now)
        assert found is not None
        assert found.code == "requester"


@pytest.mark.parametrize("how", ["retry", "fork"])
def test_nobody_has_signed_the_name_of_an_operator_so_one_more_person_agrees(how: str) -> None:
    _, asked = edited(how)

    assert asked.token == ""
    assert (quorum_of(asked, {}), quorum_of(asked, KEYS)) == (1, 2)


@pytest.mark.parametrize("how", ["retry", "fork"])
def test_asked_again_it_is_the_same_question_and_the_next_step_is_nobodys(how: str) -> None:
    log, asked = edited(how)
    step = asked.step

    assert question_of(log.live, log.live.call(step), log.live.open[step]) == asked
    assert log.live.writers_of(step + 1) == ()
    decide_on_last = log.propose()
    assert log.live.writers_of(decide_on_last) == ()


def test_an_executor_refuses_an_edit_by_whoever_wrote_it_and_a_question_that_names_no_editor() -> None:
    rules = asks(approvers=["role:lead"])
    authority = judged_by(rules).authority
    policy = authority.catalog.policy
    known = catalog()
    known.policies[policy.digest] = policy
    tools = dict(authority.tools)
    tool = next(iter(tools))
    facts = tools[tool]
    more: dict[str, Any] = {"tool": tool, "version": facts.version, "schema": facts.schema, "policy": policy.digest}
    asked = request(needs=policy.rules[0].requirement, **more)
    order = ToolRequest(asked.call_id, asked.run_id, 1, 1, 1, tool, EDITED, "k", "once", 1)

    alone = made(asked, votes_of(asked, "ada", action="edit", args=EDITED, at=NOW), ROLES, now=SOON)
    assert unfounded(alone, known) is None  # its votes are good: what is wrong is that they are enough
    refused = unasked(alone, order, known, tools)
    assert refused is not None
    assert refused.stale

    rules = asks(approvers=["role:lead"], not_requester=False)
    open_policy = judged_by(rules).authority.catalog.policy
    known.policies[open_policy.digest] = open_policy
    own = request(needs=open_policy.rules[0].requirement, **{**more, "policy": open_policy.digest})
    alone = made(own, votes_of(own, "ada", action="edit", args=EDITED, at=NOW), ROLES, now=SOON)
    assert unasked(alone, order, known, tools) is None

    unnamed = request(needs=policy.rules[0].requirement, args=EDITED, proposed_args=asked.args, **more)
    approved = made(unnamed, votes_of(unnamed, "ada", at=NOW), ROLES, now=SOON)
    refused = unasked(approved, order, known, tools)
    assert refused is not None
    assert "names nobody" in refused.message
    assert unasked(approved, order, known, {}) is None  # of a history from before it is no proof of anything


@pytest.mark.parametrize("doubted", [False, True])
def test_a_fork_of_a_call_that_had_gone_out_names_the_first_attempt(doubted: bool) -> None:
    log = asking("once", rules=judged_by(asks()))
    decide_on(log)
    if doubted:
        log.append([CallDoubted(1, 1, Failure("unknown", "no answer"))])
    log.append([RunForked(HEAD, "zoe")])

    [*before, last] = log.live.open[1].past
    assert (last.attempt, last.what, last.words) == (1, "unknown", "in run r-1, of which this one is a fork")
    assert [each.what for each in before] == ["doubt"] * doubted


def test_a_fork_of_a_call_that_never_went_out_names_none() -> None:
    log = asking("once", rules=judged_by(asks()))

    log.append([RunForked(HEAD, "zoe")])

    assert log.live.open[1].past == ()


@pytest.mark.parametrize("more", [{"$run": {"deps": "mallory"}}, {"$run": {"deps": "acme"}, "$name": "charge"}])
def test_a_retry_with_another_context_leaves_no_step_behind(more: dict[str, Any]) -> None:
    proposed = replace(call(1), args='{"$run":{"deps":"acme"},"n":1}')
    state, failed = RunState(RunId("r-1")), RunFailed(Failure("failed", "no"))
    advance(state, [RunRequested("a", "{}", "d", "s"), RunStarted("1"), proposed, failed], seq=1, at_ms=NOW)
    state.link(Head(EntryId(b"h" * 16), 4))

    def retried(edit: dict[str, Any]) -> Ruling:
        said = RunOperation(state.run_id, "s", "retry", canonical.dumps({"seq": 4, "from": 1, "edit": edit}), "zoe")
        return retry(state, said, NOW, Rules())

    for good in ({"n": 7}, {"n": 7, "$run": {"deps": "acme"}}):
        assert not isinstance(retried(good), Refuse)
    refused = retried({"n": 7, **more})
    assert isinstance(refused, Refuse)
    assert "nothing that begins with $" in refused.reason
