"""Messages between services besides the run log: one dataclass per topic. `RunRequest`, `RunSignal` and `RunOperation`
come from outside, and may be plain JSON of the same shape, with `input` and `data` as JSON values."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass, field
from typing import Self

from refold.core.events import Cause, Earlier, Failure, Requirement, Spendable, Used
from refold.core.ids import CallId, RunId

INCOMPLETE = "incomplete"
"""Status of a result that ends nothing: the executor lacks the calls on which a short request builds."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Topic `run-requested`, key run_id: please run this agent on this input.

    `token`: signature of the requester (`core.approval.requester`). `deadline_ms`: the run fails if it has not ended by
    then; 0: never. `budget`: lowers the agent's budget."""

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
    """Topic `run-signalled`, key run_id/signal_id: an input of a user for an existing run.

    `kind`: `cancel` or `pause` (data: {reason}), `resume`, or `annotate` (data: {note, id}, `id` is the `signal_id`),
    for a run of the actor, and with a `token` signed by the actor; `signal` (`name`, `data`), consumed by one wait
    however often its `signal_id` comes; `callback`, the result (`data`) or `failure` for the token in `callback`. A
    callback needs no ids, its record key is the token, and `key` is the sender's idempotency key."""

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
    """Topic `run-operated`, key run_id/signal_id: a command of an operator for any existing run.

    `kind`: `cancel` or `pause` (data: {reason}), `resume`, `annotate` (data: {note}), `resolve` (data: {step, attempt,
    verdict, result, comment}), `repair` (data: {head}), `migrate` (data: {from, seq, to}); for a held run `retry` or
    `fail` (data: {reason}); for a failed run `retry` (data: {seq}, optional: {from, edit, steps, bytes, children,
    deadline_ms, tokens, nano_usd, calls, reason}); `fork`, which begins this run with the history of another (data:
    {source, at, head}, optional: {edit, tool, reason})."""

    run_id: RunId
    signal_id: str
    kind: str
    data: str = "null"
    actor: str = ""


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call of the same run with its result, as in the run log. A large result is a pointer."""

    step: int
    args: str
    result: str


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """Topic `tool-requested.<pool>`, key call_id: a request to execute this call. A tombstone closes it. `issued`:
    run-log offset of the entry that ordered the attempt, `at_ms`: its time. `policy`: digest of the policy that judged
    the call. `decision`: signed decision that allows it, if required. `settled`: signed decision that earlier attempts
    in doubt had no effect. `again`: the attempt was probably sent before. `above`: agents of the runs that wait for
    this run. `earlier`: calls whose results this call builds on."""

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
    """Topic `tool-requested.<pool>`, key call_id: a `ToolRequest` with only the `earlier` calls after a `base`. `base`:
    digest of the `earlier` calls of a previous request of this run (`core.run.building.Base`). An executor that does
    not have them answers `incomplete` and gets a `ToolRequest`."""

    base: str = ""


@dataclass(frozen=True, slots=True)
class ToolClaim:
    """Topic `tool-claimed.<pool>`, key key/claim_id: a link of the claim chain of an idempotency key. Valid if and only
    if `prev` is the id of the chain's last valid claim (empty for the first). `doubt`: the claimant does not act, but
    declares the attempt's outcome unknown. `undone`: the previous claim had no effect; with `handed_over` its result is
    also never reported, so another executor may claim the same attempt. Without a `key` (earlier releases) the chain is
    the call's."""

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


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Topic `tool-completed.<pool>`, key call_id: the outcome of an attempt. `status`: `completed` (result), `failed`
    (no effect; `retryable`), `broken` (effect, but no usable result), `unknown` (possible effect), `doubt` (declared in
    the claim chain: people decide), `unauthorised` (not sent: no decision allows it), `incomplete` (nothing ended:
    calls before the base of a short request are missing). `late`: not through the ledger. `again`: the attempt was sent
    before, so another executor may have acted. `how`: see `CallCompleted`. `began_ms` (executor's wall clock; 0:
    nothing ran) and `took_ms`: start and duration of the tool or hook."""

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

    If `about` is `doubt`, the question is the outcome of the earlier attempts: `approve` means no effect, so the call
    may be sent again; `answer` means an effect with this result; `reject` gives the call up.

    `approval_id`: the call id and the first 32 digits of `question`, the digest of all other fields except
    `traceparent`. `proposal`: digest of the `CallProposed`. `proposed_args`: the agent's arguments, if a decision
    edited them. `level`: number of escalations. `round`: number of questions about this call. `history`: earlier
    outcomes, latest last. `token`: signed request of the run. `writers`: people that replaced the agent's arguments."""

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
    """Topic `approval-voted`, key approval_id/vote_id: a vote or comment, signed where it was received (a JWS)."""

    approval_id: str
    vote_id: str
    run_id: RunId
    token: str


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Topic `approval-decided`, key approval_id: a signed decision (a JWS).

    Of kind `again` (key again/ID, no token): a closed question was asked once more."""

    approval_id: str
    run_id: RunId
    token: str
    kind: str = "decision"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Topic `catalog`, key name, once in every partition: an entry that the authority publishes.

    `kind`: `policy` (name policy/DIGEST), `current` (digest of the policy for new runs), `roles`, `key` (name key/KID)
    or `halt` (name halt/SCOPE/NAME; content: the reason). `content`: JSON; null revokes the entry. `token`: signature
    by the root key. `counter`: increases with each entry; the highest of a name counts. `platform`: `ENVIRONMENT/PREFIX
    of the topics`, because a root key may serve several."""

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
    """Topic `run-completed`, key run_id: the outcome of a finished run. `status`: completed, failed or cancelled.

    `stop`: `finished`, `cancelled`, or the code of the failure. `used`: usage of the run and its descendants, if it is
    counted. `labels` are the request's."""

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
    """Topic `run-snapshot`, key hold/run_id: this run's code is not run; its inputs are only recorded.

    `kind`: `stalled` (code and history do not match at this planner) or `quarantined` (the code blocked the lane; only
    a person lifts the hold). `reason` is a stable code for programs, `message` is for people, `detail` a stack trace.
    `needs` is the agent's version at the start of the run, `code` the version of the held code. `retry_ms`: time of the
    next automatic retry, `tries`: number of retries so far."""

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
    """Topic `run-snapshot`, key run/RUN: the accepted entries of a live run.

    All its entries below the offset `log`: first `blocks` separate records, then `entries`. With a `status` they need
    not be read before `due_ms` (0: never) unless an input for the run comes. `seq`: seq of the last entry; a retried
    run also has an older row in `EndedRuns`."""

    run_id: RunId
    log: int
    blocks: int
    status: str
    due_ms: int
    entries: bytes
    seq: int = 0


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """Topic `run-snapshot`, key run/RUN/NUMBER: a fixed block of entries of a live run, written once."""

    run_id: RunId
    number: int
    entries: bytes


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """Topic `run-snapshot`, key over/NUMBER: finished runs, one row each (`core.run.finished`).

    `pools`: comma-joined names for the pool numbers in the rows."""

    pools: list[str]
    rows: bytes


@dataclass(frozen=True, slots=True)
class Marks:
    """Topic `run-snapshot`, key marks: positions that the other records of the partition cover. Written last.

    The snapshot covers the run log below `log`, with all its commands acknowledged, and all inputs below `inputs`
    (offsets by topic, as text). `round`: only grows. `check`: checksum over the other records. `anchor`: id (hex) of an
    entry below `log`, at `anchor_offset`, appended at `anchor_ms`; another record at that offset means another log.
    Without an anchor the positions are not used. `apart`: offsets (as text) below `log` from which the records of
    single runs must be read again, under an empty name for all runs. Then the anchor is in `apart_anchor`: an older
    planner, which does not read `apart`, finds none and reads the whole log."""

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

    The guide on views describes the fields. A record may come twice."""

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

    `kind`: `agent` or `tool` with its `name`, or an alert: `failing` (a tool) or `loop` (a run with equal calls of the
    tool `name`). `at_ms`: beginning of the minute."""

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
    """Topic `run-snapshot`, key erased/run_id: the run was erased; copies may still exist.

    `head`: id of its last entry, `digest`: digest of its archived records, both in hex. `file`: place in the archive;
    empty if it has none. `pools`: pools of its calls."""

    run_id: RunId
    head: str = ""
    digest: str = ""
    file: str = ""
    pools: list[str] = field(default_factory=list)
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Topic `run-stream`, key call_id: live output of a call, such as the tokens of a model. For display only.

    `attempt` and `began_ms` identify the execution, also after a take-over by another executor; `n` numbers its parts.
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
    """A version of an agent that a planner has. `manifest` is the manifest of a new run, without prices."""

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
    """Topic `member`, key name: the agents of a planner, or the tools of an executor. A clean stop leaves a tombstone.

    For display only: any executor may write it (ADR 30), so no service reads it. `kind`: planner or executor. `pool`:
    an executor's. `slots`: concurrent calls. `cut`: schemas or more were left out to stay within the payload limit.

    **Units**: milliseconds since 1970, by the member's wall clock."""

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
    """Topic `budget-spent`, key window/subject/lane/teller: spending of the runs of one lane in a window, so far.

    `window`: a day (`2026-11-23`) or month (`2026-11`) of UTC. Counts the runs of `agent` (if set) that have the value
    with digest `value` for `label` (if set), or no value that is reported separately (`rest`). Covers the lane's
    partition of `run-log` below the offset `log`. `held_tokens` and `held_nano_usd`: the part reserved and not billed;
    -1 from a version that does not report it and has `value` in clear. `limits`: those in force. **Units**: billionths
    of a dollar."""

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
