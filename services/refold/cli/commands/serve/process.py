"""Start of every service process: settings, name, app, host."""

import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import structlog

from refold.cli.apps import load_app
from refold.cli.commands.serve.presence import Presence, SlotsUsed
from refold.core.approval.signature import Trust
from refold.core.errors import ConflictError, UsageError
from refold.core.ids import home, root_of
from refold.core.messages import Member as MemberRecord
from refold.core.run.chain import anchor_name
from refold.core.topics import CATALOG, RUN_LOG, TOOL_CLAIMED, executors
from refold.engine.adapters.kafka.acls import may_do_everything, may_write
from refold.engine.adapters.kafka.clients import SENT_REQUESTS
from refold.engine.adapters.kafka.log import KafkaEventLog
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.source import KafkaLogSource
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.adapters.memory.lasting import LastingBroker
from refold.engine.adapters.memory.log import LastingEventLog
from refold.engine.archive.erasure import run_of
from refold.engine.ports.log import EventLog, Membership, Record
from refold.engine.runtime import logging
from refold.engine.runtime.addresses import Addresses, addresses, is_here
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.host import Host
from refold.engine.runtime.member_lock import lock_member
from refold.engine.runtime.settings import KafkaSettings
from refold.engine.runtime.signals import StopAsked, stop_signals
from refold.sdk.app import App

if TYPE_CHECKING:  # its client takes 15 MiB, and of all services executors alone need it
    from refold.engine.adapters.redis.ledger import RedisLedger

ALL = "all"
ALLOW = "REFOLD_ALLOW_OPEN"

HOMES_RECORDS, HOMES_RUNS, MOST_PARTITIONS = 20_000, 200, 10_000
"""Records and runs after which `check_homes` stops, in some 100 ms; largest partition count tried."""

_log = structlog.get_logger()


class OpenAccess(NamedTuple):
    """A server without access control, its remedy, and `far` if other machines reach it."""

    what: str
    mend: str
    far: bool


def kafka_findings(settings: KafkaSettings, topics: Topics) -> Iterator[OpenAccess]:
    """Rights on a Kafka that no service may have, if other machines reach it. **Raises** UnreachableError."""
    # Its advertised address counts as well: ours may be that of a tunnel.
    far = not all(is_here(server) for server in (*settings.bootstrap.split(","), *topics.hosts))
    if far and (may_do_everything(settings) or may_write(settings, CATALOG)):
        why = "it has no authorizer, or this principal has too many rights"
        mend = "an authorizer, a principal for each service, and `refold topics acls --apply`"
        yield OpenAccess(f"the Kafka at {settings.bootstrap} lets this service do what none may: {why}", mend, far)


def redis_findings(ledger: "RedisLedger", key: bytes) -> Iterator[OpenAccess]:
    """Missing passwords and pool key of a ledger. **Raises** UnreachableError."""
    far = not all(map(is_here, ledger.servers()))
    if far and ledger.open_to_all():
        mend = "a user with a password for each pool, in REFOLD_REDIS__URL"
        yield OpenAccess("Redis lets in whoever has no password", mend, far)
    if not key:
        mend = "the key of the pool, `openssl rand -hex 32`, as REFOLD_EXECUTOR__LEDGER_KEY"
        yield OpenAccess("whoever writes this Redis may answer for tools: the ledger has no key", mend, far)


def accept(findings: Iterable[OpenAccess], *, allowed: bool) -> None:
    """Log findings as warnings. **Raises** UsageError for one that other machines reach, unless `allowed`."""
    for finding in findings:
        if finding.far and not allowed:
            raise UsageError(finding.what, hint=f"{finding.mend}; or {ALLOW}=true, where nobody else reaches it")
        _log.warning("service.open", problem=finding.what, hint=finding.mend)


# Time for a drained process to leave its group, usually below 1 s; clients wait longer for a dead server.
CLOSE_S = 5.0

ServedApp = Annotated[str, "APP", "App to serve: MODULE:APP or path/file.py[:APP]."]
Member = Annotated[str, "Name of this process in its group; no two processes share one.  \\[default: service and host]"]
DevOption = Annotated[
    str,
    "FOLDER",
    "Data folder of `refold dev`, for addresses that are not set.  \\[default: .refold]",
    {"envvar": "REFOLD_DATA"},
]
StandbyOption = Annotated[bool, "Keep a loaded process in reserve, which takes over at once when the service dies."]


@dataclass(frozen=True, slots=True)
class Part:
    """A service of a process: its host, the report of its member, and its time to drain in seconds."""

    service: str
    host: Host
    grace_s: float = 0.0
    serves: MemberRecord | None = None
    slots_used: SlotsUsed = None


@dataclass(frozen=True, slots=True)
class Served:
    service: str
    member: str
    where: Addresses
    broker: LastingBroker | None = None
    """Broker of a `refold dev --light`, with the ledger; None: Kafka and Redis."""

    def part(self, service: str, role: str) -> "Served":
        """A service of this process, with a name of its own."""
        return replace(self, service=service, member=f"{role}-{self.member}")

    def load(self, app: str) -> App:
        loaded = load_app(app)
        self.check(loaded.pools)
        return loaded

    def check(self, pools: tuple[str, ...]) -> None:
        """Check topics, homes of runs and rights on Kafka. **Raises** ConflictError, UsageError."""
        if self.broker:
            return
        topics = self.topics(pools)
        topics.check(pools=self.service == "executor")
        # Executors may not read the log; claims of a run have the same home.
        topic, group = RUN_LOG, "reader" if self.service == "archivist" else f"refold-{self.service}"
        if self.service == "executor":
            topic, group = f"{TOOL_CLAIMED}.{pools[0]}", executors(pools[0])
        check_homes(self.where.settings.kafka, topic, group)
        self.accept(kafka_findings(self.where.settings.kafka, topics))

    def lock_member(self, pool: str = "") -> str:
        """Lock the name of this process; return the id of the lock. **Raises** as `member_lock.lock_member`."""
        kafka = self.where.settings.kafka
        return lock_member(f"{kafka.bootstrap}/{kafka.prefix}/{self.service}/{pool}", self.member)

    def event_log(self, membership: Membership, handover: Handover | None = None) -> EventLog:
        if self.broker:
            return LastingEventLog(self.broker, membership)
        return KafkaEventLog(self.where.settings.kafka, membership, stored=handover.stored if handover else None)

    def accept(self, findings: Iterable[OpenAccess]) -> None:
        accept(findings, allowed=self.where.settings.allow_open)

    def topics(self, pools: tuple[str, ...]) -> Topics:
        settings = self.where.settings
        return Topics(settings.kafka, pools, payload_bytes=settings.max_payload_bytes)

    def trust(self) -> Trust:
        """Trusted root keys. **Raises** UsageError without any: no catalog entry, so no halt, would be valid."""
        if pinned := self.where.trust:
            return pinned
        hint = "set REFOLD_TRUST to what `refold keys init` prints, or to @FILE with that"
        raise UsageError("this service trusts no root key, so nobody's policies, keys and roles", hint=hint)

    def shown(self, vitals: Vitals | Mapping[str, Vitals], *beside: object) -> AbstractContextManager[None]:
        """Context in which the metrics of this process are served, if an address is set; several by service."""
        if not (address := self.where.settings.metrics.address):
            return nullcontext()
        metrics: Any = import_module("refold.engine.runtime.metrics")  # it needs the extra
        ends = KafkaLogSource(self.where.settings.kafka).ends
        shown = {self.service: vitals} if isinstance(vitals, Vitals) else vitals
        arguments = {"ends": ends, "requests": SENT_REQUESTS.counts}
        return cast(AbstractContextManager[None], metrics.shown(address, shown, beside, **arguments))

    def run(self, *parts: Part, beside: AbstractContextManager[object] | None = None) -> None:
        """Run until a stop signal, then drain, and leave the context `beside`; the process may end here."""
        # Loaded code stays to the end: each full collection would search it.
        gc.freeze()
        settings = self.where.settings
        first, *others = parts
        grace_s = first.grace_s + max((part.grace_s for part in others), default=0.0)
        with ends_within(grace_s + CLOSE_S) as stop, ExitStack() as around:
            _log.info("service.started", service=self.service, pid=os.getpid())
            around.enter_context(self.shown({part.service: part.host.vitals for part in parts}))
            for part in parts:
                if part.serves:
                    around.enter_context(Presence(settings, part.serves, slots_used=part.slots_used))
            around.enter_context(beside or nullcontext())
            hosts = {part.host: part.grace_s for part in others}
            first.host.run(stop.is_set, grace_s=first.grace_s, beside=hosts)
            around.close()
            _log.info("service.stopped", service=self.service, pid=os.getpid())
            leave_threads()


def check_homes(settings: KafkaSettings, topic: str, group: str = "reader") -> None:
    """Compare partitions of runs with their homes. **Raises** ConflictError with the partition count that fits."""
    # With another count each run would be unknown at its home, and run again.
    lies = _partition_by_root(KafkaLogReader(settings, group).scan(topic))
    if _at_home(lies, settings.partitions):
        return
    others = range(max(lies.values()) + 1, MOST_PARTITIONS)
    before = next((count for count in others if _at_home(lies, count)), "another number")
    hint = "make the topics anew with that number, and copy the records again"
    counts = f"{settings.partitions} partitions, and its records are of a log with {before}"
    raise ConflictError(f"{settings.prefix}{topic} has {counts}", hint=hint)


def _partition_by_root(records: Iterable[Record]) -> dict[str, int]:
    lies: dict[str, int] = {}
    for record in islice(records, HOMES_RECORDS):
        if record.value is not None and not anchor_name(record.key) and (run := run_of(record)):
            lies.setdefault(root_of(run), record.partition)
        if len(lies) == HOMES_RUNS:
            break
    return lies


def _at_home(lies: dict[str, int], partitions: int) -> bool:
    """True if less than a quarter of the runs lie outside their homes under this partition count."""
    # A hijacked planner may write some elsewhere. Of a log that was copied at least half do not.
    strays = sum(home(run, partitions) != number for run, number in lies.items())
    return strays * 4 < max(len(lies), 1)


@contextmanager
def ends_within(seconds: float) -> Iterator[StopAsked]:
    """Yield an event that a stop signal sets; kill the process if the block lasts longer than `seconds` after it."""
    # An alarm of the system, since a thread could be blocked as well. faulthandler prints all stacks, then the alarm
    # ends the process, as safely as kill -9.
    faulthandler.register(signal.SIGALRM, chain=True)
    with stop_signals(at_first=partial(signal.setitimer, signal.ITIMER_REAL, seconds)) as stop:
        try:
            yield stop
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.unregister(signal.SIGALRM)


def leave_threads() -> None:
    """Exit at once if threads still run, such as a tool's: Python would wait for them."""
    # Daemons count too: a pool's thread inherits the flag from a daemon, and is joined at exit all the same.
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def served(service: str, member: str, data: str, *, role: str = "") -> Served:
    where = addresses(data=data)
    where.check()
    # Services of a `refold dev` have the names of this host, so one beside them gets another.
    own = f"{socket.gethostname()}{f'-{os.getpid()}' if where.dev else ''}"
    usual = own if service == ALL else f"{role or service}-{own}"
    logging.configure(service)
    return Served(service, member or where.settings.member or usual, where)
