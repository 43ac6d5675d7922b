"""`AsyncClient`, the client for programs on asyncio; `Client` blocks."""

import asyncio
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Self, TypeVar

from refold.client.operations import run as operations
from refold.client.operations.approvals import names_the_question
from refold.client.operations.operation import Followed, OperationRow, Performed, one, publish_input
from refold.client.operations.run import By, Changes
from refold.client.platform import Platform, login
from refold.client.reading.approval import Question, question_row
from refold.client.reading.history import Run
from refold.client.reading.member import AgentServed, ToolServed
from refold.client.reading.outcome import CommandResult, SignalResult, Started, Voted
from refold.client.reading.run import Ended, RunEvent, RunInfo, ending_of, events_of, info_of
from refold.client.streams import LivePart, live_parts
from refold.client.values import in_full
from refold.client.watcher import Watcher
from refold.core.approval.signature import REQUEST, SigningKey
from refold.core.errors import NotFoundError, ReusedIdError, TimedOutError, UsageError
from refold.core.events import DOUBT, Cause
from refold.core.ids import RunId, asked_about, next_generation, parse_call_id, run_id
from refold.core.messages import RunRequest, RunSignal
from refold.core.planning.asking import VERDICTS_ON_DOUBT
from refold.core.planning.pausing import PAUSE, RESUME
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.engine.ports.blobs import Blobs
from refold.engine.runtime.addresses import addresses, own_key, vote_key
from refold.engine.stores import blob_store
from refold.sdk.budget import Budget

TAKEN_S = 0.5
"""Seconds for a planner to take a request before the run's past is read."""
WAIT = timedelta(seconds=30)

Action = Literal["approve", "edit", "reject", "answer"]
Came = Literal["happened", "did_not_happen", "give_up"]
State = Literal["open", "decided", "closed", "all"]

_T = TypeVar("_T")


class AsyncClient:
    """Starts runs and waits for them, sends signals and decides approvals, from any program.

    A context manager; one per process, made after a fork. `kafka` is the address of Kafka, by default
    REFOLD_KAFKA__BOOTSTRAP or the `refold dev` on the folder `data` (or REFOLD_DATA, `.refold`). All other settings are
    the services' REFOLD_*. `actor` is the name it acts in, by default the login of this process. `key` and `vote_key`
    are files of the keys that sign the actor's requests and decisions, by default the only such key in `data`, if any.
    Each operation waits in one of up to `threads` threads.

    **Raises** UnreachableError wherever Kafka does not answer, UsageError for invalid settings and arguments,
    TimedOutError when a wait is over: nothing is lost, ask again. **Units**: timeouts are timedeltas; None waits for
    ever.
    """

    def __init__(
        self, *, kafka: str = "", data: str = "", actor: str = "", key: str = "", vote_key: str = "", threads: int = 16
    ) -> None:
        self._platform = Platform(addresses(kafka=kafka, data=data), source="refold-client")
        self._actor, self._key, self._vote_key, self._data = actor or login(), key, vote_key, data
        self._roles: tuple[str, ...] = ()
        self._threads = ThreadPoolExecutor(threads, "refold-client-word")
        self._opening = threading.Lock()
        self.pid = 0
        self._main = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def of(self, actor: str, *, key: str = "", vote_key: str = "", roles: Sequence[str] = ()) -> Self:
        """Returns this client for another actor: `client.of("ada").cancel("r-1")`. Both share connections and close
        together. `roles` come from the actor's login and go into votes, as far as the vote key may claim them. Keys
        default to this client's; they have to be valid for the actor."""
        client, keys = copy(self), {"_key": key or self._key, "_vote_key": vote_key or self._vote_key}
        # The copy has the cached key of this actor, which would sign requests of the other.
        vars(client).pop("_request_key", None)
        vars(client).update(keys, _actor=actor, _roles=tuple(roles))
        return client

    @property
    def broken(self) -> str:
        """Fatal error of the Kafka producer, which is replaced within seconds; empty if this client can write."""
        return self._platform.broken

    def check_process(self) -> None:
        """**Raises** UsageError in a fork of its process."""
        if self.pid not in (0, os.getpid()):
            hint = "make another one after the fork, as in a worker's start hook"
            raise UsageError(f"this client belongs to process {self.pid}, and this is a fork of it", hint=hint)
        self.pid = os.getpid()

    async def close(self) -> None:
        """Ends pending waits with UsageError and closes the consumer. Does nothing on a client made by `of`."""
        if self._main is not self or self.pid not in (0, os.getpid()):
            return
        await self._submit(self._close)
        self._threads.shutdown(wait=False)

    async def start(
        self,
        agent: str,
        input: object = None,
        *,
        id: str = "",
        labels: Mapping[str, str] | None = None,
        sessions: Sequence[str] = (),
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        budget: Budget | None = None,
        timeout: timedelta | None = WAIT,
    ) -> Started:
        """Requests a run of an agent, and waits until a planner has taken it.

        `input` is JSON data: the agent's arguments by name. The same `id` with the same agent and input is one run,
        however often it is requested; without one it gets a fresh one. A `budget` can only reduce the agent's.

        **Raises** ConflictError when the run exists with another agent or input; UsageError, MalformedError for an
        invalid request.
        """
        begins_ms, deadline_ms = _ms(not_before, "not_before"), _ms(deadline, "deadline")
        limits = budget.limits if budget is not None else None
        request = RunRequest(RunId(id), agent, canonical.dumps(input), self._actor, begins_ms, dict(labels or {}))
        request = replace(request, sessions=list(sessions), deadline_ms=deadline_ms, budget=limits)
        # A run with an id that was made just now has no past.
        answer = await self._submit(self._request_run, request, TAKEN_S if id else math.inf)
        return await _answer_in_time(answer, timeout, f"no planner has taken the request for {id or agent}")

    async def result(self, run: str, *, timeout: timedelta | None = None) -> Any:
        """Waits until a run is over; returns the agent's result as JSON data. The run may not be requested yet.
        **Raises** RunFailedError when it has failed or was cancelled."""
        ended = await self.wait(run, timeout=timeout)
        ended.check()
        return ended.value

    async def wait(self, run: str, *, timeout: timedelta | None = None) -> Ended:
        """Waits until a run is over, however it ends."""
        now, left = asyncio.get_running_loop().time, timeout
        until = now() + timeout.total_seconds() if timeout else 0.0
        while True:
            over = await self._submit(self._watch, run, lambda now: ending_of(now) if now.state.over else None)
            ended = await _answer_in_time(over, left, f"run {run} is not over")
            if ended.status != "continued":
                return await self._submit(self._value_in_full, ended)
            run, left = next_generation(RunId(run)), timeout and timedelta(seconds=max(0.0, until - now()))

    async def get(self, run: str) -> RunInfo:
        """Returns a run as it is now, from the view (REFOLD_VIEWS__URL) if that has it, else from the log. Large values
        stay pointers, and a view has no void records. **Raises** NotFoundError."""

        def read() -> RunInfo:
            runs, settings = self._platform.runs, self._platform.settings
            if settings.views.url and find_spec("sqlalchemy"):
                views: Any = import_module("refold.console.projections.views")  # it needs the extra
                if (viewed := views.viewed(settings, run, runs)) is not None:
                    return info_of(viewed.run)
            return info_of(runs.get(run))

        return await self._submit(read)

    async def events(self, run: str, *, after: int = 0, timeout: timedelta | None = None) -> AsyncIterator[RunEvent]:
        """Yields the events of a run after number `after`, until the run is over. **Shape**: in order, without gaps.
        `timeout` is for each event. Close it (`contextlib.aclosing`) if you leave it early."""
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        put, last_seq = partial(_put_from_thread, asyncio.get_running_loop(), queue), after

        def queue_events(current: Run) -> bool | None:
            nonlocal last_seq
            for event in events_of(current, last_seq):
                put(event)
                last_seq = event.seq
            return True if current.state.over else None

        over = await self._submit(self._watch, run, queue_events)
        over.add_done_callback(lambda _: put(None))
        try:
            while (event := await _before_timeout(queue.get(), timeout, f"nothing new of run {run}")) is not None:
                yield event
            over.result()
        finally:
            over.cancel()

    async def stream(self, run: str, *, timeout: timedelta | None = None) -> AsyncIterator[LivePart]:
        """Yields the live output of calls, such as tokens of models, until the run or a `timeout` of silence ends it.
        Lossy, and kept for minutes; the result is authoritative."""
        runs = await self._submit(lambda: self._platform.runs)
        parts, over = live_parts(runs, run_id(run), timeout), object()
        try:
            while (part := await self._submit(next, parts, over)) is not over:
                if isinstance(part, LivePart):
                    yield part
        finally:
            # A thread of a cancelled task may still be in the generator, so a thread closes it.
            self._threads.submit(parts.close)

    async def signal(
        self, run: str, name: str, data: object = None, *, id: str = "", timeout: timedelta | None = WAIT
    ) -> SignalResult:
        """Sends the signal that a run's `ctx.wait_for(name)` waits for, now or later; once for each `id`. **Raises**
        NotFoundError; ConflictError when the run is over or has too many unread signals."""
        message = operations.signal_message(run_id(run), name, data, signal_id=id, actor=self._actor)
        return await self._send_signal(message, operations.signal, timeout)

    async def update(
        self, run: str, name: str, data: object = None, *, id: str = "", timeout: timedelta | None = WAIT
    ) -> Any:
        """Sends a signal, and returns the agent's answer as JSON data; the same `id` gets the same answer. **Raises**
        NotFoundError; UpdateFailed when the answer is a failure; ClosedError when the run ends without one."""
        message = operations.signal_message(run_id(run), name, data, signal_id=id, actor=self._actor)
        done = await self._operate(message.run_id, lambda current: operations.update(current.state, message), timeout)
        (answer := operations.update_result(done, message)).check()
        return answer.result

    async def complete(
        self, token: str, data: object = None, *, key: str = "", timeout: timedelta | None = WAIT
    ) -> SignalResult:
        """Gives the result of a callback by its token. The first answer counts; with the same `key` it can be repeated.
        **Raises** NotFoundError; ConflictError when it has another answer or is over; UsageError for a result that does
        not fit."""
        message = operations.answered(token, data, key=key, actor=self._actor)
        return await self._send_signal(message, operations.answer_callback, timeout)

    async def fail(self, token: str, message: str, *, key: str = "", timeout: timedelta | None = WAIT) -> SignalResult:
        """Fails a callback: the agent sees a failure instead of a result. **Raises** as `complete`."""
        answer = operations.answered(token, failure=message, key=key, actor=self._actor)
        return await self._send_signal(answer, operations.answer_callback, timeout)

    async def cancel(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> CommandResult:
        """Cancels a run and its children; as an operator, if another actor requested it. **Raises** NotFoundError,
        ConflictError when it has ended otherwise."""
        return await self._control_run(run, "cancel", reason, timeout)

    async def pause(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> CommandResult:
        """Pauses a run and its children. **Raises** NotFoundError, ConflictError when it is over."""
        return await self._control_run(run, PAUSE, reason, timeout)

    async def resume(self, run: str, *, timeout: timedelta | None = WAIT) -> CommandResult:
        """Lets a run go on. **Raises** NotFoundError, ConflictError when it is over or not paused."""
        return await self._control_run(run, RESUME, "", timeout)

    async def retry(self, run: str, *, reason: str = "", timeout: timedelta | None = WAIT) -> CommandResult:
        """Continues a failed run where it failed, or runs the code of a stalled one again, as an operator. **Raises**
        NotFoundError, ConflictError when it is neither."""

        def build(current: Run) -> OperationRow:
            if current.status != "stalled":
                return operations.redrive(current.state, self._actor, Changes(reason=reason))
            if reason:
                raise UsageError(f"run {run} is stalled, not failed", hint="only its code is run again")
            return operations.retry_code(current, self._actor)

        return (await self._operate(run, build, timeout)).result

    async def agents(self) -> list[AgentServed]:
        """The versions of agents that planners report, each with its members. For display: any executor may write such
        a report. A killed member's (`alive` is False) stays for up to nine days."""
        return await self._submit(lambda: self._platform.served().agents)

    async def tools(self) -> list[ToolServed]:
        """The tools that executors report, with members and the JSON Schema of their arguments. For display."""
        return await self._submit(lambda: self._platform.served().tools)

    async def approvals(self, state: State = "open") -> list[Question]:
        """Lists questions to people, oldest first; long-closed ones are only in the histories of their runs."""
        rows = await self._submit(lambda: self._platform.approvals.read().all())
        return [question_row(approval) for approval in rows if state in ("all", approval.state)]

    async def approval(self, name: str) -> Question:
        """Returns a question by its id; the open one about a call by `RUN/SEQ`, or in a run and its family by `RUN`.
        **Raises** NotFoundError; UsageError when there are several."""
        approvals = await self._submit(lambda: self._platform.approvals)
        return await self._submit(lambda: question_row(approvals.get(approvals.named(name))))

    async def decide(
        self,
        approval: str,
        action: Action,
        *,
        args: Mapping[str, object] | None = None,
        result: object = None,
        message: str = "",
        timeout: timedelta = WAIT,
    ) -> Voted:
        """Votes on the sending of a call, by the whole id of its question. Signed in the actor's name. `edit` replaces
        all `args` of the call; `answer` gives the `result` in the tool's place. **Raises** NotFoundError, ConflictError
        when it is decided already, UsageError for a void vote."""
        edit = {"args": canonical.dumps(dict(args or {}))} if action == "edit" else {}
        return await self.vote(approval, action, "", {"result": result, "message": message, **edit}, timeout=timeout)

    async def resolve(
        self, approval: str, verdict: Came, *, result: object = None, message: str = "", timeout: timedelta = WAIT
    ) -> Voted:
        """States the outcome of a call in doubt, by the question's whole id, signed. **Raises** as `decide`."""
        fields = {"result": result, "message": message, "about": DOUBT}
        return await self.vote(approval, VERDICTS_ON_DOUBT[verdict], "", fields, timeout=timeout)

    async def vote(
        self, approval: str, action: str, key: str, words: Mapping[str, Any], *, timeout: timedelta = WAIT
    ) -> Voted:
        """Votes with the fields of `decide` and `resolve`; a repetition with the same `key` returns the first answer.
        **Raises** as `decide`; ReusedIdError for another vote with this key."""
        return await self._submit(self._vote, approval, action, timeout, key=key, **words)

    async def _submit(self, work: Callable[..., _T], *args: Any, **named: Any) -> _T:
        self._main.check_process()
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **named))

    async def _operate(self, run: str, build: Callable[[Run], OperationRow], timeout: timedelta | None) -> Performed:
        def perform() -> Performed:
            self._open_connections()
            runs = self._platform.runs
            return one(runs, self._platform.publisher, build(runs.get(run)), _seconds(timeout))

        return await self._submit(perform)

    async def _control_run(self, run: str, kind: str, reason: str, timeout: timedelta | None) -> CommandResult:
        def build(current: Run) -> OperationRow:
            sign = operations.signing(self._request_key, self._platform.settings.platform)
            return operations.word(current.state, kind, By(self._actor, reason, sign=sign))

        return (await self._operate(run, build, timeout)).result

    async def _send_signal(
        self, message: RunSignal, build: Callable[[RunState, RunSignal], OperationRow], timeout: timedelta | None
    ) -> SignalResult:
        answer = await self._operate(message.run_id, lambda run: build(run.state, message), timeout)
        step = operations.step_of(answer.run.state, message)
        return SignalResult(**dict(answer.result), step=step, said=message.signal_id)

    @cached_property
    def _watcher(self) -> Watcher:
        return Watcher(self._platform.settings.kafka, self._platform.runs.partitions)

    @cached_property
    def _blobs(self) -> Blobs | None:
        return blob_store(self._platform.settings)

    @cached_property
    def _request_key(self) -> SigningKey | None:
        if self._main is not self and self._key == self._main._key:
            return self._main._request_key
        return own_key(REQUEST, self._key, self._data)

    def _open_connections(self) -> None:
        with self._opening:
            _ = self._main._watcher, self._platform.publisher

    def _close(self) -> None:
        with self._opening:
            if "_watcher" in self.__dict__:
                self._watcher.close()

    def _watch(self, run: str, judge: Callable[[Run], _T | None]) -> Future[_T]:
        self._open_connections()
        return self._main._watcher.listen(run_id(run), judge).answer

    def _request_run(self, request: RunRequest, give_up_s: float) -> Future[Started]:
        self._open_connections()
        whole = operations.prepared(request, self._platform.settings, lambda: self._main._blobs, self._request_key)
        operation, place = operations.start_run(whole), list[Cause]()
        run = operation.message.run_id

        def judge(current: Run) -> Started | None:
            outcome = operation.judge(Followed(current, place[0])) if place else None
            return Started(run_id=run, known=outcome == "known") if outcome else None

        # Before the request is sent: the answer to a new run is in the records after it, and no past is read for one.
        watch = self._main._watcher.listen(run, judge, give_up_s=give_up_s)
        try:
            place.append(publish_input(self._platform.publisher, operation.message))
        except BaseException:
            watch.answer.cancel()
            raise
        self._main._watcher.sent(watch, place[0])
        return watch.answer

    def _value_in_full(self, ended: Ended) -> Ended:
        if (blobs := self._main._blobs) is None:
            return ended
        return ended.model_copy(update={"result": in_full(ended.result, run_id(ended.run_id), blobs)})

    def _vote(self, approval: str, action: str, timeout: timedelta, *, result: object, key: str, **more: Any) -> Voted:
        if not names_the_question(approval):
            hint = "give the whole id: a decision is on the question that somebody has seen, and on no other"
            raise UsageError(f"{approval} does not name the question that is decided", hint=hint)
        signs, approvals = vote_key(self._vote_key, self._data), self._platform.approvals
        self._open_connections()
        name = self._question_id(approval, time.monotonic() + timeout.total_seconds())
        question = approvals.get(name).request.question
        more |= {"result": canonical.dumps(result)} if action == "answer" else {}
        # Made of the key, so that the log shows a repetition; and of the actor, as two of them may use one key.
        vote_id = key and blake2b(f"{self._actor}\n{key}".encode(), digest_size=8).hexdigest()
        if vote_id and (before := approvals.earlier(name, vote_id)):
            new, fields = {"action": action, "args": "", "result": "", **more}, ("action", "args", "result", "message")
            if any(getattr(before[0], field) != new[field] for field in fields):
                first = ", ".join(filter(None, (getattr(before[0], field) for field in fields)))
                raise ReusedIdError(f"the vote {key} was {first[:200]}", hint="choose another key for another vote")
            return approvals.answered(*before, timeout.total_seconds()).voted
        vote = approvals.vote(name, action, question=question, actor=self._actor, roles=self._roles, **more)
        vote = replace(vote, vote=vote_id or vote.vote)
        return approvals.cast(vote, signs, self._platform.publisher, timeout.total_seconds()).voted

    def _question_id(self, approval: str, until: float) -> str:
        while True:
            try:
                return self._platform.approvals.named(approval)
            except NotFoundError:
                # The question may be in the history of its run before it is in its own topic.
                run = self._platform.runs.find(parse_call_id(asked_about(approval))[0])
                shown = {step.approvals[-1].approval_id for step in run.timeline.asking} if run else set()
                if approval not in shown or time.monotonic() > until:
                    raise
            time.sleep(0.1)


async def _answer_in_time(answer: Future[_T], timeout: timedelta | None, failure: str) -> _T:
    try:
        return await _before_timeout(asyncio.wrap_future(answer), timeout, failure)
    finally:
        answer.cancel()


async def _before_timeout(answer: Awaitable[_T], timeout: timedelta | None, failure: str) -> _T:
    try:
        return await asyncio.wait_for(answer, _seconds(timeout))
    except TimeoutError:
        hint = "nothing is lost: what was sent stays in the log"
        raise TimedOutError(f"{failure} after {_seconds(timeout):g} s", hint=hint) from None


def _put_from_thread(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[_T], event: _T) -> None:
    # The loop may be closed, while the watcher's thread still has events for it.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(queue.put_nowait, event)


def _seconds(timeout: timedelta | None) -> float | None:
    return None if timeout is None else timeout.total_seconds()


def _ms(at: datetime | None, name: str) -> int:
    if at is None:
        return 0
    if at.tzinfo is None:
        raise UsageError(f"{name} is a time without a zone", hint="datetime.now(UTC) + timedelta(hours=1)")
    return int(at.timestamp() * 1000)
