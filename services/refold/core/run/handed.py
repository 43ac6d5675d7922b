"""Large values (blob pointers) that a run's code needs before it is replayed."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from immutables import Map

from refold.core.errors import BlobError
from refold.core.events import CallCompleted, ChildCompleted, ChildStarted, Event, Failure, RunRequested
from refold.core.ids import RunId, child_id
from refold.core.run.replay import Driver, Moment, Raised, Returned, Wanted
from refold.core.run.state import RunState, Settled
from refold.core.wire.blobs import MARK, is_pointer

Pointed = tuple[RunId, str]
"""Run under which a value lies, and its pointer."""

Values = Mapping[Pointed, str | Failure]
"""Large values, checked against their pointers, or the failures to read them."""

NO_VALUES: Values = Map()


def pointed(run: RunId, source: Settled | RunRequested) -> Pointed | None:
    """Pointer to read before a run's code gets this outcome or request; None if it is no pointer."""
    if isinstance(source, CallCompleted):
        return (run, source.result) if source.result.startswith(MARK) else None
    if isinstance(source, ChildCompleted):
        return (child_id(run, source.step), source.result) if is_pointer(source.result) else None
    return (run, source.input) if isinstance(source, RunRequested) and is_pointer(source.input) else None


def pointers(state: RunState) -> Iterator[Pointed]:
    """Pointers to read before a run's code is driven along its whole history."""
    outcomes = [outcome[1] for outcome in state.outcomes.values()]
    for source in [state.request, *outcomes] if state.request else outcomes:
        if (pointer := pointed(state.run_id, source)) is not None:
            yield pointer


def own_pointers(recorded: Iterable[Event]) -> Iterator[str]:
    """Pointers to values of the run itself; its children's values lie with the children."""
    for event in recorded:
        if not isinstance(event, ChildStarted | ChildCompleted):
            yield from pointers_in(event)


def pointers_in(event: Event) -> Iterator[str]:
    for name in ("input", "result", "data"):
        if isinstance(text := getattr(event, name, ""), str) and is_pointer(text):
            yield text


@dataclass(frozen=True, slots=True)
class Lacks:
    """Large values to read before the code can run."""

    places: list[Pointed]


def lacking(state: RunState, values: Values) -> Lacks | None:
    """Missing large values of a run's whole history; None if there are none."""
    lacks = [place for place in pointers(state) if place not in values]
    return Lacks(lacks) if lacks else None


def whole(values: Values, place: Pointed) -> str:
    """Large value. **Raises** BlobError if it is missing or was altered."""
    content = values[place]
    if isinstance(content, Failure):
        raise BlobError(content.message, code=content.code)
    return content


class Holding(Driver, Protocol):
    """Driver whose code keeps its outcomes: `handed` counts the characters of large values."""

    handed: int


class Handing:
    """Driver that replaces pointers by their values."""

    def __init__(self, execution: Holding, run: RunId, values: Values) -> None:
        self._execution, self._run, self._values = execution, run, values

    @property
    def moment(self) -> Moment:
        return self._execution.moment

    @property
    def end(self) -> Returned | Raised | None:
        return self._execution.end

    @property
    def steps(self) -> int:
        return self._execution.steps

    def start(self) -> Wanted:
        return self._execution.start()

    def settle(self, step: int, outcome: Settled) -> Wanted:
        if (place := pointed(self._run, outcome)) is not None:
            assert isinstance(outcome, CallCompleted | ChildCompleted), "no other outcome stands for a value"
            text = whole(self._values, place)
            self._execution.handed += len(text)
            outcome = dataclasses.replace(outcome, result=text)
        return self._execution.settle(step, outcome)
