"""Planners in memory, one after the other, with apps that may differ; whoever tests is the executor and the clock."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from refold.core.events import Event, Failure
from refold.core.ids import RunId, home, parse_callback_token
from refold.core.messages import Hold, RunOperation, RunRequest, RunSignal, ToolRequest, ToolResult
from refold.core.run import chain
from refold.core.run.fold import apply
from refold.core.run.state import RunState
from refold.core.topics import MEMBER
from refold.core.wire import canonical, codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import Bounds, PlannerSettings
from refold.engine.ports.effects import Append, AskEnd, Item, Now, Publish, Read
from refold.engine.ports.log import NEVER, Delivery, End, Outgoing, Record
from refold.engine.runtime.watchdog import Mark
from refold.sdk.app import App

INPUTS = ("run-requested", "run-signalled", "run-operated", "tool-completed.default", "approval-decided")
OUTPUTS = ("run-log", "run-snapshot", "run-completed", "tool-requested.default", "catalog", "dead-letter")
SPENT = "budget-spent"
NOW = 1_700_000_000_000


class Rig:
    """One partition, or more, and the planner that serves it now. `refuses`: of a topic, records of more bytes."""

    def __init__(
        self, app: App, budget: Bounds | None = None, *, partitions: int = 1, mark: Mark | None = None
    ) -> None:
        self.now = NOW
        self.broker = MemoryBroker((*INPUTS, *OUTPUTS, SPENT, MEMBER), partitions, clock_ms=lambda: self.now)
        self._budget, self._mark = budget or Bounds(), mark
        self._members = 0
        self.refuses: dict[str, int] = {}
        self.deploy(app)

    def deploy(self, app: App) -> None:
        """Ends the planner, as a crash does, and starts one with this app."""
        if self._members:
            self.broker.expire("refold-planner", f"p-{self._members}")
        self._members += 1
        name = f"p-{self._members}"
        settings = PlannerSettings(self.broker.partitions, name, "test", budget=self._budget, windows=bool(app.windows))
        self.planner = Planner(app, settings, lambda: os.urandom(16), self._mark)
        self._log = MemoryEventLog(self.broker, settings.membership)
        self._answers: list[Item] = []
        self.news: list[str] = []
        self.run()

    def start(self, run: str, agent: str, *, labels: dict[str, str] | None = None, **inputs: object) -> None:
        """Asks for a run."""
        given = canonical.dumps(inputs)
        self._write("run-requested", run, RunRequest(RunId(run), agent, given, "ann", labels=labels or {}))

    def signal(self, run: str, kind: str, **data: object) -> None:
        """Says something about a run, as who asked for it."""
        signal = RunSignal(RunId(run), f"{kind}-{self.now}", kind, canonical.dumps(data), "ann")
        self._write("run-signalled", f"{run}/{signal.signal_id}", signal)

    def tell(self, run: str, signal_id: str, data: object = None) -> None:
        """Tells a run to go."""
        said = RunSignal(RunId(run), signal_id, "signal", canonical.dumps(data), "bob", name="go")
        self._write("run-signalled", f"{run}/{signal_id}", said)

    def resolve(self, token: str, data: object) -> None:
        """Answers a callback."""
        said = RunSignal(parse_callback_token(token), "", "callback", canonical.dumps(data), "psp", callback=token)
        self._write("run-signalled", token, said)

    def operate(self, run: str, kind: str, **data: object) -> None:
        """Says something about a run, as an operator."""
        said = RunOperation(RunId(run), f"{kind}-{self.now}", kind, canonical.dumps(data), "op")
        self._write("run-operated", f"{run}/{said.signal_id}", said)

    def finish(self, run: str = "", *, result: str = "1") -> int:
        """What executors say of the open calls of a run, or of all; how many there were."""
        open_ = self.asked(run)
        for asked in open_:
            told = ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, "completed", result)
            self._write("tool-completed.default", asked.call_id, told)
        return len(open_)

    def finish_one(self, asked: ToolRequest, *, result: str = "1") -> None:
        """What executors say of one call."""
        told = ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, "completed", result)
        self._write("tool-completed.default", asked.call_id, told)

    def fail(self, run: str, code: str, *, call: str = "", status: str = "failed", retryable: bool = True) -> None:
        """What executors say of the open calls of a run, or of one: it did not happen."""
        for asked in self.asked(run):
            if call in ("", asked.call_id):
                place = asked.call_id, asked.run_id, asked.step, asked.attempt
                failure = Failure(code, "it did not work")
                told = ToolResult(*place, status, failure=failure, retryable=retryable)
                self._write("tool-completed.default", asked.call_id, told)

    def asked(self, run: str = "") -> list[ToolRequest]:
        """The calls of a run, or of all, that are open, by their topic."""
        last = {record.key: record for record in self.records("tool-requested.default")}
        found = [codec.decode(ToolRequest, record.value) for record in last.values() if record.value]
        return [request for request in found if not run or request.run_id == run]

    def run(self) -> None:
        """Takes turns until nothing happens any more."""
        quiet = 0
        while quiet < 3:
            quiet = 0 if self._turn() else quiet + 1

    def run_until(self, run: str, event: str) -> None:
        """Takes turns until a run has such an event."""
        while event not in self.events(run):
            assert self._turn(), f"{run} never has {event}"

    def later(self, ms: int) -> None:
        """Time passes."""
        self.now += ms
        self.run()

    def state(self, run: str) -> RunState:
        """A run by its log."""
        return self._read(run)[0]

    def events(self, run: str) -> list[str]:
        """The names of a run's events."""
        return [type(event).__name__ for event in self._read(run)[1]]

    def history(self, run: str) -> list[Event]:
        """A run's events."""
        return self._read(run)[1]

    def records(self, topic: str) -> list[Record]:
        """All records of a topic, partition by partition."""
        return [each for number in range(self.broker.partitions) for each in self.broker.log(topic, number).records]

    def hold(self, run: str) -> Hold | None:
        """The hold of a run by its topic."""
        last = {record.key: record.value for record in self.broker.log("run-snapshot", 0).records}
        value = last.get(f"hold/{run}".encode())
        return codec.decode(Hold, value) if value else None

    def statuses(self) -> Counter[str]:
        """How many runs have which status."""
        found: dict[RunId, RunState] = {}
        for read in self._chain():
            state = found.setdefault(read.entry.run_id, RunState(read.entry.run_id))
            if chain.extends(state.head, read.entry):
                apply(state, read.entry, read.id)
        return Counter(state.status for state in found.values())

    def holds(self) -> int:
        """How many runs are held."""
        last = {record.key: record.value for record in self.broker.log("run-snapshot", 0).records}
        return sum(key.startswith(b"hold/") and value is not None for key, value in last.items())

    def letters(self) -> int:
        """How many inputs nobody could use."""
        return len(self.broker.log("dead-letter", 0).records)

    def _read(self, run: str) -> tuple[RunState, list[Event]]:
        found, events = RunState(RunId(run)), list[Event]()
        for read in self._chain():
            if read.entry.run_id == run and chain.extends(found.head, read.entry):
                apply(found, read.entry, read.id)
                events += read.entry.events
        return found, events

    def _chain(self) -> Iterator[chain.LogRecord]:
        for record in self.records("run-log"):
            read = chain.read(record.key, record.value)
            if isinstance(read, chain.LogRecord):
                yield read

    def _write(self, topic: str, key: str, message: RunRequest | RunSignal | RunOperation | ToolResult) -> None:
        place = home(message.run_id, self.broker.partitions)
        self.broker.write(Outgoing(topic, place, key.encode(), codec.encode(message), (), 0))

    def _append(self, record: Outgoing) -> Delivery:
        refused = len(record.value or b"") > self.refuses.get(record.topic, 8 << 20)
        return Delivery(record.token, NEVER) if refused else self.broker.write(record)

    def _turn(self) -> bool:
        taken = self._log.take(500, 0)
        inbox = [*taken.rebalances, *taken.records, *taken.reached, *taken.deliveries, *self._answers]
        self._answers = []
        effects = self.planner.turn(inbox, Now(self.now, self.now))
        for effect in effects:
            if isinstance(effect, Publish | Append):
                self._answers += [self._append(record) for record in effect.records]
            elif isinstance(effect, AskEnd):
                end = self.broker.log(effect.topic, effect.partition).end
                self._answers.append(End(effect.topic, effect.partition, end))
            elif isinstance(effect, Read):
                self._log.read(effect.topic, effect.partition, effect.offset)
        self._log.commit({key: at for effect in effects for key, at in getattr(effect, "positions", {}).items()})
        self.news += [name for name, _ in self.planner.news]
        self.planner.news.clear()
        return bool(inbox or self._answers)
