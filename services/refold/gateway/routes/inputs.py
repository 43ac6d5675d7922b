"""What is asked of runs, and what became of it. Each is a record in a topic of inputs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Response

from refold.client.stores import blob_store
from refold.core.errors import MalformedError
from refold.core.events import Cause
from refold.core.ids import RunId, run_id
from refold.core.messages import RunRequest
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.gateway.site import DEFAULT_WAIT_S, Gateway, Key, Site, WaitOption
from refold.operations import run as operations
from refold.operations.operation import OperationRow, Performed
from refold.operations.run import By, Changes
from refold.views.api import AnswerCallback, InputSent, RunBody, SignalBody, WithReason
from refold.views.history import Run
from refold.views.outcome import Said, Started

NO_REASON = WithReason()
WORDS = {
    "cancel": "The run and those that it has started end as soon as they can. A run that has ended otherwise: 409.",
    PAUSE: "The run and those that it has started propose no further calls, until they are resumed.",
    RESUME: "A paused run goes on. A run that is paused with the one that has started it: 409.",
}


def add(site: APIRouter) -> None:
    """Add the routes."""
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
        done = perform(shared, response, operations.start_run(whole), wait)
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


def perform(shared: Gateway, response: Response, operation: OperationRow, wait: float) -> Performed | InputSent:
    """Perform an operation, and tell the response where its outcome lies."""
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
    done = perform(shared, response, build_row(shared.writing.get(run)), wait)
    return done if isinstance(done, InputSent) else done.said


def _named(own: str, key: str) -> str:
    """The id that a body and `Idempotency-Key` give to an input. **Raises** MalformedError for two."""
    if own and key and own != key:
        raise MalformedError("the body has an id, and Idempotency-Key is another", hint="send one of them")
    return own or key
