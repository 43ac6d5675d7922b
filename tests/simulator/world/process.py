"""A simulated process: services and what carries their effects out, one boundary at a time.

It does what `engine.runtime.host` does in production. It can die at any boundary, and it can freeze there and go on
later with what it was about to do, as if nothing had happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import fields as fields_of
from typing import Any, NamedTuple

from refold.core.events import Cause, Entry
from refold.core.ids import home, parse_log_key
from refold.core.run.log import LogFold
from refold.core.run.state import RunState
from refold.core.topics import APPROVAL_DECIDED, CATALOG, RUN_LOG
from refold.core.wire import codec
from refold.engine.adapters.memory.log import Cursors
from refold.engine.executor.service import Executor
from refold.engine.planner.service import Planner
from refold.engine.ports import effects
from refold.engine.ports.ledger import Reply
from refold.engine.ports.log import Assigned, Delivery, End, Membership, Outgoing, Place, Record, Revoked, Taken
from tests.simulator.settings import Role
from tests.simulator.world.surroundings import Surroundings

_REFUSED = {
    **dict.fromkeys(("call.unauthorised", "call.refused", "request.void", "unauthorised"), "reason"),
    **dict.fromkeys(("ledger.unreadable", "catalog.void"), "reason"),
    **dict.fromkeys(("vote.void", "input.dead"), "code"),
    "question.second": "",
}
"""What services say when they put something away, and which part of it says why."""

_SAID_OF_CALLS = ("call.unauthorised", "call.refused")
_DIGITS = re.compile(r"\d+")
DAY_MS = 86_400_000
LEAVING_MS = 20
"""How long a process idles that is told to end."""

NO_REPLY = object()
"""The answer to a ledger operation that did not come."""

UNHEARD = object()
"""The answer for a record that comes later by itself."""


_STATE = [each.name for each in fields_of(RunState)]


class Act(NamedTuple):
    """Something that a process is about to do: a boundary."""

    kind: str
    what: Any
    detail: object


Carrying = Generator[Act, Any, None]

_ACTS: dict[type[effects.Effect], tuple[str, Callable[[Any], object]]] = {
    effects.Commit: ("commit", lambda effect: sorted(effect.positions.items())),
    effects.StartTool: ("start", lambda e: (e.number, e.request.call_id, e.request.attempt, e.probe)),
    effects.StopTool: ("stop", lambda effect: (effect.number, effect.reason)),
    effects.LoadBlob: ("blob", lambda effect: ("LoadBlob", effect.number)),
    effects.SaveBlob: ("blob", lambda effect: ("SaveBlob", effect.number)),
    effects.Leave: ("leave", lambda effect: None),
}
"""Effects that nothing follows from at once: the kind of the act, and its detail."""


def _entry_cause(record: Outgoing) -> Cause | None:
    """The input that an entry of the run log answers."""
    is_entry = record.topic == RUN_LOG and record.value and parse_log_key(record.key)
    return codec.decode(Entry, record.value or b"").cause if is_entry else None


class SimProcess:
    """A process of one role. `cursors` are those of its partitions, whether they are still its own or not.

    `read_upto` is, by partition, up to where it has to read the decisions before it makes any; `looked`, by attempt,
    where the run log ended when it ordered the tool to start; `read_from`, by topic and partition, from where it has
    read since the partition is its own. `act` is what it is about to do, `due_ms` when it wants to be called though
    nothing came. `delayed` are places where a record of this turn comes later. `stood_still`: it froze in the middle of
    this turn, or for so long that its group expelled it (`expelled_at_ms`), and it does not know; `dazed`: it will
    freeze, with the next records that it reads in its hands. `leave_by_ms`: it was told to end, and is gone by then.
    """

    def __init__(
        self, world: Surroundings, role: Role, name: str, *, services: Sequence[effects.Service], membership: Membership
    ) -> None:
        self.world, self.role, self.name = world, role, name
        self.services, self.membership = services, membership
        self.state = "up"
        self.stood_still = self.dazed = False
        self.expelled_at_ms: int | None = None
        self._held: list[effects.Item] = []
        self.cursors = Cursors(world.broker, membership, world.chance.fetch)
        self.answers: list[effects.Item] = []
        self.inbox: list[effects.Item] = []
        self.rebalances: list[Assigned | Revoked] = []
        self.tool_acts: list[Act] = []
        self.checked_ms: dict[int, int] = {}
        self.looked: dict[int, int] = {}
        self.read_upto: dict[int, int] = {}
        self.read_from: dict[Place, int] = {}
        self.decided: dict[tuple[int, int], int] = {}  # decisions that it took, and where the catalog ended by then
        self.skew_ms = 0
        self._born_ms = world.now_ms
        self.delayed: set[tuple[str, int]] = set()
        self._carrying: Carrying | None = None
        self.act: Act | None = None
        self._reply: Any = None
        self.due_ms = self.leave_by_ms = 0

    # Membership

    def assign(self, partition: int) -> None:
        """Gives it a partition, with positions and ends as they are now."""
        self.expelled_at_ms = None
        given = self.cursors.capture(partition, self.world.broker.committed.get(self.membership.group, {}))
        self.read_upto[partition] = given.ends.get(APPROVAL_DECIDED, 0)
        self.rebalances.append(given)

    # One step

    def begins(self) -> bool:
        """Takes a turn, unless it is still at what it was doing when it froze. False: there is nothing to do."""
        if self._carrying is not None:
            return True
        if self.tool_acts:
            acts, self.tool_acts = self.tool_acts, []
            self._carrying, self._reply = (act for act in acts), None
            return True
        self.stood_still = self.stood_still and (bool(self._held) or self.expelled_at_ms is not None)
        inbox, self._held = self._held or self._take(), []
        self.delayed.clear()
        now = self.world.now_ms
        if not inbox and now < self.due_ms:
            return False
        wall = now + (self.skew_ms if self.role in ("executor", "other") else self._jump_ms(now))
        orders = self._turn(inbox, effects.Now(wall, now - self._born_ms + 1))
        self._carrying, self._reply = self._carry(orders), None
        return True

    def drained(self) -> bool:
        """Whether it was told to end and does so now; else its services are asked again after a turn."""
        if not self.leave_by_ms or self._carrying is not None or self.tool_acts:
            return False
        self.due_ms = min(self.due_ms, self.world.now_ms)
        said = [service.drain() for service in self.services]
        if not all(said) and self.world.now_ms >= self.leave_by_ms:
            self.world.counts["drains_cut_short"] += 1
            return True
        return all(said)

    def grasps(self) -> bool:
        """Reads, before a turn; whether there were records."""
        if self._carrying is None and not self.tool_acts and not self._held:
            self._held = self._take()
        return any(isinstance(item, Record) for item in self._held)

    def _jump_ms(self, now: int) -> int:
        """The clock of this machine is days wrong, jumps, and runs backwards: only the broker's may decide anything."""
        return (now // 100 % 13 - 6) * DAY_MS

    def proceed(self) -> Act | None:
        """What it is about to do next; None: its turn is over."""
        assert self._carrying is not None, "only what was begun goes on"
        try:
            self.act = self._carrying.send(self._reply)
        except StopIteration:
            self._carrying = None
        return self.act

    def done(self, reply: Any) -> None:
        """What it was about to do is done, by itself or by whoever struck: this is the answer."""
        self.act, self._reply = None, reply

    def _turn(self, inbox: list[effects.Item], now: effects.Now) -> list[effects.Effect]:
        orders: list[effects.Effect] = []
        for service in self.services:
            orders += service.turn(inbox, now)
            if isinstance(service, Planner):
                self._by_the_catalog_of_its_time(service, inbox, orders)
            for name, fields in service.news:
                if name == "lane.live" and isinstance(service, Planner):
                    self._compare(service, int(str(fields["partition"])))
                if name in _REFUSED:
                    why = _DIGITS.sub("N", str(fields.get(_REFUSED[name], "")))
                    self.world.counts[f"refused: {why if name in _SAID_OF_CALLS else f'{name}: {why}'}"] += 1
            service.news.clear()
        self._tools_first(orders)
        for effect in orders:
            if isinstance(effect, effects.StartTool) and not effect.probe:
                place = home(effect.request.run_id, self.world.settings.partitions)
                self.looked[effect.number] = self.world.broker.log(RUN_LOG, place).end
                if effect.request.effect != "pure":
                    self.checked_ms[effect.number] = self.world.now_ms
        due = [self._born_ms - 1 + due for service in self.services if (due := service.next_due_ms()) is not None]
        idle_ms = LEAVING_MS if self.leave_by_ms else self.world.settings.idle_ms
        self.due_ms = min([*due, self.world.now_ms + idle_ms])
        return orders

    def _tools_first(self, orders: list[effects.Effect]) -> None:
        """Nothing that may wait comes between the last look at the clock and a tool."""
        waits = False
        for effect in orders:
            waits |= isinstance(effect, effects.AskLedger | effects.Append | effects.Publish)
            if isinstance(effect, effects.StartTool):
                self.world.counts["rule: tools come first"] += 1
                if waits:
                    self.world.witness.differs(f"waits: {self.name} starts a tool behind what may wait")

    def _by_the_catalog_of_its_time(
        self, planner: Planner, inbox: Sequence[effects.Item], orders: Sequence[effects.Effect]
    ) -> None:
        """A decision is judged by a catalog that was read to an end captured after the decision was taken."""
        for item in inbox:
            if isinstance(item, Record) and item.topic == APPROVAL_DECIDED:
                self.decided[item.partition, item.offset] = self.world.broker.log(CATALOG, item.partition).end
        if not self.decided:
            return
        for record in (each for effect in orders if isinstance(effect, effects.Publish) for each in effect.records):
            cause = _entry_cause(record)
            if cause and cause.topic == APPROVAL_DECIDED:
                self.world.counts["rule: a decision is judged by the catalog of its time"] += 1
                lane, end = planner.lanes.get(cause.partition), self.decided.get((cause.partition, cause.offset), 0)
                if lane and lane._catalog.position < end:
                    self.world.witness.differs(f"catalog: {self.name} judges a decision by what was published before")

    def _compare(self, planner: Planner, partition: int) -> None:
        """What a planner has of its runs when it is live is what the log has of them: purse, mailbox and all."""
        lane, log, twin = planner.lanes.get(partition), self.world.broker.log(RUN_LOG, partition), LogFold()
        if lane is None or lane.log.position > log.end:
            return  # the log has lost what it has just read
        for record in log.read(0, lane.log.position):
            twin.feed(record.key, record.value, shared=True, offset=record.offset, at_ms=record.at_ms)
        twin.settle()
        for run, state in lane.log.fold.states.items():
            known = twin.states.get(run)
            if state.over or run in twin.frozen or run in lane.log.fold.frozen or known is None:
                continue
            self.world.counts["twins"] += 1
            if known.digest() != state.digest():
                differ = [name for name in _STATE if getattr(known, name) != getattr(state, name)]
                self.world.witness.differs(f"fold: {self.name} is live with another {', '.join(differ)} of run {run}")

    @property
    def quiet(self) -> bool:
        """Whether nothing waits for it."""
        if self._carrying or self._held or self.answers or self.inbox or self.rebalances or self.tool_acts:
            return False
        return self.cursors.at_end

    def lease_ms(self, tool: str, effect: str) -> int:
        """The lease that its executor asks for."""
        (executor,) = (service for service in self.services if isinstance(service, Executor))
        return executor._settings.times.lease(tool, effect)

    def stop(self) -> None:
        """It is gone: nothing of it goes on."""

    # What comes in

    def _take(self) -> list[effects.Item]:
        if self.answers:
            answers, self.answers = self.answers, []
            return answers
        if not (self.inbox or self.rebalances or self.cursors.waiting()):
            return []
        taken, self.rebalances = Taken(rebalances=self.rebalances), []
        for change in taken.rebalances:
            self.cursors.apply(change)
            if isinstance(change, Assigned):
                self.read_from = {place: at for place, at in self.read_from.items() if place[1] != change.partition}
        self.cursors.read(taken)
        came, self.inbox = self.inbox, []
        first = came if self._answers_first() else []
        return [*taken.rebalances, *first, *taken.records, *taken.reached, *taken.shrunk, *([] if first else came)]

    def _answers_first(self) -> bool:
        """Whether a planner of a wild world hears what became of its entries before it reads them."""
        chance = self.world.chance
        return self.role == "planner" and chance.wild and chance.rng.random() < 0.5

    # What goes out

    def _carry(self, orders: list[effects.Effect]) -> Carrying:
        for effect in orders:
            if isinstance(effect, effects.Append | effects.Publish):
                kind = "append" if isinstance(effect, effects.Append) else "publish"
                for record in effect.records:
                    delivery = yield Act(kind, record, (record.topic, record.partition, record.key))
                    if delivery is not UNHEARD:
                        self._deliver(delivery or Delivery(record.token, None), prompt=self._is_prompt(kind, record))
            elif isinstance(effect, effects.AskLedger):
                yield from self._ask(effect)
            elif isinstance(effect, effects.AskEnd):
                end = yield Act("end", effect, effect.partition)
                self.answers.append(End(effect.topic, effect.partition, end))
            elif isinstance(effect, effects.AskCommitted):
                positions = yield Act("committed", effect, (effect.group, effect.topic))
                self.answers.append(effects.CommittedAt(effect.group, effect.topic, positions))
            elif type(effect) in _ACTS:
                kind, told = _ACTS[type(effect)]
                yield Act(kind, effect, told(effect))
            else:
                self._steer(effect)

    def _steer(self, effect: effects.Effect) -> None:
        """What is read from now on: no fault comes between."""
        if isinstance(effect, effects.Read):
            self.cursors.start(*effect)
            place = effect.topic, effect.partition
            self.read_from[place] = min(self.read_from.get(place, effect.offset), effect.offset)
        elif isinstance(effect, effects.Look):
            found = self.world.broker.log(effect.topic, effect.partition).read(effect.offset, effect.offset + 1)
            self.answers.append(effects.Looked(*effect, found[0] if found else None))
        elif isinstance(effect, effects.Reopen):
            if effect.partition in self.cursors.partitions:
                self.rebalances.append(Revoked(effect.partition))
                self.assign(effect.partition)
        elif isinstance(effect, effects.Flow):
            self.cursors.flow(effect.topic, effect.partition, paused=effect.action == "pause")

    def _is_prompt(self, kind: str, record: Outgoing) -> bool:
        """Whether it hears of a record before anything else: of what it waits for, and in a tame world of entries."""
        tame = not self.world.chance.wild and record.topic == RUN_LOG and record.awaited
        return kind == "append" or (tame and record.value is not None)

    def _deliver(self, delivery: Delivery, *, prompt: bool) -> None:
        """Hears what became of a record: at once, with what it reads next, or in a wild world sometimes later."""
        world, chance = self.world, self.world.chance
        if prompt:
            self.answers.append(delivery)
            return
        if delivery.offset is None:
            world.counts["lost_acks"] += 1
        if chance.wild and chance.rng.random() < 0.2:
            world.at(chance.rng.randrange(50), lambda: self.inbox.append(delivery))
        else:
            self.inbox.append(delivery)

    def _ask(self, effect: effects.AskLedger) -> Carrying:
        replies: list[Reply] = []
        for operation in effect.operations:
            reply = yield Act("ledger", operation, (type(operation).__name__, *operation[2:5]))
            if reply is NO_REPLY:
                self.answers.append(effects.Answers(effect.batch, None))
                return
            replies.append(reply)
        self.answers.append(effects.Answers(effect.batch, replies))
