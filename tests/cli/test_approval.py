"""What waits for people, as it is listed and shown, with the service on the log in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from refold.cli import output
from refold.cli.commands.approval import Filter, approval_changes
from refold.cli.views import approvals
from refold.client.reading.approval import question_row, readable, shown_of
from refold.client.reading.history import Run
from refold.client.reading.steps import Ask, RunStep, Timeline
from refold.core.approval.ballot import Remember
from refold.core.approval.decision import schema_name
from refold.core.approval.signature import SigningKey
from refold.core.errors import NotFoundError, UsageError
from refold.core.events import Earlier
from refold.core.run.state import RunState, Status
from refold.core.wire import canonical
from tests.approval.driving import POLICY, World, request
from tests.approval.questions import NOW
from tests.cli.desk import Desk

ANY = Filter("all", "", "", "", "")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Give what was printed so far."""
    return lambda: capsys.readouterr().out


class TestFamilies:
    def test_a_run_stands_for_the_one_question_that_its_family_waits_for(self, world: World, desk: Desk) -> None:
        below, other = request("run-1.2.7/5"), request("run-11/5")
        world.ask(below)
        world.ask(other)
        listed = [a.request.approval_id for a in desk.approvals.read().all() if replace(ANY, run="run-1")(a)]

        assert listed == [below.approval_id]
        assert desk.approvals.named("run-1") == desk.approvals.named("run-1.2") == below.approval_id
        with pytest.raises(NotFoundError, match="run run-1.3 and its children have no open approval"):
            desk.approvals.named("run-1.3")

    def test_of_several_questions_one_has_to_be_named(self, world: World, desk: Desk) -> None:
        world.ask(request("run-1.2/5"))
        world.ask(request("run-1/9"))

        with pytest.raises(UsageError, match="run run-1 and its children have 2 open approvals"):
            desk.approvals.named("run-1")


class TestListing:
    def test_approvals_are_listed_by_state_agent_tool_run_and_approver(self, world: World, desk: Desk) -> None:
        first, second = request("run-1/5"), request("run-2/5", by="rising", agent="other", tool="erase")
        world.ask(first)
        world.ask(second)
        desk.vote(first, "ada", "approve")

        def listed(**more: str) -> list[str]:
            wanted = replace(ANY, **more)
            return [found.request.approval_id for found in desk.approvals.read().all() if wanted(found)]

        assert (listed(state="open"), listed(state="decided")) == ([second.approval_id], [first.approval_id])
        assert (listed(agent="one"), listed(tool="erase"), listed(run="run-2")) == (
            [first.approval_id],
            [second.approval_id],
            [second.approval_id],
        )
        assert (listed(approver="role:lead"), listed(approver="bob"), listed(approver="dan")) == (
            [first.approval_id],
            [first.approval_id],
            [second.approval_id],
        )

    def test_who_may_not_decide_finds_nothing_to_decide_and_a_deputy_does(self, world: World, desk: Desk) -> None:
        world.publish("roles", "roles", {"roles": {"lead": ["ada", "bob", "eve"]}, "revoked": ["bob"]})
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "delegate", to=("zoe",))
        found = desk.approvals.get(asked.approval_id)

        may = {name for name in ("ada", "bob", "eve", "zoe", "dan", "role:lead") if replace(ANY, approver=name)(found)}

        assert may == {"ada", "zoe", "role:lead"}
        assert found.people() == ("ada", "zoe")

    def test_a_question_that_too_few_people_of_the_catalog_may_decide_shows_the_way_out(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request(by="two")
        world.publish("roles", "roles", {"roles": {"lead": ["ada", "bob"]}, "revoked": []})
        world.ask(asked)
        enough = desk.approvals.get(asked.approval_id).lacks_people()
        world.publish("roles", "roles", {"roles": {"lead": ["ada", "bob"]}, "revoked": ["bob"]})

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        text = " ".join(printed().split())
        assert enough == ""
        assert "2 must agree, and the catalog has 1 who may" in text
        assert f"refold approval delegate {asked.approval_id} NAME... --replace" in text

    def test_an_edit_that_the_tool_refused_counts_nowhere(self, world: World, desk: Desk) -> None:
        asked = request(by="two")
        world.ask(asked)
        for actor in ("ada", "bob"):
            with pytest.raises(UsageError, match="edit_not_possible"):
                desk.vote(asked, actor, "edit", args='{"service":1}')

        found = desk.approvals.get(asked.approval_id)

        assert (found.count.leading, found.count.settled) == (0, None)
        assert [found.fate(vote) for vote in found.said] == ["void", "void"]

    def test_an_approval_under_a_dropped_policy_is_held(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        world.ask(request())
        world.publish(f"policy/{POLICY.digest}", "policy", None)

        (found,) = desk.approvals.read().all()
        row = question_row(found)
        approvals.print_approvals([row])

        assert (row.state, "is not in the catalog" in row.held) == ("open", True)
        assert "held" in printed()

    def test_grants_are_listed_with_their_uses_and_their_end(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve", remember=Remember(10**9, 3))
        again = request("run-1/9")
        world.ask(again)
        assert desk.process is not None
        desk.process.run()

        (standing,) = desk.approvals.read().grants()
        approvals.print_approval(desk.approvals.get(asked.approval_id), grant=standing)
        approvals.print_approvals([question_row(desk.approvals.get(again.approval_id))])
        text = printed()
        desk.vote(asked, "bob", "revoke-grant")
        (ended,) = desk.approvals.read().grants()

        assert (standing.state, standing.used, ended.state) == ("standing", [again.approval_id], "revoked")
        assert "standing restart run run-1 ada 2027-" in text
        assert "1, at most 3 in each run" in text
        assert f"grant {asked.approval_id}" in text

    def test_a_revocation_by_somebody_who_may_not_ends_no_grant(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve", remember=Remember(10**9, 3))
        with pytest.raises(UsageError, match="zoe is none of ada, role:lead"):
            desk.vote(asked, "zoe", "revoke-grant")

        assert [found.state for found in desk.approvals.read().grants()] == ["standing"]

    def test_a_closed_approval_is_neither_open_nor_decided(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        world.close(asked)

        assert desk.approvals.get(asked.approval_id).state == "closed"

    def test_watching_tells_every_change_once(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        rows = approval_changes(desk.approvals, replace(ANY, state="open"))

        first = next(rows)
        desk.vote(asked, "ada", "approve")

        assert (first.state, next(rows).state) == ("open", "decided")

    def test_a_forged_vote_is_shown_as_one_that_cannot_be_trusted(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request()
        world.ask(asked)
        desk.force(asked, "ada", key=SigningKey("gateway", "vote", bytes(32)))

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        assert "cannot be trusted: the key gateway did not sign this" in printed()


class TestShowing:
    def test_a_text_before_and_after_is_shown_as_a_diff(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        args = '{"after":"one\\ntwo\\n","before":"one\\n2\\n","path":"p"}'
        asked = request(args=args, schema=schema_name("{}", edit=True))
        world.ask(asked)

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        lines = [line.strip() for line in printed().splitlines()]
        assert {"-2", "+two", "one", 'path: "p"', "--- before", "+++ after"} <= set(lines)

    def test_nothing_is_left_out_of_the_texts_of_a_tool_that_does_not_declare_them_an_edit(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        text = "\n".join(f"line {number}" for number in range(300)) + "\nrm -rf /\n"
        args = canonical.dumps({"before": text, "after": text + "more"})
        asked = request(args=args)
        world.ask(asked)

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        assert printed().count("rm -rf /") == 2

    def test_how_much_there_was_to_read_stands_beside_the_command(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        args = canonical.dumps({"service": "api", "text": "ok" + "\n" * 4_000 + "rm -rf /" + " " * 4_000 + "more"})
        asked = request(args=args)
        world.ask(asked)

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        lines = printed().splitlines()
        assert len(lines) < 50
        assert "  <3999 empty lines>" in lines
        assert "    | rm -rf /<4000 spaces>more" in lines
        told = next(number for number, line in enumerate(lines) if line.startswith(f"arguments: {len(args)} bytes"))
        assert canonical.hex_digest(args) in lines[told]
        assert lines[told + 1].startswith("refold approval approve")

    @pytest.mark.parametrize(("full", "closed"), [(False, False), (False, True), (True, True)])
    def test_what_a_framework_adds_is_folded_behind_the_arguments_of_a_closed_question(
        self, full: bool, closed: bool, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request(args='{"$approved":true,"$run":{"deps":"secret"},"service":"api"}')
        world.ask(asked)
        if closed:
            world.close(asked)

        approvals.print_approval(desk.approvals.get(asked.approval_id), full=full)

        text = printed().partition("arguments")[2]
        assert text.split()[:2] == ["service:", '"api"']
        shown = full or not closed
        assert ("secret" in text) is shown
        assert ("and $approved, $run of the framework, 43 bytes: --full" in text) is not shown

    def test_a_question_that_the_log_does_not_ask_is_printed_without_a_way_to_decide_it(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request()
        world.ask(asked)

        approvals.print_approval(desk.approvals.get(asked.approval_id), otherwise="the log asks something else")

        text = printed()
        assert "DO NOT VOTE" in text
        assert "refold approval approve" not in text

    def test_a_person_sees_the_call_the_rule_and_who_decides(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request(by="two", expires_ms=NOW + 60_000)
        world.ask(asked)
        desk.vote(asked, "ada", "approve", message="fine with me")

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        text = printed()
        for part in ("run-1/5", 'service: "api"', "role:lead; 1 of 2 votes, not the requester", "two of policy", "eve"):
            assert part in text
        assert f"refold approval approve {asked.approval_id}" in text
        assert "ada  approve fine with me" in text
        assert "2027-01-15 08:01:00" in text

    def test_votes_that_count_no_more_are_marked(self, world: World, desk: Desk, printed: Callable[[], str]) -> None:
        asked = request(by="two")
        world.ask(asked)
        said = [("ada", "approve"), ("ada", "answer"), ("bob", "approve"), ("bob", "withdraw"), ("zoe", "approve")]
        for at, (actor, action) in enumerate(said, start=1):
            world.vote(asked, actor, action, at=at, **({"result": "1"} if action == "answer" else {}))

        found = desk.approvals.get(asked.approval_id)
        approvals.print_approval(found)

        fates = ["superseded", "counts", "withdrawn", "recorded", "void"]
        assert [found.fate(vote) for vote in found.said] == fates
        assert [each["fate"] for each in shown_of(found, grant=None, ended="", log="").said] == fates
        text = printed()
        assert all(f"  {fate}" in text for fate in ("superseded", "withdrawn", "void, it does not count now: zoe"))
        assert "ada, bob, cyd" in text

    def test_an_escalation_is_told_before_and_after(self, world: World, desk: Desk, printed: Callable[[], str]) -> None:
        asked = request(by="rising", expires_ms=NOW + 600_000)
        world.ask(asked)
        approvals.print_approval(desk.approvals.get(asked.approval_id))
        before = printed()
        escalated = request(by="rising", expires_ms=NOW + 600_000, level=1)
        world.close(asked)
        world.ask(escalated)
        approvals.print_approval(desk.approvals.get(escalated.approval_id))

        assert "at 2027-01-15 08:01:00 UTC to role:lead" in before
        assert "2027-01-15 08:10:00 UTC, then it is rejected" in before
        assert "it was escalated to role:lead" in printed()

    @pytest.mark.parametrize(
        ("verdict", "said", "status", "says"),
        [
            ("expire", "", "running", "it ended without a decision: nobody decided in time"),
            ("expire", "it did not hold any more", "running", "it ended without a decision: it did not hold any more"),
            ("", "", "cancelled", "the run is cancelled, and does not wait for it any more"),
        ],
    )
    def test_what_its_run_made_of_a_closed_approval_is_told(
        self, verdict: str, said: str, status: Status, says: str, world: World, desk: Desk
    ) -> None:
        asked = request()
        world.ask(asked)
        world.close(asked)
        timeline = Timeline("run-1")
        about = {
            "approval_id": asked.approval_id,
            "rule": "one",
            "approvers": ["role:lead"],
            "quorum": 1,
            "message": "",
        }
        ask = Ask(**about, asked_ms=NOW, ended_ms=NOW, verdict=verdict, said=said)
        timeline.steps.append(RunStep(step=1, kind="call", name="restart", status="failed", approvals=[ask]))
        run = Run(RunState("run-1", status=status), timeline)

        assert approvals.ended(run, desk.approvals.get(asked.approval_id)) == says

    def test_a_question_that_no_service_takes_is_not_shown_but_cried_out(
        self, world: World, desk: Desk, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lie = replace(request(), args='{"service":"other"}')
        world.ask(lie)

        index = desk.approvals.read()
        approvals.warn_of(index.unsound, index.all())

        assert index.all() == []
        assert f"{lie.approval_id} is no question that a service takes" in capsys.readouterr().err.replace("\n", " ")

    def test_a_second_question_about_a_call_is_cried_out_with_both(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked, other = request(), request(args='{"service":"other"}')
        for each in (asked, other):
            world.ask(each)

        for each in (asked, other):
            approvals.print_approval(desk.approvals.get(each.approval_id))

        text = " ".join(printed().split())
        assert f"DO NOT VOTE, tell an operator: people are asked {other.approval_id} about it as well" in text
        assert f"DO NOT VOTE, tell an operator: people are asked {asked.approval_id} about it as well" in text

    def test_what_was_before_is_told_whoever_may_have_acted(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        past = [
            Earlier(1, "doubt", "lost: nobody knows", "", NOW),
            Earlier(1, "did_not_happen", "I looked", "eve", NOW),
        ]
        asked = request(attempt=2, history=past)
        world.ask(asked)

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        text = printed()
        assert "attempt 1 MAY HAVE HAPPENED, it was in doubt" in text
        assert "attempt 1 did not happen by the word of eve" in text

    def test_what_a_terminal_would_hide_is_spelt_out(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        hidden = "\u202eipa\u200b\x1b[31m\r"
        world.ask(request(args=json.dumps({"service": hidden}, ensure_ascii=True), agent=f"a{hidden}[red]"))

        assert output.visible(hidden) == "<U+202E>ipa<U+200B><U+001B>[31m<U+000D>"  # type: ignore[attr-defined]
        assert output.visible("Zürich 東京 → ok") == "Zürich 東京 → ok"  # type: ignore[attr-defined]
        for found in desk.approvals.read().all():
            approvals.print_approval(found)
            approvals.print_approvals([question_row(found)])
        assert not {"\u202e", "\u200b", "\x1b[31m", "\r"} & set(printed())

    def test_a_text_of_many_lines_is_read_line_by_line_and_compared_so(self) -> None:
        before = json.dumps({"content": "one\ntwo\n", "path": "a"})
        after = json.dumps({"content": "one\n2\n", "path": "a"})

        assert readable(before) == ["content:", "  | one", "  | two", "  | ", 'path: "a"']
        assert [line for line in approvals.diff(before, after) if line[0] in "+-"][2:] == ["-  | two", "+  | 2"]

    def test_an_edit_is_shown_as_a_diff(self, world: World, desk: Desk, printed: Callable[[], str]) -> None:
        asked = request(by="two")
        world.ask(asked)
        desk.vote(asked, "ada", "edit", args='{"service":"db"}')

        approvals.print_approval(desk.approvals.get(asked.approval_id))

        text = printed()
        assert '-service: "api"' in text
        assert '+service: "db"' in text

    def test_everything_is_there_as_data(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve")
        found = desk.approvals.get(asked.approval_id)

        row = json.loads(json.dumps(output.plain(shown_of(found, grant=None, ended="", log=""))))

        assert (row["state"], row["verdict"], row["others"]) == ("decided", "approve", [])
        assert [(vote["actor"], vote["counts"]) for vote in row["said"]] == [("ada", True)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("buyer__function_toolset__<agent>.call_tool:buy", "buyer.buy"),
        ("buyer__function_toolset__wh.call_tool:stock", "buyer.wh.stock"),
        ("buyer__model.request", "buyer__model.request"),
        ("pay", "pay"),
    ],
)
def test_a_tool_of_a_toolset_has_a_name_for_people(name: str, shown: str) -> None:
    assert output.tool_name(name) == shown
