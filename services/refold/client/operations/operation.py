"""Performs operations: sends their input, follows the log, and returns the outcome."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from refold.client.operations.runs import Runs, is_over
from refold.client.reading.history import JudgedRecord, Run
from refold.client.reading.outcome import CommandResult
from refold.core.errors import ClosedError, ConflictError, RefoldError, UsageError
from refold.core.events import Cause, Event
from refold.core.ids import RunId, home
from refold.core.messages import ApprovalVote, DeadLetter, RunOperation, RunRequest, RunSignal
from refold.core.run.state import RunState
from refold.core.topics import DEAD_LETTER
from refold.core.wire import codec
from refold.engine.ports.log import Record

UNDER_WAY = 500
"""Concurrent operations: as many histories as planners read in one pass of the log."""
AGAIN_S = 0.5
"""Interval in seconds between readings of the log for many runs."""

RunInput = RunRequest | RunSignal | RunOperation


class Sender(Protocol):
    def send(self, message: RunInput | ApprovalVote) -> tuple[int, int]:
        """Publish to the home of the run and wait for the ack; return partition and offset."""


class Followed(NamedTuple):
    """Run as read so far by a wait for an outcome; `judged` is the last read record, None at the end of the log."""

    run: Run
    position: Cause
    judged: JudgedRecord | None = None

    @property
    def whole(self) -> bool:
        """True if the run is read to the end of the log, so that its state is the present one."""
        return self.judged is None

    @property
    def fresh(self) -> list[Event]:
        """Events of the entry that answers the input; empty so far."""
        entries = (record.entry for record in self.run.records if record.entry is not None)
        return next((entry.events for entry in entries if entry.cause == self.position), [])

    @property
    def over(self) -> bool:
        return is_over(self.run, self.judged)


@dataclass(frozen=True, slots=True)
class OperationRow:
    """Input to send, and the judge of its outcome. `judge` returns `accepted`, `known` (already in the log, nothing
    changed), `asked` (waits for people) or None (no outcome so far). It **raises** ConflictError if the log shows a
    refusal."""

    message: RunInput
    judge: Callable[[Followed], str | None]


@dataclass(frozen=True, slots=True)
class Performed:
    """Outcome of an operation: the result of its `judge`, its run, and the position of its input."""

    what: str
    run: Run
    position: Cause

    @property
    def result(self) -> CommandResult:
        return CommandResult(run_id=self.run.state.run_id, outcome=self.what, status=self.run.status)


class Outcome(NamedTuple):
    """Outcome of one of many operations: the result of its `judge`, `refused` or `unanswered`."""

    what: str
    state: RunState
    error: str = ""


def publish_input(sender: Sender, message: RunInput) -> Cause:
    return Cause(codec.SUBJECTS[type(message)], *sender.send(message))


def one(runs: Runs, sender: Sender, operation: OperationRow, timeout_s: float | None = 30.0) -> Performed:
    """Perform an operation and wait for its outcome. **Units**: seconds; None waits endlessly. **Raises** as its
    `judge`, the error of its dead letter, TimedOutError."""
    return follow_up(runs, operation, publish_input(sender, operation.message), timeout_s)


def follow_up(runs: Runs, operation: OperationRow, position: Cause, timeout_s: float | None = 30.0) -> Performed:
    """Wait for the outcome of an operation that was sent already. **Raises** as `one`."""
    run = operation.message.run_id
    letters = runs.reader.tail(DEAD_LETTER, home(run, runs.partitions))
    until = f"done with {position.topic}/{position.partition}/{position.offset}"
    for current, judged in runs.follow(run, timeout_s, until=until):
        if (outcome := operation.judge(Followed(current, position, judged))) is not None:
            return Performed(outcome, current, position)
        if judged is None and (refused := refusals(letters).get(position)):
            raise refused
    raise AssertionError("a tail goes on for ever")


def many(
    runs: Runs, sender: Sender, operations: Sequence[OperationRow], timeout_s: float, show: Callable[[int, int], object]
) -> dict[RunId, Outcome]:
    """Perform operations on different runs, `UNDER_WAY` at a time; `show` gets the numbers of done ones and of all."""
    outcomes: dict[RunId, Outcome] = {}
    for start in range(0, len(operations), UNDER_WAY):
        batch = operations[start : start + UNDER_WAY]

        def progress(done: int, before: int = start) -> None:
            show(before + done, len(operations))

        outcomes |= _batch(runs, sender, batch, timeout_s, progress)
    return outcomes


def _batch(
    runs: Runs, sender: Sender, batch: Sequence[OperationRow], timeout_s: float, show: Callable[[int], object]
) -> dict[RunId, Outcome]:
    letters = runs.reader.tail(DEAD_LETTER)
    sent = {operation.message.run_id: (operation, publish_input(sender, operation.message)) for operation in batch}
    done, states, refused = dict[RunId, Outcome](), dict[RunId, RunState](), dict[Cause, RefoldError]()
    deadline = time.monotonic() + timeout_s
    while True:
        refused |= refusals(letters)
        for run in runs.all():
            if (name := run.state.run_id) in sent:
                states[name] = run.state
                if name not in done and (outcome := _outcome(run, *sent[name], refused)):
                    done[name] = outcome
        show(len(done))
        if len(done) == len(sent) or time.monotonic() > deadline:
            return {run: done.get(run) or Outcome("unanswered", states.get(run, RunState(run))) for run in sent}
        time.sleep(AGAIN_S)


def _outcome(run: Run, operation: OperationRow, position: Cause, refused: dict[Cause, RefoldError]) -> Outcome | None:
    try:
        if outcome := operation.judge(Followed(run, position)):
            return Outcome(outcome, run.state)
    except ConflictError as error:
        return Outcome("refused", run.state, error.message)
    return Outcome("refused", run.state, refused[position].message) if position in refused else None


def refusals(letters: Iterable[Record | None]) -> dict[Cause, RefoldError]:
    """Errors of refused inputs by position, from dead letters up to the end of a tail so far."""
    errors: dict[Cause, RefoldError] = {}
    for record in letters:
        if record is None:
            break
        if (letter := codec.decode_known(DeadLetter, record.value)) is None:
            continue
        hint = f"`refold deadletter show {record.partition}/{record.offset}` has the whole input"
        error: RefoldError = UsageError(f"the input was refused: {letter.reason}", hint=hint)
        if letter.code in ("conflict", "closed"):
            error = (ClosedError if letter.code == "closed" else ConflictError)(letter.reason, hint=hint)
        errors[Cause(letter.topic, letter.partition, letter.offset)] = error
    return errors
