"""The routes. Bodies and answers are read models; every error is a problem with a stable code."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from refold.client.awaiting import AsyncClient
from refold.client.platform import Platform
from refold.client.stores import blob_store
from refold.core.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RefoldError,
    TimedOutError,
    TransientError,
    UnreachableError,
    UsageError,
)
from refold.core.events import Cause
from refold.core.ids import RunId, run_id
from refold.core.messages import RunRequest
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.gateway.guard import SiteGuard
from refold.gateway.reading import GoneError, ReadSide, RunQuery, after_of, events_after
from refold.gateway.streams import RunStreams
from refold.gateway.writing import WriteSide
from refold.operations import run as operations
from refold.operations.operation import OperationRow, Performed
from refold.operations.run import By, Changes
from refold.ports.tables import MOST_PAGE, ViewDatabase, ViewReader
from refold.projections.runs import ViewedRuns
from refold.views.api import (
    AnswerCallback,
    CastVote,
    Health,
    HttpProblem,
    InputSent,
    RunBody,
    RunFilter,
    RunPage,
    SignalBody,
    WithReason,
)
from refold.views.approval import Question
from refold.views.audit import AuditLine, audit_of
from refold.views.diff import RunDiff, run_diff
from refold.views.history import Run, at_seq, at_time
from refold.views.outcome import Said, Started, Voted
from refold.views.run import RunEvent, RunInfo, RunRow, info_of, row_of
from refold.views.steps import RunStep

MOST_READS = 64
WRITES_A_MINUTE = 60
DEFAULT_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0
NO_REASON = WithReason()

_STATUS: tuple[tuple[type[RefoldError], int], ...] = (
    (GoneError, 410),
    (NotFoundError, 404),
    (ConflictError, 409),
    (MalformedError, 422),
    (UsageError, 422),
    (UnreachableError, 503),
    (TimedOutError, 503),
    (TransientError, 503),
)


_CODES = {404: "no_route", 405: "no_method", 408: "slow_body", 413: "too_large"}
"""Of errors that no operation has raised."""


class BusyError(TransientError):
    """More is asked for at once, or in a minute, than the gateway serves."""

    code = "busy"


@dataclass
class Gateway:
    """What the routes share. `actor` is in whose name everything is written."""

    platform: Platform
    database: ViewDatabase
    actor: str
    client: AsyncClient

    def __post_init__(self) -> None:
        self.reading = ReadSide(self.database)
        self.writing = WriteSide(self.platform, self.reading)
        self.streams = RunStreams(self.reading)
        self._reads = threading.BoundedSemaphore(MOST_READS)
        self._writes: deque[float] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def view(self, after: str) -> Iterator[ViewReader]:
        """The view as of one moment. **Raises** BusyError."""
        if not self._reads.acquire(blocking=False):
            raise BusyError(f"{MOST_READS} reads are under way", retry_after=1.0)
        try:
            with self.reading.still(after_of(after)) as view:
                yield view
        finally:
            self._reads.release()

    def check_rate(self) -> None:
        """Count a write. **Raises** BusyError when there were too many in the last minute."""
        now = time.monotonic()
        with self._lock:
            while self._writes and now - self._writes[0] > 60:
                self._writes.popleft()
            if len(self._writes) >= WRITES_A_MINUTE:
                raise BusyError(f"{WRITES_A_MINUTE} writes a minute", retry_after=60 - (now - self._writes[0]))
            self._writes.append(now)


def build_api(gateway: Gateway) -> FastAPI:
    """Return the application. It closes the gateway when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Gateway]]:
        yield {"gateway": gateway}
        gateway.writing.close()
        await gateway.client.close()
        gateway.database.close()

    app = FastAPI(title="Refold", version="0.1.0", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(SiteGuard)
    for error in (RefoldError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _problem)
    for routes in (_reads, _streams, _writes, _people, _health):
        routes(app)
    return app


def _gateway(request: Request) -> Gateway:
    found: Gateway = request.state.gateway
    return found


Site = Annotated[Gateway, Depends(_gateway)]
After = Annotated[str, Header(alias="Refold-After", description="`topic/partition/offset` of a write to wait for")]
WaitOption = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the outcome")]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": HttpProblem, "content": {"application/problem+json": {}}}
    for status in (404, 409, 410, 422, 429, 503)
}


def _reads(app: FastAPI) -> None:
    get = partial(app.get, responses=_PROBLEMS)

    @get("/api/runs", summary="List runs")
    def list_runs(shared: Site, wanted: Annotated[RunFilter, Query()], after: After = "") -> RunPage:
        """Runs, the newest first."""
        labels = tuple(_pair(each) for each in wanted.label)
        query = RunQuery(**wanted.model_dump(exclude={"label", "cursor"}), labels=labels)
        with shared.view(after) as view:
            return shared.reading.runs(view, query, wanted.cursor)

    @get("/api/runs/{run}", summary="Show a run")
    def show_run(
        shared: Site,
        run: str,
        at_seq_: Annotated[int, Query(alias="at_seq", ge=0, description="as it was after this event; 0: now")] = 0,
        at_ms: Annotated[int, Query(ge=0, description="as it was at this time; 0: now")] = 0,
        after: After = "",
    ) -> RunInfo:
        """A run whole: its steps, its questions, and what it began with; as it is now, or at a point of its history."""
        with shared.view(after) as view:
            found = shared.reading.run(view, run)
        if at_seq_:
            found = at_seq(found, at_seq_)
        return info_of(at_time(found, at_ms) if at_ms else found)

    @get("/api/runs/{run}/diff/{left}/{right}", summary="Compare two points of a run")
    def diff_run(shared: Site, run: str, left: int, right: int, after: After = "") -> RunDiff:
        """What differs in a run between two events: status, steps, outcomes, budget, signals."""
        with shared.view(after) as view:
            found = shared.reading.run(view, run)
        return run_diff(at_seq(found, left), at_seq(found, right))

    @get("/api/runs/{run}/audit", summary="Show the audit trail of a run")
    def audit_run(shared: Site, run: str, after: After = "") -> list[AuditLine]:
        """Who did what, why, and by which input."""
        with shared.view(after) as view:
            return audit_of(shared.reading.run(view, run))

    @get("/api/runs/{run}/steps", summary="List the steps of a run")
    def list_steps(shared: Site, run: str, after: After = "") -> list[RunStep]:
        """The steps in order of their numbers."""
        with shared.view(after) as view:
            return shared.reading.run(view, run).timeline.steps

    @get("/api/runs/{run}/events", summary="List the events of a run")
    def list_events(
        shared: Site,
        run: str,
        after_seq: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_PAGE)] = MOST_PAGE,
        after: After = "",
    ) -> list[RunEvent]:
        """The events behind a number, in order, without gaps: those of at most `limit` entries."""
        with shared.view(after) as view:
            shared.reading.check(view, run)
            return events_after(view, run_id(run), after_seq, limit)

    @get("/api/runs/{run}/family", summary="List the runs that a run has started")
    def list_family(shared: Site, run: str, after: After = "") -> list[RunRow]:
        """The runs below a run, each behind the one that has started it."""
        with shared.view(after) as view:
            return [row_of(each) for each in ViewedRuns(view).family(shared.reading.run(view, run))]


def _streams(app: FastAPI) -> None:
    @app.get("/api/runs/{run}/stream", responses=_PROBLEMS, summary="Follow a run", response_class=StreamingResponse)
    async def stream_run(
        shared: Site,
        run: str,
        last: Annotated[str, Header(alias="Last-Event-ID")] = "",
        after_seq: Annotated[int, Query(ge=0)] = 0,
    ) -> StreamingResponse:
        """Server-sent events: the events of a run as they come, until it is over. The id of each is its number.

        A client that comes back with `Last-Event-ID` goes on behind it, through any gateway.
        """
        if last and not last.isdecimal():
            raise MalformedError(f"Last-Event-ID {last[:40]!r} is no number of an event")
        name, seq = run_id(run), int(last) if last else after_seq
        await run_in_threadpool(shared.reading.check_seq, name, seq)
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        return StreamingResponse(shared.streams.run(name, seq), media_type="text/event-stream", headers=headers)


def _writes(app: FastAPI) -> None:
    post = partial(app.post, responses={**_PROBLEMS, 202: {"model": InputSent}})

    @post("/api/runs", summary="Start a run")
    def start_run(
        shared: Site,
        body: RunBody,
        response: Response,
        key: Annotated[str, Header(alias="Idempotency-Key", max_length=200)] = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> Started | InputSent:
        """Ask for a run. `Idempotency-Key` names it where the body does not: the same again is the same run."""
        request = RunRequest(
            RunId(body.id or key),
            body.agent,
            canonical.dumps(body.input),
            shared.actor,
            body.not_before_ms,
            body.labels,
            sessions=body.sessions,
            deadline_ms=body.deadline_ms,
        )
        settings = shared.platform.settings
        whole = operations.prepared(request, settings, lambda: blob_store(settings), None)
        done = _perform(shared, response, operations.start_run(whole), wait)
        return done if isinstance(done, InputSent) else Started(run_id=whole.run_id, known=done.what == "known")

    @post("/api/runs/{run}/signals", summary="Send a signal")
    def send_signal(
        shared: Site,
        run: str,
        body: SignalBody,
        response: Response,
        key: Annotated[str, Header(alias="Idempotency-Key", max_length=200)] = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> Said | InputSent:
        """A signal that the run waits for, now or later."""
        name = run_id(run)
        said = operations.signal_message(name, body.name, body.data, signal_id=body.id or key, actor=shared.actor)
        return _said(shared, response, name, lambda found: operations.signal(found.state, said), wait)

    @post("/api/callbacks/{token}", summary="Answer a callback")
    def answer_callback(
        shared: Site, token: str, body: AnswerCallback, response: Response, wait: WaitOption = DEFAULT_WAIT_S
    ) -> Said | InputSent:
        """The result of a callback, or that there is none. The first answer counts."""
        said = operations.answered(token, body.data, failure=body.failure, key=body.key, actor=shared.actor)
        return _said(shared, response, said.run_id, lambda run: operations.answer_callback(run.state, said), wait)

    def word(kind: str) -> Callable[..., Said | InputSent]:
        def say(
            shared: Site, run: str, response: Response, body: WithReason = NO_REASON, wait: WaitOption = DEFAULT_WAIT_S
        ) -> Said | InputSent:
            by = By(shared.actor, body.reason)
            return _said(shared, response, run_id(run), lambda found: operations.word(found.state, kind, by), wait)

        return say

    for kind in ("cancel", PAUSE, RESUME):
        post(f"/api/runs/{{run}}/{kind}", summary=f"{kind.capitalize()} a run", name=f"{kind}_run")(word(kind))

    @post("/api/runs/{run}/retry", summary="Retry a failed run")
    def retry_run(
        shared: Site, run: str, response: Response, body: WithReason = NO_REASON, wait: WaitOption = DEFAULT_WAIT_S
    ) -> Said | InputSent:
        """A failed run goes on where it failed, with all finished work kept."""
        changes = Changes(reason=body.reason)
        redrive: Callable[[Run], OperationRow] = lambda found: operations.redrive(found.state, shared.actor, changes)  # noqa: E731
        return _said(shared, response, run_id(run), redrive, wait)


def _people(app: FastAPI) -> None:
    @app.get("/api/approvals", responses=_PROBLEMS, summary="List questions to people")
    async def list_approvals(shared: Site, state: str = "open") -> list[Question]:
        """What people are asked, the oldest first. `state` is open, decided, closed or all."""
        if state not in ("open", "decided", "closed", "all"):
            raise MalformedError(f"state={state[:40]!r}", hint="use open, decided, closed or all")
        return await shared.client.approvals(state)  # type: ignore[arg-type]

    @app.post("/api/approvals/{approval:path}/votes", responses=_PROBLEMS, summary="Vote")
    async def vote(shared: Site, approval: str, body: CastVote) -> Voted:
        """A decision on a question, by its whole id, signed in the actor's name."""
        shared.check_rate()
        return await shared.client.decide(
            approval,
            body.action,
            args=body.args,
            result=body.result,
            message=body.message,
            timeout=timedelta(seconds=LONGEST_WAIT_S),
        )

    @app.get("/api/approvals/{approval:path}", responses=_PROBLEMS, summary="Show a question")
    async def show_approval(shared: Site, approval: str) -> Question:
        """A question by its id, or the open one about a call by `RUN/SEQ`."""
        return await shared.client.approval(approval)


def _health(app: FastAPI) -> None:
    @app.get("/healthz", summary="Whether the process lives")
    def health() -> dict[str, bool]:
        """True."""
        return {"ok": True}

    @app.get("/readyz", summary="Whether the gateway can answer")
    def ready(shared: Site, response: Response) -> Health:
        """Whether the view can be read, and whether Kafka is heard."""
        views, kafka = "ok", "ok" if shared.writing.refusals.listens.is_set() else "not heard"
        try:
            shared.reading.store().positions()
        except RefoldError as error:
            views = error.message
        found = Health(ready=views == kafka == "ok", views=views, kafka=kafka)
        response.status_code = 200 if found.ready else 503
        return found


def _perform(shared: Gateway, response: Response, operation: OperationRow, wait: float) -> Performed | InputSent:
    shared.check_rate()
    done = shared.writing.perform(operation, wait)
    if isinstance(done, Cause):
        response.status_code = 202
        return InputSent(
            run_id=operation.message.run_id, topic=done.topic, partition=done.partition, offset=done.offset
        )
    last = done.run.records[-1].record if done.run.records else None
    if last is not None:
        response.headers["Refold-After"] = f"{RUN_LOG}/{last.partition}/{last.offset}"
    return done


def _said(
    shared: Gateway, response: Response, run: RunId, build_row: Callable[[Run], OperationRow], wait: float
) -> Said | InputSent:
    done = _perform(shared, response, shared.writing.build(run, build_row), wait)
    return done if isinstance(done, InputSent) else done.said


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise MalformedError(f"label={text[:80]!r} is no label", hint="write label=team=pay")
    return name, value


async def _problem(_: Request, error: Exception) -> JSONResponse:
    """Any error as a problem."""
    headers: dict[str, str] = {}
    if isinstance(error, RequestValidationError):
        detail = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        problem = HttpProblem(title="Unprocessable Content", status=422, detail=detail, code="malformed")
    elif isinstance(error, HTTPException):
        title, code = HTTPStatus(error.status_code).phrase, _CODES.get(error.status_code, "http")
        problem = HttpProblem(title=title, status=error.status_code, detail=error.detail, code=code)
    else:
        assert isinstance(error, RefoldError), "no other is handled here"
        status = (
            429 if isinstance(error, BusyError) else next((s for kind, s in _STATUS if isinstance(error, kind)), 500)
        )
        problem = HttpProblem(title=error.code, status=status, detail=error.message, code=error.code, hint=error.hint)
        if status in (429, 503):
            headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after", None) or 1)))
    body = problem.model_dump()
    return JSONResponse(body, problem.status, headers, media_type="application/problem+json")
