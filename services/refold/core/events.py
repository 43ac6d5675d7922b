"""Events of a run and the run-log entry that contains them. Past tense, flat, JSON inside text fields (`args`,
`result`, `data`, `input`), milliseconds since 1970 in fields that end in `_ms`. `step` numbers an agent's requests to
its context, from 1. The Avro schemas in `schemas/` are exported from these classes: a field is never removed or
retyped, a new one has a default."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field

from refold.core.ids import RunId

# Parts of events and messages.


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something did not work, as data. `code` is stable and for programs, `message` is for people."""

    code: str
    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """The position of the input that an entry answers."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is tried and how long it waits in between: `base * 2^(n-1)`, capped, with jitter. If `retry_if`
    is not empty, only failures with these codes are retried. After the last attempt the call fails in the agent (`then`
    is `raise`) or waits for an operator (`hold`)."""

    attempts: int = 1
    base_ms: int = 500
    cap_ms: int = 60_000
    retry_if: list[str] = field(default_factory=list)
    then: str = "raise"


@dataclass(frozen=True, slots=True)
class Requirement:
    """Requirement of a policy for a decision. **Shape**: `approvers` are names of people, `role:NAME`, or `*` for
    anyone. `on_expiry`: `reject`, `escalate` or `fail`. An approval may be repeated `remember_uses` times within
    `remember_ms`. **Units**: milliseconds; 0 means never, except for `valid_ms`, the validity of a decision."""

    approvers: list[str]
    quorum: int = 1
    not_requester: bool = True
    expires_ms: int = 0
    on_expiry: str = "reject"
    escalate_ms: int = 0
    escalate_to: list[str] = field(default_factory=list)
    valid_ms: int = 3_600_000
    message: str = ""
    remember_ms: int = 0
    remember_uses: int = 0


@dataclass(frozen=True, slots=True)
class Earlier:
    """Past of a call that people are asked about: a failed attempt, a doubt, or an earlier verdict on a doubt. `what`:
    `failed`, `unknown` (it may have happened), `doubt`, or the verdict of `by` on a doubt (`happened`,
    `did_not_happen`, `give_up`). `words` are cut."""

    attempt: int
    what: str
    words: str = ""
    by: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Spendable:
    """Budget of a run and all that it starts; 0: any amount. `then` is the reaction above `soft_percent` of a limit:
    `warn`, `ask` or `degrade`. `same`: most calls with equal arguments. `root`: topmost run to whose budget this one
    counts, if not itself. **Units**: billionths of a dollar, milliseconds."""

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0
    ms: int = 0
    soft_percent: int = 80
    then: str = "warn"
    same: int = 0
    root: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """Spending of a run and all that it has started. **Units**: billionths of a dollar. `lost_*`: the part spent by
    calls whose outcome is unknown."""

    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0
    lost_tokens: int = 0
    lost_nano_usd: int = 0


# The run, its calls, and the decisions on them.


@dataclass(frozen=True, slots=True)
class ForkedFrom:
    """The run whose history another run begins with: its entries up to event `seq`. `head`: id of the last of them.
    `lineage`: runs whose histories this one contains, oldest first. The code is chosen by the name of the oldest."""

    run_id: str
    seq: int
    head: bytes
    lineage: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Continued:
    """The generation of a run that another one follows (`RunContinued`). `head`: id of its last entry. `taken`: digests
    of the signals that the run has taken so far, 8 bytes each, oldest first."""

    head: bytes
    taken: bytes


@dataclass(frozen=True, slots=True)
class RunRequested:
    """A run exists. `request_digest` tells a repeated request from a conflicting one; `seed` feeds `ctx.random`.
    `policy`: digest of the policy that judges its calls. `token`: signed request; a child has its root's. `outlives`:
    the run continues when its parent ends. `deadline_ms`: the run fails then; 0: never. `above`: agents of the runs
    that wait for it, topmost first. `forked`: its first entries are copies of another run's and cause nothing
    (`RunForked`). `sent_ms`: append time of the request; 0 if a run started it or an older planner wrote it.
    `continues`: generation before this one, whose request this repeats with another input."""

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
    forked: ForkedFrom | None = None
    sent_ms: int = 0
    continues: Continued | None = None

    def asked_ms(self, at_ms: int) -> int:
        """Time of the request; `at_ms` of its entry if the request has no plausible time."""
        # A forged time would break every list that is sorted by it.
        return self.sent_ms if 0 < self.sent_ms <= at_ms and self.forked is None else at_ms

    @property
    def session(self) -> str:
        """First session, else the label `session`."""
        return self.sessions[0] if self.sessions else self.labels.get("session", "")


NO_REQUEST = RunRequested(agent="", input="", request_digest="", seed="")
"""Stands for a request that the log lacks: it was too large, its entry is forged, or it is not read so far."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The agent's code begins. `version` is the agent's version, `app` the version of its app. `manifest`: digests of
    code and tools, and Python's minor version, by name. `input`: the run's input with the values drawn by reading it,
    such as the time; empty if there are none."""

    version: str = ""
    app: str = ""
    manifest: dict[str, str] = field(default_factory=dict)
    input: str = ""


@dataclass(frozen=True, slots=True)
class NoteRecorded:
    """The agent recorded a note: a plan, a decision, a checkpoint, a thought."""

    step: int
    kind: str
    data: str


@dataclass(frozen=True, slots=True)
class CallProposed:
    """The agent requests a call of a tool. This event fixes all values of later attempts, with the idempotency key.
    `rule`: rule of the policy that judged the call. `label`: display name, in no key and no digest. `asked`: arguments
    requested by the code, if an operator replaced them. `builds_on`: steps of earlier calls that the arguments refer
    to; their arguments and results are sent with the call."""

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
    """A newer policy in force has judged the call again."""

    step: int
    policy: str
    rule: str


LAST_MS = 253_402_300_799_999
"""End of the year 9999 in milliseconds since 1970: the latest timer, and the latest date that can be displayed."""

DOUBT = "doubt"
"""Subject and rule name of a question about the outcome of a call."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """People have to decide before the call goes on; the approval's id is the call's and 32 digits of `question`. A
    decision covers the attempts `attempt` to `covers`. `question`: digest of everything shown
    (`core.approval.question`). `version` and `schema` are the tool's. `about` is `doubt` if the question is the outcome
    of earlier attempts."""

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
    """No decision came in time. More people are asked, by a `question` of its own, until `expires_ms`. `approval`: seq
    of the `ApprovalRequested`."""

    step: int
    approval: int
    approvers: list[str]
    expires_ms: int
    question: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """A decision was accepted: `approve`, `edit` (new `args` and `key`), `reject`, `answer`; or `expire`: none came.
    `amend`: an edit on which other people must decide. `token`: signed decision, valid for attempts up to `covers`
    until `expires_ms`. `grant`: standing grant that it gives (`use` 0) or uses for the `use`th time. `question`: digest
    of the question that is closed. The consequences are in the same entry."""

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
    """An attempt ended without a result; another follows at `retry_ms`. `unknown`: the effect may have happened."""

    step: int
    attempt: int
    failure: Failure
    unknown: bool
    retry_ms: int


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """The call is over with a result. `how`: empty for a result of the tool or of people in its place, `stored` (found
    in the ledger), `probed` (from the tool's status hook), `late` (not through the ledger). `began_ms` (executor's wall
    clock) and `took_ms`: start and duration of the tool or hook; 0 if unknown. All three are the executor's claim, for
    display only."""

    step: int
    attempt: int
    result: str
    how: str = ""
    began_ms: int = 0
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The call is over without a result; the agent sees the failure. `acted`: the tool had its effect, but returned no
    valid result."""

    step: int
    attempt: int
    failure: Failure
    acted: bool = False


@dataclass(frozen=True, slots=True)
class CallDoubted:
    """It is unknown if the effect happened: people decide."""

    step: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class DoubtResolved:
    """A person decided on a call in doubt or on hold: `happened`, `did_not_happen` or `give_up`."""

    step: int
    attempt: int
    verdict: str
    actor: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class LateResultRecorded:
    """A result came after the call was settled without it. `contradicts`: it differs from the verdict of a person."""

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
    """The sleep is over."""

    step: int


@dataclass(frozen=True, slots=True)
class StepGivenUp:
    """The agent no longer waits for a step: the waiting task was cancelled. Calls that were sent are not undone. A
    later outcome of the call is recorded as late, and a call in doubt stays open for people."""

    step: int


@dataclass(frozen=True, slots=True)
class RunCompleted:
    """The agent returned."""

    result: str


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The agent raised, or could not continue."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RunCancelled:
    """An actor stopped the run. Open calls stay without a result."""

    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class RunContinued:
    """The agent goes on with this input and a new history, as the next generation of the run (`core.ids`). It ends this
    history, and not the run: nobody hears of an end."""

    input: str


# Progress of a run: the agent's status, suspension and resumption.


@dataclass(frozen=True, slots=True)
class CheckpointReached:
    """The agent reached a named point of its work. It is a step, as a note is."""

    step: int
    name: str


@dataclass(frozen=True, slots=True)
class StatusSet:
    """Value exposed by the agent under a `name`, as JSON; without a name its status, as plain text. The last one of a
    name holds, and an empty text removes it. No step: no replay compares it."""

    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task of the agent failed, and the agent did not await it. No step: it changes nothing."""

    task: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class RunSuspended:
    """From the end of this entry on, the run waits only for time or for others. `reason`: `paused`, `approval`,
    `doubt`, `held`, `callback`, `wait`, `child`, `backoff` or `sleep`. `blocked_by`: author of the pause, approval,
    call, callback, signal, run or time. Of several waits, people and runs come before time, then the oldest."""

    reason: str
    blocked_by: str


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The run continues, at the end of this entry. `by`: cause, in the form of `blocked_by`, or the person that ended a
    pause; `code` for code that was held."""

    by: str


# Waits of a run: signals, the waits that take them, and callbacks.


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """A signal for the run arrived. It is kept until a wait takes it, which may be in the same entry. `sent_ms`: append
    time, if the signal came while the run's code was held and no wait has been checked; else 0."""

    signal_id: str
    name: str
    data: str
    actor: str = ""
    sent_ms: int = 0


@dataclass(frozen=True, slots=True)
class SignalDropped:
    """A signal of this size in `bytes` was dropped: no wait took it, and the run keeps too many signals already. Until
    a wait takes a kept signal, further signals without room become dead letters, not events."""

    signal_id: str
    name: str
    bytes: int
    actor: str = ""


@dataclass(frozen=True, slots=True)
class WaitStarted:
    """The agent waits for a signal with this name and a true `match` (CEL), until a time (0: without end)."""

    step: int
    name: str
    match: str = ""
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class MatchFailed:
    """The `match` of a wait raised an error for a signal, so the signal does not match. Recorded once for each wait."""

    step: int
    signal_id: str
    error: str


@dataclass(frozen=True, slots=True)
class WaitsPostponed:
    """The open waits from step `first` on are checked later against the kept signals; 0: all are checked."""

    first: int


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The wait took a received signal; no other wait gets it."""

    step: int
    signal_id: str


@dataclass(frozen=True, slots=True)
class WaitExpired:
    """The time of a wait or a callback is over without an answer; the agent sees a TimeoutError."""

    step: int


@dataclass(frozen=True, slots=True)
class CallbackCreated:
    """The agent created a token that resolves this step from outside, until a time (0: without end). `digest`: digest
    of the token, which the log does not contain. `schema`: JSON Schema of the result, if any."""

    step: int
    name: str
    digest: str
    schema: str = ""
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class CallbackCompleted:
    """The holder of the token sent the result. `key` is the sender's idempotency key."""

    step: int
    result: str
    key: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """The holder of the token sent a failure: there will be no result; the agent sees the failure."""

    step: int
    failure: Failure
    key: str = ""
    actor: str = ""


# Runs started by others: children, and subscribers of published events.


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """The agent starts another run, whose id is derived from this step (`core.ids.child_id`). `outlives`: the child is
    independent of this run's end and pauses. `labels`: its own, beside this run's."""

    step: int
    agent: str
    input: str
    outlives: bool = False
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChildCompleted:
    """A run that this one started has ended. `status`: completed (with a result), failed or cancelled. `used`: usage of
    the child and its descendants, if it counts for this run."""

    step: int
    status: str
    result: str = "null"
    failure: Failure | None = None
    used: Used | None = None


@dataclass(frozen=True, slots=True)
class SignalSent:
    """The agent sends a signal with this name to another run. Its id is `core.ids.signal_id` of the step."""

    step: int
    run_id: str
    name: str
    data: str


@dataclass(frozen=True, slots=True)
class SignalAnswered:
    """The agent answers a signal that a wait took, with a result (JSON) or a failure. The first answer counts: after a
    retry the code may answer again."""

    step: int
    signal_id: str
    result: str = "null"
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class RunSubmitted:
    """The agent starts a run with an id and a home of its own, by a request in the name of its requester."""

    step: int
    run_id: str
    agent: str
    input: str


@dataclass(frozen=True, slots=True)
class EventPublished:
    """The agent publishes an event. It starts one run of each agent that was registered for the event."""

    step: int
    name: str
    data: str
    agents: list[str]


# Pauses of a run, and their end.


@dataclass(frozen=True, slots=True)
class RunAnnotated:
    """A note for readers of the history was added. No step: it has no consequences. Notes with equal `note_id` are one
    note. `role` of the actor: `operator` or `requester`."""

    note_id: str
    note: str
    actor: str = ""
    role: str = "operator"


@dataclass(frozen=True, slots=True)
class RunPaused:
    """The run's code is not run and no new call is sent until all pauses of the run are lifted. `role` of the actor:
    `operator`, `requester`, or `parent` (a pause inherited from the parent run). `said_ms` and `offset`: append time
    and offset of the request, `signed_ms`: time of its signature. `seq`: the parent's last event seen."""

    actor: str
    reason: str = ""
    role: str = "operator"
    said_ms: int = 0
    offset: int = 0
    signed_ms: int = 0
    seq: int = 0


@dataclass(frozen=True, slots=True)
class RunUnpaused:
    """A pause is over: of the parent run if `role` is `parent`, else the run's own. Other fields: see `RunPaused`."""

    actor: str
    role: str = "operator"
    said_ms: int = 0
    offset: int = 0
    signed_ms: int = 0
    seq: int = 0


# Retry of a failed run, and the hold of a call before it fails.


@dataclass(frozen=True, slots=True)
class RunRetried:
    """A failed run continues, see `core.run.redrive`. Numbers other than 0 are limits of the run from now on.
    **Units**: billionths of a dollar."""

    actor: str
    reason: str = ""
    from_step: int = 0
    again: list[int] = field(default_factory=list)
    edit: str = ""
    steps: int = 0
    history_bytes: int = 0
    deadline_ms: int = 0
    children: int = 0
    tokens: int = 0
    nano_usd: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class RunForked:
    """An operator has begun this run with the history of another one, which ends here: see `RunState.fork`. `edit`:
    other arguments for the next step, a call of `tool`. Open calls are requested again by `CallRenewed`. `keys`: new
    idempotency keys of all calls without a result, by step."""

    source: ForkedFrom
    actor: str
    reason: str = ""
    edit: str = ""
    tool: str = ""
    deadline_ms: int = 0
    keys: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallRenewed:
    """A call is requested again under its key. Its new id contains the seq of this event; its attempts begin at 1."""

    step: int


@dataclass(frozen=True, slots=True)
class CallHeld:
    """A call has used up its attempts and, as configured, waits for an operator: see `DoubtResolved`. `did_not_happen`
    allows as many attempts again, `happened` supplies a result, `give_up` lets the call fail."""

    step: int
    attempt: int
    failure: Failure


# Change of the agent's code during a run.


@dataclass(frozen=True, slots=True)
class PatchTaken:
    """The run reached a change of its agent's code after the change was made: it takes the new branch for good. Not a
    step: histories from before the change have none, and step numbers stay the same."""

    patch: str


@dataclass(frozen=True, slots=True)
class RunMigrated:
    """The run was moved to another version of its agent, which agrees with its history so far. `actor` is empty for a
    run started by a planner that did not execute its code. Then this is the first execution, and may have the `input`
    that `RunStarted` lacks."""

    version: str
    actor: str
    manifest: dict[str, str] = field(default_factory=dict)
    input: str = ""


# Budget of a run: reserved, billed, reached.


@dataclass(frozen=True, slots=True)
class CallReserved:
    """The amount that an attempt of a call may take. It counts as used until the attempt is billed. Attempt 0 is not
    dispatched: it records the reservation of each later attempt. `cheap`: the call is the cheaper alternative already.
    **Units**: billionths of a dollar."""

    step: int
    attempt: int
    tokens: int
    nano_usd: int
    cheap: bool = False


@dataclass(frozen=True, slots=True)
class CallBilled:
    """The amount that an attempt has taken. `call` is the seq in the call's id: a call requested again is another call.
    `twice`: the attempt may have run a second time, so its reservation counts as well. With windowed limits, the bill
    replaces `for_tokens` and `for_nano_usd`, reserved at `since_ms`."""

    step: int
    call: int
    attempt: int
    tokens: int
    nano_usd: int
    twice: bool = False
    for_tokens: int = 0
    for_nano_usd: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ChildBilled:
    """Usage of a finished descendant that no run waits for any more."""

    run_id: str
    used: Used


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """A budget that this run counts for has passed its soft threshold: the run's own, one above it, or a window's.
    `what`: `tokens`, `usd` (billionths), `calls` or `seconds` (milliseconds). `taken` includes the requested call;
    `limit` is the bound."""

    budget: str
    what: str
    taken: int
    limit: int
    then: str


@dataclass(frozen=True, slots=True)
class CallRepeated:
    """The code repeats a call that it has made `times` times with equal arguments. The call fails without a try."""

    step: int
    times: int


# The order of an entry's union: its branches are numbered in every record, so a new event comes last.
_OfRuns = RunRequested | RunStarted | NoteRecorded | CallProposed | CallDispatched | AttemptFailed | CallCompleted
_OfEnds = CallFailed | CallDoubted | DoubtResolved | LateResultRecorded | SleepStarted | SleepEnded
_OfPeople = CallJudged | ApprovalRequested | ApprovalEscalated | ApprovalDecided | StepGivenUp
_OfProgress = RunSuspended | RunResumed | CheckpointReached | StatusSet | TaskFailed
_OfSignals = SignalReceived | SignalDropped | WaitStarted | MatchFailed | WaitEnded | WaitExpired
_OfCallbacks = CallbackCreated | CallbackCompleted | CallbackFailed
_OfFamilies = ChildStarted | ChildCompleted | EventPublished | SignalSent
_OfOperators = PatchTaken | RunMigrated | RunRetried | CallRenewed | RunPaused | RunUnpaused | WaitsPostponed | CallHeld
_OfBudgets = CallReserved | CallBilled | ChildBilled | BudgetReached | CallRepeated

_OfLastSteps = RunCompleted | RunFailed | RunCancelled
Terminal = _OfLastSteps | RunContinued
_OfSteps = _OfRuns | _OfEnds | _OfLastSteps | _OfPeople | _OfProgress | _OfSignals | _OfCallbacks | _OfFamilies
_Later = SignalAnswered | RunSubmitted | RunContinued
Event = _OfSteps | _OfOperators | _OfBudgets | RunAnnotated | RunForked | _Later


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the run log: all events that one input caused for a run.

    **Shape**: at least one event; event i has seq `seq + i`. `prev`: id of the run's previous entry, empty for the
    first. `nonce`: fresh for every send, so that equal bytes are never sent twice. `held`: recorded without running the
    agent's code; the next entry without it contains the code's reaction to all inputs since."""

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
        return self.seq + len(self.events) - 1
