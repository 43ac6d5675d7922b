"""The real planner on a log in memory, with executors that are played: each answers what it is asked, once a key."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import count

from refold import App, Context
from refold.core import topics
from refold.core.defaults import ACTIVE_RUNS
from refold.core.events import Entry
from refold.core.ids import RunId, home
from refold.core.messages import RunOperation, RunOutcome, RunRequest, RunSignal, ToolRequest, ToolResult
from refold.core.run.log import LogFold
from refold.core.run.state import RunState
from refold.core.wire import codec
from refold.engine.adapters.memory.broker import MemoryBroker
from refold.engine.adapters.memory.log import MemoryEventLog, MemoryLogReader
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import Bounds, Limits, PlannerSettings
from refold.engine.ports.log import Outgoing
from refold.engine.runtime.host import Host

POOL = topics.tool_requested("default")
TOPICS = [
    *(value for name, value in vars(topics).items() if name.isupper() and isinstance(value, str)),
    *(POOL, topics.tool_completed("default")),
]

_NONCES = count(1)

app = App("rig")


@app.tool(effect="once")
async def act(run: str, n: int) -> int:
    """Never runs: its result is played."""
    return n


@app.agent
async def errand(ctx: Context, run: str, steps: int) -> int:
    """Acts, one after the other."""
    return sum([await ctx.call(act, run, n) for n in range(steps)])


class World:
    """What is outside of the log and outlives any platform: what was done, by key, and by what it was for."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.done: Counter[str] = Counter()

    def act(self, request: ToolRequest) -> str:
        """The effect, unless its claim says that it happened."""
        if request.key not in self.results:
            self.done[request.args] += 1
            self.results[request.key] = str(json.loads(request.args)["n"])
        return self.results[request.key]


class WatchedLog(MemoryEventLog):
    """Knows from where it was read, by topic and partition."""

    reads: dict[tuple[str, int], list[int]]

    def read(self, topic: str, partition: int, offset: int, *, under: int | None = None) -> None:
        self.__dict__.setdefault("reads", defaultdict(list))[topic, partition].append(offset)
        super().read(topic, partition, offset, under=under)


class Rig:
    """A planner and its topics. `answers` may hold the executors back."""

    def __init__(
        self,
        world: World | None = None,
        broker: MemoryBroker | None = None,
        *,
        partitions: int = 1,
        member: str = "p",
        waiting: int = 4_000,
        code: App = app,
        budget: Bounds | None = None,
        active: int = ACTIVE_RUNS,
        hold: Callable[[ToolRequest], bool] = lambda request: False,
    ) -> None:
        self.code = code
        self.world, self.broker = world or World(), broker or MemoryBroker(TOPICS, partitions)
        # Everything that moves is kept at once: a successor finds marks up to the last turn.
        self.settings = PlannerSettings(
            self.broker.partitions,
            member,
            snapshot_ms=0,
            limits=Limits(topic_bytes=waiting * 1_024, active=active),
            budget=budget or Bounds(),
        )
        self.answers = True
        self.hold = hold
        self._read = dict.fromkeys(range(self.broker.partitions), 0)
        self.boot()

    def boot(self, turns: int = 400) -> None:
        """A fresh planner process; the one before it is gone without a word."""
        self.planner = Planner(self.code, self.settings, lambda: next(_NONCES).to_bytes(16))
        self.log = WatchedLog(self.broker, self.settings.membership)
        self.host = Host([self.planner], self.log)
        self.pump(turns)

    def write(self, topic: str, run: str, key: str, value: bytes) -> int:
        """A record at the home of its run."""
        number = home(run, self.broker.partitions)
        return self.broker.write(Outgoing(topic, number, key.encode(), value, (), 0))

    def start(self, run: str, steps: int = 3) -> None:
        """Asks for a run."""
        self.broker.write(self.asking(run, steps))

    def asking(self, run: str, steps: int = 3) -> Outgoing:
        """The request of a run."""
        request = RunRequest(run, "errand", json.dumps({"run": run, "steps": steps}), "ann")
        number = home(run, self.broker.partitions)
        return Outgoing(topics.RUN_REQUESTED, number, run.encode(), codec.encode(request), (), 0)

    def signal(self, run: str, kind: str, data: str = "{}", number: int = 1) -> None:
        """Says something to a run, as who asked for it."""
        signal = RunSignal(RunId(run), f"{kind}-{number}", kind, data, "ann")
        self.write(topics.RUN_SIGNALLED, run, f"{run}/{signal.signal_id}", codec.encode(signal))

    def operate(self, run: str, kind: str, data: str = "{}", number: int = 1) -> None:
        """Says something of a run, as an operator."""
        said = RunOperation(RunId(run), f"{kind}-{number}", kind, data, "op")
        self.write(topics.RUN_OPERATED, run, f"{run}/{said.signal_id}", codec.encode(said))

    def pump(self, turns: int = 400) -> None:
        """Turns until nothing comes and nobody asks."""
        quiet = 0
        for _ in range(turns):
            before = self.ends()
            self.host.pump(_items(self.log))
            if self.answers:
                self._answer()
            quiet = quiet + 1 if self.ends() == before and not self.log.cursors.waiting() else 0
            if quiet == 3:  # a partition that begins anew goes and comes in between
                return

    def ends(self) -> list[int]:
        """How long every partition is."""
        return [self.broker.log(topic, n).end for topic in TOPICS for n in range(self.broker.partitions)]

    def state(self, run: str) -> RunState | None:
        """What the planner takes a run for."""
        lane = self.planner.lanes.get(home(run, self.broker.partitions))
        return lane.log.latest(RunId(run)) if lane else None

    def log_of(self, run: str) -> list[Entry]:
        """The entries that count of a run."""
        fold = LogFold()
        judged = [fold.feed(record.key, record.value) for record in self.reader.scan(topics.RUN_LOG)]
        return [each.entry for each in judged if each.run_id == run and each.entry and not each.void]

    @property
    def stalled(self) -> dict[RunId, str]:
        """The runs that stand still, and why."""
        return {run: reason for lane in self.planner.lanes for run, reason in lane.log.fold.frozen.items()}

    @property
    def reader(self) -> MemoryLogReader:
        """Reads the topics without a group."""
        return MemoryLogReader(self.broker)

    def outcomes(self) -> dict[str, set[tuple[str, int, str]]]:
        """What users were told of the end of runs: status, seq and result."""
        told: dict[str, set[tuple[str, int, str]]] = {}
        for record in self.reader.scan(topics.RUN_COMPLETED):
            outcome = codec.decode(RunOutcome, record.value or b"")
            told.setdefault(outcome.run_id, set()).add((outcome.status, outcome.seq, outcome.result))
        return told

    def _answer(self) -> None:
        for number, position in self._read.items():
            log = self.broker.log(POOL, number)
            for record in log.read(max(position, log.start), log.end):
                if record.value is not None:
                    request = codec.decode(ToolRequest, record.value)
                    if self.hold(request):
                        continue
                    result = self.world.act(request)
                    answer = ToolResult(
                        request.call_id, request.run_id, request.step, request.attempt, "completed", result
                    )
                    self.write(topics.tool_completed("default"), request.run_id, request.call_id, codec.encode(answer))
            self._read[number] = log.end


def _items(log: MemoryEventLog) -> list[object]:
    taken = log.take(500, 0)
    return [*taken.rebalances, *taken.records, *taken.reached, *taken.shrunk, *taken.deliveries]
