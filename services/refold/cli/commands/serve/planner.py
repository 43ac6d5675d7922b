"""`refold serve planner`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from refold.cli.apps import load_app
from refold.cli.commands.serve.presence import planner_member
from refold.cli.commands.serve.process import DevOption, Member, Part, Served, ServedApp, StandbyOption, served
from refold.core.ids import home
from refold.core.planning.verdict import Rules
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.planner.agents.stalls import hang, hold_record
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import Limits, PlannerSettings, bounds_of
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.host import Host
from refold.engine.runtime.standby import stand_by
from refold.engine.runtime.watchdog import Driven, Mark, Watchdog
from refold.engine.stores import blob_store
from refold.sdk.app import App

_log = structlog.get_logger()

# Time a leaving planner waits for acknowledgements: milliseconds, unless a broker is dead.
DRAIN_S = 1.0


def planner(*, app: ServedApp, member: Member = "", data: DevOption = "", standby: StandbyOption = False) -> None:
    """Decide: read inputs, write the log, request calls."""
    process, loaded = served("planner", member, data), load_app(app)
    # Before any client and the lock of the name: a fork keeps neither.
    if standby:
        stand_by()
    with planner_part(process, loaded) as part:
        process.run(part)


@contextmanager
def planner_part(
    process: Served, loaded: App, handover: Handover | None = None, *, beside: tuple[str, ...] = ()
) -> Iterator[Part]:
    """Planner under its watchdog; executors of the pools `beside` run in the same process."""
    options = process.where.settings
    # Those of earlier versions of the app too: their calls may be under way.
    pools = tuple(sorted({*loaded.pools, *process.topics(loaded.pools).pools()}))
    if not loaded.agents:
        _log.warning("planner.no_agents", app=loaded.name, hint="import the modules that define them in the app's file")
    process.check(pools)
    process.lock_member()
    own = PlannerSettings(
        partitions=options.kafka.partitions,
        member=process.member,
        pools=pools,
        environment=options.environment,
        rules=Rules(redispatch_ms=options.planner.redispatch_ms, signal_bytes=options.planner.signal_bytes),
        limits=Limits(
            payload_bytes=options.max_payload_bytes,
            active=options.planner.active_runs,
            input_bytes=options.planner.input_bytes,
            blob_bytes=options.blobs.max_bytes if options.blobs.url else 0,
        ),
        budget=bounds_of(options),
        trust=process.trust(),
        windows=bool(loaded.windows),
        beside=beside,
    )
    event_log = process.event_log(own.membership, handover)
    service = Planner(loaded, own, nonce=lambda: os.urandom(16), mark=(mark := Mark()), process=os.urandom(3).hex())

    def quarantine(driven: Driven, stack: str) -> None:
        hold = hang(driven, stack, member=process.member)
        # A producer of its own: that of the loop is in the hands of the code that holds it.
        publisher = KafkaPublisher(options.kafka, partitions=own.partitions, source=process.member)
        place = home(hold.run_id, own.partitions)
        topic, _, key, value, headers, *_ = hold_record(place, hold.run_id, hold, source=process.member)
        publisher.send_raw(topic, place, key=key, value=value, headers=headers)

    hint = "refold run retry, refold run cancel --as-failed"
    # The hanging code has the main thread, so that no exception of another thread ends the process.
    watchdog = Watchdog(mark, hint=hint, give_up=quarantine, die=os._exit, most_s=options.planner.hang_ms / 1000)
    watchdog.start()
    host = Host([service], event_log, blobs=blob_store(options))
    if handover:
        host.take_handed(handover, own.membership.lazy)
    yield Part("planner", host, DRAIN_S, planner_member(process.member, loaded))
    watchdog.stop()
