"""Bodies and filters of the HTTP API, and its own read models."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from refold.client.reading.model import ReadModel
from refold.core.planning.pausing import REASON_CHARS

DAY_PATTERN = "^([0-9]{4}-[0-9]{2}-[0-9]{2})?$"
LARGEST_NUMBER = 2**53 - 1
"""Largest integer that every JSON parser reads exactly."""


class ApiBody(BaseModel):
    """Body of a request; unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        # Many clients write null for a field that they leave out.
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in body.items() if value is not None or name not in optional}


class RunBody(ApiBody):
    """Request to start a run. Requests with equal `id`, agent and input start one run."""

    agent: str = Field(examples=["incident"])
    input: Any = Field(None, description="JSON data: the agent's arguments by name", examples=[{"name": "Ada"}])
    id: str = Field("", description="empty: a fresh one", examples=["inc-1"])
    labels: dict[str, str] = Field(default_factory=dict, examples=[{"team": "pay"}])
    sessions: list[str] = Field(default_factory=list)
    not_before_ms: int = Field(0, ge=0, le=LARGEST_NUMBER, description="since 1970 in UTC; 0: at once")
    deadline_ms: int = Field(0, ge=0, le=LARGEST_NUMBER, description="since 1970 in UTC; 0: none")


class ListFilter(ApiBody):
    """Size of a page."""

    limit: int = Field(100, ge=1, le=500, description="rows at most")


class RunFilter(ListFilter):
    """Filter and order of runs; an empty field matches all."""

    agent: str = Field("", max_length=500, description="the name of the agent")
    state: str = Field("", description="a status, or `stalled`, `doubt`, `on_hold`, `paused`, `waiting_for_people`")
    label: list[str] = Field(default_factory=list, max_length=20, description="`NAME=VALUE`, may be repeated")
    session: str = Field("", max_length=500, description="runs that belong to this session")
    root: str = Field("", max_length=500, description="runs of the family of this one")
    top: bool = Field(False, description="true: only runs that no other has started")
    text: str = Field("", max_length=200, description="in the id or the status line")
    tool: str = Field("", max_length=500, description="runs that have called this tool")
    code: str = Field("", max_length=500, description="with this code of failure: of the run, or of calls of `tool`")
    since_ms: int = Field(0, ge=0, le=LARGEST_NUMBER, description="of the column of the order")
    until_ms: int = Field(0, ge=0, le=LARGEST_NUMBER, description="of the same column; this time is not in it")
    sort: str = Field("-requested_ms", description="requested_ms, at_ms or ended_ms; `-`: the latest first")
    cursor: str = Field("", max_length=2_000, description="of the page before, for the same query")


class UpdateBody(ApiBody):
    """Data of a signal that a run waits for, now or later."""

    data: Any = Field(None, examples=[{"parcel": 7}])
    id: str = Field("", description="twice with one id is one signal")


class SignalBody(UpdateBody):
    """A signal that a run waits for, now or later."""

    name: str = Field(examples=["shipped"])


class NoteBody(ApiBody):
    """A note on a run, for readers of its history."""

    note: str = Field(min_length=1, max_length=REASON_CHARS, examples=["the customer called"])
    id: str = Field("", max_length=200, description="twice with one id is one note")


class WithReason(ApiBody):
    """Reason of an operation, recorded in the history."""

    reason: str = ""


class RetryBody(WithReason):
    """Changes by a retry of a failed run. A number of 0 leaves a limit as it is.

    **Units**: `nano_usd` in billionths of a dollar.
    """

    from_step: int = Field(0, ge=0, le=LARGEST_NUMBER, description="this step and all after it are done again")
    edit: dict[str, Any] | None = Field(None, description="all arguments of that step's call instead")
    repeat_effects: bool = Field(False, description="calls behind `from_step` that had an effect may have it again")
    steps: int = Field(0, ge=0, le=LARGEST_NUMBER, description="limit of steps")
    history_bytes: int = Field(0, ge=0, le=LARGEST_NUMBER, description="limit of the history")
    children: int = Field(0, ge=0, le=LARGEST_NUMBER, description="limit of started runs")
    deadline_ms: int = Field(0, ge=-1, le=LARGEST_NUMBER, description="since 1970 in UTC; -1: none")
    tokens: int = Field(0, ge=0, le=LARGEST_NUMBER, description="budget")
    nano_usd: int = Field(0, ge=0, le=LARGEST_NUMBER, description="budget")
    calls: int = Field(0, ge=0, le=LARGEST_NUMBER, description="budget")


_OfSteps = dict[Annotated[int, Field(ge=1, le=LARGEST_NUMBER)], Any]


class ForkBody(ApiBody):
    """Changes of a fork after the event at which it begins."""

    at: int = Field(0, ge=0, le=LARGEST_NUMBER, description="keep entries that end at this event or before; 0: none")
    input: Any = Field(None, description="another input; with 0 alone")
    edits: _OfSteps = Field(default_factory=dict, description="other arguments of calls, by step")
    results: _OfSteps = Field(default_factory=dict, description="other results of calls, by step")
    decisions: dict[str, str] = Field(
        default_factory=dict, description="by call: approve, reject, reject:WHY, edit:JSON or answer:JSON"
    )
    policy: dict[str, Any] | None = Field(None, description="the policy that judges all calls of the fork")
    model: str = Field("", description="the model of its agents of pydantic-ai")
    stubs: dict[str, Any] = Field(default_factory=dict, description="results by tool, where the log has none")


class RepairBody(ApiBody):
    """Choice of the history of a run that counts."""

    head: str = Field("", pattern="^([0-9a-f]{32})?$", description="id of its last entry; empty: the one that counts")


class AnswerCallback(ApiBody):
    """The result of a callback, or the message of its failure."""

    data: Any = None
    failure: str = Field("", description="not empty: there is no result, and the agent sees this")
    key: str = Field("", description="your own name for this answer: repeated with it, it is the same answer")


class CastVote(ApiBody):
    """A decision on a question, by its whole id."""

    action: Literal["approve", "edit", "reject", "answer"]
    args: dict[str, Any] | None = Field(None, description="of `edit`: all arguments that the call goes out with")
    result: Any = Field(None, description="of `answer`: the result in the tool's place")
    message: str = ""

    @model_validator(mode="after")
    def _check_action(self) -> Self:
        # An edit without arguments is a mistake, not a call without arguments.
        if (self.args is not None) != (self.action == "edit"):
            raise ValueError("`args` and the action `edit` belong together")
        if self.result is not None and self.action != "answer":
            raise ValueError("`result` is for the action `answer`")
        return self


class ResolveDoubt(ApiBody):
    """The verdict of a person on the outcome of a call in doubt."""

    verdict: Literal["happened", "did_not_happen", "give_up"]
    result: Any = Field(None, description="of `happened`: the result that the tool would have returned")
    message: str = Field("", description="how you know")

    @model_validator(mode="after")
    def _check_verdict(self) -> Self:
        if self.result is not None and self.verdict != "happened":
            raise ValueError("`result` is for the verdict `happened`")
        return self


class RunSummary(ReadModel):
    """A run in a list. `doubt`, `on_hold` and `waiting` count its calls and waits, `waiting_for_people` its questions.

    **Units**: milliseconds since 1970 in UTC, 0 for not (yet); `nano_usd` in billionths of a dollar.
    """

    run_id: str
    agent: str
    status: str
    root: str
    parent: str
    requester: str
    version: str
    requested_ms: int
    started_ms: int
    ended_ms: int
    at_ms: int
    seq: int
    steps: int
    open: int
    waiting: int
    waiting_for_people: int
    doubt: int
    on_hold: int
    paused: int
    retries: int
    says: str
    failure_code: str
    failure_message: str
    tokens: int
    nano_usd: int


class RunPage(ReadModel):
    """A page of runs. `cursor` asks for the next one, of the same query; it is empty behind the last."""

    runs: list[RunSummary]
    cursor: str


class CursorFilter(ListFilter):
    """Position and size of a page."""

    cursor: str = Field("", max_length=2_000, description="of the page before")


class SessionRow(ReadModel):
    """A session. `runs` counts its runs; all other fields are of the run that was requested last.

    **Units**: milliseconds since 1970 in UTC; `at_ms` is the time of that run's last entry.
    """

    session: str
    runs: int
    run_id: str
    agent: str
    status: str
    says: str
    requested_ms: int
    at_ms: int


class SessionPage(ReadModel):
    """A page of sessions. It may be short: `cursor` asks for the next one, and is empty behind the last."""

    sessions: list[SessionRow]
    cursor: str


class DoubtRow(ReadModel):
    """A call whose outcome is unknown. `sent_ms` is the time when attempt `attempt` was sent.

    `approval` is the question to people about it; empty if an operator decides. `ways` are the possible verdicts.
    """

    call_id: str
    run_id: str
    agent: str
    step: int
    tool: str
    effect: str
    attempt: int
    sent_ms: int
    approval: str
    approvers: str
    quorum: int
    expires_ms: int
    ways: list[str]


class DoubtPage(ReadModel):
    """A page of calls in doubt. `cursor` asks for the next one; it is empty behind the last."""

    doubts: list[DoubtRow]
    cursor: str


class VersionRow(ReadModel):
    """A version of an agent that runs need. `live` counts these runs, `runs` are the first of them by id.

    `members` are the planners that report this version. Without one, the newest version continues each run whose
    history it matches; the other runs stall.
    """

    agent: str
    version: str
    live: int
    runs: list[str]
    members: list[str]


class DailyFilter(ListFilter):
    """Filter of daily sums; an empty field matches all."""

    since: str = Field("", pattern=DAY_PATTERN, description="first day, `2026-11-23`")
    until: str = Field("", pattern=DAY_PATTERN, description="last day")
    agent: str = Field("", max_length=200, description="of this agent")
    tool: str | None = Field(None, max_length=200, description="of this tool; empty: sums of runs")


class DailyRow(ReadModel):
    """Sums of a day in UTC for one agent, tool and model. Rows with an empty tool are sums of runs.

    `p50_ms` and `p95_ms` are upper bounds of the median and the 95th percentile of call durations; 0: there are none. A
    duration is measured by the executor, else from the last dispatch to the outcome. All sums include erased runs.
    """

    day: str
    agent: str
    tool: str
    model: str
    calls: int
    completed: int
    failed: int
    attempts: int
    retries: int
    doubts: int
    rejections: int
    effects_avoided: int
    tokens: int
    nano_usd: int
    runs_requested: int
    runs_completed: int
    runs_failed: int
    runs_cancelled: int
    p50_ms: int
    p95_ms: int


class ActionFilter(ListFilter):
    """Filter of operator actions; an empty field matches all."""

    run: str = Field("", max_length=300, description="on this run")
    actor: str = Field("", max_length=500, description="of this person")
    since_ms: int = Field(0, ge=0, le=LARGEST_NUMBER, description="since 1970 in UTC")


class OperatorAction(ReadModel):
    """Action of an operator on a run. `step` is 0 if the action is not about a step."""

    run_id: str
    seq: int
    at_ms: int
    actor: str
    action: str
    detail: str
    step: int
    reason: str


class LetterFilter(ListFilter):
    """Filter of dead letters; an empty field matches all."""

    run: str = Field("", max_length=300, description="of inputs whose key names this run")
    code: str = Field("", max_length=500, description="with this reason")
    since_ms: int = Field(0, ge=0, le=LARGEST_NUMBER, description="since 1970 in UTC")


class InputReplayed(ReadModel):
    """The input of a dead letter and its destination. `sent`: it was written there, at `offset`."""

    sent: bool
    topic: str
    partition: int
    offset: int = -1


class InputSent(ReadModel):
    """An input in Kafka without an outcome so far. A read that sends `Refold-After` with its position waits for it."""

    run_id: str
    topic: str
    partition: int
    offset: int


class HttpProblem(ReadModel):
    """An error in the format of RFC 9457. `code` is stable across releases, `hint` is the next action."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""


class RegistrySchema(ReadModel):
    """A schema as text, in the format of Confluent's Schema Registry."""

    text: str = Field(alias="schema")


class RegistryVersion(RegistrySchema):
    """A version of a subject. `id` is the schema id in records."""

    subject: str
    id: int
    version: int


class RegistryConfig(ReadModel):
    """Compatibility rule for changes of schemas."""

    compatibilityLevel: str  # noqa: N815 - Confluent's name


class RegistryError(ReadModel):
    """An error in the format of Confluent's Schema Registry: 40401 no subject, 40402 no version, 40403 no schema."""

    error_code: int
    message: str


class LoggedIn(ReadModel):
    """A login. Pages send `csrf` as `Refold-Csrf` with every write; it is empty without a cookie."""

    actor: str
    roles: list[str]
    csrf: str


class Alive(ReadModel):
    """Liveness of the gateway. `ok` is always true: a process that hangs does not answer."""

    ok: bool


class Health(ReadModel):
    """Readiness of the gateway. `views` and `kafka`: `ok`, or the problem (`views` without a login: only `not ok`)."""

    ready: bool
    views: str
    kafka: str

    @property
    def lacks(self) -> str:
        return "" if self.ready else f"views {self.views}, Kafka {self.kafka}"
