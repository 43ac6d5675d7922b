"""Runs the tools' code off the executor's loop: async tools on one event loop, sync tools in threads.

A tool that blocks holds its thread and its slot, an async one that blocks holds the other async tools; neither holds
the executor, its leases or its place in the group. One of the three places with a broad `except`: whatever a tool
raises becomes data, without what is secret in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from refold.core.errors import NotDone, RefoldError, TerminalError, TransientError, UsageError, text_of
from refold.core.wire import canonical
from refold.ports.effects import StartTool, StopTool, ToolEnded
from refold.sdk.app import App
from refold.sdk.heartbeat import Heartbeat
from refold.sdk.secret import Secrets
from refold.sdk.tool import Body, ToolDef

_log = structlog.get_logger()

_MESSAGE = 2_000
"""Characters of an error that are told."""


class Toolbox:
    """The tools of an app, run for attempts; `done` is called from any thread when one has ended.

    **Units**: `max_result` in bytes of JSON as UTF-8, of a tool's result and of a probe's.
    """

    def __init__(self, app: App, done: Callable[[ToolEnded], None], *, threads: int, max_result: int) -> None:
        self._app, self._done, self._max_result = app, done, max_result
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tool")
        self._running: dict[int, tuple[Heartbeat, asyncio.Task[None] | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="tools", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether tools still run. A tool can close its loop; nothing that it raises ends it."""
        return self._thread.is_alive() and not self._loop.is_closed()

    def start(self, orders: Sequence[StartTool]) -> None:
        """Begins tools or probes; one `ToolEnded` each."""
        self._loop.call_soon_threadsafe(self._start, list(orders))

    def stop(self, order: StopTool) -> None:
        """Tells a tool to stop: an async one is cancelled at its next await, a sync one hears it from its heartbeat."""
        self._loop.call_soon_threadsafe(self._stop, order)

    def close(self) -> None:
        """Ends the loop; what still runs is abandoned with its lease."""
        self._closing = True
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _serve(self) -> None:
        """Runs the loop. A task that a tool made may raise SystemExit through it, or stop it: the others go on."""
        while not self._closing and not self._loop.is_closed():
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - the executor would claim calls and run nothing ever again
                _log.warning("tool.loop_interrupted", error=type(error).__name__)

    def _start(self, orders: list[StartTool]) -> None:
        for order in orders:
            heartbeat, told = Heartbeat(), ErrorText(self._app)
            try:
                tool, body = self._prepare(order, heartbeat, told.secrets)
            except BaseException as error:  # noqa: BLE001 - the types of a tool are its author's code, too
                self._done(told.unprepared(order, error))
                continue
            task = self._loop.create_task(self._run(order, tool, body, told))
            self._running[order.number] = heartbeat, task if isinstance(body, Coroutine) else None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _prepare(self, order: StartTool, heartbeat: Heartbeat, secrets: Secrets) -> tuple[ToolDef, Body]:
        request = order.request
        tool = self._app.tools.get(request.tool)
        if tool is None:
            raise UsageError(f"no tool {request.tool!r} in {self._app.name}", hint="deploy the app that has it")
        start = tool.run_probe if order.probe else tool.run
        return tool, start(request.args, idempotency_key=request.key, heartbeat=heartbeat, secrets=secrets)

    async def _run(self, order: StartTool, tool: ToolDef, body: Body, told: ErrorText) -> None:
        ended = ToolEnded(order.number, "unknown", code="lost", message="the tool ended without a word")
        try:
            if isinstance(body, Coroutine):
                value = await body
            else:
                value, error = await self._loop.run_in_executor(self._threads, _outcome, body)
                if error is not None:
                    raise error
            ended = self._value(order, tool, value, told)
        except BaseException as error:  # noqa: BLE001 - a tool may raise anything, SystemExit too, and ends but itself
            ended = told.raised(order, error)
        finally:
            self._running.pop(order.number, None)
            self._done(ended)

    def _value(self, order: StartTool, tool: ToolDef, value: object, told: ErrorText) -> ToolEnded:
        if order.probe:
            happened = tool.probe_json(value)
            if happened is None:
                return ToolEnded(order.number, "did_not_happen")
            return self._too_large(order, happened) or ToolEnded(order.number, "happened", happened)
        try:
            result = tool.result_json(value)
        except BaseException as error:  # noqa: BLE001 - the tool has acted: whatever its result raises changes that not
            return ToolEnded(order.number, "broken", code="bad_result", message=told(error), retryable=False)
        return self._too_large(order, result) or ToolEnded(order.number, "completed", result)

    def _too_large(self, order: StartTool, result: str) -> ToolEnded | None:
        if (size := canonical.utf8_bytes(result)) <= self._max_result:
            return None
        message = f"the result has {size} bytes, more than {self._max_result}: return a reference instead"
        if order.probe:
            return ToolEnded(order.number, "unknown", code="probe_failed", message=message)
        return ToolEnded(order.number, "broken", code="too_large", message=message, retryable=False)

    def _stop(self, order: StopTool) -> None:
        heartbeat, task = self._running.get(order.number, (None, None))
        if heartbeat is not None:
            heartbeat.cancel(order.reason)
        if task is not None:
            task.cancel()


def _outcome(body: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Calls a sync tool. Its error comes as a value: a future that is given StopIteration would never be done."""
    try:
        return body(), None
    except BaseException as error:  # noqa: BLE001 - whoever waits for the thread judges it
        return None, error


class ErrorText:
    """How errors of one attempt are told: without the values of its secrets, and as the app redacts them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.secrets = Secrets(app.secrets)

    def __call__(self, error: BaseException) -> str:
        """What goes into the log for everybody to read. Cut last: half a secret is one that nothing finds."""
        text = text_of(error, 10 * _MESSAGE)
        try:
            return str(self._app.redact(self.secrets.hide(text)))[:_MESSAGE] or type(error).__name__
        except Exception as failed:  # noqa: BLE001 - the user's code; better nothing than what it should have hidden
            return f"{type(error).__name__} (not told: redacting it raised {type(failed).__name__})"

    def unprepared(self, order: StartTool, error: BaseException) -> ToolEnded:
        """Nothing was sent so far: the arguments do not fit, or there is no such tool."""
        if order.probe:
            return ToolEnded(order.number, "unknown", code="probe_failed", message=self(error))
        code = error.code if isinstance(error, RefoldError) else type(error).__name__
        return ToolEnded(order.number, "failed", code=code, message=self(error), retryable=False)

    def raised(self, order: StartTool, error: BaseException) -> ToolEnded:
        """An exception as an outcome. Only the author's own word says that nothing happened; all else is unknown."""
        if order.probe:
            return ToolEnded(order.number, "unknown", code="probe_failed", message=self(error))
        if isinstance(error, NotDone | TransientError):
            after = int(error.retry_after * 1000) if error.retry_after else 0
            ended = ToolEnded(order.number, "failed", code=error.code, message=self(error), retryable=True)
            return ended._replace(retry_after_ms=after)
        if isinstance(error, TerminalError):
            return ToolEnded(order.number, "failed", code=error.code, message=self(error), retryable=False)
        code = error.code if isinstance(error, RefoldError) else type(error).__name__
        return ToolEnded(order.number, "unknown", code=code, message=self(error))
