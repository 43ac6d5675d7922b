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
from refold.core.run.replay import Call, Execution, Intent, Moment, Note, Sleep, replay
from refold.core.run.state import RunState, Settled

Code = Coroutine[Intent, Any, Any]


def call(tool: str, args: str = "{}") -> Call:
    return Call(tool, args, "default", "keyed", 1_000, RetryPolicy(), 0, read)


def read(outcome: Settled) -> str:
    if isinstance(outcome, CallCompleted):
        return outcome.result
    raise CallFailedError("the call failed")


class Run:
    """Code under way, and the history that it makes."""

    def __init__(self, code: Callable[[], Code]) -> None:
        self.code = code
        self.state = RunState("run-1", started_ms=100)
        self.execution = Execution(code(), Moment())
        self.record(self.execution.start())

    def record(self, asked: list[tuple[int, Intent]]) -> None:
        for step, intent in asked:
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
        settled = self.state.outcomes
        return [n for n, s in enumerate(self.state.steps, 1) if isinstance(s, waits) and n not in settled]

    def settle(self, step: int, result: str | None = "1") -> None:
        self.record(self.execution.settle(step, self.outcome(step, result)))

    def catch_up(self, unseen: int) -> None:
        """Fresh code is driven along the history, and beyond it by the last moments that woke it."""
        self.execution = Execution(self.code(), Moment())
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
        self.state.outcomes = self.state.outcomes.add(step, (200 + step, outcome))
        return outcome

    def again(self, code: Callable[[], Code] | None = None) -> Execution:
        """Fresh code, driven along the history."""
        execution = Execution((code or self.code)(), Moment())
        assert replay(execution, self.state) == []
        return execution
