"""Inputs of runs, each one record in a topic, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Response

from refold.client.stores import blob_store
from refold.core.errors import ConflictError, MalformedError
from refold.core.events import Cause
from refold.core.ids import RunId, run_id
from refold.core.messages import RunRequest
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.gateway.site import DEFAULT_WAIT_S, Gateway, Key, Site, WaitOption
from refold.operations import run as operations
from refold.operations.operation import OperationRow, Performed
from refold.operations.run import By, Changes, Done
from refold.views.api import (
    AnswerCallback,
    InputSent,
    NoteBody,
    RepairBody,
    RetryBody,
    RunBody,
    SignalBody,
    WithReason,
)
from refold.views.history import Run
from refold.views.outcome import CommandResult, Started

NO_REASON, NO_CHANGES, NO_HEAD = WithReason(), RetryBody(), RepairBody()
WORDS = {
    "cancel": "End the run and its descendants as soon as possible. 409 if the run has ended otherwise.",
    PAUSE: "Pause the run and its descendants: they propose no further calls until they are resumed.",
    RESUME: "Resume a paused run. 409 if it is paused together with the run that started it.",
}


def input_routes(site: APIRouter) -> None:
    post = partial(site.post, responses={202: {"model": InputSent, "description": "Sent, and no outcome in time"}})

    @post("/api/runs", summary="Start a run")
    def start_run(
        shared: Site,
        body: RunBody,
        response: Response,
        key: Key = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> Started | InputSent:
        """Start a run. `Idempotency-Key` is its id if the body has none; a repeated request starts no second run."""
        whole = run_request(shared, body, key)
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
    ) -> CommandResult | InputSent:
        """Send a signal that the run waits for, now or later. `Idempotency-Key` is its id if the body has none."""
        name = run_id(run)
        said = operations.signal_message(name, body.name, body.data, signal_id=_named(body.id, key), actor=shared.actor)
        return _said(shared, response, name, lambda found: operations.signal(found.state, said), wait)

    @post("/api/callbacks/{token}", summary="Answer a callback")
    def answer_callback(
        shared: Site,
        token: str,
        body: AnswerCallback,
        response: Response,
        key: Key = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> CommandResult | InputSent:
        """Complete or fail a callback. The first answer counts.

        `Idempotency-Key` is the key of the answer if the body has none.
        """
        named = _named(body.key, key)
        said = operations.answered(token, body.data, failure=body.failure, key=named, actor=shared.actor)

        def answer(found: Run) -> OperationRow:
            operations.refuse_another_answer(found.state, said)
            return operations.answer_callback(found.state, said)

        return _said(shared, response, said.run_id, answer, wait)

    def word(kind: str) -> Callable[..., CommandResult | InputSent]:
        def say(
            shared: Site, run: str, response: Response, body: WithReason = NO_REASON, wait: WaitOption = DEFAULT_WAIT_S
        ) -> CommandResult | InputSent:
            by = By(shared.actor, body.reason, sign=shared.sign)
            return _said(shared, response, run_id(run), lambda found: operations.word(found.state, kind, by), wait)

        return say

    for kind in ("cancel", PAUSE, RESUME):
        post(
            f"/api/runs/{{run}}/{kind}",
            summary=f"{kind.capitalize()} a run",
            description=WORDS[kind],
            name=f"{kind}_run",
        )(word(kind))

    @post("/api/runs/{run}/notes", summary="Add a note to a run")
    def annotate_run(
        shared: Site,
        run: str,
        body: NoteBody,
        response: Response,
        key: Key = "",
        wait: WaitOption = DEFAULT_WAIT_S,
    ) -> CommandResult | InputSent:
        """Add a note to the history of a live run. `Idempotency-Key` is its id if the body has none."""
        by, note_id = By(shared.actor), _named(body.id, key)
        note: Callable[[Run], OperationRow] = lambda found: operations.annotate(found.state, body.note, by, note_id)  # noqa: E731
        return _said(shared, response, run_id(run), note, wait)

    @post("/api/runs/{run}/retry", summary="Retry a failed or stalled run")
    def retry_run(
        shared: Site, run: str, response: Response, body: RetryBody = NO_CHANGES, wait: WaitOption = DEFAULT_WAIT_S
    ) -> CommandResult | InputSent:
        """Continue a failed run where it failed, or from a step on. All finished work before is kept.

        For a stalled run, its code is run again; 409 if it stalls again. 409 also if a retry from a step would repeat
        calls with effects, unless the body has `repeat_effects`.
        """
        name, edit = run_id(run), canonical.dumps(body.edit) if body.edit is not None else ""
        changes = Changes(**body.model_dump(exclude={"edit", "repeat_effects"}), edit=edit)

        def build(found: Run) -> OperationRow:
            if found.status == "stalled" and changes == Changes(reason=body.reason):
                return operations.retry_code(found, shared.actor)
            row = operations.redrive(found.state, shared.actor, changes)
            if changes.from_step and not body.repeat_effects:
                refuse_effects(operations.left_behind(found.state, changes.from_step))
            return row

        found = shared.writing.get(name)
        if not found.state.over:  # only the log has the reason of a stall
            return _said_by_log(shared, response, name, build, wait)
        return said_of(perform(shared, response, build(found), wait))

    @post("/api/runs/{run}/fail", summary="Fail a stalled run")
    def fail_run(
        shared: Site, run: str, response: Response, body: WithReason = NO_REASON, wait: WaitOption = DEFAULT_WAIT_S
    ) -> CommandResult | InputSent:
        """Fail a stalled run whose code will never match its history. 409 if the run is not stalled."""
        by = By(shared.actor, body.reason)
        fail: Callable[[Run], OperationRow] = lambda found: operations.fail_stalled(found, by)  # noqa: E731
        return _said_by_log(shared, response, run_id(run), fail, wait)

    @post("/api/runs/{run}/repair", summary="Repair the records of a run")
    def repair_run(
        shared: Site, run: str, response: Response, body: RepairBody = NO_HEAD, wait: WaitOption = DEFAULT_WAIT_S
    ) -> CommandResult | InputSent:
        """Write the records of a run again in order, if a tool has mixed them. No event is added or changed.

        With a `head`, the history that ends with that entry counts, and all other records are void for good.
        """
        repair: Callable[[Run], OperationRow] = lambda found: operations.repair(found, body.head, shared.actor)  # noqa: E731
        return _said_by_log(shared, response, run_id(run), repair, wait)


def run_request(shared: Gateway, body: RunBody, key: str = "") -> RunRequest:
    """Return the request for a run, in the name of the login. **Raises** as `operations.prepared`."""
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
    settings, login = shared.platform.settings, shared.login
    # Labels choose limits: the key signs only labels that the login proves, so clients cannot choose others.
    known = [name for name, value in body.labels.items() if login and login.has_label(name, value)]
    return operations.prepared(request, settings, lambda: blob_store(settings), shared.request_key, known)


def refuse_effects(again: list[Done]) -> None:
    """**Raises** ConflictError if calls may have had their effect, and would be made again."""
    if again:
        calls = ", ".join(f"step {done.step} {done.tool} ({done.effect})" for done in again[:10])
        hint = "`repeat_effects` has them made again, if the code asks for them"
        raise ConflictError(f"{len(again)} calls may have had their effect: {calls}", hint=hint)


def perform(shared: Gateway, response: Response, operation: OperationRow, wait: float) -> Performed | InputSent:
    """Perform an operation, and put the place of its outcome into the response."""
    return _answered(response, operation.message.run_id, shared.writing.perform(operation, wait))


def _answered(response: Response, run: RunId, done: Performed | Cause) -> Performed | InputSent:
    if isinstance(done, Cause):
        response.status_code = 202
        response.headers["Refold-After"] = f"{done.topic}/{done.partition}/{done.offset}"
        return InputSent(run_id=run, topic=done.topic, partition=done.partition, offset=done.offset)
    last = done.run.records[-1].record if done.run.records else None
    if last is not None:
        response.headers["Refold-After"] = f"{RUN_LOG}/{last.partition}/{last.offset}"
    return done


def said_of(done: Performed | InputSent) -> CommandResult | InputSent:
    return done if isinstance(done, InputSent) else done.result


def _said(
    shared: Gateway, response: Response, run: RunId, build_row: Callable[[Run], OperationRow], wait: float
) -> CommandResult | InputSent:
    """Perform an operation on a run from the view."""
    return said_of(perform(shared, response, build_row(shared.writing.get(run)), wait))


def _said_by_log(
    shared: Gateway, response: Response, run: RunId, build_row: Callable[[Run], OperationRow], wait: float
) -> CommandResult | InputSent:
    """Perform an operation on a run from the log."""
    return said_of(_answered(response, run, shared.writing.perform_by_log(run, build_row, wait)))


def _named(own: str, key: str) -> str:
    """Return an input's id, from its body or `Idempotency-Key`. **Raises** MalformedError if they differ."""
    if own and key and own != key:
        raise MalformedError("the body has an id, and Idempotency-Key is another", hint="send one of them")
    return own or key
