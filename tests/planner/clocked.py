"""A planner on the memory log, with executors that a test plays, and a clock that is the broker's alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count

from refold.core import topics
from refold.core.approval.signature import NOBODY, Trust
from refold.core.events import Event
from refold.core.ids import home, parse_log_key
from refold.core.messages import DeadLetter, RunOperation, RunOutcome, RunRequest, RunSignal, ToolRequest, ToolResult
from refold.core.run import chain
from refold.core.run.fold import apply
from refold.core.run.state import RunState
from refold.core.topics import executors, tool_requested
from refold.core.wire import canonical, codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import Limits, PlannerSettings
from refold.engine.ports import effects
from refold.engine.ports.log import NEVER, Delivery, End, Outgoing, Record
from refold.sdk.app import App
from refold.sdk.context import Context

NOW = 1_700_000_000_000
DAY = 86_400_000
REQUESTS = tool_requested("default")
TOPICS = (
    *(
        topics.RUN_REQUESTED,
        topics.RUN_SIGNALLED,
        topics.RUN_OPERATED,
        topics.tool_completed("default"),
        topics.APPROVAL_DECIDED,
    ),
    *(topics.RUN_LOG, topics.RUN_SNAPSHOT, topics.RUN_COMPLETED, topics.APPROVAL_REQUESTED),
    *(REQUESTS, topics.CATALOG, topics.DEAD_LETTER),
)

app = App("rigged")


@app.tool(effect="pure", timeout=timedelta(seconds=30))
def look(what: str) -> str:
    """Look at something."""
    return what


@app.tool(effect="once", timeout=timedelta(seconds=30))
def pay(what: str) -> str:
    """Pay for something."""
    return what


@app.agent(name="looking")
async def looking(ctx: Context, what: str) -> str:
    """Looks once."""
    return await ctx.call(look, what)


@app.agent(name="paying")
async def paying(ctx: Context, what: str) -> str:
    """Pays once."""
    return await ctx.call(pay, what)


@app.agent(name="swelling")
async def swelling(ctx: Context, letters: int) -> str:
    """Looks at something long."""
    return await ctx.call(look, "ä" * letters)


@app.agent(name="idling")
async def idling(ctx: Context) -> str:
    """Does nothing."""
    return "done"


@app.agent(name="napping")
async def napping(ctx: Context, seconds: int) -> str:
    """Sleeps."""
    await asyncio.sleep(seconds)
    return "awake"


@app.agent(name="brooding")
async def brooding(ctx: Context, letters: int) -> str:
    """Looks at something long, and sleeps for an hour."""
    found = await ctx.call(look, "a" * letters)
    await asyncio.sleep(3_600)
    return found


@app.agent(name="either")
async def either(ctx: Context) -> str:
    """Sleeps for an hour, unless it is told."""
    await asyncio.wait([asyncio.create_task(asyncio.sleep(3_600)), asyncio.create_task(ctx.wait_for("go"))])
    return "awake"


@app.agent(name="told")
async def told(ctx: Context) -> object:
    """Waits for a signal."""
    return (await ctx.wait_for("go")).data


@app.agent(name="buying")
async def buying(ctx: Context) -> str:
    """Looks and sleeps for an hour; waits for a signal then, and pays."""
    await asyncio.gather(ctx.call(look, "it"), asyncio.sleep(3_600))
    await ctx.wait_for("go")
    return await ctx.call(pay, "it")


@app.agent(name="matching")
async def matching(ctx: Context, waits: int) -> list[object]:
    """Waits for many signals at once, each with a match of its own."""
    found = await asyncio.gather(*(ctx.wait_for("go", match=f"data.n == {number}") for number in range(waits)))
    return [signal.data["n"] for signal in found]


@app.agent(name="called")
async def called(ctx: Context) -> int:
    """Waits for an answer, for an hour."""
    paid: int = await ctx.callback("paid", schema=int, timeout=timedelta(hours=1))
    return paid


def is_entry(record: Outgoing) -> bool:
    """Whether a record is an entry of the run log."""
    return record.topic == topics.RUN_LOG and parse_log_key(record.key) is not None and record.value is not None


class Rig:
    """One planner and its log. `wall_ms` is what the clock of its machine says; `refuses` what topics do not take.

    Of the next `silent` requests of calls nobody says whether they are in their topic.
    `slow_ms` is how long a planner waits for what a group has committed, `asked` how often it has.
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        payload_bytes: int = 1 << 20,
        refuses: Mapping[str, int] | None = None,
        active: int = 5_000,
        waiting: int = 4_000,
        inputs: int = 8_000,
        pools: tuple[str, ...] = ("default",),
        trust: Trust = NOBODY,
    ) -> None:
        self.now = NOW
        self.wall_ms: Callable[[], int] = lambda: self.now
        every = dict.fromkeys((*TOPICS, *map(topics.tool_completed, pools)))
        self.broker = MemoryBroker(tuple(every), partitions, clock_ms=lambda: self.now)
        self.refuses = dict(refuses or {})
        limits = Limits(
            payload_bytes=payload_bytes,
            active=active,
            topic_bytes=waiting * 1_024,
            parked_bytes=waiting * 1_024,
            input_bytes=inputs * 1_024,
        )
        self.settings = PlannerSettings(partitions, "p", "test", pools, limits=limits, trust=trust)
        self.most_live = self.appended = self.asked = self.slow_ms = self.silent = 0
        self.alarms: list[str] = []
        self.news: list[effects.News] = []
        self.process = ""
        self._taken: dict[int, int] = {}
        self.planner = self.successor()

    def successor(self, *, ahead: int = 0) -> Planner:
        """The planner dies, and another takes its place."""
        nonces = count(1 + self.appended + ahead)
        self.planner = Planner(app, self.settings, lambda: next(nonces).to_bytes(16, "big"), process=self.process)
        self.log = MemoryEventLog(self.broker, self.settings.membership)
        self._answers: list[effects.Item] = []
        return self.planner

    # What comes in

    def write(self, topic: str, key: str, value: bytes | None, *, partition: int = 0) -> None:
        """Writes a record."""
        self.broker.write(Outgoing(topic, partition, key.encode(), value, (), 0))

    def start(self, run: str, agent: str, given: object, *, partition: int | None = None) -> None:
        """Requests a run."""
        value = codec.encode(RunRequest(run, agent, canonical.dumps(given), "ann"))
        number = home(run, self.broker.partitions) if partition is None else partition
        self.write(topics.RUN_REQUESTED, run, value, partition=number)

    def signal(self, run: str, kind: str, data: object = None, *, name: str = "s") -> None:
        """Signals a run."""
        value = codec.encode(RunSignal(run, name, kind, canonical.dumps(data), "ann"))
        self.write(topics.RUN_SIGNALLED, f"{run}/{name}", value, partition=home(run, self.broker.partitions))

    def say_go(self, run: str) -> None:
        """Tells a run what agents here wait for."""
        value = codec.encode(RunSignal(run, "go", "signal", "null", "ann", name="go"))
        self.write(topics.RUN_SIGNALLED, f"{run}/go", value, partition=home(run, self.broker.partitions))

    def operate(self, run: str, kind: str, data: object = None, *, name: str = "o") -> None:
        """Says something of a run, as an operator."""
        value = codec.encode(RunOperation(run, name, kind, canonical.dumps(data), "op"))
        self.write(topics.RUN_OPERATED, f"{run}/{name}", value, partition=home(run, self.broker.partitions))

    # Executors

    def requests(self) -> list[ToolRequest]:
        """All requests of calls so far."""
        found = [record for number in range(self.broker.partitions) for record in self._records(REQUESTS, number)]
        return [codec.decode(ToolRequest, record.value) for record in found if record.value]

    def take(self) -> list[ToolRequest]:
        """Executors take the requests that are new to them, and commit."""
        found: list[ToolRequest] = []
        group = executors("default")
        for number in range(self.broker.partitions):
            log = self.broker.log(REQUESTS, number)
            records = log.read(self._taken.get(number, 0), log.end)
            found += [codec.decode(ToolRequest, record.value) for record in records if record.value]
            self._taken[number] = log.end
        if group not in self.broker.groups:
            self.broker.join(group, "e", (REQUESTS,))
        self.broker.groups[group].committed.update({(REQUESTS, at): end for at, end in self._taken.items()})
        return found

    def answer(
        self, request: ToolRequest, status: str = "completed", result: str = '"ok"', *, pool: str = "default"
    ) -> None:
        """An executor answers."""
        said = ToolResult(request.call_id, request.run_id, request.step, request.attempt, status)
        said = replace(said, result=result if status == "completed" else "", again=request.again)
        number = home(request.run_id, self.broker.partitions)
        self.write(topics.tool_completed(pool), request.call_id, codec.encode(said), partition=number)

    # What goes on

    def run(self, ms: int = 0) -> Rig:
        """Takes turns until nothing happens any more, then waits and does so again until so much time has passed."""
        until = self.now + ms
        self._settle()
        while self.now < until:
            due = self.planner.next_due_ms()
            self.now = min(until, max(self.now + 1, until if due is None else self._true(due)))
            self._settle()
        return self

    def _settle(self) -> None:
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.turn() else quiet + 1

    def _true(self, mono_ms: int) -> int:
        return NOW + mono_ms

    def turn(self) -> bool:
        """One turn; whether anything happened."""
        taken = self.log.take(500, 0)
        inbox: list[effects.Item] = [
            *taken.rebalances,
            *taken.records,
            *taken.reached,
            *taken.deliveries,
            *self._answers,
        ]
        self._answers = []
        orders = self.planner.turn(inbox, effects.Now(self.wall_ms(), self.now - NOW))
        self.alarms += [name for name, _ in self.planner.news]
        self.news += self.planner.news
        self.planner.news.clear()
        for effect in orders:
            self._carry_out(effect)
        self.most_live = max(self.most_live, sum(len(lane.log.fold.states) for lane in self.planner.lanes))
        return bool(inbox) or any(not isinstance(effect, effects.Commit) for effect in orders)

    def _carry_out(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Publish | effects.Append):
            self._answers += [self._write(record) for record in effect.records]
            self.appended += sum(map(is_entry, effect.records))
        elif isinstance(effect, effects.AskEnd):
            end = self.broker.log(effect.topic, effect.partition).end
            self._answers.append(End(effect.topic, effect.partition, end))
        elif isinstance(effect, effects.AskCommitted):
            self.asked += 1
            self.now += self.slow_ms
            positions = self.log.committed(effect.group, effect.topic)
            self._answers.append(effects.CommittedAt(effect.group, effect.topic, positions))
        elif isinstance(effect, effects.Commit):
            self.log.commit(effect.positions)
        elif isinstance(effect, effects.Read):
            self.log.read(effect.topic, effect.partition, effect.offset)
        elif isinstance(effect, effects.Flow):
            (self.log.pause if effect.action == "pause" else self.log.resume)(effect.topic, effect.partition)

    def _write(self, record: Outgoing) -> Delivery:
        if self.silent and record.topic == REQUESTS:
            self.silent -= 1
            self.broker.write(record)
            return Delivery(record.token, None)
        if len(record.key) + len(record.value or b"") > self.refuses.get(record.topic, 1 << 30):
            return Delivery(record.token, NEVER)
        return self.broker.write(record)

    # What came of it

    def _records(self, topic: str, partition: int) -> list[Record]:
        return self.broker.log(topic, partition).records

    def history(self, run: str) -> tuple[RunState, list[Event]]:
        """A run by its log."""
        found, events = RunState(run), list[Event]()
        for record in self._records(topics.RUN_LOG, home(run, self.broker.partitions)):
            if not (record.key or b"").startswith(f"{run}/".encode()):
                continue
            read = chain.read(record.key, record.value)
            if isinstance(read, chain.LogRecord) and read.entry.run_id == run:
                apply(found, read.entry, read.id)
                events += read.entry.events
        return found, events

    def kinds(self, run: str) -> list[str]:
        """The events of a run, by name."""
        return [type(event).__name__ for event in self.history(run)[1]]

    def closed(self) -> list[str]:
        """The calls whose requests have a tombstone."""
        return [(record.key or b"").decode() for record in self._records(REQUESTS, 0) if record.value is None]

    def outcomes(self) -> list[RunOutcome]:
        """What users are told of runs that are over."""
        return [codec.decode(RunOutcome, value) for value in self._values("run-completed")]

    def letters(self) -> list[DeadLetter]:
        """All dead letters."""
        return [codec.decode(DeadLetter, value) for value in self._values("dead-letter")]

    def _values(self, topic: str) -> list[bytes]:
        return [each.value or b"" for number in range(self.broker.partitions) for each in self._records(topic, number)]
