"""Code that is driven along a history, and the history that it makes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from refold.core.errors import CallFailed as CallFailedError
from refold.core.events import (
    CallCompleted,
    CallFailed,
    CallProposed,
    Failure,
    NoteRecorded,
    RetryPolicy,
    SleepEnded,
    SleepStarted,
)
from refold.core.run.intents import Call, GiveUp, Note, Sleep
from refold.core.run.replay import Moment, Raised, Returned, Wanted, replay
from refold.core.run.state import OpenStep, RunState, Settled
from refold.sdk import loop
from refold.sdk.execution import Execution

Code = Coroutine[Any, Any, Any]


def call(tool: str, args: str = "{}") -> Code:
    return loop.step(Call(tool, args, "default", "keyed", 1_000, RetryPolicy(), 0, read))


def note(kind: str, data: str = "{}") -> None:
    loop.running("note").record(Note(kind, data))


def read(outcome: Settled) -> str:
    if isinstance(outcome, CallCompleted):
        return outcome.result
    raise CallFailedError("the call failed")


class Run:
    """Code under way, and the history that it makes."""

    def __init__(self, code: Callable[[], Code]) -> None:
        self.code = code
        self.state = RunState("run-1", started_ms=100)
        self.execution = Execution(code(), Moment(100), "seed")
        self.record(self.execution.start())

    def record(self, asked: Wanted) -> None:
        for step, intent in asked:
            if isinstance(intent, GiveUp):
                if step not in self.state.outcomes:
                    self.state.given_up = self.state.given_up.set(step, OpenStep("dispatched", step))
                continue
            assert step == len(self.state.steps) + 1
            if isinstance(intent, Call):
                policy = (intent.timeout_ms, intent.retry)
                event = CallProposed(step, intent.tool, intent.args, "key", "default", "keyed", *policy)
                self.state.steps = self.state.steps.append(event)
            elif isinstance(intent, Sleep):
                self.state.steps = self.state.steps.append(SleepStarted(step, intent.until_ms))
            else:
                assert isinstance(intent, Note)
                self.state.steps = self.state.steps.append(NoteRecorded(step, intent.kind, intent.data))
        if self.execution.end:
            self.state.status = "completed"

    @property
    def open(self) -> list[int]:
        waits = (CallProposed, SleepStarted)
        settled = {*self.state.outcomes, *self.state.given_up}
        return [n for n, s in enumerate(self.state.steps, 1) if isinstance(s, waits) and n not in settled]

    def settle(self, step: int, result: str | None = "1") -> None:
        outcome = self.outcome(step, result)
        self.execution.moment.now_ms = self.state.outcomes[step][0]
        self.record(self.execution.settle(step, outcome))

    def catch_up(self, unseen: int) -> None:
        """Fresh code is driven along the history, and beyond it by the last moments that woke it."""
        self.execution = Execution(self.code(), Moment(), "seed")
        self.record(replay(self.execution, self.state, unseen))

    def outcome(self, step: int, result: str | None = "1") -> Settled:
        """A step is settled, and the code does not hear of it."""
        outcome: Settled
        if isinstance(self.state.steps[step - 1], SleepStarted):
            outcome = SleepEnded(step)
        elif result is None:
            outcome = CallFailed(step, 1, Failure("boom", "it broke"))
        else:
            outcome = CallCompleted(step, 1, result)
        self.state.outcomes = self.state.outcomes.add(step, (200 + step, outcome, 0))
        return outcome

    def again(self, code: Callable[[], Code] | None = None) -> Execution:
        """Fresh code, driven along the history."""
        execution = Execution((code or self.code)(), Moment(), "seed")
        assert replay(execution, self.state) == []
        return execution


def value(run: Run) -> Any:
    """What the code has returned."""
    assert isinstance(run.execution.end, Returned), run.execution.end
    return run.execution.end.value


def error(run: Run) -> BaseException:
    """What the code has raised."""
    assert isinstance(run.execution.end, Raised), run.execution.end
    return run.execution.end.error


def tools(run: Run) -> list[str]:
    return [step.tool for step in run.state.steps if isinstance(step, CallProposed)]
