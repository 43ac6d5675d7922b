"""Runs the tools' code off the executor's loop: async tools on one event loop, sync tools in threads.

A tool that blocks holds its thread and its slot, an async one that blocks holds the other async tools; neither holds
the executor, its leases or its place in the group. One of the three places with a broad `except`: whatever a tool
raises becomes data.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

from refold.core.errors import NotDone, RefoldError, TerminalError, TransientError, UsageError
from refold.core.messages import ToolRequest
from refold.ports.effects import StartTool, StopTool, ToolEnded
from refold.sdk.app import App
from refold.sdk.heartbeat import Cancelled, Heartbeat
from refold.sdk.tool import Body, ToolDef


class Toolbox:
    """The tools of an app, run for attempts; `done` is called from any thread when one has ended.

    **Units**: `max_result` in bytes of JSON.
    """

    def __init__(self, app: App, done: Callable[[ToolEnded], None], *, threads: int, max_result: int) -> None:
        self._app, self._done, self._max_result = app, done, max_result
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tool")
        self._running: dict[int, tuple[Heartbeat, asyncio.Task[None] | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tools", daemon=True)
        self._thread.start()

    def start(self, orders: Sequence[StartTool]) -> None:
        """Begins tools or probes; one `ToolEnded` each."""
        self._loop.call_soon_threadsafe(self._start, list(orders))

    def stop(self, order: StopTool) -> None:
        """Tells a tool to stop: an async one is cancelled at its next await, a sync one hears it from its heartbeat."""
        self._loop.call_soon_threadsafe(self._stop, order)

    def close(self) -> None:
        """Ends the loop; what still runs is abandoned with its lease."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, orders: list[StartTool]) -> None:
        for order in orders:
            heartbeat = Heartbeat()
            try:
                tool, body = self._prepare(order.request, heartbeat, probe=order.probe)
            except UsageError as error:
                self._done(_failed(order.number, error, retryable=False))
                continue
            task = self._loop.create_task(self._run(order, tool, body))
            self._running[order.number] = heartbeat, task if isinstance(body, Coroutine) else None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _prepare(self, request: ToolRequest, heartbeat: Heartbeat, *, probe: bool) -> tuple[ToolDef, Body]:
        tool = self._app.tools.get(request.tool)
        if tool is None:
            raise UsageError(f"no tool {request.tool!r} in {self._app.name}", hint="deploy the app that has it")
        start = tool.run_probe if probe else tool.run
        return tool, start(request.args, idempotency_key=request.key, heartbeat=heartbeat)

    async def _run(self, order: StartTool, tool: ToolDef, body: Body) -> None:
        try:
            value = await (body if isinstance(body, Coroutine) else self._loop.run_in_executor(self._threads, body))
            ended = self._value(order, tool, value)
        except (Exception, Cancelled, asyncio.CancelledError) as error:  # noqa: BLE001 - a tool may raise anything
            ended = _raised(order, error)
        self._running.pop(order.number, None)
        self._done(ended)

    def _value(self, order: StartTool, tool: ToolDef, value: object) -> ToolEnded:
        if order.probe:
            happened = tool.probe_json(value)
            return ToolEnded(order.number, "did_not_happen" if happened is None else "happened", happened or "")
        try:
            result = tool.result_json(value)
        except UsageError as error:
            return ToolEnded(order.number, "broken", code="bad_result", message=str(error), retryable=False)
        if len(result) > self._max_result:
            message = f"the result has {len(result)} bytes, more than {self._max_result}: return a reference instead"
            return ToolEnded(order.number, "broken", code="too_large", message=message, retryable=False)
        return ToolEnded(order.number, "completed", result)

    def _stop(self, order: StopTool) -> None:
        heartbeat, task = self._running.get(order.number, (None, None))
        if heartbeat is not None:
            heartbeat.cancel(order.reason)
        if task is not None:
            task.cancel()


def _raised(order: StartTool, error: BaseException) -> ToolEnded:
    """An exception as an outcome. Only the author's own word says that nothing happened; all else is unknown."""
    if order.probe:
        return ToolEnded(order.number, "unknown", code="probe_failed", message=_text(error))
    if isinstance(error, NotDone | TransientError):
        after = int(error.retry_after * 1000) if error.retry_after else 0
        ended = _failed(order.number, error, retryable=True)
        return ended._replace(retry_after_ms=after)
    if isinstance(error, TerminalError):
        return _failed(order.number, error, retryable=False)
    code = error.code if isinstance(error, RefoldError) else type(error).__name__
    return ToolEnded(order.number, "unknown", code=code, message=_text(error))


def _failed(number: int, error: RefoldError, *, retryable: bool) -> ToolEnded:
    return ToolEnded(number, "failed", code=error.code, message=_text(error), retryable=retryable)


def _text(error: BaseException) -> str:
    return str(error)[:2_000] or type(error).__name__
