"""The table of rights by itself: what it must say, and what is made of it before a broker is asked."""

from __future__ import annotations

import re
from concurrent.futures import Future

import pytest

from refold.core.errors import UnreachableError, UsageError
from refold.engine.adapters.kafka import acls
from refold.engine.adapters.kafka.acls import PRINCIPAL_ROLES, Acl, AclRule, compare, expected_acls, principals
from refold.engine.adapters.kafka.topics import declared

ALL = expected_acls("refold.", principals())


def writers(topic: str) -> list[str]:
    found: list[str] = declared()["topics"][topic]["writers"]
    return found


def rule(name: str, *, pattern: str = "literal", operation: str = "write", permission: str = "allow") -> Acl:
    return Acl("User:x", "topic", name, pattern, operation, permission=permission)


@pytest.mark.parametrize(
    ("topic", "writer"),
    [
        ("run-log", "planner"),
        ("tool-requested.*", "planner"),
        ("run-completed", "planner"),
        ("approval-requested", "planner"),
        ("tool-claimed.*", "executor"),
        ("tool-completed.*", "executor"),
        ("approval-decided", "approval"),
        ("catalog", "authority"),
        ("run-stream.*", "executor"),
        ("dead-letter", "planner"),
        ("dead-letter-approval", "approval"),
        ("dead-letter-executor", "executor"),
        ("dead-letter-source", "source"),
        ("budget-spent", "planner"),
    ],
)
def test_what_others_rely_on_has_one_writer(topic: str, writer: str) -> None:
    assert writers(topic) == [writer]


def test_only_inputs_and_reports_have_several_writers() -> None:
    several = {topic for topic in declared()["topics"] if len(writers(topic)) > 1}

    assert several == {"run-requested", "run-signalled", "run-operated", "member", "approval-voted"}
    assert writers("approval-voted") == ["approver", "gateway"], "a vote counts by its signature"


def test_no_service_may_read_what_every_executor_may_write_of_others() -> None:
    content = declared()["topics"]["member"]

    assert content["writers"] == ["planner", "executor"]
    assert not {"planner", "executor", "approval"} & set(content["readers"])


def test_every_topic_says_who_writes_and_who_reads_it() -> None:
    content = declared()

    assert tuple(content["principals"]) == PRINCIPAL_ROLES
    for topic in content["topics"].values():
        assert set(topic["writers"]) <= set(PRINCIPAL_ROLES)
        assert {"operator"} <= set(topic["readers"]) <= set(PRINCIPAL_ROLES)
        assert topic["writers"]
    assert set(content["topics"]["run-log"]["readers"]) == set(PRINCIPAL_ROLES) - {"archivist", "executor", "source"}


def test_the_archivist_alone_erases_and_never_in_the_catalog() -> None:
    mine = {
        (acl.name, acl.operation) for acl in ALL if acl.principal == "User:refold-archivist" and acl.kind == "topic"
    }
    # The last two are gone by themselves, within minutes and a day.
    spared = {"refold.budget-spent", "refold.catalog", "refold.member", "refold.run-stream.", "refold.run-insight"}
    topics = {"refold." + name.rstrip("*") for name in declared()["topics"]}

    assert {name for name, operation in mine if operation == "write"} == topics - spared
    assert {name for name, operation in mine if operation == "read"} == topics - spared
    assert declared()["erasing"]["roles"] == ["archivist"]


def test_authority_operator_and_steward_write_nothing_of_each_other() -> None:
    writes = {
        role: {acl.name for acl in ALL if acl.principal == f"User:refold-{role}" and acl.operation == "write"}
        for role in ("authority", "operator", "steward")
    }

    assert writes["steward"] == {"refold.run-operated"}
    assert writes["authority"] == {"refold.catalog"}
    assert writes["operator"] == {"refold.run-requested", "refold.run-signalled"}


def test_the_gateway_passes_on_what_people_say_and_decides_nothing() -> None:
    mine = {(acl.name, acl.operation) for acl in ALL if acl.principal == "User:refold-gateway" and acl.kind == "topic"}

    assert {name for name, operation in mine if operation == "write"} == {
        *("refold.run-requested", "refold.run-signalled", "refold.run-operated", "refold.approval-voted"),
    }
    assert {operation for _, operation in mine} == {"read", "write", "describe"}


def test_nobody_may_delete_a_topic_or_add_partitions_or_touch_the_cluster() -> None:
    assert {acl.operation for acl in ALL} == {
        "read",
        "write",
        "describe",
        "describe_configs",
        "create",
        "alter_configs",
    }
    assert {acl.kind for acl in ALL} == {"topic", "group"}
    assert {acl.principal for acl in ALL if acl.operation == "create"} == {"User:refold-operator"}
    alters = {acl.name: acl.principal for acl in ALL if acl.operation == "alter_configs"}
    assert alters.pop("refold.catalog") == "User:refold-authority"
    assert set(alters.values()) == {"User:refold-operator"}
    assert not {name for name in alters if re.search("run-log|tool-claimed|approval-decided", name)}


@pytest.mark.parametrize("prefix", ["refold.", "refold.test.", ""])
def test_every_rule_has_the_prefix_and_none_is_about_everything(prefix: str) -> None:
    rules = expected_acls(prefix, principals())

    assert len(rules) == len(ALL)
    assert all(acl.name.startswith(prefix) and len(acl.name) > len(prefix) for acl in rules)
    assert {acl.name for acl in rules if acl.pattern == "prefixed"} == {
        f"{prefix}tool-requested.",
        f"{prefix}tool-claimed.",
        f"{prefix}tool-completed.",
        f"{prefix}run-stream.",
        f"{prefix}refold-executor-",
    }
    assert not {acl for acl in rules if acl.pattern == "prefixed" and "executor" in acl.principal}


def test_a_right_that_another_implies_is_not_given_twice() -> None:
    strong = {(acl.principal, acl.name) for acl in ALL if acl.operation in ("read", "write")}

    assert not strong & {(acl.principal, acl.name) for acl in ALL if acl.operation == "describe"}


def test_a_role_may_be_several_principals_with_any_name() -> None:
    who = principals(["client=User:CN=web,O=Acme", "client=User:cli", "planner=Group:p"])

    rules = expected_acls("refold.", who)

    assert who["client"] == ("User:CN=web,O=Acme", "User:cli")
    assert who["executor.default"] == ("User:refold-executor-default",)
    of = [{acl.name for acl in rules if acl.principal == name} for name in who["client"]]
    assert of[0] == of[1] == {acl.name for acl in ALL if acl.principal == "User:refold-client"}
    writing = {acl.principal for acl in rules if acl.name == "refold.run-log" and acl.operation == "write"}
    assert writing == {"Group:p", "User:refold-archivist"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nobody=User:x", "'nobody' is not a role"),
        ("executor=User:x", "'executor' is not a role"),
        ("planner.web=User:x", "'planner.web' is not a role"),
        ("client=x", "names no principal"),
        ("client", "names no principal"),
    ],
)
def test_a_principal_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        principals([text])


def test_every_pool_has_rights_of_its_own_and_none_in_another() -> None:
    rules = expected_acls("refold.", principals(["executor.web=User:web", "executor.payments=User:pay"]))

    of = {name: {acl for acl in rules if acl.principal == f"User:{name}"} for name in ("web", "pay")}
    shared = {"refold.catalog", "refold.dead-letter-executor", "refold.member"}
    pooled = ["refold.run-stream.", *(f"refold.tool-{kind}." for kind in ("requested", "claimed", "completed"))]
    for name, pool in (("web", "web"), ("pay", "payments")):
        assert {acl.pattern for acl in of[name]} == {"literal"}
        own = {acl.name for acl in of[name] if acl.operation in ("read", "write")}
        assert own == {*shared, *(f"{topic}{pool}" for topic in pooled), f"refold.refold-executor-{pool}"}
    assert "refold.tool-requested.payments" not in {acl.name for acl in of["web"]}


def test_orders_claims_and_results_are_read_by_nobody_but_services_and_operators() -> None:
    for topic in ("tool-requested.*", "tool-claimed.*", "tool-completed.*"):
        assert set(declared()["topics"][topic]["readers"]) <= {"planner", "executor", "operator"}


def test_what_is_there_and_wanted_is_fine_and_what_is_not_there_is_missing() -> None:
    rules = compare(ALL, ALL[1:], "refold.")

    assert [each.acl for each in rules if each.state == "missing"] == ALL[:1]
    assert [each.acl for each in rules if each.state == "there"] == ALL[1:]


@pytest.mark.parametrize(
    "acl",
    [
        rule("refold.run-log"),
        rule("refold.run-log", permission="deny"),
        rule("refold.tool-requested.default", operation="all"),
        rule("refold.tool-requested.", pattern="prefixed"),
        rule("refold.", pattern="prefixed", operation="read"),
        Acl("User:refold-planner", "topic", "refold.run-log", "literal", "write", host="10.0.0.1"),
        Acl("User:x", "group", "refold.refold-executor-default", "literal", "read"),
    ],
)
def test_another_rule_about_something_of_ours_is_surplus(acl: Acl) -> None:
    assert [each for each in compare(ALL, [*ALL, acl], "refold.") if each.state != "there"] == [AclRule(acl, "surplus")]


@pytest.mark.parametrize("acl", [rule("*"), rule("ref", pattern="prefixed")])
def test_a_rule_about_our_things_and_others_is_left_to_people(acl: Acl) -> None:
    assert [each for each in compare(ALL, [*ALL, acl], "refold.") if each.state != "there"] == [AclRule(acl, "wider")]


@pytest.mark.parametrize(
    "acl",
    [
        rule("orders"),
        rule("orders.", pattern="prefixed"),
        rule("refold.test.run-log"),
        rule("refold.test.", pattern="prefixed"),
        Acl("User:x", "group", "refold.run-log", "literal", "read"),
    ],
)
def test_a_rule_about_other_things_is_none_of_ours(acl: Acl) -> None:
    assert {each.state for each in compare(ALL, [*ALL, acl], "refold.")} == {"there"}


def test_without_a_prefix_only_rules_that_name_our_things_are_surplus() -> None:
    ours = expected_acls("", principals())
    others = [rule("run-log"), rule("run-", pattern="prefixed"), rule("r", pattern="prefixed"), rule("orders")]

    found = {each.acl.name: each.state for each in compare(ours, [*ours, *others], "") if each.acl in others}

    assert found == {"run-log": "surplus", "run-": "wider", "r": "wider"}


def test_an_answer_that_never_comes_is_that_of_a_broker_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "ANSWER_S", 0.01)

    with pytest.raises(UnreachableError, match="cannot read the ACLs"):
        acls._answer(Future[object](), "read the ACLs")
