"""Messages between the services besides the run log: one dataclass per topic. `RunRequest`, `RunSignal` and
`RunOperation` are inputs from outside and are also read as plain JSON of the same shape, with `input` and `data` as
JSON values instead of text."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field
from typing import Self

from refold.core.events import Cause, Earlier, Failure, Requirement, Spendable, Used
from refold.core.ids import CallId, RunId


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Topic `run-requested`, key run_id: please run this agent on this input.

    With a `token` the requester has signed it (`core.approval.requester`). `sessions` are what it is part of. At
    `deadline_ms` the run fails if it is not over by then; 0: never. A `budget` makes that of the agent smaller.
    """

    run_id: RunId
    agent: str
    input: str = "null"
    requester: str = ""
    not_before_ms: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    token: str = ""
    sessions: list[str] = field(default_factory=list)
    deadline_ms: int = 0
    budget: Spendable | None = None


@dataclass(frozen=True, slots=True)
class RunSignal:
    """Topic `run-signalled`, key run_id/signal_id: what a user says of a run that exists.

    `kind` is `cancel` (data: {reason}) or `annotate` (data: {note, id}, where `id` is the `signal_id`), of a run that
    the actor has asked for; with a `token` the actor has signed it. Or it is `signal` (`name`, `data`), which one wait
    of the run takes, however often its `signal_id` comes. Or it is `callback`: the result (`data`) or the `failure` of
    what the token in `callback` was made for. That names the run, so both ids may be left out, and the record's key is
    the token; `key` is the sender's own name for what they say.
    """

    run_id: RunId = RunId("")  # noqa: RUF009 - an id is a text
    signal_id: str = ""
    kind: str = ""
    data: str = "null"
    actor: str = ""
    token: str = ""
    name: str = ""
    callback: str = ""
    failure: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class RunOperation:
    """Topic `run-operated`, key run_id/signal_id: what an operator says of anybody's run that exists.

    `kind` is `cancel` (data: {reason}), `annotate` (data: {note}), `resolve` (data: {step, attempt, verdict, result,
    comment}), `repair` (data: {head}), or, of a run that is held, `retry` or `fail` (data: {reason}). `retry` of a run
    that has failed has data {from, edit, steps, bytes, children, deadline_ms, tokens, nano_usd, calls, reason, seq},
    all of which may be missing. `fork` begins the run with the history of another one: {source, at, head, edit,
    tool, reason}.
    """

    run_id: RunId
    signal_id: str
    kind: str
    data: str = "null"
    actor: str = ""


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call of the same run that has a result, both as the run log has them. A large result is what stands for it."""

    step: int
    args: str
    result: str


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """Topic `tool-requested.<pool>`, key call_id: try this call. A tombstone closes it.

    `issued` is the run-log offset of the entry that ordered the attempt, `at_ms` its time. `policy` is the digest of
    the policy that judged the call, `decision` the signed decision that allows it, where one is needed. `again`: the
    attempt went out before, as far as anybody can say. `agent` and `requester` are those of the run, `above` the
    agents of those that wait for it. `settled` is the signed decision that nothing came of the attempts before, where
    that was in doubt. `earlier` are the calls on which this one builds, by what its arguments say of them.
    """

    call_id: CallId
    run_id: RunId
    step: int
    attempt: int
    issued: int
    tool: str
    args: str
    key: str
    effect: str
    timeout_ms: int
    key_expires_ms: int = 0
    traceparent: str = ""
    policy: str = ""
    decision: str = ""
    at_ms: int = 0
    again: bool = False
    agent: str = ""
    requester: str = ""
    settled: str = ""
    above: list[str] = field(default_factory=list)
    earlier: list[EarlierCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShortRequest(ToolRequest):
    """Topic `tool-requested.<pool>`, key call_id: the same, with those `earlier` calls that come after a `base`.

    `base` is the digest of what an order of this run has brought before (`core.run.building.Base`). An executor that
    has it no more answers `incomplete`, and is sent a `ToolRequest`.
    """

    base: str = ""


@dataclass(frozen=True, slots=True)
class ToolClaim:
    """Topic `tool-claimed.<pool>`, key key/claim_id: a link of the claim chain of an idempotency key.

    Valid if and only if `prev` is the id of the chain's last valid claim (empty for the first). `doubt`: the claimant
    does not act, it declares that the attempt's outcome is unknown. `undone`: nor does this one, it says that nothing
    came of the claim that it extends; with `handed_over` it also says that nothing was or will be told of the attempt,
    so that somebody else may claim the same one. Without a `key`, as it was once, the chain is that of the call.
    """

    call_id: CallId
    claim_id: str
    prev: str
    attempt: int
    doubt: bool
    executor: str
    key: str = ""
    undone: bool = False
    handed_over: bool = False

    @classmethod
    def of_none(cls, executor: str) -> Self:
        return cls(CallId(""), "", "", 0, False, executor)

    @property
    def chain(self) -> str:
        return self.key or self.call_id


INCOMPLETE = "incomplete"
"""Status of a result that ends nothing: an executor lacks the calls on which a short order builds."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Topic `tool-completed.<pool>`, key call_id: how an attempt ended.

    `status`: `completed` (result), `failed` (it did not happen; `retryable`), `broken` (it happened, its result is of
    no use), `unknown` (it may have happened), `doubt` (declared in the claim chain: not to be tried again without a
    human) or `unauthorised` (nothing was sent, because no decision allows it). Or it is `incomplete`, which ends
    nothing: the executor has not what a short order goes on from. `late`: it came past the ledger.
    `again`: the attempt went out before, so that somebody else may have acted on it. `how` is empty for a result of the
    tool itself, `stored` for one that the ledger had, `probed` for one that the tool's status hook reported. `began_ms`
    is when the tool or its hook began to run, by the executor's wall clock (0: nothing ran), `took_ms` how long it ran.
    """

    call_id: CallId
    run_id: RunId
    step: int
    attempt: int
    status: str
    result: str = ""
    failure: Failure | None = None
    retryable: bool = True
    retry_after_ms: int = 0
    late: bool = False
    executor: str = ""
    traceparent: str = ""
    again: bool = False
    how: str = ""
    began_ms: int = 0
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """Topic `approval-requested`, key approval_id: may this call go out? A tombstone closes it.

    Where `about` is `doubt`, it is: nobody knows what came of the attempts before, so what did? To `approve` says that
    nothing did, and the call may go out again; an `answer` says that it did, with this result; a `reject` gives up.

    `approval_id` is the call's id and the first 32 digits of `question`, which is the digest of everything else here
    but `traceparent`. `proposal` is the digest of the proposal's event. `proposed_args` are the agent's own, where an
    earlier decision has edited them. `level` counts escalations, `round` how often people were asked about this call.
    `history` is what was before, the latest last. `token` is what the requester has signed, if anything. `writers` are
    the people who gave the call arguments in place of those that the agent asked for.
    """

    approval_id: str
    run_id: RunId
    call_id: CallId
    step: int
    attempt: int
    covers: int
    agent: str
    requester: str
    session: str
    environment: str
    tool: str
    version: str
    schema: str
    effect: str
    args: str
    key: str
    policy: str
    rule: str
    requirement: Requirement
    question: str
    proposal: str
    asked_ms: int
    expires_ms: int = 0
    level: int = 0
    proposed_args: str = ""
    traceparent: str = ""
    round: int = 1
    history: list[Earlier] = field(default_factory=list)
    about: str = ""
    token: str = ""
    writers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ApprovalVote:
    """Topic `approval-voted`, key approval_id/vote_id: what somebody said, signed where it was taken in (a JWS)."""

    approval_id: str
    vote_id: str
    run_id: RunId
    token: str


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Topic `approval-decided`, key approval_id: a signed decision (a JWS).

    Of kind `again`, key again/ID, without a token: a question that was closed has been asked once more.
    """

    approval_id: str
    run_id: RunId
    token: str
    kind: str = "decision"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Topic `catalog`, key name, once in every partition: something that the authority publishes.

    `kind` is `policy` (name policy/DIGEST), `current` (name current: which policy new runs get), `roles`, `key` (name
    key/KID) or `halt` (name halt/SCOPE/NAME: why it is halted); `content` is JSON, and null takes the entry back.
    `token` is the root key's signature of all of it; `counter` grows from entry to entry, and of two with one name the
    higher counts. `platform` is where it holds, `ENVIRONMENT/PREFIX of the topics`: a root key may serve several.
    """

    name: str
    kind: str
    content: str
    actor: str = ""
    at_ms: int = 0
    counter: int = 0
    token: str = ""
    platform: str = ""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Topic `run-completed`, key run_id: a run is over. `status`: completed, failed or cancelled.

    `stop` says why: `finished`, `cancelled`, or the code of the failure. `used` is what it has taken with all below it,
    if anything is counted of it. `labels` are those of its request.
    """

    run_id: RunId
    status: str
    agent: str
    result: str = "null"
    failure: Failure | None = None
    seq: int = 0
    request: Cause | None = None
    at_ms: int = 0
    stop: str = ""
    used: Used | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hold:
    """Topic `run-snapshot`, key hold/run_id: the code of this run is not run, its inputs are recorded as facts.

    `kind`: `stalled` (its code and its history do not go together here) or `quarantined` (its code held everything up;
    only a human lets it go on). `reason` is stable and for programs, `message` for people, `detail` a stack. `needs` is
    the version of the agent that the run began with, `code` that of the code which is held. `retry_ms`: when it is
    tried again by itself, `tries` how often it was.
    """

    run_id: RunId
    kind: str
    reason: str
    message: str
    detail: str = ""
    needs: str = ""
    code: str = ""
    member: str = ""
    at_ms: int = 0
    retry_ms: int = 0
    tries: int = 0


@dataclass(frozen=True, slots=True)
class KeptRun:
    """Topic `run-snapshot`, key run/RUN: the accepted entries of a run that lives.

    They are all that the run log has below `log`: first those of `blocks` records of their own, then `entries`. If it
    has a `status`, nobody has to look into them before `due_ms` (0: never), unless something comes for the run. `seq`
    is that of the last entry: a run that had failed and was retried has a row as well, which is older.
    """

    run_id: RunId
    log: int
    blocks: int
    status: str
    due_ms: int
    entries: bytes
    seq: int = 0


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """Topic `run-snapshot`, key run/RUN/NUMBER: entries of a run that lives, never written again with others."""

    run_id: RunId
    number: int
    entries: bytes


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """Topic `run-snapshot`, key over/NUMBER: runs that are over, a row each (`core.run.finished`).

    `pools` has the names (joined by commas) that the numbers in the rows stand for.
    """

    pools: list[str]
    rows: bytes


@dataclass(frozen=True, slots=True)
class Marks:
    """Topic `run-snapshot`, key marks: how far the other records of the partition hold. Written after all of them.

    The runs hold what the run log has below `log`, and all that it orders is acknowledged; below `inputs` (offsets by
    topic, as text) every input is settled. `round` only grows. `check` is what all the others add up to. The `anchor`
    is the id (hex) of an entry below `log`, at `anchor_offset` since `anchor_ms` (append time): where another record
    lies there, these are marks of another log. Without one they say nothing about positions. `apart` has the runs whose
    records have to be read from an offset (as text) before `log`, an empty name if those of all runs have to. Then the
    anchor is in `apart_anchor`: an older planner, which does not read `apart`, finds none, and reads the whole log.
    """

    round: int
    log: int
    check: bytes
    inputs: dict[str, str]
    member: str = ""
    anchor: str = ""
    anchor_offset: int = 0
    anchor_ms: int = 0
    apart: dict[str, str] = field(default_factory=dict)
    apart_anchor: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Topic `dead-letter`, original key: an input that no service could use, whole, with position and reason."""

    topic: str
    partition: int
    offset: int
    code: str
    reason: str
    key: bytes
    value: bytes
    service: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class RunView:
    """Topic `run-view`, key run_id: the row of a run in the table `runs` of a view. A tombstone follows its erasure.

    The guide on views describes the fields. A record may come twice.
    """

    run_id: RunId
    agent: str
    root: str
    parent: str
    requester: str
    policy: str
    version: str
    app: str
    partition: int
    requested_ms: int
    started_ms: int
    ended_ms: int
    at_ms: int
    seq: int
    head: str
    steps: int
    open: int
    busy: int
    waiting: int
    paused: int
    says: str
    failure_code: str
    failure_message: str
    retries: int
    price_table: str
    status: str
    waiting_for_people: int
    doubt: int
    on_hold: int
    tokens: int
    nano_usd: int
    forked_from: str = ""
    forked_at: int = 0


@dataclass(frozen=True, slots=True)
class RunInsight:
    """Topic `run-insight`, key kind/...: figures of a minute, or an alert. A tombstone takes it back.

    `kind` is `agent` or `tool`, whose `name` it has, or an alert: `failing` (a tool) or `loop` (a run that makes equal
    calls of the tool `name`). `at_ms` is the beginning of the minute.
    """

    kind: str
    at_ms: int
    name: str
    run_id: str = ""
    requested: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    calls: int = 0
    equal_calls: int = 0
    retried: int = 0
    doubted: int = 0
    tokens: int = 0
    nano_usd: int = 0


@dataclass(frozen=True, slots=True)
class RunErased:
    """Topic `run-snapshot`, key erased/run_id: the run was erased, and something of it may lie somewhere still.

    `head` is the id of its last entry and `digest` that of its archived records, both in hex; `file` says where in the
    archive they are (nowhere if it is empty). `pools` are those that its calls went to.
    """

    run_id: RunId
    head: str = ""
    digest: str = ""
    file: str = ""
    pools: list[str] = field(default_factory=list)
    at_ms: int = 0


Message = (
    RunRequest
    | RunSignal
    | RunOperation
    | ToolRequest
    | ToolClaim
    | ToolResult
    | ApprovalRequest
    | ApprovalVote
    | ApprovalDecision
    | CatalogEntry
    | RunOutcome
    | Hold
    | KeptRun
    | KeptBlock
    | EndedRuns
    | Marks
    | DeadLetter
    | RunErased
)


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Topic `run-stream`, key call_id: what a call says while it runs, the tokens of a model. Nothing rests on it.

    `attempt`, and `began_ms` for one that another executor has taken over, say which try it is; `n` numbers its parts.
    """

    run_id: RunId
    call_id: CallId
    attempt: int
    began_ms: int
    n: int
    kind: str
    data: str


@dataclass(frozen=True, slots=True)
class MemberAgent:
    """A version of an agent that a planner has, with the manifest that a run of it begins with, but for prices."""

    name: str
    version: str
    manifest: dict[str, str]


@dataclass(frozen=True, slots=True)
class MemberTool:
    """A tool that an executor runs. `schema` is the JSON Schema of its arguments; `approval`: it always needs one."""

    name: str
    version: str
    effect: str
    pool: str
    tags: list[str]
    approval: bool
    schema: str


@dataclass(frozen=True, slots=True)
class Member:
    """Topic `member`, key name: what a planner or an executor serves. A tombstone follows when it leaves cleanly.

    For display alone: no service reads it, as any executor may write it (ADR 30). `kind` is planner or executor, `pool`
    that of an executor, `slots` the calls that it acts on at once. `cut`: schemas, or more, are left out, as the record
    would exceed the payload limit.
    **Units**: milliseconds since 1970, by the member's wall clock.
    """

    name: str
    kind: str
    app: str
    started_ms: int
    pool: str = ""
    agents: list[MemberAgent] = field(default_factory=list)
    tools: list[MemberTool] = field(default_factory=list)
    cut: bool = False
    slots: int = 0


@dataclass(frozen=True, slots=True)
class WindowSpent:
    """Topic `budget-spent`, key window/subject/lane/teller: what the runs of one lane took in a window, so far.

    `window` is a day (`2026-11-23`) or a month (`2026-11`) of UTC; it counts runs of the `agent`, if there is one, that
    have the value of a `label` of which `value` is the digest, if there is one, or none of those that are told one by
    one (`rest`). Counted is what the lane's partition of `run-log` has below the offset `log`, of which `held_tokens`
    and `held_nano_usd` are reserved and not billed; -1: from a version that does not say it, and has `value` in clear.
    `limits` are those by which it decides. **Units**: billionths of a dollar.
    """

    window: str
    agent: str
    label: str
    value: str
    lane: int
    log: int
    tokens: int
    nano_usd: int
    calls: int
    limits: Spendable
    member: str = ""
    held_tokens: int = -1
    held_nano_usd: int = -1
