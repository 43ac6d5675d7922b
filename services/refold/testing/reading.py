"""Read model of a run in tests, and its boundaries for kills."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Literal

from refold.client.reading.words import with_ellipsis
from refold.core.events import (
    CallDispatched,
    CallProposed,
    CheckpointReached,
    Event,
    Failure,
    NoteRecorded,
)
from refold.core.run import chain
from refold.core.run.intents import STATUS
from refold.core.run.state import RunState, Status
from refold.core.wire import canonical

RECENT: deque["RunRead"] = deque(maxlen=3)
"""Runs begun last, shown by the pytest plugin when a test fails."""

MOST_CHARS = 160
"""Characters of an event in a line."""


@dataclass(frozen=True, slots=True)
class CallMade:
    """A call of a run: arguments, attempts, and its result (as plain JSON) or failure, if any."""

    step: int
    tool: str
    args: dict[str, Any]
    key: str
    attempts: int
    result: Any = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Place of a kill: the planner after entry `number` of the history, or an executor `before` or `after` the tool
    that is run as `number`; `after` is before its result is recorded."""

    dies: Literal["planner", "before", "after"]
    number: int


class RunRead:
    """Read model of a run in tests. `events` and `records` are its history, `state` is its fold."""

    state: RunState
    events: list[Event]
    records: list[tuple[bytes, bytes]]

    @property
    def status(self) -> Status:
        """`running` and `suspended` wait; `completed`, `failed` and `cancelled` are over."""
        return self.state.status

    @property
    def failure(self) -> Failure | None:
        return getattr(self.state.end, "failure", None)

    @property
    def calls(self) -> list[CallMade]:
        """Calls in the order of the agent's requests."""
        return [self._call_made(step) for step in self.state.steps if isinstance(step, CallProposed)]

    @property
    def entries(self) -> int:
        return len(self.records)

    @property
    def history(self) -> list[str]:
        """Kinds of its events in order: `["RunRequested", "RunStarted", "CallProposed", ...]`."""
        return [type(event).__name__ for event in self.events]

    @property
    def checkpoints(self) -> list[str]:
        return [step.name for step in self.state.steps if isinstance(step, CheckpointReached)]

    @property
    def says(self) -> str:
        """Last status, set by `ctx.status`."""
        return self.state.says

    @property
    def values(self) -> dict[str, Any]:
        """Values exposed by `ctx.expose`, and `status`, by name."""
        texts = sorted(self.state.values.items())
        return {name or STATUS: canonical.parse(text) if name else text for name, text in texts}

    @property
    def answers(self) -> dict[str, Any]:
        """Results of answered signals by id, in order; a Failure for an answer that is one."""
        answered = map(self.state.answer_to, sorted(self.state.answers, key=self.state.answers.__getitem__))
        return {each.signal_id: each.failure or canonical.parse(each.result) for each in answered if each}

    @property
    def doubts(self) -> list[int]:
        """Steps of calls that people have to settle."""
        return [step for step in self.open if self.state.open[step].phase == "doubt"]

    @property
    def held(self) -> list[int]:
        """Steps of calls whose attempts are used up, for an operator to settle."""
        return [step for step in self.open if self.state.open[step].phase == "held"]

    @property
    def notes(self) -> list[tuple[str, Any]]:
        """Kind and data of the agent's notes."""
        steps = self.state.steps
        return [(step.kind, canonical.parse(step.data)) for step in steps if isinstance(step, NoteRecorded)]

    @property
    def open(self) -> list[int]:
        """Steps that wait."""
        return [] if self.state.over else sorted(self.state.open)

    @property
    def story(self) -> str:
        """History for people, one event per line: time, number, kind and content."""
        request = self.state.request
        head = f"{self.state.run_id} ({request.agent if request else '?'}): {self.status}, {len(self.events)} events"
        return "\n".join([head, *_lines(self.records)])

    def _call_made(self, call: CallProposed) -> CallMade:
        args = canonical.parse(self.state.call(call.step).args)
        outcome = self.state.outcomes.get(call.step, (0, None))[1]
        sent = {e.attempt for e in self.events if isinstance(e, CallDispatched) and e.step == call.step}
        result, failure = getattr(outcome, "result", None), getattr(outcome, "failure", None)
        value = None if result is None else canonical.parse(result)
        return CallMade(call.step, call.tool, args, call.key, len(sent), value, failure)


def _lines(records: Sequence[tuple[bytes, bytes]]) -> Iterator[str]:
    began, number = None, count(1)
    for key, value in records:
        record = chain.read(key, value)
        assert isinstance(record, chain.LogRecord), "what was written can be read"
        began = record.entry.at_ms if began is None else began
        for event in record.entry.events:
            fields = ", ".join(f"{name}={value!r}" for name, value in _fields(event).items())
            cut = with_ellipsis(fields, MOST_CHARS)
            yield f"{(record.entry.at_ms - began) / 1000:12,.1f} s {next(number):4}  {type(event).__name__}  {cut}"


def _fields(event: Event) -> dict[str, Any]:
    return {
        spec.name: value
        for spec in fields(event)
        if (value := getattr(event, spec.name)) not in (spec.default, "", None, [], {})
    }
