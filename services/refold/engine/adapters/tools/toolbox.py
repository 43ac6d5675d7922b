"""Runs tools' code off the executor's loop: async tools on one event loop, sync tools in threads. A blocking tool
delays its thread or other async tools, never the executor. Every exception becomes data, without secrets."""

import asyncio
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, cast

import structlog

from refold.core.errors import NotDone, RefoldError, TerminalError, TransientError, UsageError, text_of
from refold.core.ids import RunId
from refold.core.wire import canonical
from refold.core.wire.blobs import is_large, is_pointer
from refold.engine.adapters.tools.memory import MemoryRun
from refold.engine.ports.blobs import Blobs
from refold.engine.ports.effects import Live, StartTool, StopTool, ToolEnded
from refold.engine.runtime.blobs import until_answered
from refold.sdk.app import App
from refold.sdk.current_attempt import CURRENT_ATTEMPT, CurrentAttempt
from refold.sdk.frames import stack_of, user_line
from refold.sdk.heartbeat import Heartbeat
from refold.sdk.memory import AgentTool
from refold.sdk.secret import Secrets
from refold.sdk.tool import Body, ToolDef

_log = structlog.get_logger()

_MESSAGE, _DETAIL = 2_000, 8_000
"""Limits of an error's message and detail, in characters."""
_LATEST_S = 1e9
"""Longest reported wait for another attempt: the limit of a record."""


class Toolbox:
    """Runner of an app's tools for attempts; passes their ends to `done`, from any thread, and output of running ones
    to `live`. Large results go into `blobs` first. **Units**: `max_result` in bytes of JSON as UTF-8."""

    def __init__(
        self,
        app: App,
        done: Callable[[ToolEnded], None],
        *,
        threads: int,
        max_result: int,
        blobs: Blobs | None = None,
        live: Live | None = None,
    ) -> None:
        self._app, self._done, self._max_result = app, done, max_result
        self._blobs, self._live = blobs, live
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tool")
        self._running: dict[int, tuple[Heartbeat, asyncio.Task[None] | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="tools", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True if tools can run: a tool may have closed the loop."""
        return self._thread.is_alive() and not self._loop.is_closed()

    def start(self, orders: Sequence[StartTool]) -> None:
        self._loop.call_soon_threadsafe(self._start, list(orders))

    def stop(self, order: StopTool) -> None:
        """Stop a tool: async at its next await, sync by its heartbeat."""
        self._loop.call_soon_threadsafe(self._stop, order)

    def close(self) -> None:
        """End the loop; running tools are abandoned with their leases."""
        self._closing = True
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._live is not None:
            self._live.close()

    def _serve(self) -> None:
        """Run the loop, again whenever a tool's task stopped it or raised SystemExit through it."""
        while not self._closing and not self._loop.is_closed():
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the executor would claim calls and run nothing ever again
                _log.warning("tool.loop_interrupted", error=type(error).__name__)

    def _start(self, orders: list[StartTool]) -> None:
        for order in orders:
            heartbeat, error_text = Heartbeat(), ErrorText(self._app)
            try:
                tool, body = self._prepare(order, heartbeat, error_text.secrets)
            except BaseException as error:  # noqa: BLE001 - the types of a tool are its author's code, too
                self._done(error_text.unprepared(order, error))
                continue
            task = self._loop.create_task(self._run(order, tool, body, error_text))
            self._running[order.number] = heartbeat, task if isinstance(body, Coroutine) else None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _prepare(self, order: StartTool, heartbeat: Heartbeat, secrets: Secrets) -> tuple[ToolDef, Body]:
        request = order.request
        tool = self._app.tools.get(request.tool)
        if tool is None:
            raise UsageError(f"no tool {request.tool!r} in {self._app.name}", hint="deploy the app that has it")
        if isinstance(tool, AgentTool) and not tool.scripted:
            return tool, MemoryRun(self._app, tool.agent, order, self._perform).run()
        if request.earlier and not order.probe:
            run = request.run_id
            earlier = lambda: {call.step: (call.args, self._whole(run, call.result)) for call in request.earlier}  # noqa: E731
            return tool, tool.run_on(earlier, request.args, idempotency_key=request.key)
        start = tool.run_probe if order.probe else tool.run
        return tool, start(request.args, idempotency_key=request.key, heartbeat=heartbeat, secrets=secrets)

    def _whole(self, run: RunId, result: str) -> str:
        """Result of an earlier call, loaded if it lies in the blob store."""
        if not is_pointer(result):
            return result
        if self._blobs is None:
            raise NotDone(f"{result} lies in a blob store, and none is set", hint="REFOLD_BLOBS__URL")
        value = until_answered(lambda: cast(Blobs, self._blobs).get(run, result), lambda: self._closing, run_id=run)
        if value is None:
            raise NotDone("the executor ends")
        return value

    async def _run(self, order: StartTool, tool: ToolDef, body: Body, error_text: "ErrorText") -> None:
        ended = ToolEnded(order.number, "unknown", code="lost", message="the tool ended without a word")
        try:
            ended = await self._ended(order, tool, body, error_text, self._threads)
        finally:
            self._running.pop(order.number, None)  # it cannot be stopped any more: its effect has happened
            if self._blobs is not None and is_large(ended.result):
                self._threads.submit(self._put_away, self._blobs, order, ended)
            else:
                self._done(ended)

    def _put_away(self, blobs: Blobs, order: StartTool, ended: ToolEnded) -> None:
        """Store a large result, repeatedly since its effect has happened, then report it."""
        run, call = order.request.run_id, order.request.call_id
        try:
            pointer = until_answered(
                lambda: blobs.put(run, ended.result), lambda: self._closing, run_id=run, call_id=call
            )
            if pointer is not None:
                self._done(ended._replace(result=pointer))
        except BaseException as error:  # noqa: BLE001 - no memory, say; without a word its slot would be lost
            text = f"its result of {len(ended.result):,} characters is lost: {text_of(error)}"
            self._done(ToolEnded(order.number, "broken", code="blob_unwritten", message=text, retryable=False))

    async def _perform(self, order: StartTool, heartbeat: Heartbeat, threads: Executor) -> ToolEnded:
        error_text = ErrorText(self._app)
        try:
            tool, body = self._prepare(order, heartbeat, error_text.secrets)
        except BaseException as error:  # noqa: BLE001 - as in `_start`
            return error_text.unprepared(order, error)
        return await self._ended(order, tool, body, error_text, threads)

    async def _ended(
        self, order: StartTool, tool: ToolDef, body: Body, error_text: "ErrorText", threads: Executor
    ) -> ToolEnded:
        if not order.probe:
            CURRENT_ATTEMPT.set(CurrentAttempt(order.request, self._live.tell if self._live else None))
            _enter_trace(order.request.traceparent)
        try:
            if isinstance(body, Coroutine):
                value = await body
            else:
                value, error = await self._loop.run_in_executor(threads, copy_context().run, _outcome, body)
                if error is not None:
                    raise error
                if heartbeat := self._running.get(order.number, (None, None))[0]:  # from here on it may be cancelled
                    self._running[order.number] = heartbeat, asyncio.current_task()
                value = await _settled(value)
            return self._value(order, tool, value, error_text)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, SystemExit too, and ends but itself
            return error_text.raised(order, error)

    def _value(self, order: StartTool, tool: ToolDef, value: object, error_text: "ErrorText") -> ToolEnded:
        if order.probe:
            happened = tool.probe_json(value)
            if happened is None:
                return ToolEnded(order.number, "did_not_happen")
            return self._too_large(order, happened) or ToolEnded(order.number, "happened", happened)
        try:
            result = tool.result_json(value)
        except BaseException as error:  # noqa: BLE001 - the tool has acted: whatever its result raises changes that not
            message, line = f"{error_text(error)}; the tool returned {error_text.value(value)}", user_line(error)
            return ToolEnded(order.number, "broken", code="bad_result", message=message, retryable=False, detail=line)
        return self._too_large(order, result) or ToolEnded(order.number, "completed", result)

    def _too_large(self, order: StartTool, result: str) -> ToolEnded | None:
        if (size := canonical.utf8_bytes(result)) <= self._max_result:
            return None
        way = "return a reference instead" if self._blobs else "set REFOLD_BLOBS__URL, or return a reference instead"
        message = f"the result has {size} bytes, more than {self._max_result}: {way}"
        if order.probe:
            return ToolEnded(order.number, "unknown", code="probe_failed", message=message)
        return ToolEnded(order.number, "broken", code="too_large", message=message, retryable=False)

    def _stop(self, order: StopTool) -> None:
        heartbeat, task = self._running.get(order.number, (None, None))
        if heartbeat is not None:
            heartbeat.cancel(order.reason)
        if task is not None:
            # Later, for it may not have begun: a task cancelled before that runs nothing, and reports nothing.
            self._loop.call_soon(task.cancel)


def _enter_trace(traceparent: str) -> None:
    """Attach spans of the tool to the span of its attempt, if OpenTelemetry is loaded."""
    trace, context = sys.modules.get("opentelemetry.trace"), sys.modules.get("opentelemetry.context")
    if trace is not None and context is not None and traceparent:
        _, number, span, flags = traceparent.split("-")
        above = trace.SpanContext(int(number, 16), int(span, 16), True, trace.TraceFlags(int(flags, 16)))
        context.attach(trace.set_span_in_context(trace.NonRecordingSpan(above)))


def _outcome(body: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Call a sync tool; return its error as a value."""
    try:
        return body(), None
    except BaseException as error:  # noqa: BLE001 - the caller judges it
        # A future that gets StopIteration would never finish.
        return None, error


async def _settled(value: Any) -> Any:
    while inspect.isawaitable(value):
        value = await value
    return [chunk async for chunk in value] if isinstance(value, AsyncGenerator) else value


class ErrorText:
    """Texts of an attempt's errors, without its secrets, redacted by the app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.secrets = Secrets(app.secrets)

    def __call__(self, error: BaseException) -> str:
        """Redacted message for the log."""
        name, text = type(error).__name__, text_of(error, 10 * _MESSAGE)
        shown = self._redacted(lambda: text, lambda raised: f"{name} (not told: redacting it raised {raised})")
        # Cut after redaction: half a secret would not be recognised.
        return shown[:_MESSAGE] or name

    def value(self, value: object) -> str:
        """Redacted text of a result that cannot be recorded."""
        # The effect has happened, and nothing else has its result.
        name = type(value).__name__
        text = self._redacted(lambda: repr(value)[: 10 * _MESSAGE], lambda raised: f"a {name} (not told: {raised})")
        return text[:_MESSAGE]

    def _redacted(self, text: Callable[[], str], otherwise: Callable[[str], str]) -> str:
        try:
            return str(self._app.redact(self.secrets.hide(text())))
        except BaseException as failed:  # noqa: BLE001 - the user's code; better nothing than an unredacted text
            return otherwise(type(failed).__name__)

    def unprepared(self, order: StartTool, error: BaseException) -> ToolEnded:
        """Outcome if nothing was sent: unfit arguments, or an unknown tool."""
        if order.probe:
            return ToolEnded(order.number, "unknown", code="probe_failed", message=self(error))
        return ToolEnded(order.number, "failed", code=_code(error), message=self(error), retryable=False)

    def raised(self, order: StartTool, error: BaseException) -> ToolEnded:
        """Outcome of an exception: failed for NotDone, TransientError and TerminalError, else unknown."""
        if order.probe:
            return ToolEnded(order.number, "unknown", code="probe_failed", message=self(error))
        ended = ToolEnded(order.number, "unknown", code=_code(error), message=self(error), detail=user_line(error))
        _log.warning(
            "tool.failed",
            tool=order.request.tool,
            call_id=order.request.call_id,
            attempt=order.request.attempt,
            error=f"{ended.code}: {ended.message}",
            stack=self._redacted(lambda: stack_of(error), lambda raised: ""),
        )
        if isinstance(error, NotDone | TransientError):
            detail = self._detail(error) or ended.detail
            return ended._replace(status="failed", retry_after_ms=_after_ms(error.retry_after), detail=detail)
        if isinstance(error, TerminalError):
            return ended._replace(status="failed", retryable=False, detail=self._detail(error) or ended.detail)
        return ended

    def _detail(self, error: RefoldError) -> str:
        detail = error.fields.get("detail", "")
        text = self._redacted(lambda: detail, lambda raised: "") if isinstance(detail, str) else ""
        return text if len(text) <= _DETAIL else ""


def _after_ms(retry_after: float | None) -> int:
    """Delay in milliseconds, bounded to fit a record."""
    return int(min(retry_after, _LATEST_S) * 1000) if retry_after and retry_after > 0 else 0


def _code(error: BaseException) -> str:
    if not isinstance(error, RefoldError):
        return type(error).__name__
    code = error.fields.get("code", error.code)
    return code if isinstance(code, str) else error.code
