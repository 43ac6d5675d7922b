"""What a client answers, as models: times are aware and in UTC, JSON is data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from refold.client.approvals import Answered
from refold.client.inputs import InputAnswer
from refold.client.register import Approval
from refold.client.rows import approval_row, ending, event_rows, json_text, summary
from refold.client.runs import Run
from refold.client.signals import SignalAnswer
from refold.core.errors import RunFailedError


def _moment(at_ms: Any) -> Any:
    return datetime.fromtimestamp(at_ms / 1000, UTC) if isinstance(at_ms, int) else at_ms


def _moment_or_none(at_ms: Any) -> Any:
    return _moment(at_ms) if at_ms else None


_Moment = Annotated[datetime, BeforeValidator(_moment)]
_MaybeMoment = Annotated[datetime | None, BeforeValidator(_moment_or_none)]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Started(_Answer):
    """A run that a planner has taken. `known`: it was there before, with the same agent and input."""

    run_id: str
    known: bool

    @classmethod
    def of(cls, answer: InputAnswer) -> Started:
        """What became of a request."""
        return cls(run_id=answer.run.state.run_id, known=answer.what == "known")


class WhyFailed(_Answer):
    """Why a run has failed, or was cancelled (`cancelled`)."""

    code: str
    message: str


class Ended(_Answer):
    """How a run ended. `value` is what the agent returned; `seq` that of its last event."""

    run_id: str
    status: Literal["completed", "failed", "cancelled"]
    value: Any = Field(None, validation_alias="result")
    failure: WhyFailed | None = None
    seq: int
    at: _Moment = Field(validation_alias="at_ms")

    @classmethod
    def of(cls, run: Run) -> Ended:
        """The end of a run that is over."""
        row = ending(run)
        if row["status"] == "cancelled":
            row["failure"] = {"code": "cancelled", "message": row["reason"] or "it was cancelled"}
        return cls.model_validate(row | {"at_ms": run.state.at_ms})

    def check(self) -> None:
        """**Raises** RunFailedError when there is no result."""
        if self.failure is not None:
            raise RunFailedError(
                f"run {self.run_id} {'was cancelled' if self.status == 'cancelled' else 'has failed'}",
                hint=f"{self.failure.code}: {self.failure.message}",
                run_id=self.run_id,
                status=self.status,
                failure=self.failure.code,
                reason=self.failure.message,
            )


class RunEvent(_Answer):
    """An event of a run's history. `type` is its name in the log, `event` its fields, `seq` its number, from 1.

    `partition` and `offset` are where its entry lies in `run-log`, `actor` is who wrote it.
    """

    run_id: str
    seq: int
    type: str
    at: _Moment = Field(validation_alias="at_ms")
    actor: str
    event: dict[str, Any]
    partition: int
    offset: int

    @classmethod
    def behind(cls, seq: int, run: Run) -> list[RunEvent]:
        """Every event so far behind one of this number, in order."""
        return [cls.model_validate(row | {"run_id": run.state.run_id}) for row in event_rows(run, seq)]


class RunInfo(_Answer):
    """A run as it is now.

    `status` is one of pending, running, suspended, completed, failed, cancelled, or stalled. `approvals` are the
    questions that people are asked now, `in_doubt` and `held` calls that wait for a human, `waiting` the names of the
    signals and callbacks that it waits for, `says` what the agent has said last that it does.
    """

    run_id: str
    agent: str
    status: str
    requester: str
    input: Any
    labels: dict[str, str]
    sessions: list[str]
    requested_at: _Moment = Field(validation_alias="requested_ms")
    at: _Moment = Field(validation_alias="at_ms")
    seq: int
    steps: int
    value: Any = Field(None, validation_alias="result")
    failure: WhyFailed | None = None
    approvals: list[str]
    in_doubt: list[str]
    held: list[str]
    waiting: list[str]
    paused: bool
    says: str

    @classmethod
    def of(cls, run: Run) -> RunInfo:
        """A run as the log has it."""
        asked = run.state.request
        more = {"requester": asked.requester, "input": json_text(asked.input)} if asked else {}
        row = {"requester": "", "input": None} | summary(run) | ending(run) | more
        return cls.model_validate(row | {"paused": bool(run.state.paused)})


class Said(_Answer):
    """What became of what was said to a run.

    `outcome`: `accepted`, or `known` when the log had it before and nothing changed. `status` is what the run is by
    then. `step` has the signal or the answer now; 0: nobody so far, it is kept until the run waits for it.
    """

    run_id: str
    outcome: str
    status: str
    step: int = 0

    @classmethod
    def of(cls, answer: InputAnswer) -> Said:
        """What became of an input."""
        step = answer.step if isinstance(answer, SignalAnswer) else 0
        return cls(run_id=answer.run.state.run_id, outcome=answer.what, status=answer.run.status, step=step)


class Question(_Answer):
    """What people are asked: may this call go out, or (`about` is `doubt`) what came of it?

    `id` has the digest of all that is asked, so that a decision on it is on nothing else. `quorum` of those in
    `approvers` have to agree, `leading` do so far. `verdict` is empty while nothing is decided.
    """

    id: str = Field(validation_alias="approval")
    state: Literal["open", "decided", "closed"]
    verdict: str
    about: str
    run_id: str
    call_id: str
    agent: str
    tool: str
    args: Any
    requester: str
    requester_verified: bool
    approvers: list[str]
    quorum: int
    leading: int
    held: str
    asked_at: _Moment = Field(validation_alias="asked_ms")
    expires_at: _MaybeMoment = Field(None, validation_alias="expires_ms")

    @classmethod
    def of(cls, found: Approval) -> Question:
        """An approval as the log has it."""
        return cls.model_validate(approval_row(found))


class Voted(_Answer):
    """What became of a vote.

    `outcome`: `decided` (it is part of the decision), `decided_otherwise`, `counted` (it counts, and `quorum` have to
    agree, of which there are `leading`), or `recorded`. `verdict` is what was decided, if anything.
    """

    approval: str
    outcome: str
    verdict: str = ""
    leading: int = 0
    quorum: int = 0

    @classmethod
    def of(cls, answer: Answered) -> Voted:
        """What the approval service has made of it."""
        verdict = answer.decision.verdict if answer.decision else ""
        return cls(
            approval=answer.approval,
            outcome=answer.what,
            verdict=verdict,
            leading=answer.leading,
            quorum=answer.quorum,
        )
