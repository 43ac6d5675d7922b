"""What processes are made of: a role's services, set up for a simulated platform."""

from __future__ import annotations

from dataclasses import dataclass

from refold.approval.service import ApprovalService
from refold.approval.settings import ApprovalLimits, ApprovalSettings
from refold.executor.gate import Gate
from refold.executor.service import Executor
from refold.executor.settings import ExecutorSettings, Times
from refold.planner.service import Planner
from refold.planner.settings import Limits, PlannerSettings
from refold.ports.effects import Service
from refold.ports.log import Membership
from refold.relay.service import Relay
from refold.relay.settings import RelaySettings
from refold.simulator.app import simulated
from refold.simulator.facts import facts
from refold.simulator.settings import POOL, Role
from refold.simulator.world.process import SimProcess
from refold.simulator.world.surroundings import Surroundings

ENVIRONMENT = "sim"


@dataclass(slots=True)
class Kit:
    """What processes are made of. A planted bug is a kit with other classes."""

    planner: type[Planner] = Planner
    executor: type[Executor] = Executor
    relay: type[Relay] = Relay
    approval: type[ApprovalService] = ApprovalService

    def make(self, world: Surroundings, role: Role, *, name: str, member: str) -> SimProcess:
        """A process of a role. `member` is what its group knows it by."""
        makers = {"planner": self._planner, "executor": self._executor, "approval": self._approval}
        services, membership = makers[role](world, member)
        process = SimProcess(world, role, name, services=services, membership=membership)
        if role == "executor":
            process.skew_ms = world.settings.executor_skew_ms
        return process

    def _planner(self, world: Surroundings, member: str) -> tuple[list[Service], Membership]:
        chosen = world.settings
        settings = PlannerSettings(
            partitions=chosen.partitions,
            member=member,
            environment=ENVIRONMENT,
            commit_ms=chosen.commit_ms,
            rules=chosen.rules,
            limits=Limits(payload_bytes=chosen.payload_bytes, park_ms=chosen.park_ms),
        )
        service = self.planner(simulated, settings, lambda: world.chance.rng.randbytes(16))
        return [service], settings.membership

    def _executor(self, world: Surroundings, member: str) -> tuple[list[Service], Membership]:
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
        relay = self.relay(RelaySettings(POOL, member, sweep_ms=chosen.sweep_ms), token=token)
        executor = self.executor(settings, relay, token=token, fresh=lambda: world.chance.rng.randbytes(8).hex())
        return [executor, relay], settings.membership

    def _approval(self, world: Surroundings, member: str) -> tuple[list[Service], Membership]:
        chosen = world.settings
        settings = ApprovalSettings(
            partitions=chosen.partitions,
            member=member,
            environment=ENVIRONMENT,
            limits=ApprovalLimits(park_ms=chosen.park_ms, payload_bytes=chosen.payload_bytes),
        )
        service = self.approval(
            simulated, settings, key=world.decision_key, nonce=lambda: world.chance.rng.randbytes(8).hex()
        )
        return [service], settings.membership
