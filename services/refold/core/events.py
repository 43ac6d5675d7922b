"""Everything that can happen in a run, and the entry that carries it: the closed union of the run log.

Past tense, flat, JSON inside text fields (`args`, `result`, `data`, `input`), milliseconds since 1970 in fields that
end in `_ms`. The Avro schemas in `schemas/` are exported from these classes; a field is never removed or retyped, and
a new one has a default. `step` numbers what an agent asks of its context: 1, 2, 3 ... in the order of asking.
"""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field

from refold.core.children import ChildCompleted as ChildCompleted
from refold.core.children import ChildStarted as ChildStarted
from refold.core.children import EventPublished as EventPublished
from refold.core.children import SignalSent as SignalSent
from refold.core.ids import RunId
from refold.core.parts import Cause as Cause
from refold.core.parts import Earlier as Earlier
from refold.core.parts import Failure as Failure
from refold.core.parts import Requirement as Requirement
from refold.core.parts import RetryPolicy as RetryPolicy
from refold.core.parts import Spendable as Spendable
from refold.core.parts import Used as Used
from refold.core.pauses import RunPaused as RunPaused
from refold.core.pauses import RunUnpaused as RunUnpaused
from refold.core.progress import CheckpointReached as CheckpointReached
from refold.core.progress import RunResumed as RunResumed
from refold.core.progress import RunSuspended as RunSuspended
from refold.core.progress import StatusSet as StatusSet
from refold.core.progress import TaskFailed as TaskFailed
from refold.core.retries import CallHeld as CallHeld
from refold.core.retries import CallRenewed as CallRenewed
from refold.core.retries import RunRetried as RunRetried
from refold.core.revisions import PatchTaken as PatchTaken
from refold.core.revisions import RunMigrated as RunMigrated
from refold.core.spending import BudgetReached as BudgetReached
from refold.core.spending import CallBilled as CallBilled
from refold.core.spending import CallRepeated as CallRepeated
from refold.core.spending import CallReserved as CallReserved
from refold.core.spending import ChildBilled as ChildBilled
from refold.core.spending import OfBudget as OfBudget
from refold.core.waits import CallbackCompleted as CallbackCompleted
from refold.core.waits import CallbackCreated as CallbackCreated
from refold.core.waits import CallbackFailed as CallbackFailed
from refold.core.waits import MatchFailed as MatchFailed
from refold.core.waits import SignalDropped as SignalDropped
from refold.core.waits import SignalReceived as SignalReceived
from refold.core.waits import WaitEnded as WaitEnded
from refold.core.waits import WaitExpired as WaitExpired
from refold.core.waits import WaitsPostponed as WaitsPostponed
from refold.core.waits import WaitStarted as WaitStarted


@dataclass(frozen=True, slots=True)
class RunRequested:
    """A run exists. `request_digest` tells a repeated start from a contradictory one; `seed` feeds `ctx.random`.

    `policy` is the digest of the policy that judges its calls, if any. `token` is what the requester has signed, if
    anything; a child has that of its root. `outlives`: it goes on when its parent is over. At `deadline_ms` it fails;
    0: never. `above` are the agents of the runs that wait for it, from the first on. A `budget` bounds what it takes.
    """

    agent: str
    input: str
    request_digest: str
    seed: str
    requester: str = ""
    traceparent: str = ""
    not_before_ms: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    policy: str = ""
    token: str = ""
    sessions: list[str] = field(default_factory=list)
    outlives: bool = False
    deadline_ms: int = 0
    above: list[str] = field(default_factory=list)
    budget: Spendable | None = None

    @property
    def session(self) -> str:
        """The session that a policy and people hear of: the first, or what the label of this name says."""
        return self.sessions[0] if self.sessions else self.labels.get("session", "")


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The agent's code begins. `version` is the agent's, `app` that of the app that it is part of.

    `manifest` says what else it began with, names and values: digests of code and tools, Python's minor version.
    """

    version: str = ""
    app: str = ""
    manifest: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoteRecorded:
    """The agent wrote something down: a plan, a decision, a checkpoint, a thought."""

    step: int
    kind: str
    data: str


@dataclass(frozen=True, slots=True)
class CallProposed:
    """The agent asks for a tool. Everything that later attempts need is fixed here, the idempotency key too.

    `rule` names the rule of the run's policy that judged it. `label` is what the agent calls it for who looks on: part
    of no key and no digest, and never in the place of what runs. `asked` is what the code asked for, where an operator
    has given it others. `builds_on` are earlier calls of the run of which its arguments speak: what those were asked
    and gave goes out with it.
    """

    step: int
    tool: str
    args: str
    key: str
    pool: str
    effect: str
    timeout_ms: int
    retry: RetryPolicy
    key_window_ms: int = 0
    rule: str = ""
    label: str = ""
    asked: str = ""
    builds_on: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallJudged:
    """A policy that is in force by now has judged the call again."""

    step: int
    policy: str
    rule: str


DOUBT = "doubt"
"""What a question is about to which people say what came of a call, and the rule by which they are asked."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """People have to decide before the call goes on; the approval's id is the call's and 32 digits of `question`.

    A decision will cover the attempts from `attempt` to `covers`. `question` is the digest of all that people are shown
    (see `core.approval.question`); `version` and `schema` are the tool's. `about` is `doubt` where people say what came
    of the attempts before.
    """

    step: int
    attempt: int
    covers: int
    policy: str
    rule: str
    requirement: Requirement
    environment: str
    version: str
    schema: str
    question: str
    expires_ms: int = 0
    about: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalEscalated:
    """Nobody has decided in time: more people are asked, until `expires_ms`. That is a `question` of its own.

    `approval` is the seq of the event that asked first.
    """

    step: int
    approval: int
    approvers: list[str]
    expires_ms: int
    question: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """A decision was accepted: `approve`, `edit` (new `args` and `key`), `reject`, `answer`; or `expire`: none came.

    An edit about which its policy asks others is an `amend`: it lets nothing out, and what becomes of it follows.
    `token` is the signed decision, good for attempts up to `covers` until `expires_ms`. `grant` is the standing grant
    that it gives (`use` 0) or that it is the `use`th use of. What follows of a decision stands in the same entry.
    `question` is the digest of what was decided, or is not asked any more.
    """

    step: int
    approval: int
    verdict: str
    token: str = ""
    actors: list[str] = field(default_factory=list)
    message: str = ""
    args: str = ""
    key: str = ""
    covers: int = 0
    expires_ms: int = 0
    grant: str = ""
    use: int = 0
    question: str = ""


@dataclass(frozen=True, slots=True)
class CallDispatched:
    """An attempt goes to the executors. Unanswered at `deadline_ms`, it is dispatched again under the same number."""

    step: int
    attempt: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """One try is over without a result, another follows at `retry_ms`. `unknown`: the effect may have happened."""

    step: int
    attempt: int
    failure: Failure
    unknown: bool
    retry_ms: int


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """The call is over with a result."""

    step: int
    attempt: int
    result: str


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The call is over without a result; the agent sees the failure.

    `acted`: the tool has had its effect, and what it gave is no result.
    """

    step: int
    attempt: int
    failure: Failure
    acted: bool = False


@dataclass(frozen=True, slots=True)
class CallDoubted:
    """Nobody can know whether the effect happened: a human decides."""

    step: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class DoubtResolved:
    """A human decided about a call in doubt, or one that is held: `happened`, `did_not_happen` or `give_up`."""

    step: int
    attempt: int
    verdict: str
    actor: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class LateResultRecorded:
    """A result came for a call that was settled without it. `contradicts`: it says otherwise than the human did."""

    step: int
    attempt: int
    status: str
    result: str
    contradicts: bool


@dataclass(frozen=True, slots=True)
class SleepStarted:
    """The agent sleeps."""

    step: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class SleepEnded:
    """The time has come."""

    step: int


@dataclass(frozen=True, slots=True)
class StepGivenUp:
    """The agent waits for a step no longer: the task that did was cancelled. What is under way is not undone.

    What comes of a call after that is late, and a call in doubt stays open for people.
    """

    step: int


@dataclass(frozen=True, slots=True)
class RunCompleted:
    """The agent returned."""

    result: str


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The agent raised, or could not go on."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """Somebody stopped the run. Calls that were open stay without a result."""

    reason: str
    actor: str


Event = (
    RunRequested
    | RunStarted
    | NoteRecorded
    | CallProposed
    | CallDispatched
    | AttemptFailed
    | CallCompleted
    | CallFailed
    | CallDoubted
    | DoubtResolved
    | LateResultRecorded
    | SleepStarted
    | SleepEnded
    | RunCompleted
    | RunFailed
    | RunCancelled
    | CallJudged
    | ApprovalRequested
    | ApprovalEscalated
    | ApprovalDecided
    | StepGivenUp
    | RunSuspended
    | RunResumed
    | CheckpointReached
    | StatusSet
    | TaskFailed
    | SignalReceived
    | SignalDropped
    | WaitStarted
    | MatchFailed
    | WaitEnded
    | WaitExpired
    | CallbackCreated
    | CallbackCompleted
    | CallbackFailed
    | ChildStarted
    | ChildCompleted
    | EventPublished
    | SignalSent
    | PatchTaken
    | RunMigrated
    | RunRetried
    | CallRenewed
    | RunPaused
    | RunUnpaused
    | WaitsPostponed
    | CallHeld
    | OfBudget
)

Terminal = RunCompleted | RunFailed | RunCancelled


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the run log: all events that one input caused for a run.

    **Shape**: at least one event; event i has seq `seq + i`. `prev` is the id of the run's entry before this one,
    empty for the first; `nonce` is fresh for every send, so equal bytes never go out twice. `held`: the agent's code
    was not run, so nothing of it follows here; the next entry that is not held has what it makes of all that came.
    """

    run_id: RunId
    seq: int
    prev: bytes
    at_ms: int
    cause: Cause | None
    actor: str
    nonce: bytes
    events: list[Event]
    held: bool = False

    @property
    def last_seq(self) -> int:
        """The seq of the last event."""
        return self.seq + len(self.events) - 1
