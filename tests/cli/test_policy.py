"""`refold policy` on a real broker: what is published is in force, in every partition, until it is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.client.catalog import read
from refold.core.events import (
    RunCancelled,
    RunRequested,
)
from refold.engine.runtime import keys
from tests.cli.chronicle import NOW, Chronicle
from tests.cli.policing import ASKED, POLICY, Cluster, history
from tests.cli.terminal import refold
from tests.roots import TRUST, entry, spread


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
    ours = f"dev/{cluster.settings.prefix}"
    other = entry("current", "current", "0" * 64, actor="ann", at_ms=NOW, counter=10**9, platform=ours)
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


def test_an_old_policy_is_dropped_and_the_one_in_force_is_not(cluster: Cluster, files: Path) -> None:
    old = cluster("publish", files / "policy.yaml")["digest"]
    new = cluster("publish", files / "draft.yaml")["digest"]

    assert cluster.words("show").count(f"older: {old}") == 1
    assert "is in force" in declined(cluster, "publish", "--drop", new, code=4)
    cluster("publish", "--drop", old)

    assert cluster("show")["policies"] == [new]
    assert "has no policy" in declined(cluster, "publish", "--drop", old, code=3)


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

    said = declined(cluster, "publish", "--drop", digest, code=4)

    assert "is in use: 1 live run and 2 open approvals under it" in said
    assert f"{', '.join(ASKED)}, r" in " ".join(said.split())
    assert digest in cluster("show")["policies"]
    dropped = cluster("publish", "--drop", digest, "--force")
    assert (dropped["runs"], dropped["approvals"]) == (["r"], ASKED)
    assert digest not in cluster("show")["policies"]


def declined(cluster: Cluster, *words: str, code: int) -> str:
    """What a command says that does not do it."""
    result = refold("policy", *words, "--kafka", cluster.settings.bootstrap)
    assert result.exit_code == code, result.output
    return str(result.output)
