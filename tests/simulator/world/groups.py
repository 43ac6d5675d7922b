"""Processes in groups: who has which partitions, who dies, who freezes, and who learns too late that it is a zombie."""

from __future__ import annotations

from collections import Counter

from refold.engine.planner.service import Planner
from refold.engine.ports.log import Revoked
from tests.simulator.settings import SIM_ROLES, Role
from tests.simulator.world.archivist import ArchivistProcess
from tests.simulator.world.crew import MAKERS
from tests.simulator.world.process import SimProcess
from tests.simulator.world.surroundings import Surroundings


class Groups:
    """All processes of a world that are not dead. `owners` has, by role, whose a partition is by the group's word."""

    def __init__(self, world: Surroundings) -> None:
        self.processes: list[SimProcess] = []
        self.owners: dict[Role, dict[int, SimProcess]] = {role: {} for role in SIM_ROLES}
        self._world = world
        self._names: Counter[str] = Counter()

    def start(self) -> None:
        """Starts every process and shares the partitions out."""
        settings = self._world.settings
        for role in SIM_ROLES:
            number = settings.members(role)
            members = [self._spawn(role, f"{role}-{index + 1}") for index in range(number)]
            for partition in range(settings.partitions if number else 0):
                self._give(role, partition, members[partition % number])

    def die(self, process: SimProcess, *, away_ms: int = 0) -> None:
        """Ends a process as `kill -9` does; a supervisor starts it again, at once or after a while."""
        if process.state == "dead":
            return
        process.state = "dead"
        self.collect(process)
        self.processes.remove(process)
        self._world.note("dies", process.name)
        if self._lost_by(process):
            self._world.at(away_ms or self._world.settings.restart_ms, lambda: self._hand_over(process))

    def die_all(self) -> None:
        """Ends every process."""
        for process in list(self.processes):
            self.die(process)

    def visit(self, process: SimProcess, *, stays: bool) -> None:
        """Somebody joins its group and takes one of its partitions: to stay, or until it comes back after a while."""
        if not (mine := self._lost_by(process)):
            return
        host, chance = process.membership.member, self._world.chance
        taken = chance.rng.choice(mine) if chance.wild else mine[-1]
        guest = self._spawn(process.role, f"{host}-{'mate' if stays else 'guest'}")
        process.rebalances.append(Revoked(taken))
        self._give(process.role, taken, guest)
        if not stays:
            self._world.at(self._world.settings.visit_ms, lambda: self._leave(guest, host, taken))

    def _leave(self, guest: SimProcess, host: str, partition: int) -> None:
        """A guest that still has what it was given, by itself or by its successor, gives it back to its host."""
        owner = self.owners[guest.role][partition]
        hosts = [p for p in self.processes if p.state == "up" and p.membership.member == host and self._lost_by(p)]
        if hosts and owner.state == "up" and owner.membership.member == guest.membership.member:
            self._give(guest.role, partition, hosts[0])
            self.die(owner)

    def drain(self, process: SimProcess) -> None:
        """Tells a process to end."""
        settings = self._world.settings
        process.leave_by_ms = process.leave_by_ms or self._world.now_ms + settings.grace_ms + settings.last_ms
        self._world.counts["drains"] += 1

    def depart(self, process: SimProcess) -> None:
        """It leaves its group and goes on: others have its partitions at once."""
        process.rebalances += [Revoked(partition) for partition in process.cursors.partitions]
        mates = [p for p in self.processes if p.role == process.role and p.state == "up" and not p.leave_by_ms]
        self._hand_over(process, mates[0] if mates and self._world.settings.sharing else None)

    def freeze(self, process: SimProcess, stall_ms: int) -> None:
        """Stops a process for a while; the group gives its partitions away once its session is over."""
        process.state, process.stood_still = "frozen", True
        self._world.note("freezes", process.name, stall_ms)
        session_ms = self._world.settings.session_ms
        if stall_ms > session_ms:
            self._world.at(session_ms, lambda: self._expel(process))
        self._world.at(stall_ms, lambda: self._thaw(process))

    def collect(self, process: SimProcess) -> None:
        """Adds what the services of a process have counted, and drops the code that they drove."""
        process.stop()
        for service in process.services:
            self._world.counts.update(service.counts)
            for lane in service.lanes if isinstance(service, Planner) else ():
                lane.leave()

    def _spawn(self, role: Role, member: str) -> SimProcess:
        """A fresh process, with nothing in memory."""
        self._names[member] += 1
        number = self._names[member]
        name = member if number == 1 else f"{member}#{number}"
        if role == "archivist":
            process: SimProcess = ArchivistProcess(self._world, name, member)
        else:
            services, membership = MAKERS[role](self._world, member)
            process = SimProcess(self._world, role, name, services=services, membership=membership)
        if role in ("executor", "other"):
            process.skew_ms = self._world.settings.executor_skew_ms
        if self._world.chance.wild:
            process.skew_ms = self._world.chance.rng.randrange(-100, 101)
        self.processes.append(process)
        return process

    def _give(self, role: Role, partition: int, process: SimProcess) -> None:
        if partition in self.owners[role]:
            self._world.counts["takeovers"] += 1
        self.owners[role][partition] = process
        process.assign(partition)
        self._world.note("assign", process.name, partition)

    def _lost_by(self, process: SimProcess) -> list[int]:
        """What is a process's by the group's word, to be given to others."""
        return [partition for partition, owner in self.owners[process.role].items() if owner is process]

    def _hand_over(self, process: SimProcess, successor: SimProcess | None = None) -> None:
        """Gives what a process has to a successor, or to the same again with nothing in memory."""
        if lost := self._lost_by(process):
            successor = successor or self._spawn(process.role, process.membership.member)
            for partition in lost:
                self._give(process.role, partition, successor)

    def _expel(self, process: SimProcess) -> None:
        if process.state != "dead":
            process.expelled_at_ms = self._world.now_ms
            others = [p for p in self.processes if p is not process and p.state == "up" and p.role == process.role]
            self._hand_over(process, others[0] if others and self._world.settings.sharing else None)

    def _thaw(self, process: SimProcess) -> None:
        if process.state != "frozen":
            return
        process.state = "up"
        self._world.note("thaws", process.name)
        if not self._lost_by(process):
            self._world.at(self._world.settings.ignorance_ms, lambda: self._learn(process))

    def _learn(self, process: SimProcess) -> None:
        """A zombie learns that it is one, and leaves when it has taken that in."""
        if process.state == "up":
            for partition in process.cursors.partitions:
                process.rebalances.append(Revoked(partition))
            self._world.at(self._world.settings.ignorance_ms, lambda: self.die(process))
