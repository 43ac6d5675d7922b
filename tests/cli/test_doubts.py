"""A call in doubt at the command line: what is shown of it, who says what came of it, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

from refold.cli.commands import approval as voting
from refold.cli.commands import policy as policy_views
from refold.cli.commands.doctor import _anybody
from refold.cli.views import approvals as approval_views
from refold.cli.views import runs as run_views
from refold.client.operations.runs import Runs
from refold.client.reading.approval import question_row
from refold.client.reading.history import Run
from refold.client.reading.run import info_of, row_of
from refold.core.approval.catalog import Catalog
from refold.core.approval.policy import Policy
from refold.core.errors import UsageError
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    CallDispatched,
    DoubtResolved,
    Event,
    Requirement,
)
from refold.core.messages import ApprovalRequest
from refold.lab.back_test import recorded
from tests.approval.driving import POLICY, World, doubt, request
from tests.cli.chronicle import NOW, Chronicle, proposed, requested
from tests.cli.chronicle import doubted as in_doubt
from tests.cli.desk import Desk
from tests.cli.test_approval_seen import Terminal, seen

DIGEST = "0" * 64
ASKED = f"r/3~{DIGEST[:32]}"


@pytest.fixture
def asked(world: World) -> ApprovalRequest:
    """Give a doubt that people are asked about."""
    found = doubt()
    world.ask(found)
    return found


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Give what was printed so far, its blanks as one."""
    return lambda: " ".join(capsys.readouterr().out.split())


class TestAQuestion:
    def test_it_is_listed_as_a_doubt(self, desk: Desk, asked: ApprovalRequest, printed: Callable[[], str]) -> None:
        [row] = [question_row(each) for each in desk.approvals.read().all()]

        approval_views.print_approvals([row])

        assert (row.state, row.about) == ("open", "doubt")
        assert row.resolve[1] == f"refold run resolve {asked.approval_id} --did-not-happen"
        said = printed()
        assert "in doubt" in said
        assert "find out, then `refold run resolve`" in said

    def test_it_is_shown_with_what_may_be_said_of_it(
        self, desk: Desk, asked: ApprovalRequest, printed: Callable[[], str]
    ) -> None:
        approval_views.print_approval(desk.approvals.get(asked.approval_id))

        said = printed()
        assert "nobody knows what came of attempt 1: find out what has happened" in said
        assert "attempt 1 MAY HAVE HAPPENED, it was in doubt" in said
        assert "role:lead; 0 of 1" in said
        for way in ("--happened '{...}'", "--did-not-happen", "--give-up"):
            assert f"refold run resolve {asked.approval_id} {way}" in said
        assert "refold approval approve" not in said
        assert "good up to" not in said

    @pytest.mark.parametrize(
        ("action", "more", "words"),
        [
            ("approve", {}, "did_not_happen by ada"),
            ("answer", {"result": "3"}, "happened by ada"),
            ("reject", {}, "give_up by ada"),
        ],
    )
    def test_what_people_say_of_it_is_told_in_its_words(
        self,
        desk: Desk,
        asked: ApprovalRequest,
        printed: Callable[[], str],
        action: str,
        more: dict[str, str],
        words: str,
    ) -> None:
        answer = desk.vote(asked, "ada", action, about="doubt", message="looked", **more)

        assert answer.what == "decided"
        assert f"is decided: {words}" in voting.answer_text(answer, action)
        approval_views.print_approval(desk.approvals.get(asked.approval_id))
        said = printed()
        assert f"is decided ({words})" in said
        assert f"ada {words.split()[0]} looked" in said

    @pytest.mark.parametrize(
        ("action", "more"),
        [("approve", {}), ("reject", {}), ("answer", {"result": "3"}), ("edit", {"args": '{"service":"db"}'})],
    )
    def test_who_means_to_decide_on_the_call_is_told_what_is_asked(
        self, desk: Desk, asked: ApprovalRequest, action: str, more: dict[str, str]
    ) -> None:
        """Who approves of a call says of a doubt that nothing came of it: it would be sent again."""
        with pytest.raises(UsageError, match="this approval asks for the outcome of run-1/5") as refused:
            desk.vote(asked, "ada", action, **more)

        assert f"refold run resolve {asked.approval_id}" in refused.value.hint
        assert desk.approvals.get(asked.approval_id).said == ()

    def test_who_means_to_settle_a_doubt_does_not_let_a_call_out(self, world: World, desk: Desk) -> None:
        world.ask(plain := request())

        with pytest.raises(UsageError, match="asks if run-1/5 may run, not for its outcome"):
            desk.vote(plain, "ada", "approve", about="doubt")

    def test_what_decides_nothing_is_said_as_of_any_question(self, desk: Desk, asked: ApprovalRequest) -> None:
        assert desk.vote(asked, "ada", "comment", message="I look").what == "recorded"
        assert desk.vote(asked, "ada", "delegate", to=("zoe",)).what == "recorded"
        assert desk.vote(asked, "zoe", "approve", about="doubt").what == "decided"

    def test_who_may_not_decide_is_told_who_may(self, desk: Desk, asked: ApprovalRequest) -> None:
        with pytest.raises(UsageError, match=r"dan is none of role:lead; ada, bob, cyd may decide"):
            desk.vote(asked, "dan", "approve", about="doubt")

    def test_a_result_that_the_tool_cannot_have_is_void(self, desk: Desk, asked: ApprovalRequest) -> None:
        with pytest.raises(UsageError, match="edit_not_possible") as refused:
            desk.vote(asked, "ada", "answer", about="doubt", result='"three"')

        assert "integer" in refused.value.message

    def test_who_types_the_call_alone_is_shown_it_and_asked(
        self,
        desk: Desk,
        asked: ApprovalRequest,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr("sys.stdin", Terminal("n\n"))

        with pytest.raises(typer.Abort):
            seen(desk, asked.call_id, about="doubt")

        said = capsys.readouterr()
        assert "find out what has happened" in said.out
        assert "did_not_happen: is that so?" in said.err


def history(*events: Event) -> Run:
    """A run whose call is in doubt, and people are asked."""
    chronicle = Chronicle()
    needed = Requirement(["role:lead"], 2)
    asks = ApprovalRequested(1, 2, 2, "digest", "doubt", needed, "dev", "1", "", DIGEST, about="doubt")
    chronicle.add("r", requested(), proposed(1, "once"), [*in_doubt(1), asks], emit=False)
    if events:
        chronicle.add("r", events, emit=False)
    return Runs(chronicle.reader).get("r")


def drawn(run: Run, capsys: pytest.CaptureFixture[str]) -> str:
    """What `refold run show` says of it, its blanks as one."""
    from refold.cli import output

    output.console().print(run_views.run_view(info_of(run)))
    return " ".join(capsys.readouterr().out.split())


class TestARun:
    def test_it_says_whom_it_waits_for_and_how_they_say_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = history()

        row = info_of(run)

        assert (row.in_doubt, row.approvals) == (["r/3"], [ASKED])
        assert row.resolve[2] == f"refold run resolve {ASKED} --give-up"
        said = drawn(run, capsys)
        assert "waits for 2 of role:lead" in said
        assert f"refold run resolve {ASKED} --did-not-happen" in said
        assert "policy show" not in said

    def test_it_tells_once_what_people_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        settled = ApprovalDecided(1, 6, "approve", actors=["ada", "bob"], message="nothing there", question=DIGEST)
        run = history(settled, DoubtResolved(1, 1, "did_not_happen", "ada, bob"), CallDispatched(1, 2, NOW + 90_000))

        said = drawn(run, capsys)

        assert "settled as did_not_happen by ada, bob: nothing there" in said
        assert said.count("did_not_happen") == 1
        assert (row_of(run).in_doubt, row_of(run).approvals) == ([], [])

    def test_a_result_that_comes_late_ends_the_question(self, capsys: pytest.CaptureFixture[str]) -> None:
        late = ApprovalDecided(1, 6, "expire", message="an earlier attempt had its result", question=DIGEST)
        run = history(late, CallCompleted(1, 1, '"ok"'))

        assert "closed without a decision: an earlier attempt had its result" in drawn(run, capsys)
        assert row_of(run).approvals == []

    def test_people_who_are_asked_what_came_of_a_call_have_not_judged_it(self) -> None:
        [call] = recorded(history())

        assert (call.judgement.outcome, call.judgement.rule) == ("allow", "")


class TestAPolicy:
    def shown(self, content: dict[str, Any], printed: Callable[[], str]) -> str:
        catalog, policy = Catalog(), Policy.parse(content)
        catalog.policies[policy.digest], catalog.current = policy, policy.digest
        policy_views.print_in_force(policy_views.in_force(catalog))
        return printed()

    def test_it_is_shown_with_whom_it_names(self, printed: Callable[[], str]) -> None:
        two = {**POLICY.content, "doubt": {"approvers": ["role:lead"], "quorum": 2, "message": "Ask the bank."}}

        assert "nobody knows what came of a call require 2 of role:lead, Ask the bank." in self.shown(two, printed)

    def test_it_is_shown_when_it_names_nobody(self, printed: Callable[[], str]) -> None:
        said = self.shown({"rules": POLICY.content["rules"]}, printed)

        assert "an operator says so, and a call with effect once is not sent again" in said

    def test_one_that_names_nobody_is_careless(self) -> None:
        nobody, somebody = ({"rules": []}, {"doubt": {"approvers": ["ada"]}, "rules": []})  # type: ignore[var-annotated]

        assert [text.partition(":")[0] for text in _anybody(Policy.parse(nobody))] == ["doubt"]
        assert list(_anybody(Policy.parse(somebody))) == []
