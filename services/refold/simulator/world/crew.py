"""What processes are made of: a role's services, set up for a simulated platform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from refold.approval import service as approval_service
from refold.approval.process import Limits as ApprovalLimits
from refold.approval.service import ApprovalService, ApprovalSettings
from refold.executor.gate import Gate
from refold.executor.service import Executor
from refold.executor.settings import ExecutorSettings, Times
from refold.planner.service import Planner
from refold.planner.settings import Limits, PlannerSettings
from refold.relay.service import Relay
from refold.relay.settings import RelaySettings
from refold.simulator.app import app
from refold.simulator.facts import facts
from refold.simulator.settings import POOL
from refold.simulator.world.process import Process

if TYPE_CHECKING:
    from refold.simulator.world.world import World

ENVIRONMENT = "sim"
Role = Literal["planner", "executor", "approval"]
ROLES: tuple[Role, ...] = ("planner", "executor", "approval")


@dataclass(slots=True)
class Kit:
    """What processes are made of. A planted bug is a kit with other classes."""

    planner: type[Planner] = Planner
    executor: type[Executor] = Executor
    relay: type[Relay] = Relay
    approval: type[ApprovalService] = ApprovalService


def make(world: World, role: Role, full: str, member: str) -> Process:
    """A process of a role. `full` names it, `member` is what its group knows it by."""
    makers = {"planner": _planner, "executor": _executor, "approval": _approval}
    return makers[role](world, full, member)


def _planner(world: World, full: str, member: str) -> Process:
    chosen = world.settings
    settings = PlannerSettings(
        partitions=chosen.partitions,
        member=member,
        environment=ENVIRONMENT,
        commit_ms=chosen.commit_ms,
        rules=chosen.rules,
        limits=Limits(payload_bytes=chosen.payload_bytes, park_ms=chosen.park_ms),
    )
    service = world.kit.planner(app, settings, lambda: world.chance.rng.randbytes(16))
    return Process(world, full, [service], settings.membership)


def _executor(world: World, full: str, member: str) -> Process:
    chosen = world.settings
    settings = ExecutorSettings(
        pool=POOL,
        member=member,
        tend_ms=chosen.tend_ms,
        reap_ms=chosen.reap_ms,
        commit_ms=chosen.commit_ms,
        resend_ms=chosen.resend_ms,
        times=Times(lease_ms=chosen.lease_ms, chained_lease_ms=chosen.chained_lease_ms),
        gate=Gate(tools=facts(), environment=ENVIRONMENT, partitions=chosen.partitions),
    )
    token = iter(range(1, 1 << 40)).__next__
    relay = world.kit.relay(RelaySettings(POOL, member, sweep_ms=chosen.sweep_ms), token=token)
    executor = world.kit.executor(settings, relay, token=token, fresh=lambda: world.chance.rng.randbytes(8).hex())
    process = Process(world, full, [executor, relay], settings.membership)
    process.skew_ms = chosen.executor_skew_ms
    return process


def _approval(world: World, full: str, member: str) -> Process:
    chosen = world.settings
    settings = ApprovalSettings(
        partitions=chosen.partitions,
        member=member,
        environment=ENVIRONMENT,
        limits=ApprovalLimits(park_ms=chosen.park_ms, payload_bytes=chosen.payload_bytes),
    )
    service = world.kit.approval(
        app, settings, key=world.decision_key, nonce=lambda: world.chance.rng.randbytes(8).hex()
    )
    return Process(world, full, [service], approval_service.membership(settings))
