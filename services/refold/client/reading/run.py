"""Read models of a run: row, detail, outcome, events and records."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, Literal

from pydantic import Field

from refold.client.reading.budget import RunBudget, budget_of
from refold.client.reading.history import JudgedRecord, Run
from refold.client.reading.messages import ModelTurn
from refold.client.reading.model import Data, ReadModel, json_text, plain, utc_of
from refold.client.reading.steps import RunStep, Successor, Timeline
from refold.core import events
from refold.core.errors import RunFailedError
from refold.core.events import NO_REQUEST, Cause, Failure
from refold.core.ids import log_key
from refold.core.messages import Hold
from refold.core.run.intents import EXPOSED_BYTES, MOST_EXPOSED, STATUS
from refold.core.run.pausing import blocked
from refold.core.run.state import ENDED, RunState

LARGE = ("args", "result", "input", "data")


WhyFailed = Failure
"""Reason of a failure: a stable `code`, a `message` for people, and a `detail`."""


class Pause(ReadModel):
    """A pause of a run: its author, reason and time."""

    actor: str
    reason: str
    role: str
    said_ms: int
    offset: int
    signed_ms: int
    seq: int
    since_ms: int


class RunRow(ReadModel):
    """A run in a line.

    `status` is pending, running, suspended, completed, failed, cancelled or stalled. `approvals` are the open questions
    to people, `in_doubt` and `held` the calls that need a person's decision, `waiting` the names of signals and
    callbacks that the run waits for. `says` is the status text of the agent.
    """

    run_id: str
    agent: str
    status: str
    steps: int
    open: int
    in_doubt: list[str]
    held: list[str]
    waiting: list[str]
    approvals: list[str]
    seq: int
    requested_ms: int
    at_ms: int
    labels: dict[str, str]
    says: str
    suspended: dict[str, str] | None
    pauses: list[Pause] = Field(serialization_alias="paused")
    sessions: list[str]

    @property
    def requested_at(self) -> datetime:
        return utc_of(self.requested_ms)

    @property
    def at(self) -> datetime:
        """Time of the last entry."""
        return utc_of(self.at_ms)

    @property
    def over(self) -> bool:
        return self.status in ENDED

    @property
    def paused(self) -> bool:
        """True while a pause of the run or of its parent is in force."""
        return bool(self.pauses)


class Ended(ReadModel):
    """Outcome of a run, or none so far. `result` is the agent's, `seq` the number of the run's last event."""

    run_id: str
    status: str
    result: Any = None
    failed: Failure | None = Field(None, serialization_alias="failure")
    reason: str = ""
    seq: int
    at_ms: int = Field(0, exclude=True)

    @property
    def value(self) -> Any:
        return self.result

    @property
    def failure(self) -> WhyFailed | None:
        """Reason of a failure or a cancellation (code `cancelled`); None otherwise."""
        if self.status == "cancelled":
            return Failure("cancelled", self.reason or "it was cancelled")
        return self.failed

    @property
    def at(self) -> datetime:
        return utc_of(self.at_ms)

    def check(self) -> None:
        """**Raises** RunFailedError if the run failed or was cancelled."""
        if (failure := self.failure) is not None:
            outcome = "was cancelled" if self.status == "cancelled" else "has failed"
            fields = {"run_id": self.run_id, "status": self.status, "failure": failure.code, "reason": failure.message}
            raise RunFailedError(f"run {self.run_id} {outcome}", hint=f"{failure.code}: {failure.message}", **fields)


class LastEntry(ReadModel):
    """The last entry of a run: its id, its position (-1: none), and the digest of the folded state."""

    id: str
    seq: int
    partition: int
    offset: int
    digest: str


class KeptSignalRow(ReadModel):
    """A received signal that no wait has taken so far."""

    signal_id: str
    name: str
    data: Any
    actor: str
    sent_ms: int


class ForkOf(ReadModel):
    """The run whose history, up to event `seq`, a live fork begins with. `actor` started the fork."""

    run_id: str
    seq: int
    actor: str
    reason: str


class RunInfo(RunRow):
    """A run with all its details, now or at a point of its history.

    `manifest`: digests of code and tools, and the policy. `values`: values exposed by the agent, by name. `hold`: the
    reason why the code is not run. `unheard`: failed tasks that the agent did not await. `resolve`: commands that
    settle the calls in doubt or on hold. `models`: requests to models without an answer, only at a point of the
    history. `waited_ms`: time from the request until a planner accepted it.
    """

    result: Any
    failure: Failure | None
    reason: str
    input: Any
    requester: str
    request: Cause | None
    version: str
    app: str
    manifest: dict[str, str]
    hold: Hold | None
    budget: RunBudget | None
    head: LastEntry
    entries: int
    void_records: int
    timeline: list[RunStep]
    successors: list[Successor]
    unheard: list[events.TaskFailed]
    signals: list[KeptSignalRow]
    signals_dropped: list[events.SignalDropped]
    values: dict[str, Any]
    resolve: list[str]
    models: list[ModelTurn]
    forked: ForkOf | None = None
    waited_ms: int = 0
    result_text: str = Field(exclude=True)

    @property
    def value(self) -> Any:
        return self.result


class RunShown(RunInfo):
    """A run with the halts of its calls, and its descendants."""

    halted: list[str]
    family: list[RunRow]


class RunEvent(ReadModel):
    """An event of a run's history. `type` is its name in the log, `event` its fields, `seq` its number, from 1.

    `topic`, `partition` and `offset` are the position of its entry, `cause` is the input that led to the entry, `actor`
    the author of the entry.
    """

    run_id: str = Field(exclude=True)
    seq: int
    type: str
    at_ms: int
    topic: str
    partition: int
    offset: int
    key: str
    cause: Cause | None
    actor: str
    event: dict[str, Any]

    @property
    def at(self) -> datetime:
        return utc_of(self.at_ms)


class HoldChange(ReadModel):
    """A change of the hold of a run, printed between its events; `hold` is None once the code runs again."""

    run_id: str
    type: Literal["hold"] = "hold"
    status: str
    hold: Hold | None


class RawRecord(ReadModel):
    """A record of the run log; `void` is the reason why it does not count, or empty."""

    topic: str
    partition: int
    offset: int
    key: str
    void: str
    id: str
    prev: str
    seq: int
    at_ms: int
    events: list[str]
    cause: Cause | None
    actor: str
    nonce: str
    bytes: int


class VersionInUse(ReadModel):
    """A version of an agent, needed as long as it has live runs; `stalled` maps stalled ones to the reason."""

    agent: str
    version: str
    live: int = 0
    stalled: dict[str, str] = Field(default_factory=dict)
    runs: list[str] = Field(default_factory=list)


def row_of(run: Run) -> RunRow:
    return RunRow(**_run_fields(run))


def first_request(run: Run) -> events.RunRequested:
    return run.state.request or NO_REQUEST


def _run_fields(run: Run) -> Data:
    state, timeline, request = run.state, run.timeline, first_request(run)
    live = Timeline(state.run_id) if state.over else timeline
    return {
        "run_id": state.run_id,
        "agent": request.agent,
        "status": run.status,
        "steps": len(state.steps),
        "open": len(state.open),
        "in_doubt": [step.call_id for step in timeline.in_doubt],
        "held": [step.call_id for step in live.in_status("held")],
        "waiting": [step.name for step in live.in_status("waiting")],
        "approvals": [step.approvals[-1].approval_id for step in timeline.asking],
        "seq": state.head.seq,
        "requested_ms": state.asked_ms,
        "at_ms": state.at_ms,
        "labels": request.labels,
        "says": "" if state.over else state.says,
        "suspended": plain(blocked(state)) if state.status == "suspended" else None,
        "pauses": [Pause(**plain(pause), since_ms=at_ms) for at_ms, pause in live.pauses],
        "sessions": request.sessions,
    }


def _end_fields(state: RunState) -> Data:
    end = state.end
    result, failure = json_text(getattr(end, "result", "")), getattr(end, "failure", None)
    return {"result": result, "failure": failure, "reason": getattr(end, "reason", "")}


def ending_of(run: Run) -> Ended:
    state, end = run.state, _end_fields(run.state)
    about = {"run_id": state.run_id, "status": run.status, "seq": state.head.seq, "at_ms": state.at_ms}
    return Ended(**about, result=end["result"], failed=end["failure"], reason=end["reason"])


def _fork_source(event: events.RunForked | None) -> ForkOf | None:
    if event is None:
        return None
    source = event.source
    return ForkOf(run_id=source.run_id, seq=source.seq, actor=event.actor, reason=event.reason)


def info_of(run: Run, models: Sequence[ModelTurn] = ()) -> RunInfo:
    state, timeline, request, head = run.state, run.timeline, first_request(run), run.state.head
    last = run.records[-1].record if run.records else None
    partition, offset = (last.partition, last.offset) if last else (-1, -1)
    signals = [KeptSignalRow(**{**plain(signal), "data": json_text(signal.data)}) for signal in timeline.kept.values()]
    return RunInfo(
        **_run_fields(run),
        **_end_fields(state),
        input=json_text(request.input),
        requester=request.requester,
        waited_ms=state.requested_ms - state.asked_ms,
        request=state.position,
        version=state.version,
        app=state.app,
        manifest=_manifest(run),
        hold=run.hold,
        budget=budget_of(state),
        head=LastEntry(id=head.id.hex(), seq=head.seq, partition=partition, offset=offset, digest=state.digest()),
        entries=len(run.records),
        void_records=len(run.void),
        timeline=timeline.steps,
        successors=timeline.successors,
        unheard=timeline.unheard,
        signals=signals,
        signals_dropped=timeline.dropped,
        values=exposed_values(state.values.items()),
        resolve=[command for step in (*timeline.in_doubt, *timeline.in_status("held")) for command in step.ways_out],
        models=list(models),
        forked=_fork_source(timeline.forked),
        result_text=str(getattr(state.end, "result", "")),
    )


def exposed_values(texts: Iterable[tuple[str, str]]) -> Data:
    """Data of exposed values by name, sorted. **Shape** of `texts`: name and JSON, of the status "" and plain text."""
    # A forged log may have more and larger ones than an agent can expose.
    shown = [(name, text) for name, text in sorted(texts) if len(text) <= EXPOSED_BYTES][: MOST_EXPOSED + 1]
    return {name or STATUS: json_text(text) if name else text for name, text in shown}


def _manifest(run: Run) -> dict[str, str]:
    """Manifest of a run by its start or last migration, with its policy."""
    versions: dict[str, str] = {}
    for judged in run.records:
        for event in judged.entry.events if judged.entry else ():
            if isinstance(event, events.RunStarted | events.RunMigrated):
                versions = event.manifest
    policy = first_request(run).policy
    return {**versions, **({"policy": policy} if policy else {})}


def events_of(run: Run, after: int = 0) -> list[RunEvent]:
    # From the end: the cost is that of the result, however long the run is.
    newer = takewhile(lambda judged: judged.entry and judged.entry.last_seq > after, reversed(run.records))
    return [event for judged in reversed([*newer]) for event in entry_events(judged, after)]


def event_at(run: Run, seq: int) -> RunEvent | None:
    last = next((record for record in reversed(run.records) if record.entry and record.entry.seq <= seq), None)
    return next(iter(entry_events(last, seq - 1)), None) if last else None


def entry_events(judged: JudgedRecord, after: int = 0) -> list[RunEvent]:
    entry = judged.entry
    assert entry is not None, "what counts can be read"
    return [
        RunEvent(
            run_id=entry.run_id,
            seq=seq,
            type=type(event).__name__,
            at_ms=entry.at_ms,
            **_position_fields(judged),
            cause=entry.cause,
            actor=entry.actor,
            event={name: _field_data(name, value) for name, value in plain(event).items()},
        )
        for seq, event in enumerate(entry.events, start=entry.seq)
        if seq > after
    ]


def _field_data(name: str, value: Any) -> Any:
    return json_text(value) if name in LARGE and isinstance(value, str) else value


def _position_fields(judged: JudgedRecord) -> Data:
    record, entry = judged.record, judged.entry
    key = log_key(judged.run_id, entry.seq, judged.id) if entry else record.key or b""
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    return {**place, "key": key.decode(errors="replace")}


def records_of(run: Run) -> list[RawRecord]:
    return [_raw(judged) for judged in sorted([*run.records, *run.void], key=lambda record: record.record.offset)]


def _raw(judged: JudgedRecord) -> RawRecord:
    entry = judged.entry
    return RawRecord(
        **_position_fields(judged),
        void=judged.void,
        id=judged.id.hex(),
        prev=entry.prev.hex() if entry else "",
        seq=entry.seq if entry else 0,
        at_ms=entry.at_ms if entry else 0,
        events=[type(event).__name__ for event in entry.events] if entry else [],
        cause=entry.cause if entry else None,
        actor=entry.actor if entry else "",
        nonce=entry.nonce.hex() if entry else "",
        bytes=len(judged.record.value or b""),
    )


def versions_in_use(runs: Iterable[Run]) -> list[VersionInUse]:
    """Versions by agent, in the order of their first runs."""
    by_version: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        state = run.state
        if state.request is not None and state.started_ms and not state.over:
            by_version.setdefault((state.request.agent, state.version), []).append(run)
    rows = [
        VersionInUse(
            agent=agent,
            version=version,
            live=len(live),
            stalled={run.state.run_id: _stall_text(run.hold) for run in live if run.hold},
            runs=[run.state.run_id for run in live],
        )
        for (agent, version), live in by_version.items()
    ]
    return sorted(rows, key=lambda row: row.agent)


def _stall_text(hold: Hold) -> str:
    return f"{hold.reason}, needs {hold.needs}" if hold.needs else hold.reason
