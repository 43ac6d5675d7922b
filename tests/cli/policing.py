"""Policies, runs that were judged by them, and a cluster of a test's own, for the tests of `refold policy`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.client.policies import load_file
from refold.core.approval.policy import Policy
from refold.core.events import (
    ApprovalRequested,
    CallFailed,
    CallProposed,
    Event,
    Failure,
    Requirement,
    RetryPolicy,
    RunRequested,
    RunStarted,
)
from refold.core.wire import canonical
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.chronicle import Chronicle, completed
from tests.cli.terminal import refold
from tests.roots import PINNED, ROOT, entry, spread

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
