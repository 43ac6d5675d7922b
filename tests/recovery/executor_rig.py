"""An executor and its relay on the ledger in memory: a log that writes what they append, tools that only begin."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from refold.core.errors import UnreachableError
from refold.core.ids import CallId
from refold.core.messages import ToolRequest, ToolResult
from refold.core.topics import tool_claimed, tool_completed
from refold.core.wire import codec
from refold.core.wire.headers import CALL_KEY
from refold.core.wire.seal import OrderPlace
from refold.engine.executor.service import Executor
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports.effects import (
    Answers,
    Append,
    AskLedger,
    Commit,
    Effect,
    Item,
    Look,
    Looked,
    Now,
    Publish,
    Read,
    StartTool,
    ToolEnded,
)
from refold.engine.ports.ledger import Ledger
from refold.engine.ports.log import NEVER, Assigned, Delivery, Headers, Outgoing, Record, Revoked
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from tests.simulator.world.open_ledger import OpenLedger

ORDERS, CLAIMS, ANSWERS = "tool-requested.default", tool_claimed("default"), tool_completed("default")


_RIGS = count(1)
"""No two processes draw the same ids."""


@dataclass
class Rig:
    """One partition, one process. `turn` goes on until nothing more is to be done at this moment.

    `shared` is a real ledger in the place of that in memory. While it is `silent` the log says nothing of what is
    published, until it is `heard`. `log` has what was ordered, by offset, as far as nobody cleans it. While it is
    `blind` claims are written and not read.
    """

    settings: ExecutorSettings = field(default_factory=ExecutorSettings)
    largest: int = 1 << 20
    home: int = 0
    shared: Ledger | None = None

    def __post_init__(self) -> None:
        numbers = count(1)
        own = next(_RIGS)
        names = (f"id-{own}-{number}" for number in count(1))
        self.now_ms = 1_000_000
        self.ledger = OpenLedger(lambda: self.now_ms)
        self.unreachable = 0
        self.silent = self.blind = False
        self.unheard: list[Outgoing] = []
        self.relay = Relay(RelaySettings(seal=self.settings.seal), token=lambda: next(numbers))
        self.executor = Executor(self.settings, self.relay, token=lambda: next(numbers), fresh=lambda: next(names))
        self.started: list[StartTool] = []
        self.results: list[ToolResult] = []
        self.claims: list[Outgoing] = []
        self.reads: list[Read] = []
        self.commits: dict[tuple[str, int], int] = {}
        self.log: dict[int, Record] = {}
        self.orders = count(0)
        self.assign()

    def assign(self, *, committed: int | None = None, end: int = 0) -> None:
        """The partition is this process's, as others have left it. `reads` are those that follow."""
        at = {} if committed is None else {ORDERS: committed}
        self.turn(Assigned(self.home, at, {}, {CLAIMS: len(self.claims), "catalog": 0, ORDERS: end}))
        self.reads.clear()

    def successor(self, member: str = "the next", lock_id: str = "") -> Rig:
        """The process that has the partition next: the same ledger, the same log, and the time of this one."""
        other = Rig(replace(self.settings, member=member, lock_id=lock_id), home=self.home)
        other.turn(Revoked(self.home))
        other.now_ms, other.log, other.claims, other.orders = self.now_ms, self.log, self.claims, self.orders
        other.ledger = self.ledger
        self.ledger._clock = lambda: max(self.now_ms, other.now_ms)
        committed = self.commits.get((ORDERS, self.home), 0)
        other.assign(committed=committed, end=max(self.log, default=-1) + 1)
        other.turn(*[record for offset in range(len(self.claims)) for record in other._claimed(offset)])
        for _ in "12":  # the scan, and what is open once more
            other.turn(*[record for offset, record in sorted(self.log.items()) if offset >= committed])
        other.turn(after_ms=200)
        return other

    def turn(self, *inbox: Item, after_ms: int = 10) -> list[Effect]:
        """What was ordered, in this turn and in those that the answers caused."""
        self.now_ms += after_ms
        items, done = list(inbox), list[Effect]()
        for _ in range(50):
            now = Now(self.now_ms, self.now_ms)
            orders = [*self.executor.turn(items, now), *self.relay.turn(items, now)]
            done += orders
            items = [item for order in orders for item in self._carry_out(order)]
            if not items:
                return done
        raise AssertionError("it never rests")

    def ask(self, request: ToolRequest, *, offset: int | None = None) -> None:
        """A request comes."""
        at = next(self.orders) if offset is None else offset
        value = codec.encode(request)
        self.log[at] = Record(ORDERS, self.home, at, request.call_id.encode(), value, lambda: None, self.now_ms)
        self.turn(self.log[at])

    def order(self, request: ToolRequest, *, offset: int | None = None) -> bytes:
        """What a predecessor has left in the ledger for an order that is in the log."""
        at = next(self.orders) if offset is None else offset
        name, value = request.call_id.encode(), codec.encode(request)
        self.log[at] = Record(ORDERS, self.home, at, name, value, lambda: None, self.now_ms)
        return self.settings.seal.close_order(self.home, request.key, OrderPlace(request.call_id, request.attempt, at))

    def close(self, request: ToolRequest, *, named: bool = True) -> None:
        """The tombstone of a call comes, and what it closes is closed."""
        headers: Headers = [(CALL_KEY, request.key.encode())] if named else []
        self.turn(Record(ORDERS, self.home, next(self.orders), request.call_id.encode(), None, lambda: headers))
        self.turn(after_ms=self.settings.close_ms)

    def end(self, status: str = "completed", result: str = "", message: str = "") -> None:
        """The tool that began last ends."""
        self.turn(ToolEnded(self.started[-1].number, status, result, message=message))
        self.turn(after_ms=300)  # what is published leaves the outbox

    def heard(self) -> None:
        """The log has taken what was published meanwhile."""
        self.silent, records, self.unheard = False, self.unheard, []
        self.turn(*[self._publish(record, offset) for offset, record in enumerate(records)])

    def told(self, call: CallId) -> list[ToolResult]:
        """What was said of a call."""
        return [result for result in self.results if result.call_id == call]

    def _carry_out(self, order: Effect) -> list[Item]:
        if isinstance(order, AskLedger):
            try:
                return [Answers(order.batch, (self.shared or self.ledger).run(order.operations))]
            except UnreachableError:
                self.unreachable += 1
                return [Answers(order.batch, None)]
        if isinstance(order, Append):
            items: list[Item] = []
            for record in order.records:
                self.claims.append(record)
                offset = len(self.claims) - 1
                items.append(Delivery(record.token, offset, self.now_ms))
                items += [] if self.blind else self._claimed(offset)
            return items
        if isinstance(order, Publish):
            if self.silent:
                self.unheard += order.records
                return []
            return [self._publish(record, offset) for offset, record in enumerate(order.records)]
        if isinstance(order, Look):
            return [Looked(*order, self.log.get(order.offset))]
        if isinstance(order, StartTool):
            self.started.append(order)
        if isinstance(order, Read) and order.topic == ORDERS:
            self.reads.append(order)
        if isinstance(order, Commit):
            self.commits |= order.positions
        return []

    def _claimed(self, offset: int) -> list[Item]:
        record = self.claims[offset]
        return [Record(CLAIMS, self.home, offset, record.key, record.value, lambda: None, self.now_ms)]

    def _publish(self, record: Outgoing, offset: int) -> Delivery:
        if len(record.value or b"") > self.largest:
            return Delivery(record.token, NEVER)
        if record.topic == ANSWERS:
            self.results.append(codec.decode(ToolResult, record.value or b""))
        return Delivery(record.token, offset, self.now_ms)
