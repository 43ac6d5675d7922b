"""`refold serve all`."""

from dataclasses import replace
from importlib import import_module

from refold.cli.apps import load_app
from refold.cli.commands.serve.process import ALL, DevOption, Member, Served, ServedApp, StandbyOption, served
from refold.core.errors import UsageError
from refold.core.topics import RUN_LOG, tool_completed
from refold.engine.adapters.kafka.acls import may_write
from refold.engine.runtime.handover import Handover
from refold.engine.runtime.standby import stand_by


def serve_all(*, app: ServedApp, member: Member = "", data: DevOption = "", standby: StandbyOption = False) -> None:
    """Run planner, executors and relay in one process, for pools that are trusted alike."""
    process, loaded = served(ALL, member, data), load_app(app)
    # Before any client and the lock of the name: a fork keeps neither.
    if standby:
        stand_by()
    # By name, as the catalogue loads them: they are commands of their own.
    planner_part, executor_part = (
        getattr(import_module(f"refold.cli.commands.serve.{name}"), f"{name}_part") for name in ("planner", "executor")
    )
    # The planner reports a pool without topics, and goes on without it.
    present, handover = process.topics(loaded.pools).pools(), Handover()
    pools = tuple(pool for pool in loaded.pools if pool in present)
    check_trust(process, pools)
    with planner_part(process.part("planner", "planner"), loaded, handover, beside=pools) as planner:
        executors = [
            executor_part(process.part("executor", f"executor-{pool}"), loaded, pool, data, handover) for pool in pools
        ]
        if len(pools) > 1:
            executors = [replace(part, service=f"executor-{pool}") for part, pool in zip(executors, pools, strict=True)]
        process.run(planner, *executors)


def check_trust(process: Served, pools: tuple[str, ...]) -> None:
    """Check that this login has the rights of the planner and of all executors. **Raises** UsageError."""
    for topic in (RUN_LOG, *map(tool_completed, pools)) if pools else ():
        if not may_write(process.where.settings.kafka, topic):
            hint = "serve each with its own login: `refold serve planner`, `refold serve executor --pool POOL`"
            raise UsageError(f"services are trusted apart: this login may not write {topic}", hint=hint)
