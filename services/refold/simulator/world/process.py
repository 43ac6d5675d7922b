"""A simulated process: services and what carries their effects out, one boundary at a time.

It does what `runtime.host` does in production. It can die at any boundary, and it can freeze there and go on later with
what it was about to do, as if nothing had happened.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from refold.adapters.memory.log import Partition
from refold.core.topics import APPROVAL_DECIDED
from refold.ports.effects import (
    Answers,
    Append,
    AskEnd,
    AskLedger,
    Commit,
    Effect,
    Flow,
    Item,
    Now,
    Publish,
    Service,
    StartTool,
    StopTool,
)
from refold.ports.ledger import Reply
from refold.ports.log import Assigned, Delivery, End, Membership, Outgoing, Reached, Revoked

if TYPE_CHECKING:
    from refold.simulator.world.world import World

ALARMS = ("call.unauthorised", "call.refused")
_DIGITS = re.compile(r"\d+")
UNREACHABLE = object()
"""The answer to a ledger operation that did not come."""


class Act(NamedTuple):
    """Something that a process is about to do: a boundary."""

    kind: str
    what: Any
    detail: object


Carrying = Generator[Act, Any, None]


@dataclass(slots=True, eq=False)
class Cursor:
    """Where a process reads in a partition. `reach`: an end that it wants to hear of; `holes`: of later ones too."""

    topic: str
    partition: int
    log: Partition
    position: int
    reach: int | None = None
    holes: bool = False
    paused: bool = False


class Process:
    """A process of one role. `cursors` are those of its partitions, whether they are still its own or not.

    `read_upto` is, by partition, up to where it has to read the decisions before it makes any; `looked`, by attempt,
    where the run log ended when it ordered the tool to start.
    """

    def __init__(self, world: World, name: str, services: Sequence[Service], membership: Membership) -> None:
        self.world, self.name, self.services, self.membership = world, name, services, membership
        self.state = "up"
        self.cursors: list[Cursor] = []
        self.answers: list[Item] = []
        self.inbox: list[Item] = []
        self.rebalances: list[Assigned | Revoked] = []
        self.tool_acts: list[Act] = []
        self.checked_ms: dict[int, int] = {}
        self.looked: dict[int, int] = {}
        self.read_upto: dict[int, int] = {}
        self.skew_ms = 0
        self._born_ms = world.now_ms
        self._carrying: Carrying | None = None
        self._act: Act | None = None
        self._reply: Any = None
        self._due_ms = 0

    # Membership

    def assign(self, partition: int) -> None:
        """Gives it a partition, with positions and ends as they are now."""
        broker, member = self.world.broker, self.membership
        committed = broker.committed.get(member.group, {})
        known = {topic: offset for (topic, number), offset in committed.items() if number == partition}
        ends = {topic: broker.log(topic, partition).end for topic in member.replay}
        self.read_upto[partition] = ends.get(APPROVAL_DECIDED, 0)
        self.rebalances.append(Assigned(partition, known, ends))

    def revoke(self, partition: int) -> None:
        """Tells it that a partition is another's."""
        self.rebalances.append(Revoked(partition))

    # One step

    def next_due_ms(self) -> int:
        """When it wants to be called though nothing came."""
        return self._due_ms

    def step(self) -> bool:
        """Takes a turn, or goes on with what it was doing when it froze. False: there was nothing to do."""
        if self._carrying is None:
            if self.tool_acts:
                acts, self.tool_acts = self.tool_acts, []
                self._carrying, self._reply = self._tools(acts), None
            else:
                inbox = self._take()
                now = self.world.now_ms
                if not inbox and now < self._due_ms:
                    return False
                effects = self._turn(inbox, Now(now + self.skew_ms, now - self._born_ms + 1))
                self._carrying, self._reply = self._carry(effects), None
        self._drive()
        return True

    def _turn(self, inbox: list[Item], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for service in self.services:
            effects += service.turn(inbox, now)
            for name, fields in service.news:
                if name in ALARMS and "tool" in fields:
                    self.world.counts[f"refused: {_DIGITS.sub('N', str(fields['reason']))}"] += 1
            service.news.clear()
        for effect in effects:
            if isinstance(effect, StartTool) and not effect.probe:
                self.looked[effect.number] = self.world.log_end(effect.request.run_id)
                if effect.request.effect != "pure":
                    self.checked_ms[effect.number] = self.world.now_ms
        due = [due - self.skew_ms for service in self.services if (due := service.next_due_ms()) is not None]
        self._due_ms = min([*due, self.world.now_ms + self.world.settings.idle_ms])
        return effects

    def _drive(self) -> None:
        assert self._carrying is not None, "only what was begun goes on"
        world = self.world
        while self.state == "up":
            if self._act is None:
                try:
                    self._act = self._carrying.send(self._reply)
                except StopIteration:
                    self._carrying = None
                    return
                mode = world.boundary(self, self._act)
                if mode and world.strike(self, self._act, mode):
                    continue
            act, self._act = self._act, None
            self._reply = world.do(self, act)

    def done(self, reply: Any) -> None:
        """The pending act was carried out by whoever struck: this is its answer."""
        self._act, self._reply = None, reply

    @property
    def quiet(self) -> bool:
        """Whether nothing waits for it."""
        if self._carrying or self.answers or self.inbox or self.rebalances or self.tool_acts:
            return False
        return all(cursor.position >= cursor.log.end for cursor in self.cursors)

    # What comes in

    def _take(self) -> list[Item]:
        if self.answers:
            found, self.answers = self.answers, []
            return found
        items: list[Item] = []
        reached: list[Item] = []
        if self.rebalances:
            items += self.rebalances
            for change in self.rebalances:
                self._rebalanced(change)
            self.rebalances = []
        for cursor in self.cursors:
            if cursor.position < cursor.log.end and not cursor.paused:
                self._read(cursor, items, reached)
            elif cursor.reach is not None and cursor.position >= cursor.reach:
                reached.append(Reached(cursor.topic, cursor.partition, cursor.position))
                cursor.reach = None
        items += reached
        if self.inbox:
            items += self.inbox
            self.inbox = []
        return items

    def _read(self, cursor: Cursor, items: list[Item], reached: list[Item]) -> None:
        upto = self.world.fetch(cursor.position, cursor.log.end)
        found = [r for r in cursor.log.read(cursor.position, upto - cursor.position) if r.offset < upto]
        items += found
        cursor.position = upto
        hole = cursor.holes and (not found or found[-1].offset + 1 < upto)
        if hole or (cursor.reach is not None and upto >= cursor.reach):
            reached.append(Reached(cursor.topic, cursor.partition, upto))
        if cursor.reach is not None and upto >= cursor.reach:
            cursor.reach = None

    def _rebalanced(self, change: Assigned | Revoked) -> None:
        partition, member = change.partition, self.membership
        if isinstance(change, Revoked):
            self.cursors = [cursor for cursor in self.cursors if cursor.partition != partition]
            return
        log = self.world.broker.log
        for topic in (each for each in (member.subscribe, *member.resume) if each not in member.replay):
            self.cursors.append(Cursor(topic, partition, log(topic, partition), change.committed.get(topic, 0)))
        for topic in member.replay:
            self.cursors.append(Cursor(topic, partition, log(topic, partition), 0, change.ends[topic], holes=True))

    # What goes out

    def _tools(self, acts: list[Act]) -> Carrying:
        yield from acts

    def _carry(self, effects: list[Effect]) -> Carrying:
        for effect in effects:
            if isinstance(effect, Append):
                deliveries = []
                for record in effect.records:
                    deliveries.append(Delivery(record.token, (yield _write("append", record))))
                self.answers += deliveries
            elif isinstance(effect, Publish):
                for record in effect.records:
                    self.world.deliver(self, Delivery(record.token, (yield _write("publish", record))))
            elif isinstance(effect, AskLedger):
                yield from self._ask(effect)
            elif isinstance(effect, AskEnd):
                end = yield Act("end", effect, effect.partition)
                self.answers.append(End(effect.topic, effect.partition, end))
            elif isinstance(effect, Commit):
                yield Act("commit", effect, sorted(effect.positions.items()))
            elif isinstance(effect, StartTool):
                yield Act(
                    "start", effect, (effect.number, effect.request.call_id, effect.request.attempt, effect.probe)
                )
            elif isinstance(effect, StopTool):
                yield Act("stop", effect, (effect.number, effect.reason))
            elif isinstance(effect, Flow):
                for cursor in self.cursors:
                    if (cursor.topic, cursor.partition) == (effect.topic, effect.partition):
                        cursor.paused = effect.action == "pause"

    def _ask(self, effect: AskLedger) -> Carrying:
        replies: list[Reply] = []
        for operation in effect.operations:
            reply = yield Act("ledger", operation, (type(operation).__name__, *operation[2:5]))
            if reply is UNREACHABLE:
                self.answers.append(Answers(effect.batch, None))
                return
            replies.append(reply)
        self.answers.append(Answers(effect.batch, replies))


def _write(kind: str, record: Outgoing) -> Act:
    return Act(kind, record, (record.topic, record.partition, record.key))
