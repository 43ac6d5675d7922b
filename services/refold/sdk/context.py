"""The context: an agent's access to data and effects, equal again when its run is recovered."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import count
from random import Random
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, overload
from uuid import UUID

from refold.core.errors import ChildFailed, MalformedError, UsageError
from refold.core.events import LAST_MS, ChildCompleted, Failure
from refold.core.ids import (
    LIFE_CALLBACKS,
    RunId,
    callback_digest,
    callback_token,
    child_id,
    generation_of,
    root_of,
    run_id,
)
from refold.core.planning.waiting import check_match, check_name
from refold.core.run import intents
from refold.core.run.account import Reserve
from refold.core.run.intents import EXPOSED_BYTES, LABEL_CHARS, MOST_EXPOSED, STATUS, STATUS_CHARS, Signal
from refold.core.run.replay import Moment
from refold.core.run.state import RunState
from refold.core.wire import canonical
from refold.core.wire.canonical import utf8_bytes
from refold.sdk import loop
from refold.sdk.budget import checked_reserve
from refold.sdk.determinism import watch
from refold.sdk.frames import failure_of
from refold.sdk.json_codec import Arguments, JsonCodec, json_of
from refold.sdk.retry import Retry, milliseconds
from refold.sdk.tool import ToolDef

MOST_PATCH = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_HISTORY = RunState(RunId(""))

R = TypeVar("R")
OnSignal = TypeVar("OnSignal", bound=Callable[..., Coroutine[Any, Any, Any]])

OnParentEnd = Literal["cancel", "abandon"]
"""Fate of a child when its parent is over, or gives it up."""


class Callee(Protocol):
    """Agent that another agent may run: an `AgentDef`, which imports this module."""

    name: str

    def input_json(self, payload: Any) -> str: ...
    def means(self, text: str, other: str) -> bool: ...
    def read_result(self, text: str) -> Any: ...


class HistorySize(NamedTuple):
    """Steps of a run, and bytes of their requests and outcomes."""

    steps: int
    bytes: int


LONG_STEPS, LONG_BYTES = 2_000, 1 << 20
"""Size of a history from which on `Context.should_continue` is true: its replay takes some 0.1 s."""


class Callback(Generic[R]):
    """Awaitable answer from outside the run: pass `token` to the system that answers, then `await callback`."""

    def __init__(self, intent: intents.Answer, token: str) -> None:
        self.name, self.token = intent.name, token
        self._future = loop.running("ctx.callback").ask(intent)

    def __await__(self) -> Generator[Any, Any, R]:
        return self._future.__await__()

    def cancel(self) -> None:
        """Give up the callback: its wait ends, and its token becomes invalid."""
        self._future.cancel()

    def __repr__(self) -> str:
        return f"<Callback {self.name}>"  # without its token, which would get into logs


class Context:
    """First argument of an agent. Its requests become steps of the run.

    All else is ordinary asyncio: `asyncio.gather`, `TaskGroup`, `timeout`, `sleep`, queues and locks, and anyio.
    """

    def __init__(
        self,
        run_id: str,
        *,
        seed: str,
        moment: Moment,
        find: Callable[[Callable[..., Any] | str], ToolDef],
        find_agent: Callable[[Callable[..., Any] | str], Callee],
        history: RunState = NO_HISTORY,
    ) -> None:
        forked = history.request.forked if history.request else None
        # Steps that a fork keeps of another run were requested under its name: the code continues with it.
        self._names = [*(forked.lineage if forked else ()), run_id]
        # By its plain name others reach the run, whichever generation it has.
        self.run_id = self._names[0] if "." in self._names[0] else root_of(self._names[0])
        self.generation = generation_of(run_id)
        self._agent = history.request.agent if history.request else ""
        self.log = AgentLog(moment, {"run_id": run_id})
        self.find, self.find_agent = find, find_agent
        self._seed = seed
        self._moment = moment
        self._callbacks = 0
        self._recorded, self._steps, self._retried = history.patches, history.callbacks, history.retried
        self._patched: dict[str, bool] = {}
        self._answered: set[str] = set()

    @overload
    def call(
        self,
        tool: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        label: str = "",
        reserve: Reserve | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(
        self,
        tool: Callable[..., R],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        label: str = "",
        reserve: Reserve | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(
        self,
        tool: str,
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        label: str = "",
        reserve: Reserve | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]: ...
    def call(
        self,
        tool: Callable[..., Any] | str,
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        label: Any = "",
        reserve: Any = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a tool: `await ctx.call(push_image, "shop:1.2")`.

        A coroutine, to be awaited once, or given to `asyncio.create_task`, `gather`, `wait_for`. Cancelled, the call is
        given up and not undone. A tool named by its function gives the result as its type, named by a string as plain
        JSON data. The `label` is shown beside the tool's name, and may change freely. `reserve` is each attempt's
        maximum share of a budget, for tools without `cost=`. A tool that has a parameter `label` or `reserve` gets it.

        **Raises** UsageError at once for an unknown tool or arguments that do not fit; CallFailed when awaited, after
        the last attempt.
        """
        declared = self.find(tool)
        if label != "" and "label" in declared.arguments.names:
            kwargs, label = {**kwargs, "label": label}, ""
        if reserve is not None and "reserve" in declared.arguments.names:
            kwargs, reserve = {**kwargs, "reserve": reserve}, None
        text = declared.canonical_args(*args, **kwargs)
        return self._call_step(tool, text, retry=retry, timeout=timeout, label=label, reserve=reserve)

    def call_with(
        self,
        tool: Callable[..., Any] | str,
        arguments: Mapping[str, Any],
        /,
        *,
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        label: str = "",
        reserve: Reserve | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a tool with arguments as one mapping: names chosen by models or users never set options of `call`."""
        declared = self.find(tool)
        if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
            raise UsageError(f"tool {declared.name}: its arguments are {arguments!r}", hint="give a mapping by name")
        text = declared.canonical_args(**arguments)
        return self._call_step(tool, text, retry=retry, timeout=timeout, label=label, reserve=reserve)

    def _call_step(
        self,
        tool: Callable[..., Any] | str,
        text: str,
        *,
        retry: Any,
        timeout: timedelta | None,
        label: Any,
        reserve: Any,
    ) -> Coroutine[Any, Any, Any]:
        declared = self.find(tool)
        if not (retry is None or isinstance(retry, Retry)):
            hint = "write retry=Retry(...); what a model or a user says goes to ctx.call_with(tool, {...})"
            raise UsageError(f"tool {declared.name} is called with retry={retry!r}", hint=hint)
        label = "" if label == "" else _short_text(label, "a label", LABEL_CHARS)
        amount = None if reserve is None else checked_reserve(reserve)
        intent = declared.call(text, retry=retry, timeout=timeout, label=label, reserve=amount)
        if isinstance(tool, str):
            intent.read = declared.read_plain
        return loop.step(intent)

    def wait_for(self, name: str, *, match: str = "", timeout: timedelta | None = None) -> Coroutine[Any, Any, Signal]:
        """Wait for a signal of this name: `signal = await ctx.wait_for("shipped", timeout=timedelta(days=7))`.

        Earlier signals are stored, and each is taken by one wait. `match` is CEL over the signal's `data`, `actor` and
        `signal_id`: `"data.parcel == 'p-1'"`. **Raises** UsageError at once for an invalid name or condition;
        TimeoutError when awaited.
        """
        name = check_name(name)
        if match:
            check_match(match)
        return loop.step(intents.Wait(name, match, self._until_ms(timeout)))

    @overload
    def callback(self, name: str, *, schema: type[R], timeout: timedelta | None = None) -> Callback[R]: ...
    @overload
    def callback(self, name: str, *, schema: Any = None, timeout: timedelta | None = None) -> Callback[Any]: ...
    def callback(self, name: str, *, schema: Any = None, timeout: timedelta | None = None) -> Callback[Any]:
        """Make a token for one answer from outside: `paid = ctx.callback("paid", schema=Payment)`.

        Hand `paid.token` to a tool, then `await paid`. It is valid from this call on until its timeout. A result that
        does not fit the schema (a type, as of a tool's result) is refused, and the callback waits on. **Raises**
        UsageError at once for an invalid name or type; TimeoutError and CallbackError when awaited.
        """
        name = check_name(name)
        shape = None if schema is None else JsonCodec(schema, f"result of callback {name}")
        text, read = (canonical.dumps(shape.schema), shape.load) if shape else ("", canonical.parse)
        self._callbacks += 1
        # Callbacks discarded by a retry get no answers: those in their place have other tokens.
        for life in count():
            number = life * LIFE_CALLBACKS + self._callbacks
            tokens = [callback_token(RunId(name), self._seed, number) for name in self._names]
            token = next((candidate for candidate in tokens if callback_digest(candidate) in self._steps), tokens[-1])
            digest = callback_digest(token)
            if (step := self._steps.get(digest)) is None or self._retried.counts(step):
                break
        return Callback(intents.Answer(name, digest, text, self._until_ms(timeout), read), token)

    def _until_ms(self, timeout: timedelta | None) -> int:
        return 0 if timeout is None else self._moment.now_ms + milliseconds(timeout, "timeout")

    def run(
        self, agent: Callable[..., Any] | str, given: Any = None, *, on_parent_end: OnParentEnd = "cancel"
    ) -> Coroutine[Any, Any, Any]:
        """Run another agent on this input and return its result: `await ctx.run(research, {"topic": "x"})`.

        A coroutine, as of `call`. When it is cancelled or this run is over, the child is cancelled too, unless
        `on_parent_end="abandon"`. An agent named by its function gives the result as its type. **Raises** UsageError at
        once for an unknown agent or an input that does not fit; ChildFailed when awaited, if the child failed or was
        cancelled.
        """
        callee = self.find_agent(agent)
        return loop.step(started(self._names[0], callee, given, on_parent_end, typed=not isinstance(agent, str)))

    def start(
        self,
        agent: Callable[..., Any] | str,
        given: Any = None,
        *,
        on_parent_end: OnParentEnd = "cancel",
        labels: Mapping[str, str] | None = None,
    ) -> asyncio.Future[Any]:
        """Run another agent at once, without `await`: a future, which may be awaited, given to `gather`, or dropped.

        Its `labels` are added to those of this run, which win.
        """
        callee = self.find_agent(agent)
        intent = started(self._names[0], callee, given, on_parent_end, typed=not isinstance(agent, str), labels=labels)
        return loop.running("ctx.start").ask(intent)

    def publish(self, event: str, data: Any = None) -> None:
        """Publish an event: each agent with `@app.on(event)` runs with this data as its input. No `await`.

        **Raises** UsageError if `event` is no text, or `data` has no JSON form or holds a set.
        """
        running = loop.running("ctx.publish")
        if not isinstance(event, str) or not event:
            raise UsageError(f"ctx.publish({event!r}, ...)", hint="an event is named by a word, and its data is JSON")
        running.record(intents.PublishEvent(event, json_of(data, f"data of event {event!r}")))

    def signal(self, run: str, name: str, data: Any = None) -> None:
        """Send a signal to another run: `ctx.signal("order-7", "paid", {"euro": 5})`. No `await`.

        It is sent once, in the name of this run's requester, and stored if it comes before the wait. This run gets no
        reply: a signal that no run takes becomes a dead letter. **Raises** UsageError for an invalid id or name, or
        `data` without a JSON form.
        """
        running, target = loop.running("ctx.signal"), _checked_id(run, "ctx.signal")
        running.record(intents.SendSignal(target, check_name(name), json_of(data, f"data of signal {name!r}")))

    def answer(self, signal: Signal, value: Any = None) -> None:
        """Answer a signal, once: `ctx.answer(signal, 3)`; an exception as its value is a failure. No `await`.

        The sender of an update waits for it. **Raises** UsageError for a second answer, or a `value` without JSON form.
        """
        if not isinstance(signal, Signal):
            raise UsageError(f"ctx.answer({signal!r:.80}, ...)", hint="pass what ctx.wait_for returned")
        failure = failure_of(value) if isinstance(value, BaseException) else None
        result = "null" if failure else json_of(value, f"answer to signal {signal.id!r}")
        self._answer(signal.id, result, failure)

    def _answer(self, signal_id: str, result: str, failure: Failure | None) -> None:
        running = loop.running("ctx.answer")
        if signal_id in self._answered:
            raise UsageError(f"signal {signal_id!r} was answered before", hint="the first answer counts")
        self._answered.add(signal_id)
        running.record(intents.AnswerSignal(signal_id, result, failure))

    def on(self, name: str) -> Callable[[OnSignal], OnSignal]:
        """Answer each signal of this name with a function: `@ctx.on("add")` above `async def add(item: str) -> int`.

        The signal's data are its arguments by name. Its result, or its exception, is the answer. A task of the run
        calls it for one signal after the other, until the agent returns. **Raises** UsageError for an invalid name or
        function.
        """
        name, running = check_name(name), loop.running("ctx.on")

        def serve(function: OnSignal) -> OnSignal:
            if not inspect.iscoroutinefunction(function):
                raise UsageError(f"ctx.on({name!r}) is above {function!r:.80}", hint="write `async def`")
            arguments = Arguments(function, f"update {name}")
            result = JsonCodec(arguments.hints.get("return", Any), f"result of update {name}")
            running.create_task(self._serve(name, function, arguments, result), name=f"on {name}")
            return function

        return serve

    async def _serve(self, name: str, function: OnSignal, arguments: Arguments, result: JsonCodec) -> None:
        while True:
            signal = await self.wait_for(name)
            try:
                data = {} if signal.data is None else signal.data
                text = result.dump(await function(**arguments.load(canonical.dumps(data))))
            except (Exception, asyncio.CancelledError) as error:
                # What it waits for may have been cancelled, and not the handler.
                if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                    raise
                self._answer(signal.id, "null", failure_of(error))
            else:
                self._answer(signal.id, text, None)

    def submit(self, agent: Callable[..., Any] | str, given: Any = None, *, id: str) -> None:  # noqa: A002
        """Start a run of its own, as `refold run start` does: `ctx.submit(report, {"day": 3}, id="day-3")`. No `await`.

        It starts once, in the name of this run's requester and with its labels and sessions, but with its agent's
        budget, in any partition. This run gets no reply, and its end, pause or erasure does not reach it. An id that
        another run has makes the request a dead letter. **Raises** UsageError for an invalid id, an unknown agent or an
        input that does not fit.
        """
        running, target = loop.running("ctx.submit"), _checked_id(id, "ctx.submit")
        if "." in target:
            raise UsageError(f"ctx.submit(..., id={id!r})", hint="a dot is for child runs: use `-` or `:`")
        callee = self.find_agent(agent)
        running.record(intents.SubmitRun(target, callee.name, callee.input_json(given), callee.means))

    def continue_as(self, given: Any = None) -> Any:
        """End this history and go on with a new one: `return ctx.continue_as({"seen": seen})`.

        The run keeps its name, and its next generation begins with this input in the newest version of the agent.
        Signals that no wait has taken are carried over, and open waits, timers and children end. **Raises** UsageError
        in a child, while a call or a callback is open, and for an input that does not fit.
        """
        steps = loop.running("ctx.continue_as").steps
        if "." in self._names[-1]:
            raise UsageError("ctx.continue_as in a child run", hint="return a result; its parent starts the next child")
        waiting = [*steps.open.values(), *steps.requests]
        unfinished = (entry.intent for entry in waiting if isinstance(entry, loop.StepFuture) and not entry.done())
        if open_step := next((each for each in unfinished if isinstance(each, intents.Call | intents.Answer)), None):
            raise UsageError(f"ctx.continue_as while {open_step.words[:80]} is open", hint="await it, or cancel it")
        return intents.Continuation(self.find_agent(self._agent).input_json(given))

    @property
    def history(self) -> "HistorySize":
        """Size of this generation's history so far, equal in every replay."""
        steps = loop.running("ctx.history").steps
        return HistorySize(steps.so_far(), steps.bytes)

    @property
    def should_continue(self) -> bool:
        """True if the history is long enough for `continue_as`: from 2,000 steps or a mebibyte on."""
        return self.history.steps >= LONG_STEPS or self.history.bytes >= LONG_BYTES

    def note(self, kind: str, data: Any = None) -> None:
        """Record a note for readers of the run: a plan, decision, checkpoint or thought. No `await`.

        **Raises** UsageError if `kind` is no text, or `data` has no JSON form or holds a set.
        """
        if not isinstance(kind, str):
            raise UsageError(f"ctx.note({kind!r}, ...)", hint="its kind is a word, and what belongs to it is data")
        kind = _plain_text(kind, f"the kind of note {kind!r}")
        text = json_of(data, f"data of note {kind!r}")
        loop.running("ctx.note").record(intents.Note(kind, text))

    def checkpoint(self, name: str) -> None:
        """Record the run's progress, as a step: `ctx.checkpoint("paid")`. No `await`."""
        name = _short_text(name, "the name of a checkpoint", LABEL_CHARS)
        loop.running("ctx.checkpoint").record(intents.Checkpoint(name))

    def status(self, text: str) -> None:
        """Set the run's status line, for display. No step: it may change freely. No `await`."""
        loop.running("ctx.status").exposed[""] = _short_text(text, "a status", STATUS_CHARS)

    def expose(self, name: str, value: Any) -> None:
        """Show a value of the run to readers: `ctx.expose("cart", items)`. The last value of a name holds. No `await`.

        No step: it may change freely, and is recorded when the code waits or ends. **Raises** UsageError for an invalid
        name, a value without JSON form, and more than 64 names or 64 KiB together.
        """
        exposed, name = loop.running("ctx.expose").exposed, check_name(name)
        if name == STATUS:
            raise UsageError(f"ctx.expose({name!r}, ...)", hint="this name is the status: ctx.status(text)")
        after = {**exposed, name: json_of(value, f"value {name!r}"), "": ""}
        size = sum(len(own) + utf8_bytes(text) for own, text in after.items())
        if len(after) - 1 > MOST_EXPOSED or size > EXPOSED_BYTES:
            message = f"with {name!r} the run exposes {len(after) - 1} values of {size:,} bytes"
            raise UsageError(message, hint=f"at most {MOST_EXPOSED} and {EXPOSED_BYTES:,} are recorded")
        exposed[name] = after[name]

    def patched(self, patch: str) -> bool:
        """True if the run takes the new way at a change in its agent's code: `if ctx.patched("ask-twice"): ...`.

        False for runs whose history has passed this place without the change, True for all that come here later. The
        first answer for a name holds at all its places, for ever. No `await`. **Raises** UsageError for an invalid
        name.
        """
        if not (isinstance(patch, str) and 0 < len(patch) <= MOST_PATCH and patch.isprintable()):
            raise UsageError(f"ctx.patched({patch!r})", hint=f"a change has a name of up to {MOST_PATCH} characters")
        running, patch = loop.running("ctx.patched"), str.__str__(patch)
        if patch not in self._patched:
            recorded = patch in self._recorded
            new = not recorded and not running.passed()
            self._patched[patch] = recorded or new
            if new:
                running.record(intents.Patch(patch))
        return self._patched[patch]

    async def sleep_until(self, when: datetime) -> datetime:
        """Sleep durably until a time, and return it as the log has it, in UTC.

        In a replay the recorded time counts, even if the code computes another one today, for instance after the rules
        of a time zone changed. A past time is a step too. **Raises** UsageError for a time without a zone.
        """
        running = loop.running("ctx.sleep_until")
        if when.tzinfo is None:
            raise UsageError(f"ctx.sleep_until({when!r})", hint="give the time a zone: `datetime(..., tzinfo=UTC)`")
        until_ms = min(math.ceil(round(when.timestamp() * 1000, 3)), LAST_MS)
        until_ms = await running.ask(intents.Sleep(until_ms))
        running.reach(until_ms / 1000)
        return _EPOCH + timedelta(milliseconds=until_ms)

    def now(self) -> datetime:
        """Return the time of the record that ended the agent's last wait, in UTC; constant until `await`."""
        return _EPOCH + timedelta(milliseconds=self._moment.now_ms)

    @cached_property
    def random(self) -> Random:
        """Random numbers, equal in every replay of this run, different in every other run."""
        return Random(f"{self._seed}/random")

    def uuid(self) -> UUID:
        """Return a new id, the same in every replay of this run."""
        return UUID(int=self._ids.getrandbits(128), version=4)

    @property
    def replaying(self) -> bool:
        """True if the code runs along recorded history. For logs and metrics only: decisions must not depend on it."""
        return self._moment.replaying

    def __getattr__(self, name: str) -> Any:
        hint = f": {_GONE[name]}" if name in _GONE else ""
        raise AttributeError(f"a context has no {name}{hint}")

    @cached_property
    def _ids(self) -> Random:
        # Apart from `random`: a new id must not change the numbers that follow.
        return Random(f"{self._seed}/uuid")


def current() -> Context | None:
    """Return the context of the agent whose code is running; None in a tool or a test."""
    running = asyncio._get_running_loop()
    context = running.context if isinstance(running, loop.Loop) else None
    return context if isinstance(context, Context) else None


def _checked_id(run: str, feature: str) -> RunId:
    try:
        return run_id(run)
    except (MalformedError, TypeError) as error:
        raise UsageError(f"{feature} of run {run!r}: {error}", hint="pass the run's id") from None


def started(
    run_id: str,
    agent: Callee,
    payload: Any,
    on_parent_end: OnParentEnd,
    *,
    typed: bool,
    labels: Mapping[str, str] | None = None,
) -> intents.StartRun:
    """Request to run an agent. **Raises** UsageError for an unfit input."""
    if on_parent_end not in ("cancel", "abandon"):
        raise UsageError(f"on_parent_end={on_parent_end!r}", hint="it is 'cancel' or 'abandon'")
    input_json = agent.input_json(payload)

    def read(ended: ChildCompleted) -> Any:
        if ended.status == "completed":
            return agent.read_result(ended.result) if typed else canonical.parse(ended.result)
        run, failure = child_id(run_id, ended.step), ended.failure
        code, message = (failure.code, failure.message) if failure else (ended.status, "")
        end = f"was {ended.status}" if code == "cancelled" else "failed"
        raise ChildFailed(f"run {run} of {agent.name} {end}: {message}", run_id=run, code=code, message=message)

    own = {str(name): str(value) for name, value in (labels or {}).items()}
    return intents.StartRun(agent.name, input_json, on_parent_end == "abandon", read, agent.means, own)


_GONE = {
    "gather": "write `await asyncio.gather(...)`, or `async with asyncio.TaskGroup()`",
    "sleep": "write `await asyncio.sleep(seconds)`, which is durable here",
}


def _short_text(text: str, subject: str, most: int) -> str:
    if not isinstance(text, str):
        raise UsageError(f"{subject} is {type(text).__name__}", hint="it is a text")
    text = _plain_text(text, subject)
    return text if len(text) <= most else text[: most - 1] + "…"


def _plain_text(text: str, subject: str) -> str:
    text = str.__str__(text)  # of an enumeration, say
    try:
        canonical.text(text)
    except MalformedError as error:
        raise UsageError(f"{subject} is no text: {error}") from None
    return text


class AgentLog:
    """A bound structured logger: an event name, all else fields. Silent while history is replayed."""

    def __init__(self, moment: Moment, fields: dict[str, Any]) -> None:
        self._moment = moment
        self._fields = fields

    def bind(self, **fields: Any) -> "AgentLog":
        """Return a logger that adds these fields to every line."""
        return AgentLog(self._moment, {**self._fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Write a line of level debug."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write a line of level info."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write a line of level warning."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write a line of level error."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if self._moment.replaying:
            return
        # A line that cannot be written must not raise: replayed, where nothing is written, the code would go on.
        with watch.unwatched(), suppress(Exception):
            import structlog  # here: it takes a third of the time of `import refold`, and few agents write lines

            getattr(structlog.get_logger("refold.agent"), level)(event, **{**self._fields, **fields})
