"""Sources: topics of other systems, whose records a function of the app maps to runs and signals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Literal

from refold.core.errors import MalformedError, UsageError
from refold.core.ids import run_id
from refold.core.messages import RunRequest, RunSignal
from refold.core.planning.waiting import check_name
from refold.core.wire import canonical
from refold.sdk.agent import AgentDef

_TOPIC_CHARS = 90
"""With a partition and an offset, 31 characters, a run id has at most 128."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Record of a source. `key` is a text, empty without a key, and `value` JSON data; in a source with `value="bytes"`
    both are bytes. The value of a tombstone is None."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes]]
    at: datetime

    @property
    def id(self) -> str:
        """Topic, partition and offset as a run id, `orders:0:17`, unique among the records of all topics."""
        # Run ids have no dots, and topics no `~` and `@`: no two topics get one name.
        name = self.topic.replace(".", "~")
        name = name if name[0].isalnum() or name[0] == "_" else f"_@{name}"
        if len(name) > _TOPIC_CHARS:
            name = f"{name[:50]}@{blake2b(self.topic.encode(), digest_size=16).hexdigest()}"
        return f"{name}:{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class NewRun:
    """Start of a run: the same `id` with the same agent and input is one run. The default `id` is the record's."""

    agent: Callable[..., Any] | str
    input: Any = None
    id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    requester: str = ""


@dataclass(frozen=True, slots=True)
class NewSignal:
    """Signal for a run, which receives it once per `id`; the default `id` is the record's. `start` begins the run
    first, if it is not there: with the same input in all signals of a run."""

    run: str
    name: str
    data: Any = None
    id: str = ""
    start: NewRun | None = None


Mapped = NewRun | NewSignal | None


@dataclass(frozen=True)
class RecordSource:
    """Declaration of `App.source`: a topic, the group that reads it, and the function that maps its records."""

    topic: str
    group: str
    value: Literal["json", "bytes"]
    function: Callable[[SourceRecord], Mapped]
    find_agent: Callable[[Callable[..., Any] | str], AgentDef]

    def inputs(self, record: SourceRecord) -> list[RunRequest | RunSignal]:
        """Map a record, still as bytes, to inputs in their order. **Raises** what the function raises; RefoldError or
        UnicodeDecodeError for an invalid value, key or result."""
        if self.value == "json":
            text = "null" if record.value is None else record.value
            parsed = canonical.parse(text, containers=canonical.MAX_CONTAINERS)
            record = replace(record, key=record.key.decode(), value=parsed)
        mapped = self.function(record)
        if isinstance(mapped, NewRun):
            return [self._request(mapped, mapped.id or record.id)]
        if isinstance(mapped, NewSignal):
            return self._signal(mapped, mapped.id or record.id)
        if mapped is not None:
            raise UsageError(f"{type(mapped).__name__} is no input", hint="return NewRun, NewSignal or None")
        return []

    def _signal(self, mapped: NewSignal, name: str) -> list[RunRequest | RunSignal]:
        data = canonical.dumps(mapped.data)
        signal = RunSignal(run_id(mapped.run), name, "signal", data, name=check_name(mapped.name))
        if mapped.start is None:
            return [signal]
        if mapped.start.id not in ("", mapped.run):
            raise UsageError(f"a signal for {mapped.run} starts {mapped.start.id}", hint="leave id= out of NewRun")
        return [self._request(mapped.start, mapped.run), signal]

    def _request(self, start: NewRun, name: str) -> RunRequest:
        if "." in name or "+" in name:
            raise MalformedError(f"{name[:80]!r} is the id of a child or a generation", hint="write - in its place")
        agent = self.find_agent(start.agent)
        run, text = run_id(name), agent.input_json(start.input)
        return RunRequest(run, agent.name, text, start.requester, labels=dict(start.labels))
