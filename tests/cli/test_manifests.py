"""`refold topics manifests`: the same as the tables of topics and ACLs, in the words of Strimzi."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold.engine.adapters.kafka.acls import Acl, expected_acls, principals, quotas
from refold.engine.adapters.kafka.topics import expected_topics
from tests.cli.terminal import refold
from tests.packaging.manifests import problems

APP = """
from refold import App

app = App("mine")

@app.tool(effect="pure", pool="gpu_jobs")
def count(text: str) -> int:
    return len(text.split())
"""


def printed(*words: str) -> list[dict[str, Any]]:
    """Resources, as JSON."""
    found: list[dict[str, Any]] = json.loads(refold("topics", "manifests", *words, "--json").stdout)
    return found


def granted(user: dict[str, Any]) -> set[Acl]:
    """Rules of a user, as its operator writes them into Kafka."""
    spec = user["spec"]
    name = spec.get("userName", user["metadata"]["name"])
    principal = f"User:{'CN=' if spec['authentication']['type'] == 'tls' else ''}{name}"
    return {
        Acl(
            principal,
            acl["resource"]["type"],
            acl["resource"]["name"],
            {"prefix": "prefixed", "literal": "literal"}[acl["resource"]["patternType"]],
            re.sub("(?<=.)([A-Z])", r"_\1", operation).lower(),
        )
        for acl in spec["authorization"]["acls"]
        for operation in acl["operations"]
    }


def test_users_have_the_rights_of_the_table_and_topics_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__PREFIX", "acme.")
    monkeypatch.setenv("REFOLD_KAFKA__PARTITIONS", "12")
    monkeypatch.setenv("REFOLD_MAX_PAYLOAD_BYTES", "2000000")
    (tmp_path / "app.py").write_text(APP)
    app, web = ("--app", str(tmp_path / "app.py")), "client=User:CN=Web"
    holders = principals([web], ("default", "gpu_jobs"))

    resources = printed(*app, "--principal", web, "--cluster", "main")
    text = refold("topics", "manifests", *app, "--principal", web, "--cluster", "main").stdout

    users = [each for each in resources if each["kind"] == "KafkaUser"]
    topics = [each for each in resources if each["kind"] == "KafkaTopic"]
    assert list(yaml.safe_load_all(text)) == resources
    assert set().union(*map(granted, users)) == set(expected_acls("acme.", holders))
    assert {each["spec"]["topicName"]: each["spec"]["config"] for each in topics} == {
        f"acme.{topic.name}": topic.config
        for topic in expected_topics(("default", "gpu_jobs"), replication=3, payload_bytes=2_000_000)
    }
    assert {(each["spec"]["partitions"], each["spec"]["replicas"]) for each in topics} == {(12, 3)}
    assert {each["metadata"]["labels"]["strimzi.io/cluster"] for each in resources} == {"main"}
    limits = {each["metadata"]["name"]: each["spec"]["quotas"] for each in users if "quotas" in each["spec"]}
    assert len(limits) == len(dict(quotas(holders)))
    assert limits["web"] == {"producerByteRate": 2_097_152, "requestPercentage": 50}
    logins = {each["metadata"]["name"]: each["spec"]["authentication"]["type"] for each in users}
    assert {logins.pop("web"), *logins.values()} == {"tls", "scram-sha-512"}
    names = {each["metadata"]["name"]: each["spec"].get("userName") for each in users}
    assert (names["web"], names["refold-executor-gpu-jobs"]) == ("Web", "refold-executor-gpu_jobs")
    assert names["refold-planner"] is None
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", each["metadata"]["name"]) for each in resources)


def test_every_resource_is_what_its_schema_says_and_a_field_that_it_has_not_is_found() -> None:
    resources = printed()

    assert {each["metadata"]["name"]: found for each in resources if (found := problems(each))} == {}
    for kind in ("KafkaTopic", "KafkaUser"):
        spoilt = next(each for each in resources if each["kind"] == kind)
        spoilt["spec"]["replicaz"] = 3
        assert problems(spoilt)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--principal", "client=User:CN=web,O=acme"), "write User:NAME, or User:CN=NAME"),
        (("--principal", "client=Group:web"), "write User:NAME, or User:CN=NAME"),
        (("--principal", "client=User:Web", "--principal", "viewer=User:web"), "two resources have the name web"),
        (("--principal", "boss=User:x"), "'boss' is not a role"),
    ],
)
def test_users_that_strimzi_cannot_make_are_refused(words: tuple[str, ...], reason: str) -> None:
    result = refold("topics", "manifests", *words)

    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stdout == ""
