"""The simulated world: one clock, one source of chance, processes in groups, and the boundaries where faults strike."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any

from refold.adapters.memory.ledger import MemoryLedger, Snapshot
from refold.approval.service import ApprovalService
from refold.core.ids import home
from refold.core.topics import APPROVAL_DECIDED, CATALOG, RUN_LOG
from refold.executor.service import Executor
from refold.planner.service import Planner
from refold.ports.effects import StartTool
from refold.ports.ledger import Claim, Operation
from refold.ports.log import Delivery, Outgoing, Record
from refold.relay.service import Relay
from refold.simulator.reading.witness import TOOL_REQUESTED, Witness
from refold.simulator.settings import WINDOWS, SimSettings
from refold.simulator.world.broker import INPUTS, TOPICS, Broker
from refold.simulator.world.crew import ROLES, Kit, Role, make
from refold.simulator.world.faults import modes_at
from refold.simulator.world.law import FIRST
from refold.simulator.world.process import UNREACHABLE, Act, Process
from refold.simulator.world.receiver import Receiver
from refold.simulator.world.tools import GUARDED, Tools


@dataclass(slots=True)
class Chance:
    """How chance has a say. Without it (`rng` for ids alone) a case is the same up to its first fault.

    `rate` is the chance of a fault at a boundary, of at most `left` faults before `until_ms`.
    """

    rng: Random
    wild: bool = False
    rate: float = 0.0
    left: int = 0
    until_ms: int = 0


@dataclass(slots=True)
class Trace:
    """What happened, in order; its hash is the same for the same case."""

    lines: list[tuple[object, ...]] = field(default_factory=list)

    def digest(self) -> str:
        """A name for everything that happened."""
        return blake2b(repr(self.lines).encode(), digest_size=16).hexdigest()


def fingerprint(world: World) -> int:
    """A number that differs when anything of note differs; far cheaper than the trace, for campaigns."""
    ends = [world.broker.log(topic, n).end for topic in TOPICS for n in range(world.settings.partitions)]
    heads = sorted((run.id, run.head) for run in world.witness.history.runs.values())
    content = repr((world.boundaries, world.now_ms, ends, heads))
    return int.from_bytes(blake2b(content.encode(), digest_size=8).digest())


class World:
    """One case. `faults` maps boundary numbers to modes; `run` in `case` drives it to its end."""

    def __init__(
        self, tools: Tools, chance: Chance, faults: Mapping[int, str], *, settings: SimSettings, kit: Kit
    ) -> None:
        self.tools, self.chance, self.faults = tools, chance, dict(faults)
        self.settings, self.kit = settings, kit
        self.now_ms = settings.epoch_ms
        self.decision_key = FIRST
        self.boundaries = 0
        self.kinds: list[str] = []
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.struck: list[str] = []
        self.broker = Broker(settings.partitions, self._written)
        self.ledger = MemoryLedger(lambda: self.now_ms)
        self.receiver = Receiver(windows=WINDOWS)
        self.witness = Witness()
        self.owners: dict[Role, dict[int, Process]] = {role: {} for role in ROLES}
        self.processes: list[Process] = []
        self.pending = 0
        self._events: list[tuple[int, int, bool, Callable[[], object]]] = []
        self._numbers = 0
        self._snapshots: list[Snapshot] = []
        self._snapping = chance.wild or any("rollback" in mode for mode in faults.values())
        self._names: Counter[str] = Counter()

    # Processes and groups

    def start(self) -> None:
        """Starts every process and shares the partitions out."""
        for role in ROLES:
            number = self.settings.members(role)
            members = [self.spawn(role, f"{role}-{index + 1}") for index in range(number)]
            for partition in range(self.settings.partitions if number else 0):
                self._give(role, partition, members[partition % number])

    def spawn(self, role: Role, name: str) -> Process:
        """A fresh process, with nothing in memory."""
        self._names[name] += 1
        number = self._names[name]
        full = name if number == 1 else f"{name}#{number}"
        process = make(self, role, full, name)
        if self.chance.wild:
            process.skew_ms = self.chance.rng.randrange(-100, 101)
        self.processes.append(process)
        return process

    def role_of(self, process: Process) -> Role:
        """The role of a process."""
        return next(role for role in ROLES if process.name.startswith(role))

    def _give(self, role: Role, partition: int, process: Process) -> None:
        if partition in self.owners[role]:
            self.counts["takeovers"] += 1
        self.owners[role][partition] = process
        process.assign(partition)
        self.note("assign", process.name, partition)

    def die(self, process: Process) -> None:
        """Ends a process as `kill -9` does; a supervisor starts it again."""
        if process.state == "dead":
            return
        process.state = "dead"
        self.collect(process)
        self.processes.remove(process)
        self.note("dies", process.name)
        role = self.role_of(process)
        if process in self.owners[role].values():
            self.at(self.settings.restart_ms, lambda: self._restart(role, process))

    def _restart(self, role: Role, process: Process) -> None:
        lost = [partition for partition, owner in self.owners[role].items() if owner is process]
        if lost:
            fresh = self.spawn(role, process.name.partition("#")[0])
            for partition in lost:
                self._give(role, partition, fresh)

    def freeze(self, process: Process, stall_ms: int) -> None:
        """Stops a process for a while; the group gives its partitions away once its session is over."""
        process.state = "frozen"
        self.note("freezes", process.name, stall_ms)
        role = self.role_of(process)
        if stall_ms > self.settings.session_ms:
            self.at(self.settings.session_ms, lambda: self._expel(role, process))
        self.at(stall_ms, lambda: self._thaw(role, process))

    def _expel(self, role: Role, process: Process) -> None:
        lost = [partition for partition, owner in self.owners[role].items() if owner is process]
        if process.state == "dead" or not lost:
            return
        others = [p for p in self.processes if p is not process and p.state == "up" and self.role_of(p) == role]
        member = process.name.partition("#")[0]
        successor = others[0] if others and self.settings.share(role) else self.spawn(role, member)
        for partition in lost:
            self._give(role, partition, successor)

    def _thaw(self, role: Role, process: Process) -> None:
        if process.state != "frozen":
            return
        process.state = "up"
        self.note("thaws", process.name)
        if process not in self.owners[role].values():
            self.at(self.settings.ignorance_ms, lambda: self._learn(process))

    def _learn(self, process: Process) -> None:
        """A zombie learns that it is one, and leaves when it has taken that in."""
        if process.state == "up":
            for partition in {cursor.partition: None for cursor in process.cursors}:
                process.revoke(partition)
            self.at(self.settings.ignorance_ms, lambda: self.die(process))

    def collect(self, process: Process) -> None:
        """Adds what the services of a process have counted."""
        for service in process.services:
            assert isinstance(service, Planner | Executor | Relay | ApprovalService), (
                "these are all the services there are"
            )
            self.counts.update(service.counts)

    # Time

    def at(self, delay_ms: int, what: Callable[[], object], *, waits: bool = True) -> None:
        """Does something later. `waits`: the world is not at rest before."""
        self._numbers += 1
        self.pending += waits
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._numbers, waits, what))

    def advance(self) -> None:
        """Goes to the next moment at which something is due."""
        due = [p.next_due_ms() for p in self.processes if p.state == "up"]
        if self._events:
            due.append(self._events[0][0])
        self.now_ms = max(self.now_ms + 1, min(due, default=self.now_ms + 1))
        self.fire()

    def fire(self) -> None:
        """Does what is due now."""
        while self._events and self._events[0][0] <= self.now_ms:
            _, _, waits, what = heapq.heappop(self._events)
            self.pending -= waits
            what()

    def note(self, *line: object) -> None:
        """A line of the trace that is no boundary."""
        self.trace.lines.append((self.now_ms - self.settings.epoch_ms, *line))

    # Chance

    def fetch(self, position: int, end: int) -> int:
        """How far a poll reads: all there is, or in a wild world sometimes less."""
        if not self.chance.wild or self.chance.rng.random() < 0.7:
            return end
        return self.chance.rng.randint(position, end)

    def deliver(self, process: Process, delivery: Delivery) -> None:
        """Reports what became of a published record, at once or in a wild world sometimes later."""
        if delivery.offset is None:
            self.counts["lost_acks"] += 1
        if self.chance.wild and self.chance.rng.random() < 0.2:
            self.at(self.chance.rng.randrange(50), lambda: process.inbox.append(delivery))
        else:
            process.inbox.append(delivery)

    # Boundaries

    def boundary(self, process: Process, act: Act) -> str:
        """Counts a boundary; the fault that strikes there, if any."""
        self.boundaries += 1
        self.kinds.append(act.kind)
        line = (self.now_ms - self.settings.epoch_ms, self.boundaries, process.name, act.kind, act.detail)
        self.trace.lines.append(line)
        if self._snapping and self.boundaries % 8 == 1:
            self._snapshots.append(self.ledger.snapshot())
        if act.kind == "publish" and act.what.topic == APPROVAL_DECIDED:
            partition = act.what.partition
            upto = process.read_upto.get(partition, 0)
            before = [r for r in self.broker.log(APPROVAL_DECIDED, partition).records if r.offset < upto]
            self.witness.approvals.decides(process.name, act.what, before)
        mode = self.faults.get(self.boundaries, "")
        chance = self.chance
        if not mode and chance.left and self.unsafe and chance.rng.random() < chance.rate:
            mode = chance.rng.choice(modes_at(act.kind))
            chance.left -= 1
        return mode

    @property
    def unsafe(self) -> bool:
        """Whether chance may still do harm."""
        return self.now_ms - self.settings.epoch_ms < self.chance.until_ms

    def strike(self, process: Process, act: Act, mode: str) -> bool:
        """Lets a fault happen. True: the act is dealt with or the process is gone; False: it is to be carried out."""
        self.struck.append(f"{self.boundaries}:{mode}")
        self.note("FAULT", mode)
        name, _, after = mode.partition("-")
        if name in ("freeze", "pause"):
            return self._strike_freeze(process, act, long=name == "freeze", after=bool(after))
        if name == "die":
            if after:
                process.done(self.do(process, act))
            self.die(process)
            return True
        if name in ("lost", "unsure", "delayed", "cut"):
            process.done(self._uncertain(process, act, mode))
            return True
        self._strike_around(process, mode)
        if mode == "wipe-seen" and act.kind == "ledger":
            process.done(UNREACHABLE)
            return True
        return process.state != "up"

    def _strike_freeze(self, process: Process, act: Act, *, long: bool, after: bool) -> bool:
        if after:
            process.done(self.do(process, act))
        settings = self.settings
        stall = settings.zombie_ms if long else settings.pause_ms
        if long and self.chance.wild:
            stall = self.chance.rng.randrange(settings.session_ms // 2, settings.zombie_ms * 2)
        # No rule can help a process that stalls between its last look at the clock and the receiver for longer than
        # what is left of the lease, so none stalls that long here.
        started = self.tools.before_effect(process)
        if started is not None:
            stall = min(stall, started + settings.pause_ms - self.now_ms)
        if stall <= 0:
            return after
        self.freeze(process, stall)
        return True

    def _uncertain(self, process: Process, act: Act, mode: str) -> Any:
        if act.kind == "ledger":
            if mode == "cut-after":
                self.do(process, act)
            self.counts["lost_replies"] += 1
            return UNREACHABLE
        if mode == "unsure":
            self.do(process, act)
        elif mode == "delayed":
            record: Outgoing = act.what
            self.at(self.settings.delay_ms, lambda: self._write(record))
        if act.kind == "append":
            self.counts["lost_acks"] += 1
        return None

    def _strike_around(self, process: Process, mode: str) -> None:
        if mode.startswith("wipe"):
            self.ledger.wipe()
        elif mode.startswith("rollback") and self._snapshots:
            self.ledger.rollback(self._snapshots[-2] if len(self._snapshots) > 1 else self._snapshots[0])
        elif mode == "compact":
            self.compact()
        elif mode == "forget":
            self.broker.committed.clear()
        if mode in ("power", "forget"):
            for other in list(self.processes):
                self.die(other)
        elif mode.endswith("-die"):
            self.die(process)

    def compact(self) -> None:
        """Compacts every topic: inputs as far as they are settled, which is what a minimum lag is for, others whole."""
        settled = self.broker.committed.get("refold-planner", {})
        for topic in TOPICS:
            inputs = topic in INPUTS
            for partition in range(self.settings.partitions):
                below = settled.get((topic, partition), 0) if inputs else None
                self.counts["compacted"] += self.broker.compact(topic, partition, below=below)

    # What acts do

    def do(self, process: Process, act: Act) -> Any:
        """Carries an act out and gives its answer."""
        kind, what = act.kind, act.what
        if kind in ("append", "publish"):
            return self._write(what)
        if kind == "ledger":
            return self._ledger(what)
        if kind == "commit":
            self._commit(process, what.positions)
        elif kind == "end":
            return self.broker.log(what.topic, what.partition).end
        elif kind == "start":
            self.tools.start(self, process, what)
        elif kind == "stop":
            self.tools.stop(self, process, what)
        else:
            what(self)
        return None

    def _commit(self, process: Process, positions: Mapping[tuple[str, int], int]) -> None:
        """Takes positions from owners, and from zombies where they go forward, which is what could do harm."""
        group = self.broker.committed.setdefault(process.membership.group, {})
        owners = self.owners[self.role_of(process)]
        for place, position in positions.items():
            before = group.get(place, 0)
            if place[0] == TOOL_REQUESTED:
                self.witness.commits(self.broker.log(*place).records, before, position)
            if owners[place[1]] is process or position > before:
                group[place] = position

    def log_end(self, run: str) -> int:
        """Where the run log ends that a run is in."""
        return self.broker.log(RUN_LOG, home(run, self.settings.partitions)).end

    def on_start(self, process: Process, order: StartTool) -> None:
        """A tool begins: is it allowed to?"""
        ask = order.request
        self.note("tool", process.name, ask.call_id, ask.attempt)
        place = home(ask.run_id, self.settings.partitions)
        self.witness.starts(ask, looked=process.looked.pop(order.number))
        self._begins(process, order, place)
        if any("wipe" in fault or "rollback" in fault for fault in self.struck):
            return
        # A claimant that was frozen and lost its lease may act without an entry where it is the first in the chain.
        passed = ask.effect in GUARDED and any("freeze" in fault for fault in self.struck)
        known = passed or (place, ask.call_id) in self.ledger.entries()
        mine = [c for c in process.cursors if (c.topic, c.partition) == (TOOL_REQUESTED, place)]
        read = [record for cursor in mine for record in cursor.log.records if record.offset < cursor.position]
        self.witness.starts_by_ledger(ask, known=known, read=read)

    def _begins(self, process: Process, order: StartTool, place: int) -> None:
        """What its process has read of the catalog is what it may rest on; of a partition that it lost, anything."""
        read = [c.position for c in process.cursors if (c.topic, c.partition) == (CATALOG, place)]
        approvals, clock = self.witness.approvals, process.checked_ms.get(order.number, self.now_ms) + process.skew_ms
        law = approvals.laws.known(place, read[0]) if read else None
        approvals.begins(order.request, partition=place, law=law, now_ms=clock)

    def _write(self, record: Outgoing) -> int:
        return self.broker.write(record)

    def _ledger(self, operation: Operation) -> Any:
        if isinstance(operation, Claim):
            self.witness.claimed.add(operation.call)
        return self.ledger.run([operation])[0]

    def _written(self, record: Record) -> None:
        self.trace.lines.append(("->", record.topic, record.partition, record.offset, record.key))
        self.witness.writes(record)
