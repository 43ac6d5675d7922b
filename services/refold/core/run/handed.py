"""What a run's code is handed where its history has only what stands for a large value."""

from __future__ import annotations

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
"""Pointer to a value, and the run below which it lies."""

Values = Mapping[Pointed, str | Failure]
"""Large values, or why there is none. Whoever hands them out has checked them against what stands for them."""

NO_VALUES: Values = Map()


def pointed(run: RunId, told: Settled | RunRequested) -> Pointed | None:
    """Pointers to read before a run's code is handed this; None if it is handed as it is."""
    if isinstance(told, CallCompleted):
        return (run, told.result) if told.result.startswith(MARK) else None
    if isinstance(told, ChildCompleted):
        return (child_id(run, told.step), told.result) if is_pointer(told.result) else None
    return (run, told.input) if isinstance(told, RunRequested) and is_pointer(told.input) else None


def pointers(state: RunState) -> Iterator[Pointed]:
    """Pointers to read before a run's code is driven along its whole history."""
    told = [kept[1] for kept in state.outcomes.values()]
    for each in [state.request, *told] if state.request else told:
        if (found := pointed(state.run_id, each)) is not None:
            yield found


def own_pointers(told: Iterable[Event]) -> Iterator[str]:
    """What stands for a value of the run that these events are of; those of its children lie with the children."""
    for event in told:
        if not isinstance(event, ChildStarted | ChildCompleted):
            yield from pointers_in(event)


def pointers_in(event: Event) -> Iterator[str]:
    """Pointers to large values in an event, of its run or of a child."""
    for name in ("input", "result", "data"):
        if isinstance(text := getattr(event, name, ""), str) and is_pointer(text):
            yield text


@dataclass(frozen=True, slots=True)
class Lacks:
    """The code of a run was not run: first these large values have to be read."""

    places: list[Pointed]


def lacking(state: RunState, values: Values) -> Lacks | None:
    """Missing values that a run's code is handed along its whole history."""
    lacks = [place for place in pointers(state) if place not in values]
    return Lacks(lacks) if lacks else None


def whole(values: Values, place: Pointed) -> str:
    """A value. **Raises** BlobError when it is missing or was altered."""
    found = values[place]
    if isinstance(found, Failure):
        raise BlobError(found.message, code=found.code)
    return found


class Holding(Driver, Protocol):
    """A driver whose code keeps what it is handed: `handed` counts the characters of large values."""

    handed: int


class Handing:
    """A driver of code that hands it whole values."""

    def __init__(self, execution: Holding, run: RunId, values: Values) -> None:
        self._execution, self._run, self._values = execution, run, values

    @property
    def moment(self) -> Moment:
        return self._execution.moment

    @moment.setter
    def moment(self, moment: Moment) -> None:
        self._execution.moment = moment

    @property
    def end(self) -> Returned | Raised | None:
        return self._execution.end

    @end.setter
    def end(self, end: Returned | Raised | None) -> None:
        self._execution.end = end

    @property
    def steps(self) -> int:
        return self._execution.steps

    def start(self) -> Wanted:
        return self._execution.start()

    def settle(self, step: int, outcome: Settled) -> Wanted:
        """See `Driver`. **Raises** BlobError, too."""
        if (place := pointed(self._run, outcome)) is not None:
            assert isinstance(outcome, CallCompleted | ChildCompleted), "no other outcome stands for a value"
            text = whole(self._values, place)
            self._execution.handed += len(text)
            outcome = dataclasses.replace(outcome, result=text)
        return self._execution.settle(step, outcome)
