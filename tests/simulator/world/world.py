"""The simulated world: one clock, one source of chance, processes in groups, and the boundaries where faults strike."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from refold.core.ids import home
from refold.core.run.erased import held_run, read_hold
from refold.core.run.log import GAP
from refold.core.run.snapshot import MARKS_KEY
from refold.core.topics import (
    APPROVAL_DECIDED,
    APPROVAL_REQUESTED,
    CATALOG,
    RUN_COMPLETED,
    RUN_SNAPSHOT,
    TOOL_COMPLETED,
    kind_of,
)
from refold.engine.planner.intake.inputs import FROM_USERS
from refold.engine.ports.effects import LoadBlob, SaveBlob, StartTool
from refold.engine.ports.ledger import Claim, Lapsed, Stored, inherits
from refold.engine.ports.log import NEVER, Delivery, Outgoing, Record
from tests.simulator.app import CLAIMED_EFFECTS, FACTS
from tests.simulator.settings import ANSWERS, INPUTS, ORDERS, POOL, SimSettings
from tests.simulator.world.broker import SIM_TOPICS
from tests.simulator.world.faults import FORGETS, LOSES_LEDGER, Chance, modes_at
from tests.simulator.world.groups import Groups
from tests.simulator.world.law import FIRST
from tests.simulator.world.open_ledger import OpenLedger, Snapshot
from tests.simulator.world.operations import OPERATIONS, arrive
from tests.simulator.world.process import NO_REPLY, UNHEARD, Act, SimProcess
from tests.simulator.world.store import ANSWERS_MS, AWAY_MS
from tests.simulator.world.surroundings import Surroundings
from tests.simulator.world.tools import Workshop

REFUSING = (ORDERS, ANSWERS, APPROVAL_REQUESTED, RUN_COMPLETED, RUN_SNAPSHOT)
"""Topics that may be set up with less than what our own limits let through."""


class World(Surroundings):
    """One case. `faults` maps boundary numbers to modes; `Case` drives it. `kinds`: what the boundaries so far were."""

    def __init__(self, tools: Workshop, chance: Chance, faults: Mapping[int, str], *, settings: SimSettings) -> None:
        super().__init__(chance, settings)
        self.tools, self.faults = tools, faults
        self.decision_key = FIRST
        self.kinds: list[str] = []
        self.struck: list[str] = []
        self.struck_ms: list[int] = []
        self.uncertain: list[str] = []
        self.refused: set[tuple[str, str]] = set()
        kept = timedelta(milliseconds=settings.retention_ms)
        self.ledger_ahead_ms = 0
        self.ledger = OpenLedger(lambda: self.now_ms + self.ledger_ahead_ms, retention=kept, marker=kept / 2)
        self.groups = Groups(self)
        self._snapshots: list[Snapshot] = []
        self._snapping = chance.wild or any("rollback" in mode for mode in faults.values())

    def hit(self, *kinds: str) -> bool:
        """Whether a fault of one of these kinds has struck."""
        return any(kind in fault for fault in self.struck for kind in kinds)

    def parked(self) -> set[str]:
        """Runs held for good because the log has lost their beginning and kept what came after: for an operator.

        A planner that lives on when its log is cut knows what it has lost, and parks nothing. The entries of a copy are
        sent at once: one that is lost may leave those behind it (docs/limits.md).
        """
        cut = self.hit("truncate-log")
        if len(self.struck) < 2 or not (cut or self.hit("lost")):
            return set()
        kept = {r.key: r for n in range(self.settings.partitions) for r in self.broker.log(RUN_SNAPSHOT, n).records}
        holds = ((held_run(key), record.value) for key, record in kept.items())
        gap = GAP.partition(":")[0]
        held = {str(run) for run, value in holds if run and value and read_hold(run, value).reason == gap}
        return held if cut else {run for run in held if "-fork" in run}

    # Steps

    @property
    def forgot(self) -> bool:
        """True if the ledger may have lost whatever it knew: a mirror may have another one, a day ahead all is old."""
        return self.hit(*LOSES_LEDGER, "ledger-ahead") or bool(self.counts["mirrored.elsewhere"])

    def advance(self) -> None:
        """Goes to the next moment at which something is due."""
        due = [process.due_ms for process in self.groups.processes if process.state == "up"]
        if self._events:
            due.append(self._events[0][0])
        self.now_ms = max(self.now_ms + 1, min(due, default=self.now_ms + 1))
        self.fire()

    def round(self) -> bool:
        """Lets everybody who is up take a step, as chance has it in any order. False: nobody had anything to do."""
        self.fire()
        order, chance = list(self.groups.processes), self.chance
        if chance.wild:
            chance.rng.shuffle(order)
        acted = False
        for process in order:
            if process.state == "up" and self._step(process):
                acted = True
        if acted:
            self.now_ms += chance.rng.randrange(3) if chance.wild else 1
        return acted

    def _step(self, process: SimProcess) -> bool:
        if process.dazed and process.grasps():
            process.dazed = False
            if (stall := self._stall_ms(process, long=True)) > 0:
                self.groups.freeze(process, stall)
                return True
        if process.drained():
            self.groups.die(process)
            return True
        if not process.begins():
            return False
        while process.state == "up":
            act = process.act  # counted before, where it froze with it
            if act is None:
                act = process.proceed()
                if act is None:
                    break
                mode = self._boundary(process, act)
                if mode and self._strike(process, act, mode):
                    continue
            process.done(self._do(process, act))
        return True

    # Boundaries

    def _boundary(self, process: SimProcess, act: Act) -> str:
        """Counts a boundary; the fault that strikes there, if any."""
        self.kinds.append(act.kind)
        number = len(self.kinds)
        self.note(number, process.name, act.kind, act.detail)
        if self._snapping and number % 8 == 1:
            self._snapshots.append(self.ledger.snapshot())
        if act.kind == "publish" and act.what.topic == APPROVAL_DECIDED:
            partition = act.what.partition
            before = self.broker.log(APPROVAL_DECIDED, partition).read(0, process.read_upto.get(partition, 0))
            self.witness.approvals.decides(process.name, act.what, before)
        mode = self.faults.get(number, "")
        if mode and act.kind not in ("append", "publish", "ledger", "shelf") and mode not in modes_at(act.kind):
            return ""  # another fault came before it, and what lies here is of another kind by now
        return self.chance.strike(act.kind) if not mode and self.unsafe else mode

    def _strike(self, process: SimProcess, act: Act, mode: str) -> bool:
        """Lets a fault happen. True: the act is dealt with or the process is gone; False: it is to be carried out."""
        self.struck.append(f"{len(self.kinds)}:{mode}")
        self.struck_ms.append(self.now_ms)
        self.note("FAULT", mode)
        name, _, after = mode.partition("-")
        if mode == "freeze-read":
            process.dazed = True
            return False
        if name in ("freeze", "pause"):
            return self._strike_freeze(process, act, long=name == "freeze", after=bool(after))
        if name == "drain":
            self.groups.drain(process)
            return False
        if name in ("die", "away"):
            if after:
                process.done(self._do(process, act))
            self.groups.die(process, away_ms=self.settings.away_ms if name == "away" else 0)
            return True
        if name in ("lost", "unsure", "overdue", "delayed", "cut", "refuse", "belated"):
            process.done(self._uncertain(process, act, mode))
            return True
        self._strike_around(process, mode)
        if mode == "wipe-seen" and act.kind == "ledger":
            process.done(NO_REPLY)
            return True
        return process.state != "up"

    def _strike_freeze(self, process: SimProcess, act: Act, *, long: bool, after: bool) -> bool:
        if after:
            process.done(self._do(process, act))
        stall = self._stall_ms(process, long=long)
        if stall <= 0:
            return after
        self.groups.freeze(process, stall)
        return True

    def _stall_ms(self, process: SimProcess, *, long: bool) -> int:
        """How long a process stands still that freezes now; nothing, where it may not."""
        settings = self.settings
        stall = settings.zombie_ms if long else settings.pause_ms
        if long and self.chance.wild:
            stall = self.chance.rng.randrange(settings.session_ms // 2, settings.zombie_ms * 2)
        # No rule can help a process that stalls between its last look at the clock and the receiver for longer than
        # what is left of the lease, so none stalls that long here.
        started = min(process.checked_ms.values(), default=None)
        if started is not None:
            stall = min(stall, started + settings.pause_ms - self.now_ms)
        return stall

    def _uncertain(self, process: SimProcess, act: Act, mode: str) -> Any:
        if act.kind in ("ledger", "shelf"):
            if mode == "cut-after":
                self._do(process, act)
            self.counts["lost_replies"] += 1
            return NO_REPLY
        if mode == "refuse":
            return self._refuse(process, act)
        if mode in ("overdue", "belated") and act.kind == "publish":
            delivery = self._do(process, act) or Delivery(act.what.token, None)
            if mode == "overdue":
                self.uncertain.append(act.what.topic)
                delivery = delivery._replace(offset=None)
            self.at(self.settings.delay_ms, lambda: process.inbox.append(delivery))
            return UNHEARD
        self.uncertain.append(act.what.topic)
        if mode in ("unsure", "overdue"):
            self._do(process, act)
        elif mode == "delayed":
            self._delay(process, act.what)
        if act.kind == "append":
            self.counts["lost_acks"] += 1
        return None

    def _delay(self, process: SimProcess, record: Outgoing) -> None:
        """Has a record come later, and what the same turn writes behind it: a producer keeps their order."""
        process.delayed.add((record.topic, record.partition))
        self.witness.toil.stale(record.value)
        self.at(self.settings.delay_ms, partial(arrive, self, record, self.counts["mirrored"]))

    def _refuse(self, process: SimProcess, act: Act) -> Any:
        """Too large for its topic, if it may be: what the log once took it takes again, and marks are always small.

        So is an outcome that says no more than that it was too large.
        """
        record: Outgoing = act.what
        taken = any(before.key == record.key for before in self.witness.written.get(record.topic, ()))
        taken |= record.topic == RUN_COMPLETED and (RUN_COMPLETED, record.key.decode()) in self.refused
        if record.topic not in REFUSING or record.value is None or record.key == MARKS_KEY or taken:
            return self._do(process, act)
        self.refused.add((record.topic, record.key.decode()))
        return Delivery(record.token, NEVER)

    def _strike_around(self, process: SimProcess, mode: str) -> None:
        if mode.startswith("wipe"):
            self.ledger.wipe()
        elif mode.startswith("rollback") and self._snapshots:
            self.ledger.rollback(self._snapshots[-2] if len(self._snapshots) > 1 else self._snapshots[0])
        elif mode == "compact":
            self._compact()
        elif mode == "forget":
            self.broker.committed.clear()
        elif mode in ("visit", "move"):
            self.groups.visit(process, stays=mode == "move")
        elif mode in OPERATIONS:
            OPERATIONS[mode](self)
        elif mode in FORGETS:
            self._forget(FORGETS[mode])
            self.at(self.settings.visit_ms, self.groups.die_all)
        if mode in ("power", "forget"):
            self.groups.die_all()
        elif mode.endswith("-die"):
            self.groups.die(process)

    def _forget(self, topic: str) -> None:
        for group in self.broker.committed.values():
            for place in [place for place in group if place[0] == topic]:
                del group[place]

    def _compact(self) -> None:
        """Compacts every topic: inputs as far as they are settled, which is what a minimum lag is for, others whole."""
        settled = self.broker.committed.get("refold-planner", {})
        for topic in (each for each in SIM_TOPICS if each != CATALOG):  # that is never cleaned
            for partition in range(self.settings.partitions):
                below = settled.get((topic, partition), 0) if topic in INPUTS else None
                self.counts["compacted"] += self.broker.compact(topic, partition, below=below)
                if below and kind_of(topic) == TOOL_COMPLETED:
                    self.counts["results.expired"] += 1
                    self.broker.delete(topic, partition, below=below)

    # What acts do

    def _do(self, process: SimProcess, act: Act) -> Any:
        """Carries an act out and gives its answer."""
        kind, what = act.kind, act.what
        if kind in ("append", "publish"):
            self.witness.begun.writes(process.name, what)
            self.witness.history.limits.dazed = self.erasures.dazed = process.stood_still
            if process.stood_still:
                self.witness.toil.stale(what.value)
            if (what.topic, what.partition) in process.delayed:
                return self._delay(process, what)
            return self.broker.write(what)
        if kind == "ledger":
            if isinstance(what, Claim):
                self._check_claim(process, what)
            reply = self.ledger.run([what])[0]
            if isinstance(what, Lapsed) and isinstance(reply, list) and what.heir and process.stood_still:
                entries = self.ledger.entries()
                found = [entries[what.home, what.pool, str(key)] for key, _ in reply]
                self.witness.toil.usurped.update(each.call for each in found if inherits(what.heir, each.owner))
            self.witness.begun.answers(process.name, what, reply, self.now_ms)
            if isinstance(what, Claim) and isinstance(reply, Stored):
                self.witness.stored.add(what.key)
            if self.forgot:
                self.witness.leases.forgets()
            else:
                self.witness.leases.answers(process.membership.member, what, reply, now_ms=self.now_ms)
            return reply
        if kind == "commit":
            self._commit(process, what.positions)
        elif kind == "end":
            return self.broker.log(what.topic, what.partition).end
        elif kind == "committed":
            known = self.broker.committed.get(what.group, {})
            return {number: at for (topic, number), at in known.items() if topic == what.topic}
        elif kind == "start":
            if not what.probe and what.request.tool in FACTS:
                self._check_start(process, what)
            self.tools.start(self, process, what)
        elif kind == "stop":
            self.tools.stop(self, process, what)
        elif kind == "blob":
            self._ask_store(process, what)
        elif kind == "shelf":
            return what()
        elif kind == "leave":
            self.groups.depart(process)
        else:
            what()
        return None

    def _check_claim(self, process: SimProcess, what: Claim) -> None:
        read, known = self._read_of(process, what.home, what.call), (what.home, what.pool, what.key)
        self.witness.claims_it(what, read, known=known in self.ledger.entries(), now_ms=self.now_ms)

    def _ask_store(self, process: SimProcess, order: LoadBlob | SaveBlob) -> None:
        """The store answers later, in any order, and does what was asked whether or not anybody hears of it."""
        chance = self.chance
        delay = chance.rng.choice((1, ANSWERS_MS, AWAY_MS)) if chance.wild else ANSWERS_MS
        self.counts["blobs.kept" if isinstance(order, SaveBlob) else "blobs.read"] += 1
        self.at(delay, lambda: process.inbox.append(self.store.answer(order)))

    def _commit(self, process: SimProcess, positions: Mapping[tuple[str, int], int]) -> None:
        """Takes positions from owners, and from zombies where they go forward, which is what could do harm."""
        group = self.broker.committed.setdefault(process.membership.group, {})
        owners = self.groups.owners[process.role]
        for place, position in positions.items():
            before = group.get(place, 0)
            if place[0] == ORDERS:
                log = self.broker.log(*place).records
                self.witness.commits(log, before, position, now_ms=self.now_ms)
            elif place[0] in FROM_USERS and not self.counts["truncated"]:
                self.witness.settles(self.broker.log(*place).read(before, position), self.settings.partitions)
            if owners[place[1]] is process or position > before:
                group[place] = position

    def _read_of(self, process: SimProcess, place: int, call: str) -> list[Record]:
        """What a process has read about a call, since it has its partition."""
        mine = process.cursors.find(ORDERS, place)
        read = mine.log.read(process.read_from[ORDERS, place], mine.position) if mine else []
        return [record for record in read if record.key == call.encode()]

    def _check_start(self, process: SimProcess, order: StartTool) -> None:
        """A tool begins: is it allowed to?"""
        ask = order.request
        self.note("tool", process.name, ask.call_id, ask.attempt)
        if process.role == "other":
            self.witness.approvals.wrong.append(f"danger: {ask.call_id} begins in another pool than its own")
        place = home(ask.run_id, self.settings.partitions)
        self.witness.starts(ask, looked=process.looked.pop(order.number))
        # What its process has read of the catalog is what it may rest on; of a partition that it lost, anything.
        catalog, approvals = process.cursors.find(CATALOG, place), self.witness.approvals
        law = approvals.laws.known(place, catalog.position) if catalog else None
        clock = process.checked_ms.get(order.number, self.now_ms)
        if FACTS[ask.tool].effect == "once" and self.receiver.happened(ask.key) is not None:
            approvals.repeats(ask, partition=place)
        approvals.begins(ask, partition=place, law=law, now_ms=clock)
        read = self._read_of(process, place, ask.call_id)
        self.witness.toil.starts(order, read, expelled_at_ms=process.expelled_at_ms)
        self._check_beginning(process, order, place, clock)
        if self.forgot:
            return
        # A claimant that was frozen and lost its lease may act without an entry where it is the first in the chain.
        passed = ask.effect in CLAIMED_EFFECTS and self.hit("freeze")
        known = passed or (place, POOL, ask.key) in self.ledger.entries()
        self.witness.starts_by_ledger(ask, known=known, read=read)

    def _check_beginning(self, process: SimProcess, order: StartTool, place: int, checked_ms: int) -> None:
        """A tool begins: by an order that stands, and in time?"""
        ask, begun = order.request, self.witness.begun
        if mine := process.cursors.find(ORDERS, place):
            lying = mine.log.read(mine.log.start, mine.position)
            begun.goes_by(ask, [record for record in lying if record.key == ask.call_id.encode()])
        run = self.witness.history.runs.get(ask.run_id)
        begun.outlives(ask, run.call(ask.call_id) if run else None, self.now_ms, self.struck)
        if order.number in process.checked_ms:
            effect = FACTS[ask.tool].effect
            lease_ms, chained = process.lease_ms(ask.tool, effect), effect in CLAIMED_EFFECTS
            begun.starts(process.name, ask, chained=chained, checked_ms=checked_ms, lease_ms=lease_ms)
