"""The rights of every role, asked of three real brokers: what the table grants is allowed, all else is denied."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from itertools import product

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import Result

from refold.core.errors import UsageError
from refold.engine.adapters.kafka.acls import Acl, AclRule, Acls, principals
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.topics import Topics, declared, expected_topics
from refold.engine.ports.log import Record
from tests.cli.terminal import refold
from tests.embedded.secured import ADMIN
from tests.kafka.probing import ALLOWED, DENIED, GROUP_OPERATIONS, TOPIC_OPERATIONS, Probe
from tests.kafka.secured import OUTSIDER, PARTITIONS, POOLS, ROLES, SecuredCluster, membership
from tests.waiting import eventually

PREFIX = "matrix."
OURS = [topic.name for topic in expected_topics(POOLS)]
NEIGHBOUR = "run-log.copy"
"""A topic of nobody, with a name that begins as one of ours does."""
TOPICS = [*OURS, NEIGHBOUR]
TABLE = declared()
OWN_GROUP = {
    "planner": "refold-planner",
    "executor.default": "refold-executor-default",
    "executor.model": "refold-executor-model",
    "approval": "refold-approval",
    "insights": "refold-insights",
    # It waits for planners, by their positions.
    "source": "refold-planner",
    **dict.fromkeys(
        ("client", "approver", "steward", "operator", "authority", "archivist", "viewer", "gateway", OUTSIDER), "reader"
    ),
}
GROUPS = [
    *(
        "refold-planner",
        "refold-executor-default",
        "refold-executor-model",
        "refold-approval",
        "refold-insights",
        "reader",
    ),
    *("refold-planner-2", "reader-2"),
]
PLACES = [
    *(("topic", operation, name) for operation, name in product(TOPIC_OPERATIONS, TOPICS)),
    *(("group", operation, name) for operation, name in product(GROUP_OPERATIONS, GROUPS)),
]
CELLS = 3_600
"""15 principals, of whom one has no right at all, x (27 topics x 8 operations + 8 groups x 3)."""

Place = tuple[str, str, str]
Cells = dict[tuple[str, Place], str]


@pytest.fixture(scope="module")
def cluster(secured_cluster: SecuredCluster) -> SecuredCluster:
    """Give the cluster with a record in every topic of a prefix of this file's own."""
    secured_cluster.furnish(PREFIX)
    admin = AdminClient({"bootstrap.servers": secured_cluster.kafka.bootstrap, **secured_cluster.options(ADMIN)})
    admin.create_topics([NewTopic(PREFIX + NEIGHBOUR, 1, 3)])[PREFIX + NEIGHBOUR].result(60)
    assert set(probe(secured_cluster, ADMIN).write(f"{PREFIX}{name}" for name in TOPICS).values()) == {ALLOWED}
    return secured_cluster


def probe(cluster: SecuredCluster, role: str) -> Probe:
    config = {"bootstrap.servers": cluster.kafka.bootstrap, **cluster.options(role)}
    place = "catalog" if role.startswith("executor.") else "run-log"  # something that it may read
    return Probe(config, group=PREFIX + OWN_GROUP.get(role, "reader"), place=PREFIX + place)


def ask(cluster: SecuredCluster, role: str) -> Cells:
    """Every cell of a role, as the brokers have it."""
    asking = probe(cluster, role)
    topics = asking.topics([PREFIX + name for name in TOPICS])
    groups = asking.groups([PREFIX + name for name in GROUPS])
    found: Cells = {}
    for kind, answers in (("topic", topics), ("group", groups)):
        for (operation, name), answer in answers.items():
            found[role, (kind, operation, name.removeprefix(PREFIX))] = answer
    return found


def expected(role: str, place: Place) -> str:
    """What the table says of a cell, read as a person would read it."""
    kind, operation, name = place
    pattern = next((each for each in TABLE[f"{kind}s"] if fnmatchcase(name, each)), None)
    if pattern is None:
        return DENIED[kind]
    entry, (role, _, pool) = TABLE[f"{kind}s"][pattern], role.partition(".")
    if pool and "*" in pattern and name != pattern.replace("*", pool):
        return DENIED[kind]  # what another pool's executors may do
    if kind == "group":
        members, visible = entry.get("members", []), entry.get("visible", [])
        roles = {"read": members, "describe": members + visible, "delete": []}[operation]
    else:
        everywhere, erasing = TABLE["every_topic"], TABLE["erasing"]
        erasers = [] if pattern in erasing["spared"] else erasing["roles"]
        writers, readers = entry["writers"] + erasers, entry["readers"] + erasers
        roles = {
            "write": writers,
            "read": readers,
            "describe": writers + readers + everywhere["describe"],
            "create": everywhere["create"],
            "alter_configs": (alter := entry.get("alter_configs", everywhere["alter_configs"])),
            "describe_configs": alter + everywhere["describe_configs"],
            "alter": [],
            "delete": [],
        }[operation]
    return ALLOWED if role in roles else DENIED[kind]


def wrong(cells: Cells) -> Cells:
    return {cell: answer for cell, answer in cells.items() if answer != expected(*cell)}


def test_every_role_may_do_what_the_table_grants_and_nothing_else(
    cluster: SecuredCluster, record_property: Callable[[str, object], None]
) -> None:
    cells: Cells = {}

    for role in (*ROLES, OUTSIDER):
        cells |= ask(cluster, role)

    allowed = sum(answer == ALLOWED for answer in cells.values())
    assert wrong(cells) == {}
    assert cells.keys() == set(product((*ROLES, OUTSIDER), PLACES))
    assert len(cells) == CELLS
    assert not any(answer == ALLOWED for (role, _), answer in cells.items() if role == OUTSIDER)
    counts = {"cells": len(cells), "allowed": allowed, "denied": len(cells) - allowed}
    record_property("authorisation matrix", counts)
    print(f"\nauthorisation matrix: {json.dumps(counts)}")  # noqa: T201


def test_a_right_too_many_is_seen_shown_and_pruned(cluster: SecuredCluster) -> None:
    rules = Acls(cluster.settings(ADMIN, PREFIX), principals(pools=POOLS))
    decided = f"{PREFIX}approval-decided"
    extra = Acl("User:refold-planner", "topic", decided, "literal", "write")
    grant(cluster, extra)
    eventually(lambda: probe(cluster, "planner").write([decided])[decided] == ALLOWED, what="the planted right")

    seen = wrong(ask(cluster, "planner"))
    shown = rules.diff()
    pruned = rules.apply(prune=True)

    assert seen == {("planner", ("topic", "write", "approval-decided")): ALLOWED}
    assert shown == pruned == [AclRule(extra, "surplus")]
    assert rules.diff() == []
    eventually(lambda: probe(cluster, "planner").write([decided])[decided] != ALLOWED, what="the end of the right")


def grant(cluster: SecuredCluster, acl: Acl) -> None:
    """Adds a rule as an administrator would who knows nothing of the table."""
    other = Acls(cluster.settings(ADMIN, PREFIX))
    other.expected = [acl]
    other.apply()


def test_the_topics_have_three_copies_of_which_two_must_be_there(cluster: SecuredCluster) -> None:
    topics = Topics(cluster.settings(ADMIN, PREFIX), POOLS)

    assert {(each.partitions, each.replication) for each in topics.present()} == {(PARTITIONS, 3), (1, 3)}
    assert {topic.config["min.insync.replicas"] for topic in topics.expected} == {"2"}
    assert topics.diff() == []


def test_an_operator_may_look_after_the_topics(cluster: SecuredCluster) -> None:
    topics = Topics(cluster.settings("operator", PREFIX), POOLS)

    assert (topics.diff(), topics.apply()) == ([], [])


def test_an_operator_may_make_what_is_missing(cluster: SecuredCluster) -> None:
    topics = Topics(cluster.settings("operator", PREFIX), (*POOLS, "late"))

    made = topics.apply()
    Acls(cluster.settings(ADMIN, PREFIX), principals(pools=(*POOLS, "late"))).apply()

    assert [(each.topic, each.setting) for each in made] == [
        (f"{kind}.late", "topic") for kind in ("tool-requested", "tool-claimed", "tool-completed", "run-stream")
    ]


@pytest.mark.parametrize("role", ["planner", "executor.default", "executor.model", "approval"])
def test_a_service_sees_all_that_it_checks_before_it_starts(cluster: SecuredCluster, role: str) -> None:
    pool = role.partition(".")[2]

    Topics(cluster.settings(role, PREFIX), (pool,) if pool else POOLS).check()


def test_who_has_no_right_sees_no_topic(cluster: SecuredCluster) -> None:
    assert Topics(cluster.settings(OUTSIDER, PREFIX), POOLS).present() == []


def test_an_unknown_user_and_a_wrong_password_cannot_log_in(cluster: SecuredCluster) -> None:
    known = cluster.settings("planner", PREFIX)

    for change in ({"sasl.username": "nobody"}, {"sasl.password": "guessed"}):
        settings = known.model_copy(update={"options": {**known.options, **change}})
        log = KafkaEventLog(settings, membership("planner"))
        with pytest.raises(UsageError, match="check the credentials"):
            eventually(partial(await_records, log))
        log.close()


@pytest.mark.parametrize("role", ["client", "executor.default", OUTSIDER])
def test_nobody_joins_the_group_of_another_service(cluster: SecuredCluster, role: str) -> None:
    config = {"bootstrap.servers": cluster.kafka.bootstrap, "log_level": 0, **cluster.options(role)}
    consumer = Consumer({**config, "group.id": f"{PREFIX}refold-planner"})
    consumer.subscribe([f"{PREFIX}run-log"])

    message = eventually(lambda: consumer.poll(0.1))

    error = message.error()
    assert error
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()


def await_records(log: KafkaEventLog) -> list[Record]:
    return log.take(1, 0.1).records


# The command


@pytest.fixture
def command(cluster: SecuredCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Give `refold topics acls` as somebody with a role would run it."""

    def run(role: str, *words: str) -> Result:
        settings = cluster.settings(role, PREFIX)
        monkeypatch.setenv("REFOLD_KAFKA__OPTIONS", json.dumps(settings.options))
        monkeypatch.setenv("REFOLD_KAFKA__PREFIX", PREFIX)
        return refold("topics", "acls", "--kafka", settings.bootstrap.split(",")[0], *words)

    return run


def test_the_command_shows_who_may_do_what_and_that_the_broker_has_it(command: Callable[..., Result]) -> None:
    shown, data = command(ADMIN), command(ADMIN, "--json")

    assert (shown.exit_code, data.exit_code) == (0, 0)
    of_approvers = shown.stdout.partition("User:refold-approver\n")[2].partition("User:")[0]
    assert ["topic", f"{PREFIX}approval-voted", "read,", "write", "there"] in [
        line.split() for line in of_approvers.splitlines()
    ]
    assert "nothing else about our topics and groups" in shown.output
    assert {rule["state"] for rule in json.loads(data.stdout)} == {"there"}


def test_the_command_shows_and_applies_what_another_principal_lacks(command: Callable[..., Result]) -> None:
    somebody = ("--principal", "client=User:refold-client", "--principal", "client=User:CN=web,O=Acme")

    before = command(ADMIN, *somebody)
    applied = command(ADMIN, *somebody, "--apply", "--json")
    after = command(ADMIN)
    pruned = command(ADMIN, "--apply", "--prune")

    assert (before.exit_code, applied.exit_code, after.exit_code, pruned.exit_code) == (1, 0, 1, 0)
    assert "rules are missing; `refold topics acls --apply` creates them" in before.output
    assert {rule["acl"]["principal"] for rule in json.loads(applied.stdout)} == {"User:CN=web,O=Acme"}
    assert "rules are surplus" in after.output
    assert "is gone" in pruned.output
    assert command(ADMIN).exit_code == 0


def test_the_command_says_who_may_look_at_acls(command: Callable[..., Result]) -> None:
    result = command("operator")

    assert result.exit_code == 2
    assert "run this as a super user" in result.stderr
