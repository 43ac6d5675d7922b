"""`refold policy` on a real broker: a draft is asked about what has happened, and what was judged is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.client.operations.runs import Runs
from refold.core.events import (
    ApprovalDecided,
    CallJudged,
    Event,
    RunRequested,
)
from refold.lab.back_test import recorded
from tests.cli.chronicle import Chronicle
from tests.cli.policing import APP, ASKED, LEAD, ONCALL, POLICY, Cluster, asked, history, proposal
from tests.cli.terminal import refold


def test_a_call_is_recorded_as_it_was_judged_last(digest: str) -> None:
    chronicle = Chronicle()
    edited = ApprovalDecided(3, 9, "edit", args='{"path":"sandbox/x"}', key="new")
    chronicle.add("r", *history(digest), [edited, CallJudged(3, "another", "rest")], emit=False)

    found = recorded(Runs(chronicle.reader).get("r"))

    assert [(call.call_id, call.judgement.outcome, call.judgement.rule) for call in found] == [
        ("r/3", "allow", "reads"),
        ("r/5", "deny", "no drops"),
        ("r/7", "allow", "rest"),
        ("r/9", "require", "outside"),
    ]
    assert (found[2].call.args, found[2].judgement.policy) == ('{"path":"sandbox/x"}', "another")
    assert (found[1].judgement.message, found[3].judgement.requirement) == ("Ask the DBAs.", LEAD)


def test_an_edit_changes_nothing_of_how_a_call_was_judged(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    edited = ApprovalDecided(3, 9, "edit", args='{"path":"sandbox/x"}', key="new")
    chronicle.add("r", *history(digest), [edited], emit=False)
    cluster.play(chronicle)
    cluster("publish", files / "policy.yaml")

    same, explained = cluster("check", "--recorded", files / "policy.yaml"), cluster("show", "r/7")

    assert (same["calls"], same["differences"]) == (4, [])
    assert (explained["args"], explained["edited_args"]) == ({"path": "/etc/x"}, {"path": "sandbox/x"})
    assert (explained["recorded"]["outcome"], explained["now"]["outcome"]) == ("require", "require")
    said = cluster.words("show", "r/7")
    assert 'edited since by people whom the policy asks about that too: {"path":"sandbox/x"}' in said
    assert "would be" not in said


def test_an_edited_call_that_is_judged_again_is_known_with_its_new_arguments(digest: str) -> None:
    chronicle = Chronicle()
    edited = ApprovalDecided(3, 9, "edit", args='{"path":"y"}', key="new")
    chronicle.add("r", *history(digest), [edited, asked(3, "outside", "another", LEAD)], emit=False)

    found = recorded(Runs(chronicle.reader).get("r"))[2]

    assert (found.call.args, found.edited, found.judgement.policy) == ('{"path":"y"}', None, "another")


def test_a_requirement_that_changes_is_told_with_both_of_its_sides(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    cluster.play(chronicle)
    (files / "more.yaml").write_text(POLICY.replace("[role:lead]", "[role:lead], quorum: 2, expires: 2d"))

    said = cluster.words("check", "--recorded", files / "more.yaml", code=1)

    assert "require by outside: 1 of role:lead require by outside: 2 of role:lead, within 2d" in said


def test_a_draft_is_asked_about_the_calls_in_the_log(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    chronicle.add(
        "bare", [RunRequested("sweep", "{}", "digest", "seed"), proposal(1, "drop_table", {}, "")], emit=False
    )
    cluster.play(chronicle)

    same = cluster("check", "--recorded", files / "policy.yaml", "--runs", "r")
    draft = cluster("check", "--recorded", files / "draft.yaml", "--runs", "all", code=1)

    assert (same["calls"], same["differences"], same["counts"]) == (4, [], {})
    assert (draft["runs"], draft["calls"]) == (2, 5)
    assert draft["counts"] == {"deny -> allow": 1, "require -> require": 2}
    first, second, _ = draft["differences"]
    assert (first["call_id"], first["recorded"]["message"], first["now"]["rule"]) == (
        "r/5",
        "Ask the DBAs.",
        "no drops",
    )
    assert (second["args"], second["now"]["requirement"]["approvers"]) == ({"path": "/etc/x"}, ["ada"])
    assert "1 deny -> allow" in cluster.words("check", "--recorded", files / "draft.yaml", code=1)
    assert cluster("check", "--recorded", files / "policy.yaml", "--agent", "sweep", code=1)["counts"] == {
        "allow -> deny": 1
    }
    assert cluster("check", "--recorded", files / "draft.yaml", "--agent", "nobody")["runs"] == 0
    assert cluster("check", "--recorded", files / "draft.yaml", "--since", "1h")["calls"] == 0
    assert cluster("check", "--recorded", files / "draft.yaml", "--since", "2020-01-01T00:00Z", code=1)["calls"] == 5


def test_what_only_the_app_knows_is_never_guessed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tags.yaml").write_text("rules: [{name: tags, when: '!(\"danger\" in tool.tags)', allow: true}]")
    chronicle = Chronicle()
    calls = [proposal(1, "mark", {}, ""), proposal(2, "gone", {}, "")]
    chronicle.add("r", [RunRequested("sweep", "{}", "digest", "seed"), *calls], emit=False)
    cluster.play(chronicle)

    blind = cluster("check", "--recorded", tmp_path / "tags.yaml", code=1)
    seeing = cluster("check", "--recorded", tmp_path / "tags.yaml", "--app", APP, code=1)

    assert (blind["counts"], blind["unknown"]) == ({"allow -> deny": 2}, ["tool.tags"])
    assert "--app tells them" in cluster.words("check", "--recorded", tmp_path / "tags.yaml", code=1)
    assert ([row["call_id"] for row in seeing["differences"]], seeing["unknown"]) == (["r/3"], [])


def test_a_recorded_call_is_explained_by_the_policy_that_judged_it(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    cluster.play(chronicle)
    assert f"the policy {digest} is not in the catalog" in refused(cluster, "r/7", 3)
    cluster("publish", files / "policy.yaml")
    cluster("publish", files / "draft.yaml")

    outside, broken = cluster("show", "r/7"), cluster("show", "r/9")

    assert (outside["recorded"]["policy"], outside["now"]["policy"]) == (digest, digest)
    assert [(row["rule"], row["value"], row["fired"]) for row in outside["rules"]] == [
        ("reads", False, False),
        ("no drops", False, False),
        ("outside", True, True),
        ("rest", True, False),
    ]
    assert outside["rules"][2]["values"] == {"args": {"path": "/etc/x"}}
    assert broken["rules"][2]["value"] == 'NOT_FOUND: Key not found in map : "path"'
    assert broken["now"]["message"] == f"the rule 'outside' failed: {broken['rules'][2]['value']}"
    assert 'args = {"path": "/etc/x"}' in cluster.words("show", "r/7")
    drafted = cluster("show", "r/5", "--draft", files / "draft.yaml")
    assert (drafted["recorded"]["outcome"], drafted["now"]["outcome"]) == ("deny", "allow")
    assert "would be: allow by no drops" in cluster.words("show", "r/5", "--draft", files / "draft.yaml")


def test_a_call_is_explained_by_the_id_of_its_approval_too(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    cluster.play(chronicle)
    cluster("publish", files / "policy.yaml")

    assert cluster("show", ASKED[0]) == cluster("show", "r/7")
    assert "r/7 write" in cluster.words("show", ASKED[0])
    assert "there is no call r/4" in refused(cluster, "r/4", 3)


def test_a_tool_that_asks_by_itself_is_not_blamed_on_the_rule_that_allows_it(cluster: Cluster, files: Path) -> None:
    policy = cluster("publish", files / "policy.yaml")["digest"]
    chronicle = Chronicle()
    call: list[Event] = [proposal(1, "pay", {"path": "sandbox/x"}, "rest"), asked(1, "rest", policy, ONCALL)]
    chronicle.add("r", [RunRequested("sweep", "{}", "digest", "seed", policy=policy), *call], emit=False)
    cluster.play(chronicle)

    said = cluster.words("show", "r/2")

    assert "the rule allows it; the tool says itself that it needs people" in said
    assert "would be" not in said
    assert "--app tells it" in cluster.words("check", "--recorded", files / "policy.yaml", code=1)


def test_what_nobody_judged_is_not_explained(cluster: Cluster) -> None:
    chronicle = Chronicle()
    chronicle.add("r", [RunRequested("sweep", "{}", "digest", "seed"), proposal(1, "mark", {}, "")], emit=False)
    cluster.play(chronicle)

    assert "no policy judged r/2" in refused(cluster, "r/2", 3)
    assert "there is no call r/1" in refused(cluster, "r/1", 3)
    assert "there is no run x" in refused(cluster, "x/1", 3)
    assert "is not a call id" in refused(cluster, "r", 2)


def refused(cluster: Cluster, call: str, code: int) -> str:
    """What `show` says of a call that it cannot explain."""
    result = refold("policy", "show", call, "--kafka", cluster.settings.bootstrap)
    assert result.exit_code == code, result.output
    return result.stderr


@pytest.mark.parametrize("since", ["soon", "2030-01-31T12:00", "-1h"])
def test_a_time_that_is_none_is_a_usage_error(files: Path, since: str) -> None:
    result = refold(
        "policy", "check", str(files / "draft.yaml"), "--recorded", "--since", since, "--kafka", "127.0.0.1:9"
    )

    assert result.exit_code == 2
