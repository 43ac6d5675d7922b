"""Inputs of decisions, and their rulings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refold.core.approval.authority import Authority
from refold.core.events import Event, Failure, RunPaused, RunStarted, Spendable, Used
from refold.core.ids import RunId
from refold.core.messages import RunOperation, RunRequest, RunSignal, ToolResult
from refold.core.planning.matrix import REDISPATCH_MS
from refold.core.planning.windows import Window
from refold.core.run.account import Amount
from refold.core.run.state import RunState

SIGNAL_BYTES = 262_144
"""Limit of unconsumed signals of one run: hundreds of small ones."""


class Scope(NamedTuple):
    """Budget that a run counts for. `taken`: usage of all other runs. A `window` limits all runs named by `run`."""

    run: str
    limits: Spendable
    since_ms: int
    taken: Amount
    window: bool = False


@dataclass(frozen=True, slots=True)
class AppFacts:
    """Facts of an app for decisions about its runs, by agent or tool."""

    version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    manifests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by agent, recorded at the start of a run
    takes: Callable[[str, str], object] | None = None  # raises UsageError for an impossible result of a tool
    fits: Callable[[str, str], str] | None = None  # arguments in canonical form, or UsageError
    budgets: Mapping[str, Spendable] = field(default_factory=dict)
    windows: Sequence[Window] = ()
    price: Callable[[Mapping[str, Any]], int | None] | None = None  # of a usage, in billionths of a dollar

    def start(self, agent: str) -> RunStarted:
        return RunStarted(self.versions.get(agent, ""), self.version, dict(self.manifests.get(agent, {})))


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of decisions: planner settings, `app`, policy, budgets. **Units**: milliseconds."""

    redispatch_ms: int = REDISPATCH_MS  # past a call's timeout until it is sent again, doubled each time
    redispatch_cap_ms: int = 600_000
    refused_ms: int = 1_000  # delay of a call sent back for a policy not read here yet
    signal_bytes: int = SIGNAL_BYTES  # limit of unconsumed signals of a run
    app: AppFacts = field(default_factory=AppFacts)
    authority: Authority | None = None  # None: every call is dispatched
    above: Callable[[RunState, int], Sequence[Scope]] | None = None  # all budgets that a run counts for; None: its own


@dataclass(frozen=True, slots=True)
class Origin:
    """Parent of a run and its `step` (0: it does not wait). `counts_for` is the topmost run to whose budgets it counts,
    if any. For the rest see `RunRequested`."""

    parent: RunId
    step: int
    policy: str
    outlives: bool
    above: list[str] = field(default_factory=list)
    counts_for: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Run request with its digest, random seed and trace. `waits`: earlier inputs must be handled before its code runs.
    `origin` is the run that starts it, if any; `pause` is inherited from that. `before` is the final state of the
    generation that it continues."""

    request: RunRequest
    digest: str
    seed: str
    traceparent: str = ""
    waits: bool = False
    origin: Origin | None = None
    pause: RunPaused | None = None
    before: RunState | None = None


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """End of a child that `run_id` started in this step, see `ChildCompleted`. `used` counts for the runs above up to
    `root`, for which `child` is the id of the child."""

    run_id: RunId
    step: int
    status: str
    result: str
    failure: Failure | None
    used: Used | None = None
    root: str = ""
    child: str = ""


@dataclass(frozen=True, slots=True)
class ParentEnded:
    """Message to a run whose parent no longer waits for it, and which does not outlive that."""

    run_id: RunId
    parent: RunId
    reason: str


@dataclass(frozen=True, slots=True)
class PauseAbove:
    """Message to a run whose parent may have been paused or resumed by its event `seq`; `pause` is inherited."""

    run_id: RunId
    parent: RunId
    seq: int
    pause: RunPaused | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """Timer input: the `due_ms` of an open step (step 0: of the run itself) has passed."""

    run_id: RunId
    step: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Decided:
    """Decision on an approval, as the approval service signed it."""

    run_id: RunId
    approval: str
    token: str


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """Input for a record that the log refuses: the request of an attempt of call `seq`, or the question of an
    `approval`. `sent_before`: executors may have the request."""

    run_id: RunId
    seq: int
    approval: str = ""
    attempt: int = 0
    sent_before: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableResult:
    """Input for an executor's result that cannot be used (see `failure`), of the call proposed as event `seq`."""

    run_id: RunId
    seq: int
    failure: Failure


OfFamily = ChildEnded | ParentEnded | PauseAbove
Input = Start | RunSignal | RunOperation | ToolResult | Due | Decided | Undeliverable | UnreadableResult | OfFamily


@dataclass(frozen=True, slots=True)
class Ignore:
    """Ruling on an input that changes nothing in this state."""

    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """Ruling on an input about something not known yet; it becomes a dead letter with this code if that never comes."""

    reason: str
    code: str = "unknown_run"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Ruling on an input that contradicts the state; it becomes a dead letter."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """Ruling on an unanswered call: its request may be sent again, without an event. `whole`: at once, because its
    executor could not resolve a short request."""

    step: int
    whole: bool = False


Ruling = list[Event] | Ignore | Park | Refuse | Again
