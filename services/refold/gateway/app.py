"""The routes. Bodies and answers are read models; every error is a problem with a stable code."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from refold.core.errors import not_installed

try:
    from anyio.to_thread import current_default_thread_limiter
    from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, StreamingResponse
    from fastapi.routing import APIRoute
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

from refold.client.awaiting import AsyncClient, State
from refold.client.platform import Platform
from refold.client.stores import blob_store
from refold.core.errors import (
    ConflictError,
    MalformedError,
    NotFoundError,
    RefoldError,
    TransientError,
    UnauthorisedError,
    UsageError,
)
from refold.core.events import Cause
from refold.core.ids import RunId, run_id
from refold.core.messages import RunRequest
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.gateway.describing import documented, title_of
from refold.gateway.guard import SiteGuard
from refold.gateway.reading import GoneError, ReadSide, RunQuery, after_of, events_after, number_of
from refold.gateway.streams import RunStreams
from refold.gateway.writing import Refusals, WriteSide
from refold.operations import run as operations
from refold.operations.operation import OperationRow, Performed
from refold.operations.run import By, Changes
from refold.ports.tables import MOST_PAGE, ViewDatabase, ViewReader
from refold.projections.runs import ViewedRuns
from refold.views.api import (
    LARGEST_NUMBER,
    ActionFilter,
    Alive,
    AnswerCallback,
    CastVote,
    DailyFilter,
    DailyRow,
    Health,
    HttpProblem,
    InputSent,
    OperatorAction,
    RunBody,
    RunFilter,
    RunPage,
    SignalBody,
    WithReason,
)
from refold.views.approval import Question
from refold.views.audit import AuditLine, audit_of
from refold.views.diff import RunDiff, run_diff
from refold.views.history import Run
from refold.views.outcome import Said, Started, Voted
from refold.views.run import RunEvent, RunInfo, RunRow, info_of, row_of
from refold.views.steps import RunStep

MOST_READS = 64
WRITES_A_MINUTE = 60
DEFAULT_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0
NO_REASON = WithReason()
WORDS = {
    "cancel": "The run and those that it has started end as soon as they can. A run that has ended otherwise: 409.",
    PAUSE: "The run and those that it has started propose no further calls, until they are resumed.",
    RESUME: "A paused run goes on. A run that is paused with the one that has started it: 409.",
}


class BusyError(TransientError):
    """More is asked for at once, or in a minute, than the gateway serves."""

    code = "busy"


_STATUS: tuple[tuple[type[RefoldError], int], ...] = (
    (BusyError, 429),
    (GoneError, 410),
    (NotFoundError, 404),
    (ConflictError, 409),
    (MalformedError, 422),
    (UsageError, 422),
    (UnauthorisedError, 403),
)
"""Any other error is one of what the gateway needs, not of the request: 503."""

_CODES = {400: "malformed", 404: "no_route", 405: "no_method", 408: "slow_body", 413: "too_large"}
"""Of errors that no operation has raised."""
MOST_DETAIL = 500
"""Characters of a detail: it names what a request had, which may be large."""


@dataclass
class Gateway:
    """What the routes share. `actor` is in whose name everything is written."""

    platform: Platform
    database: ViewDatabase
    actor: str
    client: AsyncClient

    def __post_init__(self) -> None:
        refusals = Refusals(self.platform)
        self.reading = ReadSide(self.database, refusals.of)
        self.writing = WriteSide(self.platform, self.reading, refusals)
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


class StrictRequest(Request):
    """A request whose body is read as every service reads JSON: no duplicate keys, no NaN, no lone surrogates."""

    async def json(self) -> Any:
        return await run_in_threadpool(canonical.parse, await self.body(), containers=canonical.MAX_CONTAINERS)


class StrictRoute(APIRoute):
    """A route that reads strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


class Api(FastAPI):
    """The application with its description."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document. `schemas/openapi.json` is a copy."""
        if self.openapi_schema is None:
            self.openapi_schema = documented(super().openapi())
        return self.openapi_schema


Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Gateway]]]


def build_api(gateway: Gateway) -> Api:
    """Return the application. It closes the gateway when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Gateway]]:
        # A write waits in a thread for its outcome: as many as there may be leave room for all reads.
        current_default_thread_limiter().total_tokens = MOST_READS + WRITES_A_MINUTE + 16
        yield {"gateway": gateway}
        gateway.streams.close()
        gateway.writing.close()
        await gateway.client.close()
        gateway.database.close()

    return routed(lifespan)


def routed(lifespan: Lifespan | None = None) -> Api:
    """Return the application with all routes; without a `lifespan` it can be described, not called."""
    app = Api(
        title="Refold",
        version="0.1.0",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_middleware(SiteGuard)
    for error in (RefoldError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _problem)
    site = APIRouter(route_class=StrictRoute, redirect_slashes=False)
    for routes in (_reads, _streams, _writes, _people, _health):
        routes(site)
    app.include_router(site, generate_unique_id_function=lambda route: route.name)
    return app


def _gateway(request: Request) -> Gateway:
    found: Gateway = request.state.gateway
    return found


Site = Annotated[Gateway, Depends(_gateway)]
AfterHeader = Annotated[
    str,
    Header(alias="Refold-After", max_length=8_000, description="places of writes to wait for, as an answer named them"),
]
Key = Annotated[str, Header(alias="Idempotency-Key", max_length=200, description="the same again is the same input")]
WaitOption = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the outcome")]
Seq = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="number of an event")]
SeqOption = Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="events behind this one")]


def _reads(site: APIRouter) -> None:
    get = site.get

    @get("/api/runs", summary="List runs")
    def list_runs(shared: Site, wanted: Annotated[RunFilter, Query()], after: AfterHeader = "") -> RunPage:
        """Runs, the newest first."""
        labels = tuple(_pair(each) for each in wanted.label)
        query = RunQuery(**wanted.model_dump(exclude={"label", "cursor"}), labels=labels)
        with shared.view(after) as view:
            return shared.reading.runs(view, query, wanted.cursor)

    @get("/api/runs/{run}", summary="Show a run")
    def show_run(
        shared: Site,
        run: str,
        at_seq: Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="as it was after this event; 0: now")] = 0,
        at_ms: Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="as it was at this time; 0: now")] = 0,
        after: AfterHeader = "",
    ) -> RunInfo:
        """A run whole: its steps, its questions, and what it began with; as it is now, or at a point of its history."""
        with shared.view(after) as view:
            seqs = [at_seq] if at_seq else []
            if at_ms and not (seq := shared.reading.seq_at(view, run, at_ms)):
                raise MalformedError(f"run {run} was not there at {at_ms}", hint="its first event has its time")
            seqs += [seq] if at_ms else []
            found = shared.reading.run_at(view, run, min(seqs)) if seqs else shared.reading.run(view, run)
        return info_of(found)

    @get("/api/runs/{run}/diff/{left}/{right}", summary="Compare two points of a run")
    def diff_run(shared: Site, run: str, left: Seq, right: Seq, after: AfterHeader = "") -> RunDiff:
        """What differs in a run between two events: status, steps, outcomes, budget, signals."""
        with shared.view(after) as view:
            before, then = (shared.reading.run_at(view, run, seq) for seq in (left, right))
        return run_diff(before, then)

    @get("/api/runs/{run}/audit", summary="Show the audit trail of a run")
    def audit_run(shared: Site, run: str, after: AfterHeader = "") -> list[AuditLine]:
        """Who did what, why, and by which input."""
        with shared.view(after) as view:
            return audit_of(shared.reading.run(view, run))

    @get("/api/runs/{run}/steps", summary="List the steps of a run")
    def list_steps(shared: Site, run: str, after: AfterHeader = "") -> list[RunStep]:
        """The steps in order of their numbers."""
        with shared.view(after) as view:
            return shared.reading.run(view, run).timeline.steps

    @get("/api/runs/{run}/events", summary="List the events of a run")
    def list_events(
        shared: Site,
        run: str,
        after_seq: SeqOption = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_PAGE, description="entries")] = MOST_PAGE,
        after: AfterHeader = "",
    ) -> list[RunEvent]:
        """The events behind a number, in order, without gaps: those of at most `limit` entries."""
        with shared.view(after) as view:
            shared.reading.check(view, run)
            return events_after(view, run_id(run), after_seq, limit)

    @get("/api/daily", summary="List sums by day")
    def list_daily(shared: Site, wanted: Annotated[DailyFilter, Query()], after: AfterHeader = "") -> list[DailyRow]:
        """Calls, failures, effects avoided, tokens and cost by day, agent, tool and model, the latest first."""
        with shared.view(after) as view:
            return shared.reading.daily(view, wanted)

    @get("/api/operator-actions", summary="List what operators did")
    def list_operator_actions(
        shared: Site, wanted: Annotated[ActionFilter, Query()], after: AfterHeader = ""
    ) -> list[OperatorAction]:
        """Who cancelled, paused, resumed, retried, resolved or migrated which run, and why; the latest first."""
        with shared.view(after) as view:
            return shared.reading.actions(view, wanted)

    @get("/api/runs/{run}/family", summary="List the runs that a run has started")
    def list_family(shared: Site, run: str, after: AfterHeader = "") -> list[RunRow]:
        """The runs below a run, each behind the one that has started it."""
        with shared.view(after) as view:
            return [row_of(each) for each in ViewedRuns(view).family(shared.reading.run(view, run))]


def _streams(site: APIRouter) -> None:
    stream: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "No more"},
    }

    @site.get("/api/runs/{run}/stream", responses=stream, summary="Follow a run", response_class=StreamingResponse)
    async def stream_run(
        shared: Site,
        run: str,
        last: Annotated[str, Header(alias="Last-Event-ID", max_length=100)] = "",
        after_seq: SeqOption = 0,
        after: AfterHeader = "",
    ) -> Response:
        """Server-sent events: the events of a run as they come, until it is over. The id of each is its number.

        A client that comes back with `Last-Event-ID` goes on behind it, through any gateway. Behind the last event of
        a run that is completed or cancelled the answer is 204: browsers do not come back after it. Behind `RunFailed`
        the stream waits for the events of a retry. The stream of a run that is erased ends, and coming back is 410.
        """
        seq = number_of(last) if last else after_seq
        if seq is None:
            raise MalformedError(f"Last-Event-ID {last[:40]!r} is no number of an event")
        shared.streams.check_room()
        name = run_id(run)
        if not await run_in_threadpool(shared.reading.check_seq, name, seq, after_of(after)):
            return Response(status_code=204)
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        return StreamingResponse(shared.streams.run(name, seq), media_type="text/event-stream", headers=headers)


def _writes(site: APIRouter) -> None:
    post = partial(site.post, responses={202: {"model": InputSent, "description": "Sent, and no outcome in time"}})

    @post("/api/runs", summary="Start a run")
    def start_run(
        shared: Site,
        body: RunBody,
        response: Response,
        key: Key = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> Started | InputSent:
        """Ask for a run. `Idempotency-Key` names it where the body does not: the same again is the same run."""
        request = RunRequest(
            RunId(_named(body.id, key)),
            body.agent,
            canonical.dumps(body.input),
            shared.actor,
            body.not_before_ms,
            body.labels,
            sessions=body.sessions,
            deadline_ms=body.deadline_ms,
        )
        settings = shared.platform.settings
        shared.check_rate()
        whole = operations.prepared(request, settings, lambda: blob_store(settings), None)
        done = _perform(shared, response, operations.start_run(whole), wait)
        return done if isinstance(done, InputSent) else Started(run_id=whole.run_id, known=done.what == "known")

    @post("/api/runs/{run}/signals", summary="Send a signal")
    def send_signal(
        shared: Site,
        run: str,
        body: SignalBody,
        response: Response,
        key: Key = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> Said | InputSent:
        """A signal that the run waits for, now or later. `Idempotency-Key` is its id where the body has none."""
        name = run_id(run)
        said = operations.signal_message(name, body.name, body.data, signal_id=_named(body.id, key), actor=shared.actor)
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
        post(
            f"/api/runs/{{run}}/{kind}",
            summary=f"{kind.capitalize()} a run",
            description=WORDS[kind],
            name=f"{kind}_run",
        )(word(kind))

    @post("/api/runs/{run}/retry", summary="Retry a failed run")
    def retry_run(
        shared: Site, run: str, response: Response, body: WithReason = NO_REASON, wait: WaitOption = DEFAULT_WAIT_S
    ) -> Said | InputSent:
        """A failed run goes on where it failed, with all finished work kept."""
        changes = Changes(reason=body.reason)
        redrive: Callable[[Run], OperationRow] = lambda found: operations.redrive(found.state, shared.actor, changes)  # noqa: E731
        return _said(shared, response, run_id(run), redrive, wait)


def _people(site: APIRouter) -> None:
    @site.get("/api/approvals", summary="List questions to people")
    async def list_approvals(
        shared: Site, state: Annotated[State, Query(description="which of them")] = "open"
    ) -> list[Question]:
        """What people are asked, the oldest first. It is read from Kafka: while that is away, the answer is 503."""
        return await shared.client.approvals(state)

    @site.post("/api/approvals/{approval:path}/votes", summary="Vote")
    async def vote(shared: Site, approval: str, body: CastVote) -> Voted:
        """A decision on a question, by its whole id, signed in the actor's name.

        A question that is decided already or closed: 409. A vote that would be void, such as that of somebody who may
        not decide, or of the requester where they may not: 422, and nothing is sent.
        """
        shared.check_rate()
        return await shared.client.decide(
            approval,
            body.action,
            args=body.args,
            result=body.result,
            message=body.message,
            timeout=timedelta(seconds=LONGEST_WAIT_S),
        )

    @site.get("/api/approvals/{approval:path}", summary="Show a question")
    async def show_approval(shared: Site, approval: str) -> Question:
        """A question by its id, or the open one about a call by `RUN/SEQ`. It is read from Kafka."""
        return await shared.client.approval(approval)


def _health(site: APIRouter) -> None:
    @site.get("/healthz", summary="Show if the process lives")
    async def health() -> Alive:
        """True: it answers."""
        return Alive(ok=True)

    @site.get(
        "/readyz", summary="Show if the gateway can answer", response_model=Health, responses={503: {"model": Health}}
    )
    def ready(shared: Site) -> JSONResponse:
        """`ok` if the view can be read and is kept up to date, and if Kafka is heard; else what is wrong."""
        views, kafka = "ok", "ok" if shared.writing.listens else "not heard"
        try:
            if stopped := shared.reading.store().notes().get("stopped"):
                views = f"they stand still: {stopped.partition(chr(10))[0]}"
            views = shared.writing.other_log() or views
        except RefoldError as error:
            views = error.message
        found = Health(ready=views == kafka == "ok", views=views, kafka=kafka)
        headers = {} if found.ready else {"Retry-After": "1"}
        return JSONResponse(found.model_dump(), 200 if found.ready else 503, headers)


def _perform(shared: Gateway, response: Response, operation: OperationRow, wait: float) -> Performed | InputSent:
    done = shared.writing.perform(operation, wait)
    if isinstance(done, Cause):
        response.status_code = 202
        response.headers["Refold-After"] = f"{done.topic}/{done.partition}/{done.offset}"
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
    shared.check_rate()
    done = _perform(shared, response, shared.writing.build(run, build_row), wait)
    return done if isinstance(done, InputSent) else done.said


def _named(own: str, key: str) -> str:
    """The id that a body and `Idempotency-Key` give to an input. **Raises** MalformedError for two."""
    if own and key and own != key:
        raise MalformedError("the body has an id, and Idempotency-Key is another", hint="send one of them")
    return own or key


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise MalformedError(f"label={text[:80]!r} is no label", hint="write label=team=pay")
    return name, value


async def _problem(_: Request, error: Exception) -> JSONResponse:
    """Any error as a problem."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException) and isinstance(error.__cause__, RefoldError):
        error = error.__cause__  # the framework has one answer for whatever a body raises
    if isinstance(error, RequestValidationError):
        detail = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        problem = HttpProblem(title="Unprocessable Content", status=422, detail=detail[:MOST_DETAIL], code="malformed")
    elif isinstance(error, HTTPException):
        status = 422 if error.status_code == 400 else error.status_code
        title, code = title_of(status), _CODES.get(error.status_code, "http")
        problem = HttpProblem(title=title, status=status, detail=error.detail, code=code)
        headers |= error.headers or {}
    else:
        assert isinstance(error, RefoldError), "no other is handled here"
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
        title, detail = title_of(status), error.message[:MOST_DETAIL]
        problem = HttpProblem(title=title, status=status, detail=detail, code=error.code, hint=error.hint)
        if status in (429, 503):
            headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after", None) or 1)))
    # A detail may name what has no form in UTF-8.
    body = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in problem.model_dump().items()
    }
    return JSONResponse(body, problem.status, headers, media_type="application/problem+json")
