"""Executors of a test, as in production, one after the other, on a ledger and a log in memory. One may be killed right
before a tool begins, or before its result is recorded."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, count
from queue import Empty, SimpleQueue
from typing import Literal

from refold.core.defaults import PAYLOAD_BYTES
from refold.core.messages import StreamPart, ToolRequest, ToolResult
from refold.core.topics import CATALOG, tool_completed
from refold.core.wire import codec
from refold.engine.adapters.memory.ledger import MemoryLedger
from refold.engine.adapters.tools.toolbox import Toolbox
from refold.engine.executor.service import Executor
from refold.engine.executor.settings import ExecutorSettings
from refold.engine.ports import effects
from refold.engine.ports.log import Assigned, Delivery, End, Outgoing, Record
from refold.engine.relay.service import Relay
from refold.engine.relay.settings import RelaySettings
from refold.sdk.app import App
from refold.testing.people import Panel

Kill = Literal["before", "after"]

_POOL = "default"
_STEP_MS = 100


class PartsSent:
    def __init__(self) -> None:
        self.parts: list[StreamPart] = []

    def tell(self, part: StreamPart) -> None:
        self.parts.append(part)

    def close(self) -> None:
        """Do nothing: no resources are open."""


class Executors:
    """One executor with its relay, in memory; a new one after each kill. `ran` are the calls whose tools ran, in order.
    `kills`: the executor's death, by a tool's number from 1. `watch` is called before each tool, its result after."""

    def __init__(self, app: App, panel: Panel, now_ms: int) -> None:
        self.now_ms = self._born_ms = now_ms
        self.ran: list[ToolRequest] = []
        self.kills: dict[int, Kill] = {}
        self.watch: Callable[[ToolRequest], Callable[[], None]] = lambda request: lambda: None
        self._base = ExecutorSettings(gate=panel.gate(_POOL), trust=panel.trust)
        self._catalog = [Record(CATALOG, 0, at, *entry, lambda: None, now_ms) for at, entry in enumerate(panel.catalog)]
        self._numbers, self._names = count(1), (f"id-{number}" for number in count(1))
        self._ledger = MemoryLedger(lambda: self.now_ms)
        self._claims: list[Outgoing] = []
        self._orders: list[Record] = []
        self._committed = 0
        self._results: dict[tuple[str, int], ToolResult] = {}
        self._ended: SimpleQueue[effects.ToolEnded] = SimpleQueue()
        self.live = PartsSent()
        self._tools = Toolbox(app, self._ended.put, threads=8, max_result=PAYLOAD_BYTES, live=self.live)
        # Also closed when a test drops the run: the threads of its tools would stay until the end of the session.
        self.close = weakref.finalize(self, self._tools.close)
        self._start_executor()

    def attempt(self, request: ToolRequest) -> ToolResult:
        """Publish a request, and let turns and time pass until its result is recorded."""
        at = len(self._orders)
        order = replace(request, issued=at)
        name, value = order.call_id.encode(), codec.encode(order)
        self._orders.append(Record(self._base.topic, 0, at, name, value, lambda: None, self.now_ms))
        self._turn()  # which may ask where the catalog ends: nothing that people decided goes out before that is known
        self._turn(self._orders[-1])
        while (result := self._results.get((order.call_id, order.attempt))) is None:
            self.now_ms += _STEP_MS
            self._turn()
        return result

    def _start_executor(self) -> None:
        self._settings = replace(self._base, member=f"executor-{next(self._numbers)}")
        token, fresh = partial(next, self._numbers), partial(next, self._names)
        self._relay = Relay(RelaySettings(seal=self._settings.seal), token=token)
        self._executor = Executor(self._settings, self._relay, token=token, fresh=fresh)
        topic, chains = self._settings.topic, self._settings.chains
        ends = {chains: len(self._claims), CATALOG: len(self._catalog), topic: len(self._orders)}
        self._turn(Assigned(0, {topic: self._committed}, {}, ends))
        self._turn(*map(self._claim_record, range(len(self._claims))))

    def _turn(self, *inbox: effects.Item) -> None:
        items, executor = list(inbox), self._executor
        while True:
            now = effects.Now(self.now_ms, self.now_ms - self._born_ms + 1)
            orders = [*executor.turn(items, now), *self._relay.turn(items, now)]
            items = []
            for order in orders:
                items += self._carry_out(order)
                if executor is not self._executor:
                    return
            if not items:
                return

    def _carry_out(self, order: effects.Effect) -> list[effects.Item]:
        if isinstance(order, effects.AskLedger):
            return [effects.Answers(order.batch, self._ledger.run(order.operations))]
        if isinstance(order, effects.Append | effects.Publish):
            return list(chain.from_iterable(map(self._append, order.records)))
        if isinstance(order, effects.Look):
            written = self._orders[order.offset] if order.offset < len(self._orders) else None
            return [effects.Looked(*order, written)]
        if isinstance(order, effects.AskEnd):
            return [End(order.topic, order.partition, len(self._catalog))]
        if isinstance(order, effects.Read):
            records = {CATALOG: self._catalog, self._settings.topic: self._orders}
            return list(records.get(order.topic, [])[order.offset :])
        if isinstance(order, effects.Commit):
            self._committed = max(self._committed, order.positions.get((self._settings.topic, 0), 0))
        if isinstance(order, effects.StartTool):
            return self._run_or_die(order)
        return []

    def _append(self, record: Outgoing) -> list[effects.Item]:
        if record.topic == self._settings.chains:
            self._claims.append(record)
            at = len(self._claims) - 1
            return [Delivery(record.token, at, self.now_ms), self._claim_record(at)]
        if record.topic == tool_completed(_POOL) and record.value:
            result = codec.decode(ToolResult, record.value)
            self._results[result.call_id, result.attempt] = result
        return [Delivery(record.token, 0, self.now_ms)]

    def _claim_record(self, at: int) -> Record:
        record = self._claims[at]
        return Record(self._settings.chains, 0, at, record.key, record.value, lambda: None, self.now_ms)

    def _run_or_die(self, order: effects.StartTool) -> list[effects.Item]:
        kill = None
        if not order.probe:
            self.ran.append(order.request)
            kill = self.kills.get(len(self.ran))
        if kill == "before":
            self._start_executor()
            return []
        # The tool runs in real time: the clock of the test does not move.
        finish = self.watch(order.request)
        ended = self._run_tool(order)
        finish()
        if kill == "after":
            self._start_executor()
            return []
        return [ended] if ended else []

    def _run_tool(self, order: effects.StartTool) -> effects.ToolEnded | None:
        """Run the tool in real time; None: it exceeded its timeout and was stopped, and the clock has moved by that."""
        self._tools.start([order])
        try:
            while (ended := self._ended.get(timeout=order.request.timeout_ms / 1000)).number != order.number:
                continue  # of an attempt that took too long
            return ended
        except Empty:
            self._tools.stop(effects.StopTool(order.number, "timeout"))
            self.now_ms += order.request.timeout_ms
            return None
