"""Agent code against history: one mechanism for crash, take-over, replay and waiting.

An agent is a coroutine that reaches the world only through intents (`Call`, `Sleep`, `Note`, `Gather`). It is driven
by `send`, with no event loop. Steps are numbered in the order in which the code asks, settled steps are fed back in
the order of the log, so the same history always drives the same code to the same place: the *frontier*, where it
waits for something that has not happened yet. Where code and history disagree, NonDeterminismError says how.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from refold.core.errors import NonDeterminismError, RefoldError, UsageError
from refold.core.events import CallProposed, NoteRecorded, RetryPolicy, SleepStarted
from refold.core.run.state import RunState, Settled, Step


class Intent:
    """Something that an agent awaits and that becomes a step of its run."""

    __slots__ = ()

    def __await__(self) -> Generator[Intent, Any, Any]:
        return (yield self)

    def value_of(self, outcome: Settled) -> Any:
        """What the agent gets for the step's outcome. May raise what the agent should see."""
        return None


@dataclass(slots=True, eq=False)
class Call(Intent):
    """Call a tool. `args` is canonical JSON; `read` turns the recorded outcome into a value or raises."""

    tool: str
    args: str
    pool: str
    effect: str
    timeout_ms: int
    retry: RetryPolicy
    key_window_ms: int
    read: Callable[[Settled], Any]

    def value_of(self, outcome: Settled) -> Any:
        return self.read(outcome)


@dataclass(slots=True, eq=False)
class Sleep(Intent):
    """Wait until a time. **Units**: milliseconds since 1970."""

    until_ms: int


@dataclass(slots=True, eq=False)
class Note(Intent):
    """Record something. Never waits."""

    kind: str
    data: str


@dataclass(slots=True, eq=False)
class Gather(Intent):
    """Several intents or coroutines at once. Waits for all, gives results in order, raises the first failure."""

    parts: tuple[Intent | Coroutine[Intent, Any, Any], ...]
    return_exceptions: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent's coroutine is over, with a value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The agent's coroutine is over, with an error that it did not handle."""

    error: BaseException


MOST_ASKED = 20_000
"""Turns of an agent's branches between two waits. An entry of 2 MiB holds 17,000 calls of the smallest kind."""

Resume = Callable[[Any, BaseException | None], None]


class _Branch(NamedTuple):
    """A coroutine under way, and where its value goes."""

    coroutine: Coroutine[Intent, Any, Any]
    done: Resume


@dataclass(slots=True)
class Moment:
    """What an agent may know of time: the moment of the entry that woke it, and whether that is being replayed.

    **Units**: milliseconds since 1970.
    """

    now_ms: int = 0
    replaying: bool = True


class Execution:
    """One run's coroutine, driven to where it waits.

    `start` and `settle` return the intents that are new, with their step numbers; `end` is set when the code is over.
    Code that asks `most` times without waiting for anything is over, too: it would never give its planner back.
    """

    def __init__(self, coroutine: Coroutine[Intent, Any, Any], moment: Moment, most: int = MOST_ASKED) -> None:
        self._main, self._most = coroutine, most
        self.moment = moment
        self._waiting: dict[int, tuple[Intent, Resume]] = {}
        self._ready: deque[tuple[_Branch, Any, BaseException | None]] = deque()
        self._under_way: dict[Coroutine[Intent, Any, Any], None] = {coroutine: None}
        self._new: list[tuple[int, Intent]] = []
        self.steps = 0
        self.end: Returned | Raised | None = None

    def start(self) -> list[tuple[int, Intent]]:
        """Runs the code from the top to its first waits."""
        self._ready.append((_Branch(self._main, self._finish), None, None))
        return self._drive()

    def settle(self, step: int, outcome: Settled) -> list[tuple[int, Intent]]:
        """Feeds the outcome of a step. **Raises** NonDeterminismError when the code does not wait for it."""
        waiting = self._waiting.pop(step, None)
        if waiting is None:
            raise NonDeterminismError(
                f"history settles step {step} and the code has not asked for it", step=step, hint="restore the old code"
            )
        intent, resume = waiting
        value: Any = None
        error: BaseException | None = None
        try:
            value = intent.value_of(outcome)
        except BaseException as failure:  # noqa: BLE001 - the agent's types read it, and may raise anything
            error = failure
        resume(value, error)
        return self._drive()

    def close(self) -> None:
        """Drops the code where it stands; its `finally` blocks run, and what they ask for or raise is not heard."""
        for coroutine in reversed(self._under_way):
            with suppress(BaseException):  # a `finally` may raise anything, and nobody is there to hear it
                coroutine.close()
        self._under_way.clear()

    def _drive(self) -> list[tuple[int, Intent]]:
        turns = 0
        while self._ready:
            branch, value, error = self._ready.popleft()
            self._advance(branch, value, error)
            turns += 1
            if turns > self._most or len(self._ready) > self._most:
                self._exhaust()
        new, self._new = self._new, []
        return new

    def _exhaust(self) -> None:
        self.close()
        message = f"the code asked {self._most:,} times without waiting for anything"
        hint = "let it sleep or call something now and then, and gather fewer at once"
        self.end = Raised(RefoldError(message, code="budget_turn", hint=hint))
        self._ready.clear()
        self._waiting.clear()
        self._new.clear()

    def _advance(self, branch: _Branch, value: Any, error: BaseException | None) -> None:
        try:
            asked = branch.coroutine.throw(error) if error is not None else branch.coroutine.send(value)
        except StopIteration as stop:
            self._under_way.pop(branch.coroutine, None)
            branch.done(stop.value, None)
        except BaseException as failure:  # noqa: BLE001 - the boundary to agent code: SystemExit too ends no planner
            self._under_way.pop(branch.coroutine, None)
            branch.done(None, failure)
        else:
            self._ask(asked, lambda v, e: self._ready.append((branch, v, e)))

    def _ask(self, asked: Any, resume: Resume) -> None:
        if isinstance(asked, Gather):
            self._gather(asked, resume)
        elif isinstance(asked, Call | Sleep | Note):
            self.steps += 1
            self._new.append((self.steps, asked))
            if isinstance(asked, Note):
                resume(None, None)
            else:
                self._waiting[self.steps] = (asked, resume)
        else:
            resume(None, _foreign(asked))

    def _gather(self, gather: Gather, resume: Resume) -> None:
        results: list[Any] = [None] * len(gather.parts)
        errors: list[BaseException | None] = [None] * len(gather.parts)
        left = len(gather.parts)

        def collect(index: int) -> Resume:
            def done(value: Any, error: BaseException | None) -> None:
                nonlocal left
                results[index], errors[index] = value, error
                left -= 1
                if left == 0:
                    finish()

            return done

        def finish() -> None:
            if gather.return_exceptions:
                resume([e if e is not None else v for v, e in zip(results, errors, strict=True)], None)
            else:
                first = next((e for e in errors if e is not None), None)
                resume(None if first else results, first)

        if not gather.parts:
            resume([], None)
        for index, part in enumerate(gather.parts):
            if isinstance(part, Intent):
                self._ask(part, collect(index))
            else:
                self._under_way[part] = None
                self._ready.append((_Branch(part, collect(index)), None, None))

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self.end = Returned(value) if error is None else Raised(error)


def replay(execution: Execution, state: RunState, unseen: int = 0) -> list[tuple[int, Intent]]:
    """Drives fresh code along a recorded history; returns what it asks for beyond it.

    The last `unseen` of the moments that wake the code (its start, and every outcome) have no reaction in the log:
    what the code does there is new. **Raises** NonDeterminismError when code and history disagree before that; it is
    raised from what the code itself raised, if it did.
    """
    moment, seen = execution.moment, 1 + len(state.outcomes) - unseen
    moment.now_ms, moment.replaying = state.started_ms, bool(state.steps)
    asked = execution.start()
    beyond: list[tuple[int, Intent]] = []
    if seen > 0:
        asked = _agree(execution, state, asked)
    beyond += asked
    for number, (step, (at_ms, outcome)) in enumerate(state.outcomes.items(), start=1):
        if number == seen:
            _caught_up(execution, state)
        moment.now_ms, moment.replaying = at_ms, number < seen and execution.steps < len(state.steps)
        asked = execution.settle(step, outcome)
        if number < seen:
            asked = _agree(execution, state, asked)
        beyond += asked
    if not unseen:
        _caught_up(execution, state)
    moment.replaying = False
    return beyond


def _agree(execution: Execution, state: RunState, asked: list[tuple[int, Intent]]) -> list[tuple[int, Intent]]:
    """What the code has asked for is what history has there. Past the end of a run it may go on as it likes."""
    for step, intent in asked:
        if step <= len(state.steps):
            _compare(execution, step, intent, state.steps[step - 1])
        elif not state.over:
            _disagree(execution, step, "nothing", describe(intent))
    if isinstance(execution.end, Raised) and not state.over:
        _caught_up(execution, state)
    return [(step, intent) for step, intent in asked if step > len(state.steps)]


def _caught_up(execution: Execution, state: RunState) -> None:
    """The code has come as far as history, and waits there as it did."""
    if execution.steps < len(state.steps):
        _disagree(execution, execution.steps + 1, describe(state.steps[execution.steps]), "nothing")
    if execution.end is not None and not state.over:
        _disagree(execution, execution.steps + 1, "a wait", "nothing")


def _disagree(execution: Execution, step: int, expected: str, found: str) -> NoReturn:
    end = execution.end
    does = f" and {found} in the code"
    if found == "nothing":
        does = ", and the code ended" if end else ", and the code asked for nothing"
    raise NonDeterminismError(
        f"step {step} is {expected} in history{does}",
        step=step,
        expected=expected,
        found=found,
        hint="restore the old code, or start a new run",
    ) from (end.error if isinstance(end, Raised) else None)


def describe(step: Step | Intent) -> str:
    """A step in words, as errors name it."""
    if isinstance(step, CallProposed | Call):
        args = step.args if len(step.args) <= 120 else step.args[:117] + "..."
        return f"call {step.tool}({args})"
    if isinstance(step, SleepStarted | Sleep):
        return "sleep"
    if isinstance(step, NoteRecorded | Note):
        return f"note {step.kind}"
    return type(step).__name__


def _compare(execution: Execution, step: int, found: Intent, recorded: Step) -> None:
    if isinstance(recorded, CallProposed):
        same = isinstance(found, Call) and (found.tool, found.args) == (recorded.tool, recorded.args)
    elif isinstance(recorded, SleepStarted):
        same = isinstance(found, Sleep)
    else:
        same = isinstance(found, Note) and (found.kind, found.data) == (recorded.kind, recorded.data)
    if not same:
        _disagree(execution, step, describe(recorded), describe(found))


def _foreign(asked: Any) -> UsageError:
    return UsageError(
        f"an agent awaited {type(asked).__name__}, which is not of its context",
        hint="await ctx.sleep(...) instead of asyncio.sleep, and put I/O into a tool for ctx.call(...)",
    )
