"""Intents of an agent that concern other agents: start one, signal one, publish an event."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from refold.core import events
from refold.core.ids import RunId
from refold.core.run.intents import Intent
from refold.core.run.state import Settled, Step
from refold.core.wire.blobs import stands_for


@dataclass(slots=True, eq=False)
class StartRun(Intent):
    """Start another run. `read` turns its end into a value or raises. For `means` see `Call`."""

    agent: str
    input: str
    outlives: bool
    read: Callable[[events.ChildCompleted], Any]
    means: Callable[[str, str], bool] | None = None

    texts: ClassVar[tuple[str, ...]] = ("agent", "input")

    def agrees(self, recorded: Step) -> bool:
        if not isinstance(recorded, events.ChildStarted):
            return False
        same = (recorded.agent, recorded.outlives) == (self.agent, self.outlives)
        if not same or stands_for(recorded.input, self.input):
            return same
        return self.means is not None and self.means(recorded.input, self.input)

    def value_of(self, outcome: Settled) -> Any:
        assert isinstance(outcome, events.ChildCompleted), "a step that is a run ends with it"
        return self.read(outcome)

    def recorded(self, step: int) -> events.ChildStarted:
        return events.ChildStarted(step, self.agent, self.input, self.outlives)


@dataclass(slots=True, eq=False)
class SendSignal(Intent):
    """Send a signal to another run. `data` is canonical JSON."""

    run: RunId
    name: str
    data: str

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("run", "name", "data")

    def agrees(self, recorded: Step) -> bool:
        same = (self.run, self.name, self.data)
        return isinstance(recorded, events.SignalSent) and (recorded.run_id, recorded.name, recorded.data) == same

    def recorded(self, step: int) -> events.SignalSent:
        return events.SignalSent(step, self.run, self.name, self.data)


@dataclass(slots=True, eq=False)
class PublishEvent(Intent):
    """Publish an event with `data` in canonical JSON. The host determines the agents to start."""

    name: str
    data: str

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("name", "data")

    @property
    def words(self) -> str:
        return f"publish {self.name}"

    def agrees(self, recorded: Step) -> bool:
        return isinstance(recorded, events.EventPublished) and (recorded.name, recorded.data) == (self.name, self.data)
