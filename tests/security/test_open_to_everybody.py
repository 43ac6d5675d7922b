"""A Kafka or Redis that asks nobody who he is: off this machine no service starts beside it, unless it is told to.

The servers listen on this machine alone; by the addresses they are given here they count as elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
import structlog
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from refold.cli.commands.serve.process import accept, kafka_findings, redis_findings
from refold.core.errors import UsageError
from refold.dev.kafka import EmbeddedKafka
from refold.dev.valkey import EmbeddedValkey
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.acls import has_authorizer
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.adapters.redis import ledger
from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.runtime import keys
from refold.engine.runtime.addresses import is_here
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import refold
from tests.embedded.secured import ADMIN
from tests.kafka.secured import POOLS, ROLES, SecuredCluster
from tests.roots import PINNED
from tests.waiting import eventually

APP = str(Path(__file__).parents[1] / "cli" / "app.py")
LIMIT = timedelta(seconds=10)
SERVED = [role for role in ROLES if role.partition(".")[0] in ("planner", "executor", "approval", "archivist")]


def elsewhere(bootstrap: str) -> str:
    """The same broker, by an address that is not one of this machine alone."""
    return bootstrap.replace("127.0.0.1", "0.0.0.0")


@pytest.fixture(scope="module")
def environment(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give what a service is started with, beside an open Kafka that is elsewhere."""
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"open{uuid4().hex[:8]}.", partitions=1)
    Topics(settings, ("default",)).apply()
    folder = tmp_path_factory.mktemp("open")
    keys.save(keys.new("decision", "approval"), folder / "decision.json")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")},
        "REFOLD_KAFKA__BOOTSTRAP": elsewhere(settings.bootstrap),
        "REFOLD_KAFKA__PREFIX": settings.prefix,
        "REFOLD_KAFKA__PARTITIONS": "1",
        "REFOLD_APPROVAL__KEY": str(folder / "decision.json"),
        "REFOLD_TRUST": PINNED,
        "REFOLD_DATA": str(folder),
    }


def serve(service: str, environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "refold", "serve", service, "--app", APP, *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def refusal(service: str, environment: dict[str, str], *words: str) -> str:
    """Output of a service that does not start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        ended = refold("serve", service, "--app", APP, *words)
    structlog.contextvars.clear_contextvars()
    assert ended.exit_code == 2, ended.output
    return " ".join(ended.output.split())


@pytest.mark.parametrize(
    ("service", "words"),
    [("planner", ()), ("executor", ()), ("approval", ()), ("archivist", ("--once", "--no-archive"))],
)
def test_no_service_starts_beside_a_kafka_elsewhere_that_lets_everybody_do_everything(
    environment: dict[str, str], valkey: EmbeddedValkey, service: str, words: tuple[str, ...]
) -> None:
    told = refusal(service, {**environment, "REFOLD_REDIS__URL": valkey.url}, *words)

    assert "lets this service do what none may: it has no authorizer" in told
    assert "`refold topics acls --apply`; or REFOLD_ALLOW_OPEN=true" in told


def test_an_address_that_leads_elsewhere_is_not_of_this_machine(kafka: EmbeddedKafka) -> None:
    """A tunnel begins on loopback: where brokers say that they are counts as well."""
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=f"open{uuid4().hex[:8]}.", partitions=1)
    topics = Topics(settings)
    assert [*kafka_findings(settings, topics)] == []
    topics.hosts = {*topics.hosts, "broker-2.example.com"}

    assert [finding.far for finding in kafka_findings(settings, topics)] == [True]


def test_who_is_told_to_starts_all_the_same_and_says_so(
    environment: dict[str, str], valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    url = valkey.url.replace("127.0.0.1", "0.0.0.0")
    more = {"REFOLD_ALLOW_OPEN": "true", "REFOLD_REDIS__URL": url}
    process = serve("executor", {**environment, **more})
    assert process.stdout is not None
    told: list[str] = []
    try:
        for line in process.stdout:
            told.append(line)
            if "service.started" in line:
                break
    finally:
        process.kill()
        process.wait()

    assert "service.started" in told[-1]
    warnings = [line for line in told if "service.open" in line]
    assert len(warnings) == 3
    for part in ("has no authorizer", "has no password", "the ledger has no key"):
        assert any(part in line for line in warnings), part


@pytest.mark.parametrize("role", SERVED)
def test_beside_a_cluster_with_the_rights_of_the_table_every_service_starts(
    secured_cluster: SecuredCluster, role: str
) -> None:
    settings = secured_cluster.settings(role)
    far = settings.model_copy(update={"bootstrap": elsewhere(settings.bootstrap)})

    assert not is_here(far.bootstrap.split(",")[0])
    assert [*kafka_findings(far, Topics(far, POOLS))] == []


def test_a_service_that_may_do_everything_or_write_the_catalog_does_not_start(secured_cluster: SecuredCluster) -> None:
    prefix = "careless."
    secured_cluster.furnish(prefix)
    names = (f"{prefix}catalog", ResourcePatternType.LITERAL, "User:refold-planner", "*")
    rule = AclBinding(ResourceType.TOPIC, *names, AclOperation.WRITE, AclPermissionType.ALLOW)
    admin = clients.admin(secured_cluster.settings(ADMIN))  # kept until there is an answer
    admin.create_acls([rule])[rule].result(60)

    def found(role: str) -> list[Any]:
        settings = secured_cluster.settings(role, prefix)
        far = settings.model_copy(update={"bootstrap": elsewhere(settings.bootstrap)})
        return [*kafka_findings(far, Topics(far, POOLS))]

    eventually(lambda: found("planner"), what="the finding that the rule makes")
    assert found(ADMIN)
    assert found("approval") == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """Give a Valkey of its own, whose users a test may change."""
    with EmbeddedValkey(tmp_path / "valkey") as running:
        yield running


def test_an_executor_needs_a_password_and_a_key_of_its_pool_where_others_reach_redis(server: EmbeddedValkey) -> None:
    def findings(key: bytes, *, user: str = "") -> list[str]:
        place = server.url.replace("127.0.0.1", "0.0.0.0").replace("redis://", f"redis://{user}")
        ledger = RedisLedger(place)
        found = [*redis_findings(ledger, key)]
        ledger.close()
        for finding in found:
            with pytest.raises(UsageError, match=finding.what):
                accept([finding], allowed=False)
            accept([finding], allowed=True)
        return [finding.mend.rpartition(" ")[2] for finding in found]

    before = findings(b""), findings(b"k" * 32)
    admin = redis.Redis.from_url(server.url)
    admin.execute_command("ACL", "SETUSER", "payments", "on", ">secret", "~*", "+@all")
    admin.execute_command("ACL", "SETUSER", "default", "off")
    after = findings(b"", user="payments:secret@"), findings(b"k" * 32, user="payments:secret@")

    assert before == (["REFOLD_REDIS__URL", "REFOLD_EXECUTOR__LEDGER_KEY"], ["REFOLD_REDIS__URL"])
    assert after == (["REFOLD_EXECUTOR__LEDGER_KEY"], [])


def test_a_user_for_whom_any_password_does_is_open_as_well(server: EmbeddedValkey) -> None:
    admin = redis.Redis.from_url(server.url)
    admin.execute_command("ACL", "SETUSER", "payments", "on", "nopass", "~*", "+@all")
    admin.execute_command("ACL", "SETUSER", "strict", "on", ">secret", "~*", "+@all")
    admin.execute_command("ACL", "SETUSER", "default", "off")
    place = server.url.partition("://")[2]
    urls = {
        f"redis://payments:secret@{place}": True,
        f"redis://strict:secret@{place}": False,
        f"redis://{place}?username=payments&password=secret": True,
        f"redis://{place}?username=strict&password=secret": False,
    }

    assert {url: ledger.open_to_all(url, timeout=LIMIT) for url in urls} == urls


def test_on_this_machine_a_missing_key_is_a_warning(valkey: EmbeddedValkey) -> None:
    findings = [*redis_findings(RedisLedger(valkey.url), b"")]

    assert [finding.far for finding in findings] == [False]
    accept(findings, allowed=False)


@pytest.mark.parametrize(("allowed", "verdict"), [("", "problem"), ("true", "warning")])
def test_the_doctor_says_all_three(
    environment: dict[str, str], server: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch, allowed: str, verdict: str
) -> None:
    for name, value in {**environment, "REFOLD_ALLOW_OPEN": allowed}.items():
        if name.startswith("REFOLD_"):
            monkeypatch.setenv(name, value)
    parts = ("has no authorizer", "lets in whoever has no password", "REFOLD_EXECUTOR__LEDGER_KEY")

    def told(url: str) -> dict[str, str]:
        found = json.loads(refold("doctor", "--redis", url, "--json").stdout)["findings"]
        return {part: each["verdict"] for each in found for part in parts if part in each["what"]}

    away = told(server.url.replace("127.0.0.1", "0.0.0.0"))
    monkeypatch.setenv(
        "REFOLD_KAFKA__BOOTSTRAP", environment["REFOLD_KAFKA__BOOTSTRAP"].replace("0.0.0.0", "127.0.0.1")
    )
    here = told(server.url)
    monkeypatch.setenv("REFOLD_EXECUTOR__LEDGER_KEY", "ab" * 32)

    assert away == dict(zip(parts, (verdict, verdict, "warning"), strict=True))
    assert here == dict.fromkeys(parts, "ok")
    assert parts[2] not in told(server.url)


def test_the_doctor_tells_an_authorizer_from_none(kafka: EmbeddedKafka, secured_cluster: SecuredCluster) -> None:
    assert not has_authorizer(KafkaSettings(bootstrap=kafka.bootstrap))
    assert has_authorizer(secured_cluster.settings(ADMIN))
    assert has_authorizer(secured_cluster.settings("planner"))


@pytest.mark.parametrize(
    ("server", "here"),
    [
        ("127.0.0.1:9092", True),
        ("127.8.9.1:9092", True),
        ("localhost:9092", True),
        ("LOCALHOST", True),
        ("[::1]:9092", True),
        ("[::ffff:127.0.0.1]:9092", True),
        ("[::ffff:10.0.0.7]:9092", False),
        ("SASL_SSL://127.0.0.1:9092", True),
        ("redis://app:pass@localhost:6379/0", True),
        ("unix:///run/redis.sock", True),
        ("0.0.0.0:9092", False),
        ("10.0.0.7:9092", False),
        ("127.example.com:9092", False),
        ("127.0.0.1.example.com:9092", False),
        ("localhost.example.com:9092", False),
        ("redis://127.0.0.1:6379@example.com:6379/0", False),
        ("[fe80::1]:9092", False),
        ("[::1:9092", False),
        ("kafka:9092", False),
        ("", False),
    ],
)
def test_this_machine_alone_is_told_by_the_address_and_not_by_how_it_begins(server: str, here: bool) -> None:
    assert is_here(server) is here
