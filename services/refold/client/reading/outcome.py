"""Outcomes of requests, signals, commands and votes."""

from typing import Any

from pydantic import Field

from refold.client.reading.model import ReadModel
from refold.core.errors import UpdateFailed
from refold.core.events import Cause, Failure, RunPaused


class Started(ReadModel):
    """A run that a planner has accepted. `known`: it existed before, with the same agent and input."""

    run_id: str
    known: bool


class CommandResult(ReadModel):
    """The outcome of an input to a run.

    `outcome`: `accepted`, `known` (already in the log, nothing changed) or `asked` (people are asked to decide it).
    `status` is the status of the run after it.
    """

    run_id: str
    outcome: str
    status: str


class SignalResult(CommandResult):
    """The outcome of a signal or an answer. `said` is its id, `step` the step that took it; 0: none so far."""

    step: int
    said: str = ""


class UpdateResult(SignalResult):
    """The agent's answer to an update: its result, or its failure."""

    result: Any
    failure: Failure | None

    def check(self) -> None:
        """**Raises** UpdateFailed if the answer is a failure."""
        if self.failure is not None:
            fields = {"run_id": self.run_id, "failure": self.failure.code, "reason": self.failure.message}
            raise UpdateFailed(f"run {self.run_id} refused {self.said}", hint=self.failure.message, **fields)


class PauseResult(CommandResult):
    """The outcome of a pause or a resume; `paused` are the pauses in force."""

    paused: list[RunPaused]


class Redriven(CommandResult):
    """The outcome of a retry of a failed run, which keeps its first `kept` steps."""

    kept: int


class Resolved(CommandResult):
    """The outcome of an operator's verdict on a call in doubt."""

    call_id: str
    verdict: str


class Voted(ReadModel):
    """The outcome of a vote.

    `what`: `decided` (the vote is part of the decision), `decided_otherwise`, `counted` (`leading` of `quorum` people
    agree so far) or `recorded` (it cannot decide by itself).
    """

    outcome: str = Field(serialization_alias="what")
    approval: str
    position: Cause
    decision: Any = None
    leading: int = 0
    quorum: int = 0
    vote: str

    @property
    def verdict(self) -> str:
        return str(self.decision["verdict"]) if self.decision else ""
