"""Replay of agent code against history, for crash, take-over and waiting. An execution (`sdk.loop`) gets the outcomes
of its steps one at a time, in the order of the log, and returns its new requests each time, so the same history drives
the same code to the same place."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

from refold.core.errors import NonDeterminismError
from refold.core.run.intents import GiveUp, Intent, words_of
from refold.core.run.state import RunState, Settled, Step, next_step


class Change(NamedTuple):
    """Difference of code and history. `name`: `added`, `removed`, `reordered`, `renamed`, `arguments`, `replaced`,
    `raised` or `waiting`."""

    name: str
    words: str


def change_at(
    requests: Sequence[Intent],
    *,
    recorded: Step | None,
    then: Step | None,
    earlier: Step | None,
    ask_on: Callable[[], Sequence[Intent]],
) -> Change:
    """Classify the change at a step, heuristically. `requests`: the code's from there on in its turn; `ask_on` returns
    those after the next recorded outcome. History has `recorded` there, `then` next, `earlier` before."""
    if not requests:
        return Change("removed", f"{words_of(recorded)} was removed" if recorded else "a step was removed")
    actual = requests[0]
    if recorded is None:
        return Change("added", f"{actual.words} was added")
    skips = then is not None and actual.agrees(then)
    after = [*requests[1:], *(ask_on() if skips and len(requests) == 1 else ())]
    comes = bool(after) and after[0].agrees(recorded)
    if skips and comes:
        return Change("reordered", f"{words_of(recorded)} and {actual.words} were reordered")
    if skips:
        return Change("removed", f"{words_of(recorded)} was removed")
    if comes:
        return Change("added", f"{actual.words} was added")
    if name := actual.differs(recorded):
        text = {"arguments": f"the arguments of {actual.title} were changed", "renamed": f"it is {actual.title} by now"}
        return Change(name, text[name])
    if earlier is not None and actual.agrees(earlier):
        return Change("added", f"{actual.words} was added once more")
    return Change("replaced", "it was replaced, or something was added before it")


Wanted = list[tuple[int, Intent]]
"""Requests of the code at once: first the steps that it gives up, by number, then the new ones in order. An unnumbered
request has the number 0, except for a step that is given up."""

_WAITS = Change("waiting", "")
"""Code and history make the same requests, but wait for different ones."""


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    error: BaseException


@dataclass(slots=True)
class Moment:
    """Time for an agent: the time of the entry that woke it, and if that is replayed. `recorded`: the log has the
    requests of this turn; else, after a retry, those up to step `stays`. **Units**: milliseconds since 1970."""

    now_ms: int = 0
    replaying: bool = True
    recorded: bool = False
    stays: int = 0


class Driver(Protocol):
    """Running agent code (`sdk.execution`). `end` is set when it is over."""

    @property
    def moment(self) -> Moment: ...

    @property
    def end(self) -> Returned | Raised | None: ...

    @property
    def steps(self) -> int: ...

    def start(self) -> Wanted: ...

    def settle(self, step: int, outcome: Settled) -> Wanted:
        """Feed the outcome of a step. **Raises** NonDeterminismError if the code has not requested the step."""
        ...


def replay(execution: Driver, state: RunState, unseen: int = 0) -> Wanted:
    """Drive fresh code along a recorded history; return its requests beyond it. The last `unseen` waking moments (its
    start, and every outcome) have no reaction in the log. **Raises** NonDeterminismError, from the code's own error if
    any, when code and history disagree before that."""
    moment, reacted = execution.moment, 1 + len(state.outcomes) - unseen
    moment.now_ms, moment.recorded = state.started_ms, reacted > 0
    moment.replaying = moment.recorded and bool(state.steps)
    moment.stays = state.retried.step_before(len(state.steps)) if state.retried.left else 0
    gone: set[int] = set()
    beyond = _agree(execution, state, execution.start(), gone, loose=reacted <= 0)
    for number, (step, (at_ms, outcome, _)) in enumerate(state.outcomes.items(), start=1):
        if number == reacted and not state.retried.left:
            _caught_up(execution, state, gone)
        if step > execution.steps and number <= reacted:
            _raise_change(execution, state, next_step(execution.steps, state.retried.left), [])
        moment.now_ms, moment.recorded = at_ms, number < reacted
        moment.replaying = moment.recorded and execution.steps < len(state.steps)
        beyond += _agree(execution, state, execution.settle(step, outcome), gone, loose=number >= reacted)
    if not unseen or state.retried.left:
        _caught_up(execution, state, gone, loose=unseen > 0)
    moment.replaying, moment.recorded, moment.stays = False, False, 0
    return beyond


def _agree(execution: Driver, state: RunState, requests: Wanted, gone: set[int], *, loose: bool) -> Wanted:
    """Match requests with history; return new ones. After a run's end, or if `loose` after history, any is allowed."""
    free = state.over or loose
    for place, (step, intent) in enumerate(requests):
        if isinstance(intent, GiveUp):
            gone.add(step)
            # A step that settles in the same moment is over before it can be given up.
            if not (free or step in state.given_up or step in state.outcomes):
                _raise_disagreement(execution, step, "waited for", "given up")
        elif intent.numbered and not (free if step > len(state.steps) else intent.agrees(state.steps[step - 1])):
            _raise_change(execution, state, step, requests[place:])
    if not free and isinstance(execution.end, Raised):
        _caught_up(execution, state, gone)
    return [(step, intent) for step, intent in requests if _is_new(state, step, intent, loose=loose)]


def _is_new(state: RunState, step: int, intent: Intent, *, loose: bool) -> bool:
    if intent.numbered:
        return step > len(state.steps)
    return loose and not (isinstance(intent, GiveUp) and step in state.given_up)


def _caught_up(execution: Driver, state: RunState, gone: set[int], *, loose: bool = False) -> None:
    """Check that the code waits where history waits, or (`loose`) acts beyond it."""
    if execution.steps < state.retried.step_before(len(state.steps)):
        _raise_change(execution, state, next_step(execution.steps, state.retried.left), [])
    if not loose and execution.end is not None and not state.over:
        _raise_disagreement(execution, execution.steps + 1, "a wait", "nothing")
    if not state.over and (abandoned := sorted(set(state.given_up) - gone)):
        _raise_disagreement(execution, abandoned[0], "given up", "waited for")


def _raise_change(execution: Driver, state: RunState, step: int, requests: Wanted) -> NoReturn:
    """Raise for a request of the code that history lacks at this step."""
    new = [intent for _, intent in requests if intent.numbered]
    following, before = next_step(step, state.retried.left), state.retried.step_before(step - 1)
    recorded, then, earlier = (_recorded_step(state, number) for number in (step, following, before))

    def ask_on() -> list[Intent]:
        settled = state.outcomes.get(following)
        if settled is None or not new[0].waits:
            return []
        with suppress(Exception):  # this execution has failed already, and is only examined
            return [intent for _, intent in execution.settle(step, settled[1]) if intent.numbered]
        return []

    change = change_at(new, recorded=recorded, then=then, earlier=earlier, ask_on=ask_on)
    expected = words_of(recorded) if recorded else "nothing"
    if isinstance(execution.end, Raised) and not new:
        change = Change("raised", "")
    _raise_disagreement(execution, step, expected, new[0].words if new else "nothing", change)


def _recorded_step(state: RunState, number: int) -> Step | None:
    return state.steps[number - 1] if 0 < number <= len(state.steps) else None


def _raise_disagreement(execution: Driver, step: int, expected: str, actual: str, change: Change = _WAITS) -> NoReturn:
    end = execution.end
    does = f" and {actual} in the code"
    if actual == "nothing":
        does = ", and the code ended" if end else ", and the code asked for nothing"
    guess = f": it looks as if {change.words}" if change.words else ""
    raise NonDeterminismError(
        f"step {step} is {expected} in history{does}{guess}",
        step=step,
        expected=expected,
        found=actual,
        change=change.name,
        hint="guard the change with `ctx.patched`, serve the old version beside the new one, or restore the old code",
    ) from (end.error if isinstance(end, Raised) else None)
