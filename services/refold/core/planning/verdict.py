"""The words of a decision: what may come in, and what may come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refold.core.approval.authority import Authority
from refold.core.events import Event, Failure, RunPaused, RunStarted, Spendable, Used
from refold.core.ids import RunId
from refold.core.messages import RunOperation, RunRequest, RunSignal, ToolResult
from refold.core.planning.windows import Window
from refold.core.run.account import Amount
from refold.core.run.retry import REDISPATCH_MS
from refold.core.run.state import RunState

SIGNAL_BYTES = 262_144
"""Of signals that nobody waits for, of one run: hundreds of small ones, and little for a run that lives for a year."""


class Scope(NamedTuple):
    """A budget that a run counts for, of the run that was asked for at `since_ms`; `taken` is what all others took.

    With a `window` it is a limit of all runs in that, named by `run`, for which each counts what it takes itself.
    """

    run: str
    limits: Spendable
    since_ms: int
    taken: Amount
    window: bool = False


@dataclass(frozen=True, slots=True)
class AppFacts:
    """The facts of an app on which decisions about its runs rest. `manifests` are what else its runs begin with.

    `versions`, `manifests` and `budgets` go by agent. `takes` raises UsageError when a tool, by its name, cannot have
    had such a result, and `fits` when it does not take such arguments, which it gives in their canonical form; without
    them nobody knows. `price` is what a usage costs, if that is known. **Units**: billionths of a dollar.
    """

    version: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    manifests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    takes: Callable[[str, str], object] | None = None
    fits: Callable[[str, str], str] | None = None
    budgets: Mapping[str, Spendable] = field(default_factory=dict)
    windows: Sequence[Window] = ()
    price: Callable[[Mapping[str, Any]], int | None] | None = None

    def start(self, agent: str) -> RunStarted:
        return RunStarted(self.versions.get(agent, ""), self.version, dict(self.manifests.get(agent, {})))


NO_FACTS = AppFacts()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of decisions: what the planner's settings say, its `app`, its policy, and who counts what is spent.

    **Units**: milliseconds. `redispatch_ms` is added to a call's timeout and gives the deadline after which an
    unanswered call may go out again; it doubles every time up to `redispatch_cap_ms`.
    `refused_ms` is how long a call waits that an executor sent back for a policy that is not known here yet. A run
    keeps `signal_bytes` of signals that no wait has taken so far. Without an `authority` every call goes out.
    `above` tells all that a run counts for at a time: its own, those of the runs above, and the windows of its app;
    without it that is its own.
    """

    redispatch_ms: int = REDISPATCH_MS
    redispatch_cap_ms: int = 600_000
    refused_ms: int = 1_000
    signal_bytes: int = SIGNAL_BYTES
    app: AppFacts = NO_FACTS
    authority: Authority | None = None
    above: Callable[[RunState, int], Sequence[Scope]] | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that starts another, in a `step` (0: nobody waits for it). For the rest see `RunRequested`.

    `counts_for` is the first run of those for whose budgets it counts, where there are any.
    """

    parent: RunId
    step: int
    policy: str
    outlives: bool
    above: list[str] = field(default_factory=list)
    counts_for: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """A run request, with its digest, the seed of the run's random numbers and the trace that it belongs to.

    `waits`: there is something for the run that came first, and is to be heard before any of its code runs. With an
    `origin` another run starts it and no user; `pause` is what it has of that one.
    """

    request: RunRequest
    digest: str
    seed: str
    traceparent: str = ""
    waits: bool = False
    origin: Origin | None = None
    pause: RunPaused | None = None


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A run is over that `run_id` has started in this step. See `ChildCompleted`.

    What it `used` counts for the runs above it up to `root`. `child` is its id where a run hears of it further above.
    """

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
    """Whoever has started a run waits for it no longer, and it does not outlive that."""

    run_id: RunId
    parent: RunId
    reason: str


@dataclass(frozen=True, slots=True)
class PauseAbove:
    """The run that has started this one may be paused, or go on, since its event `seq`.

    `pause` is what this one has of that by now.
    """

    run_id: RunId
    parent: RunId
    seq: int
    pause: RunPaused | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """Time has reached the `due_ms` of an open step (step 0: of the run itself)."""

    run_id: RunId
    step: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision on an approval has come, as the approval service signed it."""

    run_id: RunId
    approval: str
    token: str


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """The log will never take what an attempt of call `seq` needs: its request, or the question of an `approval`.

    `sent_before`: this request of the attempt is not the first, and executors may have had another.
    """

    run_id: RunId
    seq: int
    approval: str = ""
    attempt: int = 0
    sent_before: bool = False


@dataclass(frozen=True, slots=True)
class UnreadableResult:
    """A result has come that nobody can read, for the call that was proposed as event `seq`."""

    run_id: RunId
    seq: int
    failure: Failure


OfFamily = ChildEnded | ParentEnded | PauseAbove
Input = Start | RunSignal | RunOperation | ToolResult | Due | Decided | Undeliverable | UnreadableResult | OfFamily


@dataclass(frozen=True, slots=True)
class Ignore:
    """The input changes nothing, as far as this state knows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """The input is about something that is not known yet; with this code it is dead when that never comes."""

    reason: str
    code: str = "unknown_run"


@dataclass(frozen=True, slots=True)
class Refuse:
    """The input contradicts what is known: a dead letter."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """The call of a step is unanswered: its request may go out once more. That changes nothing in the log.

    `whole`: at once, as its executor could make nothing of a short one.
    """

    step: int
    whole: bool = False


Ruling = list[Event] | Ignore | Park | Refuse | Again
