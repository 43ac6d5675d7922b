"""What waits for people, as it is shown, and what becomes of a vote, with the service on the log in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from refold.adapters.memory.log import MemoryLogReader
from refold.cli import approval, approval_views
from refold.cli.approval import Filter, changes
from refold.client.approvals import Answer, Approvals, changed
from refold.core import canonical, wire
from refold.core.ballot import Remember
from refold.core.capability import SigningKey
from refold.core.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RefoldError,
    TimedOutError,
    UnauthorisedError,
    UsageError,
)
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, ApprovalVote
from refold.runtime import keys
from tests.approval.driving import GATEWAY, PARTITIONS, Process, World, request
from tests.approval.questions import NOW
from tests.cli.platform import refold

ANY = Filter("all", "", "", "", "")


@dataclass
class Desk:
    """Where votes are handed in; the service takes its turns after every one, if it lives."""

    world: World
    process: Process | None

    def send(self, message: ApprovalVote) -> tuple[int, int]:
        """See `Sender`."""
        number = home(message.run_id, PARTITIONS)
        key = f"{message.approval_id}/{message.vote_id}"
        offset = self.world.write("approval-voted", number, key, wire.encode(message))
        if self.process:
            self.process.run()
        return number, offset

    @property
    def approvals(self) -> Approvals:
        """The client."""
        return Approvals(MemoryLogReader(self.world.broker), partitions=PARTITIONS, settle_s=0)

    def vote(
        self, asked: ApprovalRequest, actor: str, action: str, *, key: SigningKey = GATEWAY, **more: Any
    ) -> Answer:
        """Votes and waits for what becomes of it."""
        vote = self.approvals.vote(asked.approval_id, action, actor=actor, **more)
        position = self.approvals.send(replace(vote, issued=NOW + 1), key, self)
        return self.approvals.answered(replace(vote, issued=NOW + 1), position, 0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world, Process(world).run())


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Give what was printed so far."""
    return lambda: capsys.readouterr().out


class TestVoting:
    def test_the_last_vote_of_a_quorum_learns_of_the_decision(self, world: World, desk: Desk) -> None:
        asked = request(by="two")
        world.ask(asked)

        first, second = desk.vote(asked, "ada", "approve"), desk.vote(asked, "bob", "approve")

        assert (first.what, first.leading, first.quorum) == ("counted", 1, 2)
        assert second.what == "decided"
        assert second.decision is not None
        assert {vote.actor for vote in second.decision.votes} == {"ada", "bob"}

    @pytest.mark.parametrize(
        ("actor", "action", "more", "error", "says"),
        [
            ("zoe", "approve", {}, UsageError, "unentitled"),
            ("ada", "edit", {"args": '{"service":1}'}, UsageError, "edit_not_possible"),
            ("ada", "approve", {"key": SigningKey("x", "vote", bytes(32))}, UnauthorisedError, "no key x is known"),
        ],
        ids=str,
    )
    def test_a_void_vote_says_why(
        self,
        actor: str,
        action: str,
        more: dict[str, Any],
        error: type[RefoldError],
        says: str,
        world: World,
        desk: Desk,
    ) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(error, match=says):
            desk.vote(asked, actor, action, **more)

    def test_a_vote_that_no_service_was_there_to_refuse_is_called_void_all_the_same(self, world: World) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(UsageError, match="unentitled.*no approval service was there"):
            Desk(world, None).vote(asked, "zoe", "approve")

    def test_the_requester_is_told_before_anything_is_sent(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(UsageError, match="may not decide"):
            desk.vote(asked, "eve", "approve")

        assert list(world.records("approval-voted")) == []

    def test_a_vote_on_what_is_decided_is_a_conflict(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "reject", message="no")

        with pytest.raises(ConflictError, match="decided already: reject by ada"):
            desk.vote(asked, "bob", "approve")

    def test_nobody_votes_on_a_question_that_is_not_what_is_shown(self, world: World, desk: Desk) -> None:
        world.ask(replace(request(), args='{"service":"other"}'))

        with pytest.raises(ConflictError, match="not the digest"):
            desk.vote(request(), "ada", "approve")

    def test_without_a_service_the_vote_times_out_and_says_that_it_stays(self, world: World) -> None:
        asked = request()
        world.ask(asked)

        with pytest.raises(TimedOutError, match="is an approval service running"):
            Desk(world, None).vote(asked, "ada", "approve")

    def test_what_decides_nothing_is_recorded(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)

        assert desk.vote(asked, "zoe", "comment", message="hm").what == "recorded"
        assert desk.vote(asked, "ada", "delegate", to=("zoe",)).what == "recorded"

    def test_a_grant_is_revoked_long_after_its_approval_was_closed(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve", remember=Remember("run", 3_600_000, 3))
        world.close(asked)

        assert desk.vote(asked, "bob", "revoke-grant").what == "recorded"
        assert desk.process is not None
        assert desk.process.service.counts["grant.revoked"] == 1

    def test_there_is_no_grant_to_revoke_where_none_was_given(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve")

        with pytest.raises(NotFoundError, match="gave no grant"):
            desk.vote(asked, "bob", "revoke-grant")

    def test_an_unknown_approval_is_not_found(self, desk: Desk) -> None:
        with pytest.raises(NotFoundError, match="there is no approval run-1/77"):
            desk.vote(request("run-1/77"), "ada", "approve")
        with pytest.raises(MalformedError):
            desk.approvals.get("nothing")


class TestListing:
    def test_approvals_are_listed_by_state_agent_tool_run_and_approver(self, world: World, desk: Desk) -> None:
        first, second = request("run-1/5"), request("run-2/5", by="rising", agent="other", tool="erase")
        world.ask(first)
        world.ask(second)
        desk.vote(first, "ada", "approve")

        def listed(**more: str) -> list[str]:
            wanted = replace(ANY, **more)
            return [found.request.approval_id for found in desk.approvals.read().all() if wanted(found)]

        assert (listed(state="open"), listed(state="decided")) == (["run-2/5"], ["run-1/5"])
        assert (listed(agent="one"), listed(tool="erase"), listed(run="run-2")) == (
            ["run-1/5"],
            ["run-2/5"],
            ["run-2/5"],
        )
        assert (listed(approver="role:lead"), listed(approver="bob"), listed(approver="dan")) == (
            ["run-1/5"],
            ["run-1/5"],
            ["run-2/5"],
        )

    def test_a_closed_approval_is_neither_open_nor_decided(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        world.close(asked)

        assert desk.approvals.get(asked.approval_id).state == "closed"

    def test_watching_tells_every_change_once(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        rows = changes(desk.approvals, replace(ANY, state="open"))

        first = next(rows)
        desk.vote(asked, "ada", "approve")

        assert (first["state"], next(rows)["state"]) == ("open", "decided")

    def test_a_forged_vote_is_shown_as_one_that_cannot_be_trusted(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request()
        world.ask(asked)
        with pytest.raises(UnauthorisedError):
            desk.vote(asked, "ada", "approve", key=SigningKey("gateway", "vote", bytes(32)))

        approval_views.print_approval(desk.approvals.get(asked.approval_id))

        assert "cannot be trusted: the key gateway did not sign this" in printed()


class TestChanging:
    def test_one_argument_is_changed_and_the_others_stay(self) -> None:
        args = '{"after":"a","n":1,"path":"p"}'

        assert changed(args, {"n": "2", "after": canonical.dumps("2\n")}) == '{"after":"2\\n","n":2,"path":"p"}'
        assert changed(args, {"path": "not json"}) == '{"after":"a","n":1,"path":"not json"}'

    def test_an_argument_that_the_call_does_not_have_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no argument m"):
            changed('{"n":1}', {"m": "2"})


class TestShowing:
    def test_a_text_before_and_after_is_shown_as_a_diff(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request(args='{"after":"one\\ntwo\\n","before":"one\\n2\\n","path":"p"}')
        world.ask(asked)

        approval_views.print_approval(desk.approvals.get(asked.approval_id))

        lines = [line.strip() for line in printed().splitlines()]
        assert {"-2", "+two", "one", 'path: "p"', "--- before", "+++ after"} <= set(lines)

    def test_a_person_sees_the_call_the_rule_and_who_decides(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        asked = request(by="two", expires_ms=NOW + 60_000)
        world.ask(asked)
        desk.vote(asked, "ada", "approve", message="fine with me")

        approval_views.print_approval(desk.approvals.get(asked.approval_id))

        text = printed()
        for part in ("run-1/5", 'service: "api"', "role:lead; 1 of 2, not the requester", "two of policy", "eve"):
            assert part in text
        assert "recomputed, it holds" in text
        assert "ada  approve fine with me" in text
        assert "2027-01-15 08:01:00" in text

    def test_a_question_that_does_not_hold_is_cried_out(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        world.ask(replace(request(), args='{"service":"other"}'))

        approval_views.print_approval(desk.approvals.get("run-1/5"))

        assert "IT DOES NOT HOLD: do not vote" in printed()

    def test_what_a_terminal_would_hide_is_spelt_out(
        self, world: World, desk: Desk, printed: Callable[[], str]
    ) -> None:
        hidden = "\u202eipa\u200b\x1b[31m\r"
        world.ask(request(args=json.dumps({"service": hidden}, ensure_ascii=True), agent=f"a{hidden}[red]"))

        assert approval_views.visible(hidden) == "<U+202E>ipa<U+200B><U+001B>[31m<U+000D>"
        assert approval_views.visible("Zürich 東京 → ok") == "Zürich 東京 → ok"
        for found in desk.approvals.read().all():
            approval_views.print_approval(found)
            approval_views.print_list([approval_views.row(found)])
        assert not {"\u202e", "\u200b", "\x1b[31m", "\r"} & set(printed())

    def test_a_text_of_many_lines_is_read_line_by_line_and_compared_so(self) -> None:
        before = json.dumps({"content": "one\ntwo\n", "path": "a"})
        after = json.dumps({"content": "one\n2\n", "path": "a"})

        assert approval_views.readable(before) == ["content:", "  | one", "  | two", "  | ", 'path: "a"']
        assert [line for line in approval_views.diff(before, after) if line[0] in "+-"][2:] == ["-  | two", "+  | 2"]

    def test_an_edit_is_shown_as_a_diff(self, world: World, desk: Desk, printed: Callable[[], str]) -> None:
        asked = request(by="two")
        world.ask(asked)
        desk.vote(asked, "ada", "edit", args='{"service":"db"}')

        approval_views.print_approval(desk.approvals.get(asked.approval_id))

        text = printed()
        assert '-service: "api"' in text
        assert '+service: "db"' in text

    def test_everything_is_there_as_data(self, world: World, desk: Desk) -> None:
        asked = request()
        world.ask(asked)
        desk.vote(asked, "ada", "approve")

        found = json.loads(json.dumps(approval_views.data(desk.approvals.get(asked.approval_id))))

        assert (found["state"], found["verdict"], found["question_holds"]) == ("decided", "approve", True)
        assert [(vote["actor"], vote["counts"]) for vote in found["said"]] == [("ada", True)]


class TestWords:
    def test_the_only_vote_key_of_the_folder_signs(self, tmp_path: Path) -> None:
        made = keys.new("vote", "ada")
        keys.save(made, tmp_path / "keys" / "vote.json")
        keys.save(keys.new("decision", "svc"), tmp_path / "keys" / "decision.json")

        assert approval._vote_key("", str(tmp_path)).kid == made.kid

    @pytest.mark.parametrize("count", [0, 2])
    def test_without_one_key_there_is_no_vote(self, count: int, tmp_path: Path) -> None:
        for number in range(count):
            keys.save(keys.new("vote", "ada"), tmp_path / "keys" / f"{number}.json")

        result = refold("approval", "approve", "r/5", "--data", str(tmp_path))

        assert result.exit_code == 2
        assert f"there are {count} keys for votes" in result.output

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["list", "--state", "waiting"], "is not a state"),
            (["approve", "r/5", "--remember", "world"], "cannot remember"),
            (["approve", "r/5", "--remember", "run", "--for", "soon"], "is not a duration"),
            (["approve", "r/5", "--remember", "run", "--for", "0"], "for no time"),
            (["edit", "r/5", "{"], "not JSON"),
            (["answer", "r/5", "@nowhere.json"], "cannot read nowhere.json"),
        ],
        ids=str,
    )
    def test_wrong_words_are_told_before_anything_is_asked_of_kafka(
        self, words: list[str], says: str, tmp_path: Path
    ) -> None:
        result = refold("approval", *words, "--data", str(tmp_path))

        assert result.exit_code == 2
        assert says in result.output
