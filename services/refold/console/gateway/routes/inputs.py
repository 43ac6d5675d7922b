"""Inputs of runs, and votes on questions to people: each is one record in a topic, and has an outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response
from starlette.concurrency import run_in_threadpool

from refold.client.awaiting import State
from refold.client.operations import run as operations
from refold.client.operations.operation import OperationRow, Performed
from refold.client.operations.run import By, Changes, Done, Settlement, settle_call
from refold.client.reading import api
from refold.client.reading.approval import Question
from refold.client.reading.history import Run
from refold.client.reading.outcome import CommandResult, Started, UpdateResult, Voted
from refold.console.gateway.listing import doubt_page
from refold.console.gateway.roles import DOUBT_ROLES
from refold.console.gateway.site import DEFAULT_WAIT_S, LONGEST_WAIT_S, AfterHeader, Gateway, Key, Site, WaitOption
from refold.core.errors import ConflictError, MalformedError
from refold.core.events import DOUBT, Cause
from refold.core.ids import RunId, asked_about, run_id
from refold.core.messages import RunRequest
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.engine.stores import blob_store

NO_REASON, NO_CHANGES, NO_HEAD, NO_DATA = api.WithReason(), api.RetryBody(), api.RepairBody(), api.UpdateBody()
MOST_WAIT = timedelta(seconds=LONGEST_WAIT_S)
WORDS = {
    "cancel": "End the run and its descendants as soon as possible. 409 if the run has ended otherwise.",
    PAUSE: "Pause the run and its descendants: they propose no further calls until they are resumed.",
    RESUME: "Resume a paused run. 409 if it is paused together with the run that started it.",
}


InputAnswer = CommandResult | api.InputSent
"""Outcome of an operation, or the place of its input if there is none in time."""


@dataclass(frozen=True)
class Sending:
    """Performs operations for one request, and puts the place of the outcome into its response."""

    shared: Gateway
    response: Response
    wait_s: float

    def perform(self, operation: OperationRow) -> Performed | api.InputSent:
        return self._answered(operation.message.run_id, self.shared.writing.perform(operation, self.wait_s))

    def settle(self, operation: OperationRow) -> InputAnswer:
        return _result_of(self.perform(operation))

    def on_run(self, run: str, build_row: Callable[[Run], OperationRow]) -> InputAnswer:
        return self.settle(build_row(self.shared.writing.get(run_id(run))))

    def by_log(self, run: str, build_row: Callable[[Run], OperationRow]) -> InputAnswer:
        name = run_id(run)
        return _result_of(self._answered(name, self.shared.writing.perform_by_log(name, build_row, self.wait_s)))

    def _answered(self, run: RunId, done: Performed | Cause) -> Performed | api.InputSent:
        if isinstance(done, Cause):
            self.response.status_code = 202
            self.response.headers["Refold-After"] = f"{done.topic}/{done.partition}/{done.offset}"
            return api.InputSent(run_id=run, topic=done.topic, partition=done.partition, offset=done.offset)
        last = done.run.records[-1].record if done.run.records else None
        if last is not None:
            self.response.headers["Refold-After"] = f"{RUN_LOG}/{last.partition}/{last.offset}"
        return done


def _result_of(done: Performed | api.InputSent) -> InputAnswer:
    return done if isinstance(done, api.InputSent) else done.result


async def _sending(shared: Site, response: Response, wait: WaitOption = DEFAULT_WAIT_S) -> Sending:
    return Sending(shared, response, wait)


Sends = Annotated[Sending, Depends(_sending)]
SignalName = Annotated[str, Path(description="name of the signal")]


def input_routes(site: APIRouter) -> None:
    post = partial(site.post, responses={202: {"model": api.InputSent, "description": "Sent, and no outcome in time"}})

    @post("/api/runs", summary="Start a run")
    def start_run(sender: Sends, body: api.RunBody, key: Key = "") -> Started | api.InputSent:
        """Start a run. `Idempotency-Key` is its id if the body has none; a repeated request starts no second run."""
        whole = run_request(sender.shared, body, key)
        done = sender.perform(operations.start_run(whole))
        return done if isinstance(done, api.InputSent) else Started(run_id=whole.run_id, known=done.what == "known")

    @post("/api/runs/{run}/signals", summary="Send a signal")
    def send_signal(sender: Sends, run: str, body: api.SignalBody, key: Key = "") -> InputAnswer:
        """Send a signal that the run waits for, now or later. `Idempotency-Key` is its id if the body has none."""
        name, actor = run_id(run), sender.shared.actor
        message = operations.signal_message(name, body.name, body.data, signal_id=_input_id(body.id, key), actor=actor)
        return sender.on_run(name, lambda history: operations.signal(history.state, message))

    @post("/api/runs/{run}/updates/{name}", summary="Update a run")
    def update_run(
        sender: Sends, run: str, name: SignalName, body: api.UpdateBody = NO_DATA, key: Key = ""
    ) -> UpdateResult | api.InputSent:
        """Send a signal and return the agent's answer. `Idempotency-Key` is its id if the body has none: repeated with
        it, as after 202, the request gets the same answer. 409 `closed` if the run is over without an answer.
        """
        actor, own_id = sender.shared.actor, _input_id(body.id, key)
        message = operations.signal_message(run_id(run), name, body.data, signal_id=own_id, actor=actor)
        done = sender.perform(operations.update(sender.shared.writing.get(message.run_id).state, message))
        return done if isinstance(done, api.InputSent) else operations.update_result(done, message)

    @post("/api/callbacks/{token}", summary="Answer a callback")
    def answer_callback(sender: Sends, token: str, body: api.AnswerCallback, key: Key = "") -> InputAnswer:
        """Complete or fail a callback. The first answer counts.

        `Idempotency-Key` is the key of the answer if the body has none.
        """
        named, actor = _input_id(body.key, key), sender.shared.actor
        message = operations.answered(token, body.data, failure=body.failure, key=named, actor=actor)

        def answer(history: Run) -> OperationRow:
            operations.refuse_another_answer(history.state, message)
            return operations.answer_callback(history.state, message)

        return sender.on_run(message.run_id, answer)

    def word(kind: str) -> Callable[..., InputAnswer]:
        def say(sender: Sends, run: str, body: api.WithReason = NO_REASON) -> InputAnswer:
            by = By(sender.shared.actor, body.reason, sign=sender.shared.sign)
            return sender.on_run(run, lambda history: operations.word(history.state, kind, by))

        return say

    for kind, text in WORDS.items():
        about: dict[str, Any] = {"summary": f"{kind.capitalize()} a run", "description": text, "name": f"{kind}_run"}
        post(f"/api/runs/{{run}}/{kind}", **about)(word(kind))

    @post("/api/runs/{run}/notes", summary="Add a note to a run")
    def annotate_run(sender: Sends, run: str, body: api.NoteBody, key: Key = "") -> InputAnswer:
        """Add a note to the history of a live run. `Idempotency-Key` is its id if the body has none."""
        by, note_id = By(sender.shared.actor), _input_id(body.id, key)
        return sender.on_run(run, lambda history: operations.annotate(history.state, body.note, by, note_id))

    @post("/api/runs/{run}/retry", summary="Retry a failed or stalled run")
    def retry_run(sender: Sends, run: str, body: api.RetryBody = NO_CHANGES) -> InputAnswer:
        """Continue a failed run where it failed, or from a step on. All finished work before is kept.

        For a stalled run, its code is run again. 409 if it stalls again, or if a retry from a step would repeat calls
        with effects, without `repeat_effects` in the body.
        """
        name, edit = run_id(run), canonical.dumps(body.edit) if body.edit is not None else ""
        actor, changes = sender.shared.actor, Changes(**body.model_dump(exclude={"edit", "repeat_effects"}), edit=edit)

        def build(history: Run) -> OperationRow:
            if history.status == "stalled" and changes == Changes(reason=body.reason):
                return operations.retry_code(history, actor)
            row = operations.redrive(history.state, actor, changes)
            if changes.from_step and not body.repeat_effects:
                refuse_effects(operations.left_behind(history.state, changes.from_step))
            return row

        history = sender.shared.writing.get(name)
        # Only the log has the reason of a stall.
        return sender.settle(build(history)) if history.state.over else sender.by_log(name, build)

    @post("/api/runs/{run}/fail", summary="Fail a stalled run")
    def fail_run(sender: Sends, run: str, body: api.WithReason = NO_REASON) -> InputAnswer:
        """Fail a stalled run whose code will never match its history. 409 if the run is not stalled."""
        by = By(sender.shared.actor, body.reason)
        return sender.by_log(run, lambda history: operations.fail_stalled(history, by))

    @post("/api/runs/{run}/repair", summary="Repair the records of a run")
    def repair_run(sender: Sends, run: str, body: api.RepairBody = NO_HEAD) -> InputAnswer:
        """Write the records of a run again in order, if a tool has mixed them. No event is added or changed.

        With a `head`, the history that ends with that entry counts, and all other records are void for good.
        """
        return sender.by_log(run, lambda history: operations.repair(history, body.head, sender.shared.actor))

    @site.get("/api/approvals", summary="List questions to people")
    async def list_approvals(
        shared: Site, state: Annotated[State, Query(description="which of them")] = "open"
    ) -> list[Question]:
        """Return questions to people, the oldest first. They are read from Kafka; without Kafka the answer is 503."""
        with shared.place("reads"):
            return await shared.client.approvals(state)

    @site.post("/api/approvals/{approval:path}/votes", summary="Vote")
    async def vote(shared: Site, approval: str, body: api.CastVote, key: Key = "") -> Voted:
        """Vote on a question, by its whole id, signed in the actor's name. `Idempotency-Key` names the vote.

        409: the question is decided or closed. 422: the vote would be void, as of a person who may not decide;
        nothing is sent.
        """
        await run_in_threadpool(shared.writing.check)
        content = body.model_dump(include={"result", "message"})
        if body.args is not None:
            content["args"] = canonical.dumps(body.args)
        return await shared.client.vote(approval, body.action, key, content, timeout=MOST_WAIT)

    @site.get("/api/doubts", summary="List calls in doubt")
    def list_doubts(
        shared: Site, filters: Annotated[api.CursorFilter, Query()], after: AfterHeader = ""
    ) -> api.DoubtPage:
        """Return calls whose outcome is unknown, the oldest first."""
        with shared.view(after) as view:
            return doubt_page(view, filters)

    @post("/api/doubts/{call:path}/resolve", summary="Resolve a call in doubt")
    async def resolve_doubt(sender: Sends, call: str, body: api.ResolveDoubt, key: Key = "") -> Voted | InputAnswer:
        """Record the outcome of a call in doubt. The id of a question sends a vote, signed in the actor's name.

        The id of a call sends an operator's verdict. 409 if people are asked about the call.
        """
        shared, asks_people = sender.shared, call != asked_about(call)
        shared.check_role(DOUBT_ROLES[asks_people])
        if asks_people:
            content = {"result": body.result, "message": body.message, "about": DOUBT}
            return await shared.client.vote(call, VERDICTS_ON_DOUBT[body.verdict], key, content, timeout=MOST_WAIT)
        settled, get = Settlement(body.verdict, body.result, body.message), shared.writing.get
        return await run_in_threadpool(lambda: sender.settle(settle_call(get, call, settled, shared.actor)))

    @site.get("/api/approvals/{approval:path}", summary="Show a question")
    async def show_approval(shared: Site, approval: str) -> Question:
        """Return a question by its id, or the open one about a call by `RUN/SEQ`. It is read from Kafka."""
        with shared.place("reads"):
            return await shared.client.approval(approval)


def run_request(shared: Gateway, body: api.RunBody, key: str = "") -> RunRequest:
    """Return the request for a run, in the name of the login. **Raises** as `operations.prepared`."""
    request = RunRequest(
        RunId(_input_id(body.id, key)),
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
    labels = [name for name, value in body.labels.items() if login and login.has_label(name, value)]
    return operations.prepared(request, settings, lambda: blob_store(settings), shared.request_key, labels)


def refuse_effects(again: list[Done]) -> None:
    """Refuse a retry that would repeat these calls, whose effects may have happened. **Raises** ConflictError."""
    if again:
        calls = ", ".join(f"step {done.step} {done.tool} ({done.effect})" for done in again[:10])
        hint = "`repeat_effects` has them made again, if the code asks for them"
        raise ConflictError(f"{len(again)} calls may have had their effect: {calls}", hint=hint)


def _input_id(own: str, key: str) -> str:
    """Return an input's id, from its body or `Idempotency-Key`. **Raises** MalformedError if they differ."""
    if own and key and own != key:
        raise MalformedError("the body has an id, and Idempotency-Key is another", hint="send one of them")
    return own or key
