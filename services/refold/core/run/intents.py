"""Intents of an agent: kinds, recording events, and values of their outcomes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from refold.core import events
from refold.core.errors import CallbackError
from refold.core.events import RetryPolicy
from refold.core.ids import RunId
from refold.core.run.account import Reserve
from refold.core.run.state import Settled, Step
from refold.core.wire import canonical
from refold.core.wire.blobs import stands_for

LABEL_CHARS, STATUS_CHARS = 100, 300
"""Limits of a label and of a status, in characters; a longer one is cut."""

SCHEDULE_AGENT, SCHEDULE_VALUE = "refold.schedule", "schedule"
"""Name of the agent of schedules, and of the value that it exposes."""

STATUS = "status"
"""Name under which readers find a run's status among its exposed values."""

MOST_EXPOSED, EXPOSED_BYTES = 64, 65_536
"""Limits of a run's exposed values: their number, and the bytes of their names and texts together."""


class Intent:
    """Request of an agent. `waits`: code awaits an outcome. `numbered`: it is a step, which a replay must repeat."""

    __slots__ = ()

    waits: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    texts: ClassVar[tuple[str, ...]] = ()

    def fits(self) -> bool:
        """True if its fields have the right types: agents can import the class and misuse it."""
        until = getattr(self, "until_ms", 0)
        return isinstance(until, int) and all(isinstance(getattr(self, name), str) for name in self.texts)

    def recorded(self, step: int) -> events.Event:
        """Event that records this request as step number `step`, for kinds to which the host adds nothing."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        return words_of(cast("Step", self.recorded(0)))

    @property
    def title(self) -> str:
        return self.words

    def agrees(self, recorded: Step) -> bool:
        """True if a replay that makes this request repeats the recorded step."""
        raise NotImplementedError

    def differs(self, recorded: Step) -> str:
        """Kind of difference from a recorded step: `arguments`, `renamed`, or empty for an unrelated one."""
        return ""

    def value_of(self, outcome: Settled) -> Any:
        """Agent's value of the step's outcome. May raise an error for the agent."""
        return None


@dataclass(slots=True, eq=False)
class Call(Intent):
    """Call a tool. `args` is canonical JSON; `read` turns the recorded outcome into a value or raises. `label` (display
    text) and `reserve` (reservation per attempt) may differ on replay. `builds_on` are steps of earlier calls that are
    sent with this one. `means` compares arguments by value."""

    tool: str
    args: str
    pool: str
    effect: str
    timeout_ms: int
    retry: RetryPolicy
    key_window_ms: int
    read: Callable[[Settled], Any]
    label: str = ""
    builds_on: tuple[int, ...] = ()
    reserve: Reserve | None = None
    means: Callable[[str, str], bool] | None = None

    def fits(self) -> bool:
        texts = isinstance(self.tool, str) and isinstance(self.args, str) and isinstance(self.label, str)
        return texts and (self.reserve is None or isinstance(self.reserve, Reserve))

    @property
    def words(self) -> str:
        return call_words(self.tool, self.args)

    def agrees(self, recorded: Step) -> bool:
        if not isinstance(recorded, events.CallProposed):
            return False
        args = recorded.asked or recorded.args
        # By value: an older version may have written the same arguments as another text.
        if recorded.tool == self.tool and args != self.args and self.means is not None:
            return self.means(args, self.args)
        return (recorded.tool, args) == (self.tool, self.args)

    @property
    def title(self) -> str:
        return self.tool

    def differs(self, recorded: Step) -> str:
        if not isinstance(recorded, events.CallProposed):
            return ""
        return _difference((recorded.tool, recorded.args), (self.tool, self.args))

    def value_of(self, outcome: Settled) -> Any:
        return self.read(outcome)


@dataclass(slots=True, eq=False)
class Sleep(Intent):
    """Wait until a time. **Units**: milliseconds since 1970. Its value is that time."""

    until_ms: int

    def agrees(self, recorded: Step) -> bool:
        """As `Intent.agrees`. The recorded time holds: code that computes it by other rules of a zone still agrees."""
        if not isinstance(recorded, events.SleepStarted):
            return False
        self.until_ms = recorded.until_ms
        return True

    def value_of(self, outcome: Settled) -> int:
        return self.until_ms

    def recorded(self, step: int) -> events.Event:
        return events.SleepStarted(step, self.until_ms)


@dataclass(slots=True, eq=False)
class Note(Intent):
    """Record a note. `data` is canonical JSON."""

    kind: str
    data: str

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("kind", "data")

    def agrees(self, recorded: Step) -> bool:
        if not isinstance(recorded, events.NoteRecorded) or recorded.kind != self.kind:
            return False
        return stands_for(recorded.data, self.data)

    def differs(self, recorded: Step) -> str:
        if not isinstance(recorded, events.NoteRecorded):
            return ""
        return _difference((recorded.kind, recorded.data), (self.kind, self.data))

    def recorded(self, step: int) -> events.Event:
        return events.NoteRecorded(step, self.kind, self.data)


@dataclass(slots=True, eq=False)
class Checkpoint(Intent):
    """Record that the code has reached a point with this name: `ctx.checkpoint("paid")`."""

    name: str

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("name",)

    def agrees(self, recorded: Step) -> bool:
        return isinstance(recorded, events.CheckpointReached) and recorded.name == self.name

    def differs(self, recorded: Step) -> str:
        return "renamed" if isinstance(recorded, events.CheckpointReached) else ""

    def recorded(self, step: int) -> events.Event:
        return events.CheckpointReached(step, self.name)


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal to a run: `data` is any JSON value, `actor` the claimed sender."""

    id: str
    name: str
    data: Any
    actor: str


@dataclass(slots=True, eq=False)
class Wait(Intent):
    """Wait for a matching signal, until a time (0: for ever). **Units**: milliseconds since 1970."""

    name: str
    match: str
    until_ms: int

    texts: ClassVar[tuple[str, ...]] = ("name", "match")

    def agrees(self, recorded: Step) -> bool:
        return isinstance(recorded, events.WaitStarted) and (recorded.name, recorded.match) == (self.name, self.match)

    def value_of(self, outcome: Settled) -> Signal:
        if not isinstance(outcome, events.SignalReceived):
            raise TimeoutError(f"no signal {self.name} came in time")
        return Signal(outcome.signal_id, outcome.name, canonical.parse(outcome.data), outcome.actor)

    def recorded(self, step: int) -> events.WaitStarted:
        return events.WaitStarted(step, self.name, self.match, self.until_ms)


@dataclass(slots=True, eq=False)
class Answer(Intent):
    """Wait for an answer from the holder of the token with this digest; `read` turns its JSON into a value."""

    name: str
    digest: str
    schema: str
    until_ms: int
    read: Callable[[str], Any]

    texts: ClassVar[tuple[str, ...]] = ("name", "schema")

    def agrees(self, recorded: Step) -> bool:
        same = (self.name, self.digest)
        return isinstance(recorded, events.CallbackCreated) and (recorded.name, recorded.digest) == same

    def value_of(self, outcome: Settled) -> Any:
        if isinstance(outcome, events.CallbackCompleted):
            return self.read(outcome.result)
        if isinstance(outcome, events.CallbackFailed):
            raise CallbackError(outcome.failure.message, name=self.name, actor=outcome.actor)
        raise TimeoutError(f"nobody answered the callback {self.name} in time")

    def recorded(self, step: int) -> events.CallbackCreated:
        return events.CallbackCreated(step, self.name, self.digest, self.schema, self.until_ms)


@dataclass(slots=True, eq=False)
class Patch(Intent):
    """Record that the code takes the new branch at a change."""

    patch: str

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("patch",)
    numbered: ClassVar[bool] = False

    @property
    def words(self) -> str:
        return f"patch {self.patch}"

    def recorded(self, step: int) -> events.Event:
        return events.PatchTaken(self.patch)


class GiveUp(Intent):
    """Give up a step whose task was cancelled."""

    __slots__ = ()

    waits: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    @property
    def words(self) -> str:
        return "given up"


GIVE_UP = GiveUp()


@dataclass(frozen=True, slots=True)
class Continuation:
    """Result of an agent that continues as the next generation of its run, with this input (JSON)."""

    input: str


def call_words(tool: str, args: str) -> str:
    return f"call {tool}({_brief(args)})"


def _brief(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


def _difference(recorded: tuple[str, str], requested: tuple[str, str]) -> str:
    if recorded[0] == requested[0]:
        return "arguments"
    return "renamed" if recorded[1] == requested[1] else ""


_WORDS: dict[type, Callable[[Any], str]] = {
    events.CallProposed: lambda step: call_words(step.tool, step.args),
    events.NoteRecorded: lambda step: f"note {step.kind}",
    events.ChildStarted: lambda step: f"run {step.agent}({_brief(step.input)})",
    events.EventPublished: lambda step: f"publish {step.name}",
    events.SignalSent: lambda step: f"signal {step.name} to {step.run_id}",
    events.SignalAnswered: lambda step: f"answer to signal {step.signal_id}",
    events.RunSubmitted: lambda step: f"submit {step.run_id}: {step.agent}({_brief(step.input)})",
    events.CheckpointReached: lambda step: f"checkpoint {step.name}",
    events.WaitStarted: lambda step: f"wait for {step.name}{f' where {step.match}' if step.match else ''}",
    events.CallbackCreated: lambda step: f"callback {step.name}",
    events.SleepStarted: lambda step: "sleep",
}


def words_of(step: Step) -> str:
    return _WORDS[type(step)](step)


@dataclass(slots=True, eq=False)
class StartRun(Intent):
    """Start another run. `read` turns its end into a value or raises. For `means` see `Call`. A replay does not compare
    its own `labels`."""

    agent: str
    input: str
    outlives: bool
    read: Callable[[events.ChildCompleted], Any]
    means: Callable[[str, str], bool] | None = None
    labels: dict[str, str] = field(default_factory=dict)

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
        """Event that records the start of this child run as step number `step`."""
        return events.ChildStarted(step, self.agent, self.input, self.outlives, self.labels)


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
class AnswerSignal(Intent):
    """Answer a signal that the code has taken. `result` is canonical JSON."""

    signal_id: str
    result: str
    failure: events.Failure | None

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("signal_id", "result")

    def agrees(self, recorded: Step) -> bool:
        if not isinstance(recorded, events.SignalAnswered):
            return False
        # The text of a failure may contain an address or a line of the code.
        codes = [failure and failure.code for failure in (self.failure, recorded.failure)]
        return (recorded.signal_id, recorded.result, codes[1]) == (self.signal_id, self.result, codes[0])

    def recorded(self, step: int) -> events.SignalAnswered:
        return events.SignalAnswered(step, self.signal_id, self.result, self.failure)


@dataclass(slots=True, eq=False)
class SubmitRun(Intent):
    """Start a run with an id of its own. For `means` see `Call`."""

    run: RunId
    agent: str
    input: str
    means: Callable[[str, str], bool] | None = None

    waits: ClassVar[bool] = False
    texts: ClassVar[tuple[str, ...]] = ("run", "agent", "input")

    def agrees(self, recorded: Step) -> bool:
        if not isinstance(recorded, events.RunSubmitted):
            return False
        same = (recorded.run_id, recorded.agent) == (self.run, self.agent)
        if not same or recorded.input == self.input:
            return same
        return self.means is not None and self.means(recorded.input, self.input)

    def recorded(self, step: int) -> events.RunSubmitted:
        return events.RunSubmitted(step, self.run, self.agent, self.input)


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
