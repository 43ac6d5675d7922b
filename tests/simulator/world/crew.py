"""What processes are made of: a role's services, set up for a simulated platform."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from refold.core.wire.seal import Seal
from refold.engine.approval.service import ApprovalService
from refold.engine.approval.settings import ApprovalLimits, ApprovalSettings
from refold.engine.executor.gate import Gate
from refold.engine.executor.service import Executor
from refold.engine.executor.settings import ExecutorSettings, Times
from refold.engine.planner.log import windows
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import Bounds, Limits, PlannerSettings
from refold.engine.ports.effects import Service
from refold.engine.ports.log import Membership
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from refold.engine.runtime.lanes import INPUT_OVERHEAD
from tests.simulator.app import FACTS, simulated
from tests.simulator.settings import OTHER, POOL, Role, SimSettings
from tests.simulator.world.law import TRUST
from tests.simulator.world.store import FED_BYTES
from tests.simulator.world.surroundings import Surroundings

ENVIRONMENT = "sim"
SEAL = Seal(POOL, b"of the simulated pool")
_MOST_VALUES = windows.MOST_VALUES
_OTHER_SEAL = Seal(OTHER, b"of the other pool")


def _set_up(world: Surroundings, member: str) -> SimSettings:
    """The settings of a member: those of the others, or fewer of everything at a time."""
    if not world.settings.uneven or int(re.sub(r"\D", "", member)) % 2:
        return world.settings
    world.counts["members.uneven"] += 1
    lease_ms = 2 * world.settings.lease_ms
    return replace(world.settings, active=1, slots=12, others=1, lease_ms=lease_ms)


def _planner(world: Surroundings, member: str) -> tuple[list[Service], Membership]:
    chosen = _set_up(world, member)
    windows.MOST_VALUES = chosen.singly or _MOST_VALUES
    settings = PlannerSettings(
        partitions=chosen.partitions,
        member=member,
        environment=ENVIRONMENT,
        commit_ms=chosen.commit_ms,
        snapshot_ms=chosen.snapshot_ms or chosen.commit_ms,
        rules=chosen.rules,
        limits=Limits(
            chosen.payload_bytes,
            active=chosen.active,
            topic_bytes=chosen.backlog * INPUT_OVERHEAD,
            blob_bytes=FED_BYTES,
        ),
        budget=Bounds(
            steps=chosen.run_steps,
            history_bytes=chosen.run_bytes,
            children=chosen.run_children,
            depth=chosen.run_depth,
        ),
        trust=TRUST,
        pools=(POOL, OTHER) if chosen.others else (POOL,),
        windows=chosen.limited,
    )
    world.counts["planners"] += chosen.limited
    process = f"{world.counts['planners']}" if chosen.limited else ""
    service = Planner(
        world.apps.get(member, world.app), settings, lambda: world.chance.rng.randbytes(16), process=process
    )
    return [service], settings.membership


def _executor(world: Surroundings, member: str, seal: Seal = SEAL) -> tuple[list[Service], Membership]:
    chosen, pool = _set_up(world, member), seal.pool
    settings = ExecutorSettings(
        pool=pool,
        member=member,
        slots=chosen.slots,
        conversation_least=0,
        backlog_bytes=chosen.backlog * INPUT_OVERHEAD,
        tend_ms=chosen.tend_ms,
        reap_ms=chosen.reap_ms,
        commit_ms=chosen.commit_ms,
        resend_ms=chosen.resend_ms,
        stale_ms=chosen.retention_ms // 2,
        grace_ms=chosen.grace_ms,
        times=Times(lease_ms=chosen.lease_ms, chained_lease_ms=chosen.chained_lease_ms),
        gate=Gate(tools=FACTS, environment=ENVIRONMENT, partitions=chosen.partitions, pool=pool),
        seal=seal,
        trust=TRUST,
    )
    token = iter(range(1, 1 << 40)).__next__
    relay = Relay(RelaySettings(pool, member, sweep_ms=chosen.sweep_ms, seal=seal), token=token)
    executor = Executor(settings, relay, token=token, fresh=lambda: world.chance.rng.randbytes(8).hex())
    return [executor, relay], settings.membership


def _other(world: Surroundings, member: str) -> tuple[list[Service], Membership]:
    return _executor(world, member, _OTHER_SEAL)


def _approval(world: Surroundings, member: str) -> tuple[list[Service], Membership]:
    chosen = world.settings
    settings = ApprovalSettings(
        partitions=chosen.partitions,
        member=member,
        environment=ENVIRONMENT,
        limits=ApprovalLimits(payload_bytes=chosen.payload_bytes),
        trust=TRUST,
    )
    service = ApprovalService(
        simulated, settings, key=world.decision_key, nonce=lambda: world.chance.rng.randbytes(8).hex()
    )
    return [service], settings.membership


MAKERS: Mapping[Role, Callable[[Surroundings, str], tuple[list[Service], Membership]]] = {
    "planner": _planner,
    "executor": _executor,
    "approval": _approval,
    "other": _other,
}
"""By role: given the name that its group knows it by, what a process of it hosts, and how that is a member."""
