"""A call that is in doubt is a question to the people whom its policy names; what they say is signed and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refold.core.approval import decision, signature
from refold.core.approval.question import named, received
from refold.core.errors import UsageError
from refold.core.events import (
    ApprovalDecided,
    ApprovalEscalated,
    ApprovalRequested,
    AttemptFailed,
    CallCompleted,
    CallDispatched,
    CallDoubted,
    CallFailed,
    DoubtResolved,
    RunCancelled,
)
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ToolRequest
from refold.core.planning.commands import commands
from refold.core.planning.decide import NOBODY_SETTLES, decide
from refold.core.planning.verdict import AppFacts, Decided, Due, Ignore, Park, Refuse, Rules, Undeliverable
from refold.core.run.fold import fold
from refold.core.wire import codec
from refold.core.wire.canonical import idempotency_key
from tests.core import approvals
from tests.core.histories import NOW, RULES, Log, operation, read_fold, resolve, signal, start

ALLOW_ALL = {"name": "all", "when": "true", "allow": True}
ASK_LEADS = {"name": "leads", "when": "true", "require": {"approvers": ["role:lead"], "expires": "1h"}}
OPS = {"approvers": ["role:ops"], "quorum": 2}


def judged_by(*rules: dict[str, Any], doubt: dict[str, Any] | None = OPS, **more: Any) -> Rules:
    """The rules of a planner whose policy says whom to ask about doubts."""
    content = {"rules": list(rules or [ALLOW_ALL]), **({"doubt": doubt} if doubt else {}), **more}
    return replace(RULES, authority=approvals.authority(content))


def asked(effect: str = "once", *, rules: Rules | None = None) -> Log:
    """A run whose first call is in doubt, which is asked about."""
    log = Log(rules=rules or judged_by())
    log.feed(start())
    log.propose(effect)
    log.feed(log.result(status="doubt"))
    return log


def kinds(verdict: Any) -> list[type]:
    assert isinstance(verdict, list), verdict
    return [type(event) for event in verdict]


def question(log: Log) -> ApprovalRequest:
    return approvals.request(log.live, 1)


def ordered(log: Log) -> list[Any]:
    """The messages of what the last entry orders."""
    return [command.message for command in commands(log.live, log.entries[-1][1], 7)]


class TestTheQuestion:
    def test_stands_in_the_entry_that_doubts(self) -> None:
        log = asked()
        doubted, question_asked = log.entries[-1][1].events

        assert isinstance(doubted, CallDoubted)
        assert isinstance(question_asked, ApprovalRequested)
        assert (question_asked.about, question_asked.rule) == ("doubt", "doubt")
        assert (question_asked.attempt, question_asked.covers) == (2, 2)
        assert question_asked.requirement.approvers == ["role:ops"]
        assert (log.live.open[1].phase, log.live.status) == ("doubt", "suspended")

    def test_tells_what_was_before_and_is_taken_by_the_service(self) -> None:
        *taken_back, found = ordered(asked())
        assert taken_back == [None, None], "tombstones of its doubt and of its question"
        of = {"environment": found.environment, "run": found.run_id, "step": 1, "tool": found.tool, "args": found.args}
        request = named(replace(found, key=idempotency_key(**of)))
        place = home(request.run_id, 4)

        taken = received(request.approval_id.encode(), codec.encode(request), partition=place, partitions=4)

        assert taken == request
        assert [(each.attempt, each.what) for each in taken.history] == [(1, "doubt")]

    def test_is_asked_by_the_policy_in_force_if_that_of_the_run_names_nobody(self) -> None:
        log = Log(rules=judged_by(doubt=None))
        log.feed(start())
        log.propose("once")
        assert log.rules.authority
        policy = approvals.put_in_force(log.rules.authority.catalog, {"rules": [ALLOW_ALL], "doubt": OPS})

        log.feed(log.result(status="doubt"))

        assert question(log).policy == policy.digest
        assert log.live.open[1].policy != policy.digest, "it judges no call of this run"

    def test_is_not_asked_where_nobody_is_named(self) -> None:
        assert kinds(asked(rules=judged_by(doubt=None)).entries[-1][1].events) == [CallDoubted]

    def test_escalates_and_never_expires(self) -> None:
        doubt = {"approvers": ["ada"], "escalate": {"after": "20s", "to": ["role:head"]}}
        log = asked(rules=judged_by(doubt=doubt))
        before = log.live.waits_for(1)
        log.now += 20_000

        assert kinds(log.feed(log.due())) == [ApprovalEscalated]
        assert question(log).level == 1
        assert log.live.waits_for(1) != before
        assert log.live.open[1].due_ms == 0
        log.now += 10**10
        assert isinstance(log.feed(Due(log.run_id, 1, NOW)), Ignore)

    def test_that_no_log_takes_leaves_the_doubt_to_an_operator(self) -> None:
        log = asked("keyed")
        name = log.live.waits_for(1)

        assert kinds(log.feed(Undeliverable(log.run_id, log.live.seqs[0], name))) == [ApprovalDecided]
        assert (log.live.open[1].phase, log.live.open[1].question) == ("doubt", None)

    def test_is_closed_with_its_run(self) -> None:
        log = asked()
        name = log.live.waits_for(1)

        assert kinds(log.feed(signal("cancel"))) == [RunCancelled]
        closed = [command.key for command in commands(log.live, log.entries[-1][1], 7) if command.message is None]
        assert name in closed

    def test_is_asked_again_as_it_was_by_whoever_reads_the_log(self) -> None:
        log = asked()

        assert read_fold(log.records).waits_for(1) == log.live.waits_for(1)
        assert fold(log.entries, log.run_id).digest() == log.live.digest()


class TestWhatPeopleSay:
    def test_that_nothing_came_of_it_lets_the_next_attempt_out_with_their_word(self) -> None:
        log = asked()
        given = approvals.decided(log.live, 1, now=log.now, message="the bank has nothing")

        events = log.feed(given)

        assert kinds(events) == [ApprovalDecided, DoubtResolved, CallDispatched]
        assert isinstance(events, list)
        assert events[1] == DoubtResolved(1, 1, "did_not_happen", "ada, bob", "the bank has nothing")
        order = next(message for message in ordered(log) if isinstance(message, ToolRequest))
        assert (order.attempt, order.settled, order.decision) == (2, given.token, "")

    def test_that_it_happened_ends_the_call_with_their_result(self) -> None:
        log = asked()

        events = log.feed(approvals.decided(log.live, 1, "answer", now=log.now, result='{"paid":5}'))

        assert kinds(events) == [ApprovalDecided, DoubtResolved, CallCompleted]
        assert isinstance(events, list)
        assert events[2] == CallCompleted(1, 1, '{"paid":5}')
        assert [message for message in ordered(log) if message] == []

    def test_that_they_give_up_fails_the_call(self) -> None:
        log = asked()

        events = log.feed(approvals.decided(log.live, 1, "reject", now=log.now))

        assert kinds(events) == [ApprovalDecided, DoubtResolved, CallFailed]
        assert isinstance(events, list)
        assert events[1].verdict == "give_up"

    def test_holds_however_late_a_planner_hears_of_it(self) -> None:
        log = asked()
        given = approvals.decided(log.live, 1, now=log.now)
        log.now += 7 * 86_400_000

        assert CallDispatched in kinds(log.feed(given))

    @pytest.mark.parametrize(("verdict", "more"), [("approve", {}), ("answer", {"result": "7"}), ("reject", {})])
    def test_counts_only_with_the_votes_of_enough_of_them(self, verdict: Any, more: dict[str, str]) -> None:
        log = asked()
        found = decision.build(question(log), verdict, votes=approvals.ADA, issued_ms=log.now, nonce="n", **more)
        made_up = Decided(log.run_id, log.live.waits_for(1), signature.sign(found.payload(), approvals.KEY))

        refused = log.feed(made_up)

        assert isinstance(refused, Refuse)
        assert (refused.code, refused.reason[:5]) == ("unauthorised", "0 of ")

    def test_waits_for_the_key_of_a_vote_that_was_published_a_moment_ago(self) -> None:
        log = asked()
        given = approvals.decided(log.live, 1, now=log.now)
        assert log.rules.authority
        catalog = log.rules.authority.catalog
        known, catalog.keys = catalog.keys, {approvals.KEY.kid: approvals.KEY.public()}

        assert isinstance(log.feed(given), Park)

        catalog.keys = known
        assert CallDispatched in kinds(log.feed(given))

    @pytest.mark.parametrize("verdict", ["edit", "amend"])
    def test_is_never_an_edit(self, verdict: Any) -> None:
        log = asked()

        assert isinstance(log.feed(approvals.decided(log.live, 1, verdict, now=log.now, edited='{"n":7}')), Refuse)

    def test_goes_with_every_attempt_until_one_is_in_doubt_again(self) -> None:
        log = asked()
        given = approvals.decided(log.live, 1, now=log.now)
        log.feed(given)

        log.feed(log.result(attempt=2, status="doubt"))
        again = approvals.decided(log.live, 1, now=log.now)
        log.feed(again)

        order = next(message for message in ordered(log) if isinstance(message, ToolRequest))
        assert question(asked()).attempt == 2
        assert (order.attempt, order.settled) == (3, again.token)

    def test_is_asked_for_again_when_who_said_it_may_say_it_no_more(self) -> None:
        log = asked(rules=judged_by(doubt={"approvers": ["role:ops"]}))
        given = approvals.decided(log.live, 1, now=log.now)
        assert log.rules.authority
        approvals.publish(  # type: ignore[attr-defined]
            log.rules.authority.catalog, "roles", "roles", {"roles": {"ops": ["bob"]}, "revoked": ["ada"]}
        )

        assert kinds(log.feed(given)) == [ApprovalDecided, ApprovalRequested]
        assert (question(log).about, question(log).round) == ("doubt", 2)

    def test_is_not_what_the_policy_asks_about_the_call(self) -> None:
        log = Log(rules=judged_by(ASK_LEADS))
        log.feed(start())
        log.propose("once")
        first = approvals.decided(log.live, 1, now=log.now)
        log.feed(first)
        log.feed(log.result(status="doubt"))
        word = approvals.decided(log.live, 1, now=log.now)

        events = log.feed(word)

        assert kinds(events) == [ApprovalDecided, DoubtResolved, ApprovalRequested]
        assert (question(log).about, question(log).rule, question(log).attempt) == ("", "leads", 2)
        assert [each.what for each in question(log).history] == ["doubt", "did_not_happen"]
        second = approvals.decided(log.live, 1, now=log.now)
        log.feed(second)
        order = next(message for message in ordered(log) if isinstance(message, ToolRequest))
        assert (order.attempt, order.decision, order.settled) == (2, second.token, word.token)


class TestWhatComesMeanwhile:
    def test_a_late_result_closes_the_question(self) -> None:
        log = asked()
        name = log.live.waits_for(1)

        assert kinds(log.feed(log.result(late=True))) == [ApprovalDecided, CallCompleted]
        closed = [command.key for command in commands(log.live, log.entries[-1][1], 7) if command.message is None]
        assert name in closed

    def test_a_late_word_of_the_executor_that_nothing_happened_does_so_too(self) -> None:
        log = asked()

        assert kinds(log.feed(log.result(status="failed", late=True))) == [ApprovalDecided, AttemptFailed]
        assert log.live.open[1].question is None

    def test_an_answer_to_the_question_as_it_was_is_none(self) -> None:
        log = asked()
        given = approvals.decided(log.live, 1, now=log.now)
        log.feed(log.result(late=True))

        assert isinstance(log.feed(given), Ignore)


class TestAnOperator:
    @pytest.mark.parametrize("verdict", ["happened", "did_not_happen", "give_up"])
    def test_says_nothing_while_people_are_asked(self, verdict: str) -> None:
        assert isinstance(asked().feed(operation("resolve", resolve(verdict))), Refuse)

    @pytest.mark.parametrize("doubt", [{"approvers": ["cyd"]}, None])
    def test_has_others_asked_or_nobody_where_a_policy_that_judges_again_names_them(self, doubt: Any) -> None:
        log = asked()
        assert log.rules.authority
        content = {"rules": [ALLOW_ALL], "recheck": True, **({"doubt": doubt} if doubt else {})}
        policy = approvals.put_in_force(log.rules.authority.catalog, content)

        verdict = log.feed(operation("resolve", resolve("give_up")))

        assert kinds(verdict) == ([ApprovalDecided, ApprovalRequested] if doubt else [ApprovalDecided])
        if doubt:
            assert (question(log).policy, question(log).requirement.approvers) == (policy.digest, ["cyd"])

    def test_never_lets_a_once_call_out_again(self) -> None:
        log = asked(rules=judged_by(doubt=None))

        verdict = log.feed(operation("resolve", resolve("did_not_happen")))

        assert verdict == Refuse("unauthorised", NOBODY_SETTLES)

    def test_has_people_asked_who_are_named_by_now(self) -> None:
        log = asked(rules=judged_by(doubt=None))
        assert log.rules.authority
        approvals.put_in_force(log.rules.authority.catalog, {"rules": [ALLOW_ALL], "doubt": OPS})

        assert kinds(log.feed(operation("resolve", resolve("give_up")))) == [ApprovalRequested]
        assert question(log).about == "doubt"

    def test_cannot_make_up_a_result_that_the_tool_never_has(self) -> None:
        def takes(tool: str, result: str) -> None:
            if (tool, result) != ("push", "5"):
                raise UsageError("it is no number")

        log = asked(rules=replace(judged_by(doubt=None), app=AppFacts(takes=takes)))

        assert isinstance(log.feed(operation("resolve", resolve("happened", result="x"))), Refuse)
        assert kinds(log.feed(operation("resolve", resolve("happened", result=5)))) == [DoubtResolved, CallCompleted]

    def test_who_has_no_policy_at_all_settles_what_is_not_once(self) -> None:
        log = Log()
        log.feed(start())
        log.propose("keyed")
        log.feed(log.result(status="doubt"))

        verdict = decide(log.live, operation("resolve", resolve("did_not_happen")), NOW, RULES)

        assert kinds(verdict) == [DoubtResolved, CallDispatched]
