"""The words of a decision: what may come in, and what may come of it."""

from __future__ import annotations

from dataclasses import dataclass

from refold.core.approval.authority import Authority
from refold.core.events import Event
from refold.core.ids import RunId
from refold.core.messages import RunRequest, RunSignal, ToolResult
from refold.core.run.retry import REDISPATCH_MS


@dataclass(frozen=True, slots=True)
class Rules:
    """What the planner's settings decide about decisions.

    **Units**: milliseconds. `redispatch_ms` is added to a call's timeout and gives the deadline after which an
    unanswered call goes out again; it doubles with every dispatch of one attempt up to `redispatch_cap_ms`.
    `refused_ms` is how long a call waits that an executor sent back for a policy that is not known here yet. Without an
    `authority` every call goes out.
    """

    redispatch_ms: int = REDISPATCH_MS
    redispatch_cap_ms: int = 600_000
    refused_ms: int = 1_000
    version: str = ""
    authority: Authority | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A run request, with its digest, the seed of the run's random numbers and the trace that it belongs to."""

    request: RunRequest
    digest: str
    seed: str
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """Time has reached the `due_ms` of an open step (step 0: of the run itself)."""

    run_id: RunId
    step: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision has come, as the approval service signed it. `seq` is that of the event which asked."""

    run_id: RunId
    seq: int
    token: str


Input = Start | RunSignal | ToolResult | Due | Decided


@dataclass(frozen=True, slots=True)
class Ignore:
    """The input changes nothing, as far as this state knows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """The input is about something that is not known yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The input contradicts what is known: a dead letter."""

    code: str
    reason: str


Ruling = list[Event] | Ignore | Park | Refuse
