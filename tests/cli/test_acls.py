"""`refold topics acls` where no broker is needed, and on one that knows no ACLs."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from refold.core.wire.resources import resource
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.acls import Acl, ResourceKind, expected_acls, principals
from tests.cli.terminal import refold

NOBODY = ("--kafka", "127.0.0.1:9")


def test_the_command_is_there_and_helps() -> None:
    result = refold("topics", "acls", "--help")

    assert result.exit_code == 0
    for option in ("--apply", "--prune", "--commands", "--principal", "--json"):
        assert option in result.output


def parsed(line: str) -> set[Acl]:
    """The rules that a command line of kafka-acls.sh adds."""
    words = shlex.split(line)
    assert words[:6] == [
        "kafka-acls.sh",
        "--bootstrap-server",
        NOBODY[1],
        "--command-config",
        "admin.properties",
        "--add",
    ]
    options = list(zip(words[6::2], words[7::2], strict=True))
    one = dict(options)
    kind: ResourceKind = "topic" if "--topic" in one else "group"
    operations = [value for name, value in options if name == "--operation"]
    kafka = {
        "Read": "read",
        "Write": "write",
        "Describe": "describe",
        "Create": "create",
        "AlterConfigs": "alter_configs",
        "DescribeConfigs": "describe_configs",
    }
    pattern = one.get("--resource-pattern-type", "literal")
    return {Acl(one["--allow-principal"], kind, one[f"--{kind}"], pattern, kafka[each]) for each in operations}


def test_the_command_lines_say_the_same_as_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__PREFIX", "acme.")
    web = "client=User:CN=web shop,O=Acme"

    text = refold("topics", "acls", "--commands", "--principal", web, *NOBODY).stdout
    data = json.loads(refold("topics", "acls", "--commands", "--principal", web, "--json", *NOBODY).stdout)

    lines = text.splitlines()
    found = set().union(*(parsed(line) for line in lines if line.startswith("kafka-acls.sh")))
    assert found == set(expected_acls("acme.", principals([web])))
    assert lines == data


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prune",), "then add --apply --prune"),
        (("--commands", "--apply"), "--commands applies nothing"),
        (("--principal", "boss=User:x"), "'boss' is not a role"),
        (("--principal", "client=x"), "write client=User:NAME"),
    ],
)
def test_what_is_wrong_with_the_words_is_said_before_anything_is_asked(words: tuple[str, ...], said: str) -> None:
    result = refold("topics", "acls", *words, *NOBODY)

    assert result.exit_code == 2
    assert said in result.stderr


def test_where_nobody_listens_the_command_says_so() -> None:
    result = refold("topics", "acls", *NOBODY)

    assert result.exit_code == 5
    assert "nobody listens at 127.0.0.1:9" in result.stderr


@pytest.mark.parametrize("words", [(), ("--apply",), ("--apply", "--prune")])
def test_a_broker_without_an_authorizer_is_told_from_one_without_rules(
    kafka: EmbeddedKafka, words: tuple[str, ...]
) -> None:
    result = refold("topics", "acls", *words, "--kafka", kafka.bootstrap)

    assert result.exit_code == 2
    assert "this broker has no authorizer and lets everybody do everything" in result.stderr
    assert "set authorizer.class.name on all brokers" in result.stderr
    assert result.stdout == ""


def test_no_topic_and_no_setting_is_declared_twice() -> None:
    def keys(node: yaml.Node) -> Iterator[str]:
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            yield from (name for name, count in Counter(names).items() if count > 1)
            for _, value in node.value:
                yield from keys(value)

    assert list(keys(yaml.compose(resource("infra", "topics.yaml").read_text()))) == []


def test_the_command_lines_bound_what_clients_may_take_of_a_broker() -> None:
    web = "client=User:CN=web"

    lines = refold("topics", "acls", "--commands", "--principal", web, *NOBODY).stdout.splitlines()

    quotas = [shlex.split(line) for line in lines if line.startswith("kafka-configs.sh")]
    bounds = {line[line.index("--entity-name") + 1]: line[line.index("--add-config") + 1] for line in quotas}
    assert bounds.keys() == {"CN=web", "refold-approver", "refold-steward", "refold-gateway"}
    assert bounds["CN=web"] == "producer_byte_rate=2097152,request_percentage=50"
