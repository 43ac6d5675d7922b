"""`refold policy` on a real broker: what is published is in force, and a draft is asked about what has happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.adapters.kafka.publisher import KafkaPublisher
from refold.adapters.kafka.reader import KafkaLogReader
from refold.adapters.kafka.topics import Topics
from refold.client.catalog import read
from refold.client.hindsight import recorded
from refold.client.policies import load_file
from refold.client.runs import Runs
from refold.core.approval.policy import Policy
from refold.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallFailed,
    CallJudged,
    CallProposed,
    Event,
    Failure,
    Requirement,
    RetryPolicy,
    RunCancelled,
    RunRequested,
    RunStarted,
)
from refold.core.wire import canonical
from refold.embedded.kafka import EmbeddedKafka
from refold.runtime import keys
from refold.runtime.settings import KafkaSettings
from tests.cli.chronicle import NOW, Chronicle, completed
from tests.cli.terminal import refold
from tests.roots import PINNED, ROOT, TRUST, entry, spread

POLICY = """
recheck: true
fallback: {approvers: [role:oncall]}
rules:
  - {name: reads, when: 'tool.effect == "pure"', allow: true}
  - {name: no drops, when: 'tool.name == "drop_table"', deny: Ask the DBAs.}
  - {name: outside, when: '!args.path.startsWith("sandbox/")', require: {approvers: [role:lead]}}
  - {name: rest, when: 'true', allow: true}
"""
DRAFT = POLICY.replace("role:lead", "ada").replace("deny: Ask the DBAs.", "allow: true")
DIGEST = "0" * 64
ASKED = [f"{call}~{DIGEST[:32]}" for call in ("r/7", "r/9")]
LEAD, ONCALL = Requirement(["role:lead"]), Requirement(["role:oncall"], expires_ms=86_400_000)
APP = Path(__file__).with_name("app.py")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Give a folder with the policy that judged the runs, a draft of another, and roles."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "draft.yaml").write_text(DRAFT)
    (tmp_path / "roles.yaml").write_text("roles: {lead: [ada, bob], oncall: []}\nrevoked: [eve]\n")
    return tmp_path


@pytest.fixture
def digest(files: Path) -> str:
    """Give the digest of the policy that judged the runs."""
    return Policy.parse(load_file(files / "policy.yaml")).digest


def proposal(step: int, tool: str, args: dict[str, Any], rule: str, effect: str = "keyed") -> CallProposed:
    """A call as a planner keeps it, with the rule that judged it."""
    key = f"key-{step}"
    return CallProposed(step, tool, canonical.dumps(args), key, "default", effect, 1_000, RetryPolicy(), rule=rule)


def asked(step: int, rule: str, policy: str, requirement: Requirement) -> ApprovalRequested:
    """A question to people."""
    return ApprovalRequested(step, 1, 1, policy, rule, requirement, "dev", "", "", DIGEST)


def history(policy: str) -> list[Sequence[Event]]:
    """A run with a call of each kind: allowed, denied, required, required because its rule failed."""
    reads = proposal(1, "read", {}, "reads", "pure")
    drops = proposal(2, "drop_table", {"name": "t"}, "no drops")
    outside = proposal(3, "write", {"path": "/etc/x"}, "outside")
    broken = proposal(4, "write", {}, "outside")
    return [
        [RunRequested("deploy", "{}", "digest", "seed", policy=policy), RunStarted("1")],
        [reads],
        completed(1),
        [drops, CallFailed(2, 0, Failure("denied", "Ask the DBAs.", "no drops"))],
        [outside, asked(3, "outside", policy, LEAD)],
        [broken, asked(4, "outside", policy, LEAD)],
    ]


class Cluster:
    """Topics of a test's own on the shared broker, and commands against them."""

    def __init__(self, kafka: EmbeddedKafka, prefix: str) -> None:
        self.settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix, partitions=4)
        Topics(self.settings).apply()
        self.reader = KafkaLogReader(self.settings)
        self.publisher = KafkaPublisher(self.settings, partitions=4)

    def play(self, chronicle: Chronicle) -> None:
        """Writes the run log of a chronicle."""
        for number in range(4):
            for record in chronicle.broker.log("run-log", number).records:
                self.publisher.send_raw("run-log", number, key=record.key or b"", value=record.value, headers=[])

    def __call__(self, *words: str | Path, code: int = 0) -> Any:
        """What a command says with --json."""
        result = refold("policy", *map(str, words), "--kafka", self.settings.bootstrap, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def words(self, *words: str | Path, code: int = 0) -> str:
        """What a command says to people."""
        result = refold("policy", *map(str, words), "--kafka", self.settings.bootstrap)
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())


@pytest.fixture
def cluster(
    kafka: EmbeddedKafka, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    """Give topics of this test's own."""
    prefix = f"policy{abs(hash(request.node.name))}."
    monkeypatch.setenv("REFOLD_KAFKA__PREFIX", prefix)
    monkeypatch.setenv("REFOLD_TRUST", PINNED)
    monkeypatch.setenv("REFOLD_ROOT", str(tmp_path / "root.json"))
    keys.save(ROOT, tmp_path / "root.json")
    made = Cluster(kafka, prefix)
    spread(made.publisher, 4, entry("roles", "roles", {"roles": {"lead": [], "oncall": [], "head": []}}))
    return made


def test_a_policy_that_is_published_is_in_force_in_every_partition(cluster: Cluster, files: Path, digest: str) -> None:
    assert "no policy is in force" in cluster.words("show")

    found = cluster("publish", files / "policy.yaml", "--roles", files / "roles.yaml", "--actor", "ann")

    assert (found["digest"], found["partitions"]) == (digest, 4)
    assert found["entries"] == ["roles", f"policy/{digest}", "current"]
    there = read(cluster.reader, TRUST)
    assert (there.void, there.behind) == ([], [])
    for catalog in there.partitions:
        assert (catalog.current, catalog.void) == (digest, 0)
        assert catalog.policy is not None
        assert [rule.name for rule in catalog.policy.rules] == ["reads", "no drops", "outside", "rest"]
        assert catalog.roles.entitled(["role:lead"], "bob") == "role:lead"
        assert not catalog.roles.entitled(["*"], "eve")
    shown = cluster("show")
    assert (shown["current"], shown["revoked"]) == (digest, ["eve"])
    assert shown["roles"] == {"lead": ["ada", "bob"], "oncall": []}
    assert (shown["policy"]["recheck"], shown["keys"], shown["differing_partitions"]) == (True, [], [])
    assert "role lead: ada, bob" in cluster.words("show")


def test_the_policy_that_was_published_last_is_in_force_and_the_others_stay_known(
    cluster: Cluster, files: Path, digest: str
) -> None:
    cluster("publish", files / "policy.yaml")
    later = cluster("publish", files / "draft.yaml")["digest"]

    shown = cluster("show")

    assert shown["current"] == later != digest
    assert shown["policies"] == sorted([digest, later])


def test_a_publication_that_broke_off_is_seen_and_mended_by_another(cluster: Cluster, files: Path) -> None:
    first = cluster("publish", files / "policy.yaml")["digest"]
    other = entry("current", "current", "0" * 64, actor="ann", at_ms=NOW, counter=1_000)
    spread(cluster.publisher, 2, other)

    assert cluster("show")["differing_partitions"] == [2, 3]
    assert "publish again" in cluster.words("show")
    cluster("publish", files / "policy.yaml")

    assert (cluster("show")["current"], cluster("show")["differing_partitions"]) == (first, [])


@pytest.mark.parametrize(("option", "text"), [("", "rules: 1"), ("--roles", "roles: {lead: ada}"), ("--roles", "[]")])
def test_what_is_not_whole_is_not_published(tmp_path: Path, option: str, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)

    result = refold("policy", "publish", *filter(None, [option]), str(tmp_path / "bad.yaml"), "--kafka", "127.0.0.1:9")

    assert result.exit_code == 2


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

    same, explained = cluster("test", files / "policy.yaml"), cluster("explain", "r/7")

    assert (same["calls"], same["differences"]) == (4, [])
    assert (explained["args"], explained["edited_args"]) == ({"path": "/etc/x"}, {"path": "sandbox/x"})
    assert (explained["recorded"]["outcome"], explained["now"]["outcome"]) == ("require", "require")
    said = cluster.words("explain", "r/7")
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

    said = cluster.words("test", files / "more.yaml", code=1)

    assert "require by outside: 1 of role:lead require by outside: 2 of role:lead, within 2d" in said


def test_what_is_in_force_is_shown_whole(cluster: Cluster, files: Path) -> None:
    when = " || ".join(f'args.path == "{"deep/" * 20}{number}"' for number in range(5))
    needed = (
        "{approvers: [role:lead, cleo], quorum: 2, expires: 2d, escalate: {after: 4h, to: [role:head]}, message: Look.}"
    )
    (files / "long.yaml").write_text(f"rules: [{{name: deep, when: '{when}', require: {needed}}}]")
    cluster("publish", files / "long.yaml")

    said = cluster.words("show")

    assert when in said
    assert "require 2 of role:lead, cleo, within 2d, after 4h also role:head, Look." in said
    assert "no rule holds, or one that allows fails deny nobody decides" in said


def test_a_policy_that_nobody_can_meet_is_published_with_a_warning(cluster: Cluster, files: Path) -> None:
    (files / "dead.yaml").write_text(POLICY + "  - {name: dead, when: 'agent == \"x\"', deny: Never.}\n")

    found = cluster("publish", files / "dead.yaml", "--roles", files / "roles.yaml")

    waits, dead, roles = found["warnings"]
    assert "rule 'outside'" in waits
    assert "it may for ever" in waits
    assert "rule 'dead'" in dead
    assert roles == "nobody has role:oncall by the catalog: only logins may say so"
    assert "warning: nobody has role:oncall" in declined(cluster, "publish", str(files / "policy.yaml"), code=0)
    (files / "roles.yaml").write_text("roles: {lead: [ada], oncall: [bob]}")
    assert cluster("publish", "--roles", files / "roles.yaml")["warnings"] == []


def test_a_policy_with_a_role_that_nobody_could_have_is_refused(cluster: Cluster, files: Path) -> None:
    (files / "cfo.yaml").write_text(POLICY.replace("role:lead", "role:cfo"))

    assert "nobody can be role:cfo" in declined(cluster, "publish", str(files / "cfo.yaml"), code=2)

    key = keys.new("vote", "gateway").public(roles=("cfo",))
    spread(cluster.publisher, 4, entry(f"key/{key.kid}", "key", key.content()))
    assert cluster("publish", files / "cfo.yaml")["digest"]


def test_a_draft_is_asked_about_the_calls_in_the_log(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    chronicle.add(
        "bare", [RunRequested("sweep", "{}", "digest", "seed"), proposal(1, "drop_table", {}, "")], emit=False
    )
    cluster.play(chronicle)

    same = cluster("test", files / "policy.yaml", "--runs", "r")
    draft = cluster("test", files / "draft.yaml", "--runs", "all", code=1)

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
    assert "1 deny -> allow" in cluster.words("test", files / "draft.yaml", code=1)
    assert cluster("test", files / "policy.yaml", "--agent", "sweep", code=1)["counts"] == {"allow -> deny": 1}
    assert cluster("test", files / "draft.yaml", "--agent", "nobody")["runs"] == 0
    assert cluster("test", files / "draft.yaml", "--since", "1h")["calls"] == 0
    assert cluster("test", files / "draft.yaml", "--since", "2020-01-01T00:00Z", code=1)["calls"] == 5


def test_what_only_the_app_knows_is_never_guessed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tags.yaml").write_text("rules: [{name: tags, when: '!(\"danger\" in tool.tags)', allow: true}]")
    chronicle = Chronicle()
    calls = [proposal(1, "mark", {}, ""), proposal(2, "gone", {}, "")]
    chronicle.add("r", [RunRequested("sweep", "{}", "digest", "seed"), *calls], emit=False)
    cluster.play(chronicle)

    blind = cluster("test", tmp_path / "tags.yaml", code=1)
    seeing = cluster("test", tmp_path / "tags.yaml", "--app", APP, code=1)

    assert (blind["counts"], blind["unknown"]) == ({"allow -> deny": 2}, ["tool.tags"])
    assert "--app tells them" in cluster.words("test", tmp_path / "tags.yaml", code=1)
    assert ([row["call_id"] for row in seeing["differences"]], seeing["unknown"]) == (["r/3"], [])


def test_a_recorded_call_is_explained_by_the_policy_that_judged_it(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    cluster.play(chronicle)
    assert f"the policy {digest} is not in the catalog" in refused(cluster, "r/7", 3)
    cluster("publish", files / "policy.yaml")
    cluster("publish", files / "draft.yaml")

    outside, broken = cluster("explain", "r/7"), cluster("explain", "r/9")

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
    assert 'args = {"path": "/etc/x"}' in cluster.words("explain", "r/7")
    drafted = cluster("explain", "r/5", "--draft", files / "draft.yaml")
    assert (drafted["recorded"]["outcome"], drafted["now"]["outcome"]) == ("deny", "allow")
    assert "would be: allow by no drops" in cluster.words("explain", "r/5", "--draft", files / "draft.yaml")


def test_a_call_is_explained_by_the_id_of_its_approval_too(cluster: Cluster, files: Path, digest: str) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    cluster.play(chronicle)
    cluster("publish", files / "policy.yaml")

    assert cluster("explain", ASKED[0]) == cluster("explain", "r/7")
    assert "r/7 write" in cluster.words("explain", ASKED[0])
    assert "there is no call r/4" in refused(cluster, "r/4", 3)


def test_a_tool_that_asks_by_itself_is_not_blamed_on_the_rule_that_allows_it(cluster: Cluster, files: Path) -> None:
    policy = cluster("publish", files / "policy.yaml")["digest"]
    chronicle = Chronicle()
    call: list[Event] = [proposal(1, "pay", {"path": "sandbox/x"}, "rest"), asked(1, "rest", policy, ONCALL)]
    chronicle.add("r", [RunRequested("sweep", "{}", "digest", "seed", policy=policy), *call], emit=False)
    cluster.play(chronicle)

    said = cluster.words("explain", "r/2")

    assert "the rule allows it; the tool says itself that it needs people" in said
    assert "would be" not in said
    assert "--app tells it" in cluster.words("test", files / "policy.yaml", code=1)


def test_what_nobody_judged_is_not_explained(cluster: Cluster) -> None:
    chronicle = Chronicle()
    chronicle.add("r", [RunRequested("sweep", "{}", "digest", "seed"), proposal(1, "mark", {}, "")], emit=False)
    cluster.play(chronicle)

    assert "no policy judged r/2" in refused(cluster, "r/2", 3)
    assert "there is no call r/1" in refused(cluster, "r/1", 3)
    assert "there is no run x" in refused(cluster, "x/1", 3)
    assert "is not a call id" in refused(cluster, "r", 2)


def refused(cluster: Cluster, call: str, code: int) -> str:
    """What `explain` says of a call that it cannot explain."""
    result = refold("policy", "explain", call, "--kafka", cluster.settings.bootstrap)
    assert result.exit_code == code, result.output
    return result.stderr


@pytest.mark.parametrize("since", ["soon", "2030-01-31T12:00", "-1h"])
def test_a_time_that_is_none_is_a_usage_error(files: Path, since: str) -> None:
    result = refold("policy", "test", str(files / "draft.yaml"), "--since", since, "--kafka", "127.0.0.1:9")

    assert result.exit_code == 2


def test_an_old_policy_is_dropped_and_the_one_in_force_is_not(cluster: Cluster, files: Path) -> None:
    old = cluster("publish", files / "policy.yaml")["digest"]
    new = cluster("publish", files / "draft.yaml")["digest"]

    assert cluster.words("show").count(f"older: {old}") == 1
    assert "is in force" in declined(cluster, "drop", new, code=4)
    cluster("drop", old)

    assert cluster("show")["policies"] == [new]
    assert "has no policy" in declined(cluster, "drop", old, code=3)


def test_a_policy_that_runs_and_questions_need_is_dropped_only_by_force(
    cluster: Cluster, files: Path, digest: str
) -> None:
    chronicle = Chronicle()
    chronicle.add("r", *history(digest), emit=False)
    chronicle.add("over", *history(digest), [RunCancelled("enough", "ann")], emit=False)
    chronicle.add("other", [RunRequested("sweep", "{}", "digest", "seed", policy="another")], emit=False)
    cluster.play(chronicle)
    cluster("publish", files / "policy.yaml")
    cluster("publish", files / "draft.yaml")

    said = declined(cluster, "drop", digest, code=4)

    assert "is in use: 1 live run and 2 open approvals under it" in said
    assert f"{', '.join(ASKED)}, r" in " ".join(said.split())
    assert digest in cluster("show")["policies"]
    dropped = cluster("drop", digest, "--force")
    assert (dropped["runs"], dropped["approvals"]) == (["r"], ASKED)
    assert digest not in cluster("show")["policies"]


def declined(cluster: Cluster, *words: str, code: int) -> str:
    """What a command says that does not do it."""
    result = refold("policy", *words, "--kafka", cluster.settings.bootstrap)
    assert result.exit_code == code, result.output
    return str(result.output)
