"""`refold serve executor`."""

import secrets
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Annotated

import structlog

from refold.cli.apps import load_app
from refold.cli.commands.serve.presence import executor_member
from refold.cli.commands.serve.process import (
    DevOption,
    Member,
    Part,
    Served,
    ServedApp,
    StandbyOption,
    redis_findings,
    served,
)
from refold.core.wire.seal import Seal
from refold.engine.adapters.kafka.reader import KafkaLookup
from refold.engine.adapters.kafka.writer import KafkaLive
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.executor.gate import Gate
from refold.engine.executor.service import Executor
from refold.engine.executor.settings import ExecutorSettings, Times
from refold.engine.ports.effects import ToolEnded
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from refold.engine.runtime import keys
from refold.engine.runtime.addresses import LEDGER_KEY, data_dir
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.host import Host
from refold.engine.runtime.standby import stand_by
from refold.engine.stores import blob_store
from refold.sdk.app import App
from refold.sdk.sources import FactsTable

if TYPE_CHECKING:
    from refold.engine.adapters.redis.ledger import RedisLedger

# Time after the grace for the last results: milliseconds, unless a server is dead.
LAST_S = 2.0

# By name: its client takes 0.3 s, and `refold dev --light` has none. A process in reserve has loaded it.
_REDIS = "refold.engine.adapters.redis.ledger"

_log = structlog.get_logger()


def executor(
    *,
    app: ServedApp,
    member: Member = "",
    pool: Annotated[str, "NAME", "The pool whose calls this process takes."] = "default",
    data: DevOption = "",
    standby: StandbyOption = False,
) -> None:
    """Claim calls, run tools, record results. The relay runs in this process too."""
    process, loaded = served("executor", member, data, role=f"executor-{pool}"), load_app(app)
    import_module(_REDIS)
    # Before any client and the lock of the name: a fork keeps neither.
    if standby:
        stand_by()
    process.run(executor_part(process, loaded, pool, data))


def executor_part(process: Served, loaded: App, pool: str, data: str, handover: Handover | None = None) -> Part:
    """Executor of a pool with its relay, beside the planner of this process if there is a `handover`."""
    options, name = process.where.settings, process.member
    process.check((pool,))
    lock_id = process.lock_member(pool)
    membership = ExecutorSettings(pool=pool, member=name, beside=handover is not None and not process.broker).membership
    event_log = process.event_log(membership, handover)
    lookup = KafkaLookup(options.kafka, membership)
    beside = str(data_dir(data) / LEDGER_KEY) if process.where.dev else ""
    seal = Seal(pool, keys.shared_key(options.executor.ledger_key or beside))
    ledger = process.broker.ledger if process.broker else _redis_ledger(process, seal)
    numbers, blobs = count(1), blob_store(options)
    relay = Relay(RelaySettings(pool=pool, member=f"relay of {name}", seal=seal), token=lambda: next(numbers))
    if not any(tool.pool == pool for tool in loaded.tools.values()):
        _log.warning("executor.no_tools", pool=pool, app=loaded.name)
    own = ExecutorSettings(
        pool=pool,
        member=name,
        lock_id=lock_id,
        slots=options.executor.slots,
        times=Times(
            lease_ms=options.executor.lease_ms,
            chained_lease_ms=options.executor.chained_lease_ms,
            by_tool={tool.name: tool.lease_ms for tool in loaded.tools.values() if tool.lease_ms},
        ),
        gate=Gate(
            tools=FactsTable(loaded.tools),
            environment=options.environment,
            partitions=options.kafka.partitions,
            pool=pool,
            required=options.executor.approval,
        ),
        tools=loaded.tools,
        seal=seal,
        stale_ms=options.redis.retention_ms // 2,
        trust=process.trust(),
        blind_ms=options.executor.blind_ms,
        grace_ms=options.executor.grace_ms,
        conversation_bytes=options.executor.conversation_bytes,
    )
    service = Executor(own, relay, token=lambda: next(numbers), fresh=lambda: secrets.token_hex(16))

    live = KafkaLive(options.kafka, name, pool=own.pool, partitions=options.kafka.partitions)

    def tools(done: Callable[[ToolEnded], None]) -> Toolbox:
        most = max(options.max_payload_bytes, options.blobs.max_bytes if blobs else 0)
        return Toolbox(loaded, done, threads=own.slots, max_result=most, blobs=blobs, live=live)

    host = Host([service, relay], event_log, ledger=ledger, tools=tools, lookup=lookup)
    if handover:
        host.take_handed(handover, membership.lazy)
    serves = executor_member(name, loaded, pool, own.slots)
    grace_s = options.executor.grace_ms / 1000 + LAST_S
    return Part("executor", host, grace_s, serves, lambda: len(service.attempts))


def _redis_ledger(process: Served, seal: Seal) -> "RedisLedger":
    at = process.where.settings.redis
    retention = timedelta(milliseconds=at.retention_ms)
    ledger: RedisLedger = import_module(_REDIS).RedisLedger(
        at.url, prefix=at.prefix, retention=retention, cluster=at.cluster
    )
    for problem in ledger.problems():
        _log.warning("redis.unsafe", problem=problem)
    process.accept(redis_findings(ledger, seal.key))
    return ledger
