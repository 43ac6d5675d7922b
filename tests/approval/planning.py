"""A planner beside the approval service on the same log: what is decided has to be taken by whoever asked."""

from __future__ import annotations

from itertools import count

from refold.core.events import Event
from refold.core.ids import home
from refold.core.messages import ApprovalRequest, RunRequest
from refold.core.run import chain
from refold.core.run.fold import apply
from refold.core.run.state import RunState
from refold.core.wire import canonical, codec
from refold.engine.adapters.memory.log import MemoryEventLog
from refold.engine.planner.service import Planner
from refold.engine.planner.settings import PlannerSettings
from refold.engine.ports.effects import Append, AskEnd, Item, Now, Publish, Read
from refold.engine.ports.log import End
from refold.sdk.app import App
from refold.sdk.context import Context
from tests.approval.driving import PARTITIONS, POLICY, TOPICS, Process, World
from tests.roots import TRUST

INPUTS = ("run-requested", "run-signalled", "run-operated", "tool-completed.default")
OUTPUTS = ("run-log", "run-snapshot", "run-completed", "tool-requested.default")
PAYLOAD_BYTES = 1_048_576

app = App("writing")


@app.tool(effect="once", version="1")
def save(text: str) -> str:
    """Save a text."""
    return text


@app.agent(name="one")
async def one(ctx: Context, n: int) -> str:
    """Asks for one call, which the policy wants a lead for."""
    return await ctx.call(save, "short")


def world() -> World:
    """The topics of both services, with a policy in force, that take records as long as a real broker would."""
    found = World((*TOPICS, *INPUTS, *OUTPUTS), max_bytes=4 * PAYLOAD_BYTES)
    found.publish("current", "current", POLICY.digest)
    return found


class Planning:
    """A planner and an approval service that take turns."""

    def __init__(self, world: World, app_: App = app) -> None:
        self.world, self.approval = world, Process(world, app_=app_)
        settings, nonces = PlannerSettings(PARTITIONS, "p", "test", trust=TRUST), count(1)
        self._planner = Planner(app_, settings, lambda: next(nonces).to_bytes(16, "big"))
        self._log = MemoryEventLog(world.broker, settings.membership)
        self._answers: list[Item] = []

    def ask(self, run: str = "run-1") -> ApprovalRequest:
        """Starts a run; returns what it asks people."""
        start = RunRequest(run, "one", canonical.dumps({"n": 1}), "eve")
        self.world.write("run-requested", home(run, PARTITIONS), run, codec.encode(start))
        self.run()
        [asked] = [codec.decode(ApprovalRequest, r.value) for r in self.world.records("approval-requested") if r.value]
        return asked

    def run(self) -> None:
        """Takes turns until nothing happens any more."""
        quiet = 0
        for _ in range(200):
            busy = self._turn()
            self.approval.run()
            quiet = 0 if busy else quiet + 1
            if quiet == 3:
                return
        raise AssertionError("the planner does not come to rest")

    def state(self, run: str = "run-1") -> tuple[RunState, list[Event]]:
        """A run by its log."""
        found, events = RunState(run), list[Event]()
        for record in self.world.broker.log("run-log", home(run, PARTITIONS)).records:
            read = chain.read(record.key, record.value)
            if isinstance(read, chain.LogRecord) and chain.extends(found.head, read.entry):
                apply(found, read.entry, read.id)
                events += read.entry.events
        return found, events

    def _turn(self) -> bool:
        taken = self._log.take(500, 0)
        inbox = [*taken.rebalances, *taken.records, *taken.reached, *taken.deliveries, *self._answers]
        self._answers = []
        effects = self._planner.turn(inbox, Now(self.world.now, self.world.now))
        for effect in effects:
            if isinstance(effect, Publish | Append):
                self._answers += [self.world.broker.write(record) for record in effect.records]
            elif isinstance(effect, Read):
                self._log.read(*effect)
            elif isinstance(effect, AskEnd):
                end = self.world.broker.log(effect.topic, effect.partition).end
                self._answers.append(End(effect.topic, effect.partition, end))
        return bool(inbox or effects)
