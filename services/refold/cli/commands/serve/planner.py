"""`refold serve planner`."""

from __future__ import annotations

import os

from refold.adapters.kafka.log import KafkaEventLog
from refold.adapters.kafka.publisher import KafkaPublisher
from refold.cli.commands.serve.process import DevOption, Member, ServedApp, served
from refold.cli.lazy import Commands
from refold.core.ids import hold_key, home
from refold.core.messages import Hold
from refold.core.planning.verdict import Rules
from refold.core.topics import RUN_SNAPSHOT
from refold.core.wire import codec
from refold.core.wire.headers import cloud_event
from refold.planner.service import Planner
from refold.planner.settings import Budget, Limits, PlannerSettings
from refold.planner.watchdog import Mark, Watchdog
from refold.runtime.host import Host

planner_group = Commands()


@planner_group.command()
def planner(app: ServedApp, member: Member = "", data: DevOption = "") -> None:
    """Decide: read inputs, append to the run log, order work."""
    process = served("planner", member, data)
    options = process.where.settings
    own = PlannerSettings(
        partitions=options.kafka.partitions,
        member=process.member,
        environment=options.environment,
        rules=Rules(redispatch_ms=options.planner.redispatch_ms),
        limits=Limits(payload_bytes=options.max_payload_bytes, active=options.planner.active_runs),
        budget=Budget(steps=options.planner.run_steps, history_bytes=options.planner.run_bytes),
    )
    event_log = KafkaEventLog(options.kafka, own.membership)
    service = Planner(process.load(app), own, nonce=lambda: os.urandom(16), mark=(mark := Mark()))

    def quarantine(hold: Hold) -> None:
        # A producer of its own: that of the loop is in the hands of the code that holds it.
        publisher = KafkaPublisher(options.kafka, partitions=own.partitions, source=process.member)
        name = f"{hold.run_id}/{hold.at_ms}"
        headers = cloud_event(RUN_SNAPSHOT, hold.run_id, id=name, source=process.member, at_ms=hold.at_ms)
        place = home(hold.run_id, own.partitions)
        publisher.send_raw(RUN_SNAPSHOT, place, key=hold_key(hold.run_id), value=codec.encode(hold), headers=headers)

    most_s = options.planner.hang_ms / 1000
    watchdog = Watchdog(mark, member=process.member, quarantine=quarantine, die=os._exit, most_s=most_s)
    watchdog.start()
    process.run(Host([service], event_log))
    watchdog.stop()
