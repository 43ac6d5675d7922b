"""What an agent asks of other agents: to run one, or to tell all that want to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from refold.core import events
from refold.core.run.intents import Intent, run_words
from refold.core.run.state import Settled, Step


@dataclass(slots=True, eq=False)
class StartRun(Intent):
    """Start another run. `read` turns how it ended into a value or raises."""

    agent: str
    input: str
    outlives: bool
    read: Callable[[events.ChildCompleted], Any]

    waits: ClassVar[bool] = True

    @property
    def words(self) -> str:
        return run_words(self.agent, self.input)

    def agrees(self, recorded: Step) -> bool:
        asked = (self.agent, self.input, self.outlives)
        return (
            isinstance(recorded, events.ChildStarted) and (recorded.agent, recorded.input, recorded.outlives) == asked
        )

    def value_of(self, outcome: Settled) -> Any:
        assert isinstance(outcome, events.ChildCompleted), "a step that is a run ends with it"
        return self.read(outcome)

    def recorded(self, step: int) -> events.ChildStarted:
        """The event that records it."""
        return events.ChildStarted(step, self.agent, self.input, self.outlives)


@dataclass(slots=True, eq=False)
class PublishEvent(Intent):
    """Tell of something. `data` is canonical JSON. Whom it starts is for its host to know, and for the log to keep."""

    name: str
    data: str

    waits: ClassVar[bool] = False

    @property
    def words(self) -> str:
        return f"publish {self.name}"

    def agrees(self, recorded: Step) -> bool:
        return isinstance(recorded, events.EventPublished) and (recorded.name, recorded.data) == (self.name, self.data)
