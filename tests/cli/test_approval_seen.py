"""Whoever votes has seen what they vote on: by naming it, or because it is shown to them first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import pytest
import typer

from refold.cli.commands.approval import Voter
from refold.client.operations.approvals import ENOUGH_DIGITS
from refold.client.reading.approval import Approval, against
from refold.core.approval.question import named
from refold.core.errors import ConflictError, UsageError
from refold.core.messages import ApprovalRequest
from refold.core.run.state import RunState
from tests.approval.driving import World, request
from tests.cli.desk import Desk
from tests.core import approvals
from tests.core.asked import decide_on
from tests.core.histories import Log, asking, read_fold


class Terminal(StringIO):
    """Somebody sits there, and types this."""

    def isatty(self) -> bool:
        """See `sys.stdin`."""
        return True


class NoRuns:
    """A run log that has nothing."""

    def find(self, run: str) -> None:
        """See `Runs`."""


NO_RUNS = NoRuns()


@dataclass(frozen=True)
class Sitting(Voter):
    """A voter whose platform has no runs."""

    runs: Any = NO_RUNS


@pytest.fixture
def asked(world: World) -> ApprovalRequest:
    """Give a question that is open."""
    found = request()
    world.ask(found)
    return found


def seen(desk: Desk, name: str, action: str = "approve", *, about: str = "", **more: Any) -> str:
    approval = desk.approvals.named(name)
    return Sitting(**more)._shown_question(desk.approvals, name, approval, action, about=about)


@pytest.mark.parametrize("digits", [ENOUGH_DIGITS, 32])
def test_who_names_the_question_has_seen_it(desk: Desk, asked: ApprovalRequest, digits: int) -> None:
    assert seen(desk, f"{asked.call_id}~{asked.question[:digits]}") == asked.question


@pytest.mark.parametrize("digits", [0, 4, ENOUGH_DIGITS - 1])
def test_who_names_less_is_shown_it_and_asked(
    desk: Desk,
    asked: ApprovalRequest,
    digits: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"{asked.call_id}~{asked.question[:digits]}" if digits else asked.call_id
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))

    assert seen(desk, name) == asked.question

    shown = capsys.readouterr().out
    assert 'service: "api"' in shown
    assert "DO NOT VOTE, tell an operator: the log does not have this call" in shown


def test_who_says_no_to_what_is_shown_has_not_voted(
    desk: Desk, asked: ApprovalRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))

    with pytest.raises(typer.Abort):
        seen(desk, asked.call_id)


@pytest.mark.parametrize("more", [{}, {"json_": True}])
def test_a_script_has_to_name_the_question(desk: Desk, asked: ApprovalRequest, more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="does not name the question you have seen") as refused:
        seen(desk, asked.call_id, **more)

    assert asked.approval_id in refused.value.hint


def test_what_lets_nothing_out_needs_no_look(desk: Desk, asked: ApprovalRequest) -> None:
    assert {seen(desk, asked.call_id, action) for action in ("withdraw", "comment", "remind")} == {asked.question}


def test_a_question_with_the_same_first_digits_is_not_taken_for_the_one_that_was_shown(
    world: World, desk: Desk, asked: ApprovalRequest
) -> None:
    """A liar finds one with some equal digits in a moment, and closes the first."""
    other = next(
        found
        for number in range(1 << 20)
        if (found := request(proposal=str(number))).question[:2] == asked.question[:2]
    )
    world.close(asked)
    world.ask(other)

    with pytest.raises(UsageError, match="the question"):
        seen(desk, f"{asked.call_id}~{asked.question[:2]}")
    with pytest.raises(ConflictError, match="closed"):
        desk.vote(asked, "ada", "approve")


def open_approval(asked: ApprovalRequest) -> Approval:
    """A question that is open, as the client has it."""
    world, any_ = World(), request()
    world.ask(any_)
    return replace(Desk(world, None).approvals.get(any_.approval_id), request=asked)


class TestTheLog:
    """What is shown is compared with what the run asks."""

    def shown(self, log: Log, **changes: Any) -> str:
        """What the log says otherwise than the question of its step 1, changed."""
        lie = named(replace(approvals.request(log.live, 1), **changes))
        return against(log.live, open_approval(lie))

    def test_it_agrees_with_an_honest_question(self) -> None:
        assert self.shown(asking("keyed")) == ""

    @pytest.mark.parametrize("changes", [{"requester": "zoe"}, {"covers": 9}, {"level": 1}, {"round": 2}])
    def test_it_asks_something_else(self, changes: dict[str, Any]) -> None:
        assert self.shown(asking("keyed"), **changes) == "the log does not ask this about the call"

    def test_it_does_not_have_the_call(self) -> None:
        log = asking("keyed")
        found = open_approval(approvals.request(log.live, 1))

        for state in (None, RunState(log.live.run_id)):
            assert against(state, found) == "the log does not have this call"


def test_the_question_about_another_attempt_tells_of_the_doubt_and_of_who_settled_it() -> None:
    log = asking("once")
    decide_on(log)
    log.feed(log.result(status="unknown"))

    decide_on(log, message="I looked")

    history = approvals.request(log.live, 1).history
    assert [(each.attempt, each.what, each.by) for each in history] == [(1, "doubt", ""), (1, "did_not_happen", "ada")]
    assert history[-1].words == "I looked"


def test_a_question_is_the_same_to_the_last_byte_whoever_asks_it_again() -> None:
    log = asking("once")
    decide_on(log)
    log.feed(log.result(status="unknown"))
    decide_on(log)
    first = approvals.request(log.live, 1)

    assert named(first) == first
    assert approvals.request(read_fold(log.records), 1) == first
