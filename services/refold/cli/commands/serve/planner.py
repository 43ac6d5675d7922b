"""`refold serve planner`."""

from __future__ import annotations

import os

from refold.adapters.kafka.log import KafkaEventLog
from refold.cli.commands.serve.process import DevOption, Member, ServedApp, served
from refold.cli.lazy import Commands
from refold.core.planning.verdict import Rules
from refold.planner.service import Planner
from refold.planner.settings import Limits, PlannerSettings
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
    )
    event_log = KafkaEventLog(options.kafka, own.membership)
    process.run(Host([Planner(process.load(app), own, nonce=lambda: os.urandom(16))], event_log))
