"""`refold topics`: topics and ACLs of `infra/topics.yaml`, compared with the broker, or printed for other tools."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any

import typer
import yaml

from refold.cli import output
from refold.cli.apps import app_pools
from refold.cli.platform import Shell
from refold.client.platform import Platform
from refold.core.errors import UsageError
from refold.engine.adapters.kafka.acls import Acl, AclRule, Acls, Principals, expected_acls, principals, quotas
from refold.engine.adapters.kafka.topics import TopicDifference, Topics, expected_topics
from refold.engine.runtime.settings import Settings

PoolsOption = Annotated[str, "APP", "App whose pools get topics: MODULE:APP or path/file.py[:APP]."]
_PrincipalOption = Annotated[
    list[str] | None,
    "ROLE=User:NAME",
    "Kafka principal of a role: planner, executor.POOL, approval, client, approver, operator or archivist. "
    "May be repeated.  \\[default: User:refold-ROLE]",
]


def apply_topics(
    *,
    app_: PoolsOption = "",
    check: Annotated[bool, "Show the changes; make none. Exit code 1 if there are any."] = False,
    shell: Shell,
) -> None:
    """Create missing topics and correct their settings. Never changes a partition count."""
    topics = topics_of(shell.platform, app_)
    changes = topics.diff() if check else topics.apply()
    shell.print(changes, lambda: _print(changes, "should be" if check else "is now"), ok=not (check and changes))


def list_topics(*, shell: Shell) -> None:
    """List the topics on the broker."""
    shell.print_rows(topics_of(shell.platform, "").present(), "topic partitions replication", "no topics")


def _print(differences: list[TopicDifference], verb: str) -> None:
    if not differences:
        output.say("[green]all topics are as they should be[/]")
    for row in differences:
        output.say(f"{row.topic}: {row.setting} was {row.found or 'unset'}, {verb} {row.expected}")


_REPLICATION = 3
"""Copies of a topic without REFOLD_KAFKA__REPLICATION: no broker is asked how many there are."""

_resource_key = attrgetter("principal", "kind", "name", "pattern")
_STATES = {
    "there": "[green]there[/]",
    "missing": "[red]missing[/]",
    "surplus": "[red]surplus[/]",
    "wider": "[yellow]surplus, and about more than ours[/]",
}


def compare_acls(
    *,
    apply: Annotated[bool, "Create the missing ACLs."] = False,
    prune: Annotated[bool, "With --apply: remove surplus ACLs on Refold's topics and groups."] = False,
    commands: Annotated[bool, "Print commands for Kafka's own tools, quotas too; contact no broker."] = False,
    principal: _PrincipalOption = None,
    app_: PoolsOption = "",
    shell: Shell,
) -> None:
    """Show the ACLs of each role, and compare them with the broker. Exit code 1 if they differ.

    Everything else is denied. Log in as a super user of the cluster (REFOLD_KAFKA__OPTIONS).
    """
    if prune and not apply:
        hint = "`refold topics acls` shows the difference; then add --apply --prune"
        raise UsageError("--prune needs --apply", hint=hint)
    if commands and apply:
        raise UsageError("--commands applies nothing", hint="leave out --apply, or --commands")
    platform, own = shell.platform, app_pools(app_)
    who = principals(principal or (), own)
    if commands:
        kafka = platform.settings.kafka
        lines = [*command_lines(expected_acls(kafka.prefix, who), kafka.bootstrap), *quota_lines(who, kafka.bootstrap)]
        shell.print(lines, lambda: typer.echo("\n".join(lines)))
        return
    platform.knock()
    # Those that are there keep their rights, whichever app is named.
    rules = Acls(platform.settings.kafka, principals((), Topics(platform.settings.kafka).pools()) | who)
    if apply:
        changes = rules.apply(prune=prune)
        shell.print(changes, lambda: _print_changes(changes))
    else:
        compared = rules.rules()
        fine = not any(rule.state in ("missing", "surplus") for rule in compared)
        shell.print(compared, lambda: _print_rules(compared), ok=fine)


def print_manifests(
    *,
    cluster: Annotated[str, "NAME", "The Kafka resource of the cluster."] = "kafka",
    principal: _PrincipalOption = None,
    app_: PoolsOption = "",
    shell: Shell,
) -> None:
    """Print topics, users, ACLs and quotas as resources of Strimzi; contact no broker.

    `User:CN=NAME` logs in by a certificate, all others by SCRAM-SHA-512.
    """
    settings, pools = shell.platform.settings, app_pools(app_)
    api, labels = "kafka.strimzi.io/v1", {"strimzi.io/cluster": cluster}
    parts = [*_topics(settings, pools), *_users(settings.kafka.prefix, principals(principal or (), pools))]
    resources = [
        {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}
        for kind, name, spec in parts
    ]
    if twice := [name for (_, name), count in Counter((kind, name) for kind, name, _ in parts).items() if count > 1]:
        raise UsageError(f"two resources have the name {twice[0]}", hint="give pools names that differ in letters")
    shell.print(resources, lambda: typer.echo(yaml.safe_dump_all(resources, sort_keys=False), nl=False))


def topics_of(platform: Platform, app: str) -> Topics:
    """Topics that Refold and the pools of an app need, compared with the broker. **Raises** UnreachableError."""
    platform.knock()
    settings = platform.settings
    return Topics(settings.kafka, app_pools(app), payload_bytes=settings.max_payload_bytes)


def command_lines(acls: Iterable[Acl], bootstrap: str) -> Iterator[str]:
    """Commands of `kafka-acls.sh`, one per principal and resource."""
    for (principal, kind, name, pattern), group in groupby(acls, key=_resource_key):
        operations = [part for acl in group for part in ("--operation", _operation_name(acl))]
        where = [f"--{kind}", name, *(["--resource-pattern-type", "prefixed"] if pattern == "prefixed" else [])]
        server = ["--bootstrap-server", bootstrap, "--command-config", "admin.properties"]
        yield shlex.join(["kafka-acls.sh", *server, "--add", "--allow-principal", principal, *operations, *where])


def _operation_name(acl: Acl) -> str:
    """Operation as Kafka's own tools write it: `AlterConfigs`."""
    return acl.operation.title().replace("_", "")


def quota_lines(who: Principals, bootstrap: str) -> Iterator[str]:
    """Commands of `kafka-configs.sh`, one per principal."""
    for principal, bounds in quotas(who):
        name, config = principal.partition(":")[2], ",".join(f"{key}={bound}" for key, bound in bounds.items())
        server = ["--bootstrap-server", bootstrap, "--command-config", "admin.properties"]
        entity = ["--entity-type", "users", "--entity-name", name]
        yield shlex.join(["kafka-configs.sh", *server, "--alter", "--add-config", config, *entity])


def _print_rules(rules: list[AclRule]) -> None:
    _print_acls(rules, _STATES)
    count = Counter(rule.state for rule in rules)
    if count["missing"]:
        output.say(f"{count['missing']} rules are missing; `refold topics acls --apply` creates them")
    if count["surplus"]:
        output.say(f"{count['surplus']} rules are surplus; `refold topics acls --apply --prune` removes them")
    if count["wider"]:
        output.say(f"{count['wider']} rules are about our things and about others; remove them yourself if you may")
    if count["there"] == len(rules):
        output.say("[green]the broker has all of this, and nothing else about our topics and groups[/]")


def _print_changes(changes: list[AclRule]) -> None:
    _print_acls(changes, {"missing": "[green]is there now[/]", "surplus": "[green]is gone[/]"})
    if not changes:
        output.say("[green]all rules are as they should be[/]")
    output.say("quotas are set by Kafka's own tool: `refold topics acls --commands | grep kafka-configs`")


def _print_acls(rules: list[AclRule], by_state: dict[str, str]) -> None:
    # No table: a narrow terminal would cut the names.
    wide = max((len(_resource(rule.acl)) for rule in rules), default=0)
    for principal, own in groupby(sorted(rules, key=_sort_key), key=lambda rule: rule.acl.principal):
        output.say(f"[bold]{output.escape(principal)}[/]")
        for (*_, state), group in groupby(own, key=_sort_key):
            same = list(group)
            operations = ", ".join(_operation(rule.acl) for rule in same)
            output.say(f"  {output.escape(_resource(same[0].acl)):<{wide}}  {operations:<34}  {by_state[str(state)]}")


def _sort_key(rule: AclRule) -> tuple[str, ...]:
    return (*_resource_key(rule.acl), rule.state)


def _resource(acl: Acl) -> str:
    return f"{acl.kind} {acl.name}{'*' if acl.pattern == 'prefixed' else ''}"


def _operation(acl: Acl) -> str:
    denied = "not " if acl.permission == "deny" else ""
    return f"{denied}{acl.operation}{'' if acl.host == '*' else f' from {acl.host}'}"


def _topics(settings: Settings, pools: tuple[str, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, name and specification of each resource of a topic."""
    kafka, copies = settings.kafka, settings.kafka.replication or _REPLICATION
    most = settings.max_payload_bytes
    for topic in expected_topics(pools, sync=kafka.sync, replication=copies, payload_bytes=most):
        name, counts = kafka.prefix + topic.name, {"partitions": kafka.partitions, "replicas": copies}
        yield "KafkaTopic", _resource_name(name), {"topicName": name, **counts, "config": topic.config}


def _users(prefix: str, holders: Principals) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, name and specification of each resource of a user. **Raises** UsageError where Strimzi has none."""
    limits = dict(quotas(holders))
    for principal, rules in groupby(expected_acls(prefix, holders), key=lambda acl: acl.principal):
        kind, _, name = principal.partition(":")
        login, name = "tls" if name.startswith("CN=") else "scram-sha-512", name.removeprefix("CN=")
        if kind != "User" or {*name} & {*",="}:
            hint = "write User:NAME, or User:CN=NAME for a certificate"
            raise UsageError(f"Strimzi has no users like {principal!r}", hint=hint)
        acls = []
        for (_, sort, place, pattern), same in groupby(rules, key=_resource_key):
            # Kafka's `prefixed` is Strimzi's `prefix`.
            resource = {"type": sort, "name": place, "patternType": pattern.removesuffix("ed")}
            acls.append({"resource": resource, "operations": [*map(_operation_name, same)]})
        spec: dict[str, Any] = {} if name == _resource_name(name) else {"userName": name}
        spec |= {"authentication": {"type": login}, "authorization": {"type": "simple", "acls": acls}}
        if bounds := limits.get(principal):
            spec["quotas"] = {re.sub("_(.)", lambda of: of[1].upper(), key): bound for key, bound in bounds.items()}
        yield "KafkaUser", _resource_name(name), spec


def _resource_name(name: str) -> str:
    return re.sub("[^a-z0-9.-]+", "-", name.lower()).strip("-.")
