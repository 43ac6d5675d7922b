"""`refold serve`: one service in this process, until it is told to stop.

The one place where rooms are put together: a service, its adapters, its host. Each command imports what it needs and
no more, because the time to start is time to recover; and the event log comes first, because its producer needs half
a second before it can write.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from refold.adapters.kafka.log import KafkaEventLog
from refold.adapters.kafka.topics import Topics
from refold.core.errors import UsageError
from refold.core.planning.verdict import Rules
from refold.ports.effects import ToolEnded
from refold.runtime import logging, settings
from refold.runtime.host import Host
from refold.sdk.app import App

if TYPE_CHECKING:
    from refold.core.approval.signature import SigningKey

serve = typer.Typer(help="Run one service in this process.", no_args_is_help=True)
log = structlog.get_logger()

AppOption = Annotated[str, typer.Option("--app", help="MODULE:APP or path/file.py[:APP]")]
Member = Annotated[str, typer.Option("--member", help="Name of this process in its group (default: host and pid-free)")]


@serve.command()
def planner(app: AppOption, member: Member = "") -> None:
    """Decide: read inputs, append to the run log, order work from the executors."""
    from refold.planner.service import Planner
    from refold.planner.settings import Limits, PlannerSettings

    options = settings.load()
    name = member or options.member or f"planner-{socket.gethostname()}"
    logging.configure("planner")
    own = PlannerSettings(
        partitions=options.kafka.partitions,
        member=name,
        environment=options.environment,
        rules=Rules(redispatch_ms=options.planner.redispatch_ms),
        limits=Limits(payload_bytes=options.max_payload_bytes, park_ms=options.planner.park_ms),
    )
    event_log = KafkaEventLog(options.kafka, own.membership)
    loaded = App.load(app)
    Topics(options.kafka, loaded.pools).check()
    host = Host([Planner(loaded, own, nonce=lambda: os.urandom(16))], event_log)
    _run(host, "planner", grace_s=0.0)


@serve.command()
def executor(
    app: AppOption,
    member: Member = "",
    pool: Annotated[str, typer.Option(help="The pool whose calls this process takes")] = "default",
) -> None:
    """Act: claim calls, run tools, record results. The relay runs in here too."""
    from refold.adapters.redis.ledger import RedisLedger
    from refold.adapters.tools.toolbox import Toolbox
    from refold.executor.gate import Gate
    from refold.executor.service import Executor
    from refold.executor.settings import ExecutorSettings, Times
    from refold.relay.service import Relay
    from refold.relay.settings import RelaySettings

    options = settings.load()
    name = member or options.member or f"executor-{pool}-{socket.gethostname()}"
    logging.configure("executor")
    event_log = KafkaEventLog(options.kafka, ExecutorSettings(pool=pool, member=name).membership)
    loaded = App.load(app)
    Topics(options.kafka, loaded.pools).check()
    retention = timedelta(milliseconds=options.redis.retention_ms)
    ledger = RedisLedger(options.redis.url, prefix=options.redis.prefix, retention=retention)
    for problem in ledger.problems():
        log.warning("redis.unsafe", problem=problem)
    numbers = count(1)
    relay = Relay(RelaySettings(pool=pool, member=f"relay of {name}"), token=lambda: next(numbers))
    times = Times(
        lease_ms=options.executor.lease_ms,
        chained_lease_ms=options.executor.chained_lease_ms,
        by_tool={tool.name: tool.lease_ms for tool in loaded.tools.values() if tool.lease_ms},
    )
    gate = Gate(
        tools={tool.name: tool.facts for tool in loaded.tools.values()},
        environment=options.environment,
        partitions=options.kafka.partitions,
        required=options.executor.approval,
    )
    own = ExecutorSettings(pool=pool, member=name, slots=options.executor.slots, times=times, gate=gate)
    service = Executor(own, relay, token=lambda: next(numbers), fresh=lambda: secrets.token_hex(16))

    def tools(done: Callable[[ToolEnded], None]) -> Toolbox:
        return Toolbox(loaded, done, threads=own.slots, max_result=options.max_payload_bytes)

    def drain() -> bool:
        service.drain()
        return not service.attempts and relay.idle

    host = Host([service, relay], event_log, ledger=ledger, tools=tools)
    _run(host, "executor", drain=drain, grace_s=options.executor.grace_ms / 1000)


@serve.command()
def approval(
    app: AppOption,
    member: Member = "",
    key: Annotated[
        str,
        typer.Option("--key", metavar="FILE", help="The key that signs decisions; without it, REFOLD_APPROVAL__KEY"),
    ] = "",
) -> None:
    """Judge: count the votes on calls that wait for people, and sign what they decide."""
    from refold.approval import service as approving
    from refold.approval.process import Limits
    from refold.approval.service import ApprovalService, ApprovalSettings

    options = settings.load()
    name = member or options.member or f"approval-{socket.gethostname()}"
    logging.configure("approval")
    own = ApprovalSettings(
        partitions=options.kafka.partitions,
        member=name,
        environment=options.environment,
        limits=Limits(payload_bytes=options.max_payload_bytes, park_ms=options.approval.park_ms),
    )
    event_log = KafkaEventLog(options.kafka, approving.membership(own))
    signing = _decision_key(key or options.approval.key)
    loaded = App.load(app)
    Topics(options.kafka, loaded.pools).check()
    service = ApprovalService(loaded, own, key=signing, nonce=lambda: secrets.token_hex(16))
    _run(Host([service], event_log), "approval", grace_s=0.0)


def _decision_key(path: str) -> SigningKey:
    from refold.runtime import keys

    if not path:
        hint = "`refold keys new NAME --use decision` makes one; give its file as --key or REFOLD_APPROVAL__KEY"
        raise UsageError("the approval service has no key to sign decisions with", hint=hint)
    found = keys.load(Path(path))
    if found.use != "decision":
        raise UsageError(f"the key {found.kid} signs {found.use}s", hint="`refold keys new NAME --use decision`")
    return found


COLLECT_AFTER = 50_000
"""New objects per pass of the garbage collector. A service makes thousands a turn and no cycles to speak of; Python's
default of 700 spends a sixth of a fold on looking for them."""


def _run(host: Host, name: str, *, drain: Callable[[], bool] = lambda: True, grace_s: float) -> None:
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log.info("service.started", service=name, pid=os.getpid())
    host.run(stop, drain=drain, grace_s=grace_s)
    log.info("service.stopped", service=name, pid=os.getpid())
