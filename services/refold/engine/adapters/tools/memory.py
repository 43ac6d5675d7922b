"""Runs of agents in memory, without planner and log: code, calls and sleeps take turns."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from refold.core.errors import TerminalError, TransientError, UsageError
from refold.core.events import CallCompleted, CallFailed, Failure, SleepEnded
from refold.core.planning.budgets import amount_of
from refold.core.planning.matrix import backoff_ms, course
from refold.core.planning.verdict import AppFacts, Rules
from refold.core.run.account import NOTHING, Reserve, in_usd
from refold.core.run.building import earlier
from refold.core.run.intents import Call, Checkpoint, GiveUp, Intent, Note, Patch, Sleep
from refold.core.run.replay import Moment, Raised, Returned
from refold.core.run.state import Settled
from refold.core.wire import canonical
from refold.core.wire.canonical import idempotency_key
from refold.engine.ports.effects import StartTool, ToolEnded
from refold.sdk.app import App
from refold.sdk.determinism import watch
from refold.sdk.execution import Execution
from refold.sdk.heartbeat import Heartbeat
from refold.sdk.memory import MemoryAgent

AT_ONCE = 16
"""Concurrent calls of such a run; sync tools take a thread each."""

_KEPT_NOWHERE = Note, Checkpoint, Patch

_log = structlog.get_logger()
_R = TypeVar("_R")

Perform = Callable[[StartTool, Heartbeat, Executor], Awaitable[ToolEnded]]
"""Run a tool once, sync ones in this pool, without raising."""


class MemoryRun:
    """One attempt of a whole run."""

    def __init__(self, app: App, agent: MemoryAgent, order: StartTool, perform: Perform) -> None:
        self._app, self._agent, self._order, self._perform = app, agent, order, perform
        self._moment = Moment(replaying=False)
        self._execution: Execution | None = None
        self._calls = 0
        self._reserved_total = NOTHING
        self._calls_by_step: dict[int, tuple[Call, str]] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._left: set[asyncio.Future[ToolEnded]] = set()
        self._ends: asyncio.Queue[tuple[int, Settled]] = asyncio.Queue()
        self._free = asyncio.Semaphore(AT_ONCE)
        # Separate threads: a turn or a tool that hangs blocks no other.
        self._turns, self._threads = ThreadPoolExecutor(1, "agent"), ThreadPoolExecutor(AT_ONCE, "agent-tool")

    async def run(self) -> Any:
        """Run from start to end. **Raises** the agent's errors, TerminalError for features that need a planner."""
        if self._agent.tool.reserve is not None:
            self._app.prices.load()
        try:
            await self._turn(self._open)
            assert self._execution is not None, "it is open"
            execution, intents = self._execution, await self._turn(self._execution.start)
            while True:
                for step, intent in intents:
                    self._begin(step, intent)
                if execution.end is not None:
                    return self._over(execution, execution.end)
                if waits := execution.waits_for_nothing:
                    raise TerminalError(f"the code waits for nothing: {waits}", code="waits_for_nothing")
                step, outcome = await self._ends.get()
                self._under_way.pop(step, None)
                intents = await self._turn(partial(execution.settle, step, outcome))
        except UsageError as error:  # tried again, it would be the same
            code = str(error.fields.get("code", error.code))
            raise TerminalError(error.message, hint=error.hint, code=code) from error
        finally:
            await self._drop()

    def _open(self) -> None:
        request = self._order.request
        input_text = canonical.dumps(canonical.parse(request.args)["input"])
        # Its key is the same in each attempt, and cannot be guessed from outside.
        context = self._app.context(request.run_id, seed=request.key, moment=self._moment)
        self._execution = Execution(self._agent.begin(input_text, context), self._moment, request.key, context=context)

    async def _turn(self, work: Callable[[], _R]) -> _R:
        """Run code in its thread, under the guard."""
        self._moment.now_ms = max(self._moment.now_ms, time.time_ns() // 1_000_000)
        turn = asyncio.get_running_loop().run_in_executor(self._turns, _watched, work)
        cancelled = False
        # A cancelled turn still waits: threads cannot be stopped.
        while not turn.done():
            try:
                await asyncio.wait([turn])
            except asyncio.CancelledError:
                cancelled = True
                gc.enable()  # a turn that never ends would keep it off in all of the process
        if cancelled:
            raise asyncio.CancelledError
        return turn.result()

    def _begin(self, step: int, intent: Intent) -> None:
        """Start or cancel the intent of a step. **Raises** UsageError if it needs a planner."""
        if isinstance(intent, GiveUp):
            if (task := self._under_way.pop(step, None)) is not None:
                task.cancel()
        elif isinstance(intent, Call) and intent.fits():
            self._check(step, intent)
        elif isinstance(intent, Sleep):
            self._start(step, self._sleep(step, intent))
        elif not isinstance(intent, _KEPT_NOWHERE):
            raise self._agent.refused(f"asks for what only the log can answer: {intent.words}")

    def _check(self, step: int, call: Call) -> None:
        tool = self._app.find(call.tool)
        if refused := self._agent.refusal(tool):
            raise refused
        if call.reserve is not None and self._agent.tool.reserve is None:
            raise self._agent.unmetered(tool.name)
        judge = self._order.within
        refusal = judge(call.tool, call.args, self._calls) if judge else None
        self._calls += 1
        if refusal is None:
            self._start(step, self._call(step, call))
        elif refusal.code == "denied":
            self._ends.put_nowait((step, CallFailed(step, 0, Failure(refusal.code, refusal.message))))
        elif refusal.stale:
            raise TransientError(refusal.message, code=refusal.code)
        else:
            hint = "let its policy allow the call, or put the run into the log"
            raise self._agent.refused(f"nobody can be asked there about {tool.name}: {refusal.message}", hint)

    def _start(self, step: int, work: Any) -> None:
        self._under_way[step] = asyncio.get_running_loop().create_task(work)

    async def _sleep(self, step: int, intent: Sleep) -> None:
        await asyncio.sleep(max(0, intent.until_ms / 1000 - time.time()))
        self._ends.put_nowait((step, SleepEnded(step)))

    async def _call(self, step: int, call: Call) -> None:
        attempt, most = 0, call.retry.attempts
        while True:
            attempt += 1
            if call.reserve is not None and (failure := self._reserved(call.tool, call.reserve)) is not None:
                self._ends.put_nowait((step, CallFailed(step, attempt - 1, failure)))
                return
            ended = await self._attempt(step, call, attempt)
            if ended.status == "completed":
                self._calls_by_step[step] = call, ended.result
                self._ends.put_nowait((step, CallCompleted(step, attempt, ended.result)))
                return
            way = course("pure", ended.status, sent_before=False)
            if way.again != "retry" or not ended.retryable or attempt >= most:
                failure = Failure(ended.code, ended.message, ended.detail)
                self._ends.put_nowait((step, CallFailed(step, attempt, failure)))
                return
            salt = f"{self._order.request.run_id}/{step}"
            await asyncio.sleep((ended.retry_after_ms or backoff_ms(call.retry, attempt, salt)) / 1000)

    def _reserved(self, tool: str, most: Reserve) -> Failure | None:
        """Reserve an attempt in the run's budget; return the reason if it does not fit."""
        whole = self._agent.tool.reserve
        assert whole is not None, "it was looked at"
        rules = Rules(app=AppFacts(price=self._app.prices.of))
        bound, amount = amount_of(whole, rules), amount_of(most, rules)
        if bound is None or amount is None:
            message = f"nobody knows what a call of {most.model or tool} costs: App(prices=...) says it"
            return Failure("no_price", message)
        reserved = self._reserved_total.plus(amount)
        if reserved.nano_usd > bound.nano_usd or (whole.tokens and reserved.tokens > whole.tokens):
            so_far = f"{in_usd(reserved.nano_usd)} and {reserved.tokens:,} tokens"
            return Failure("over_reserve", f"with this call it takes {so_far}: more than its reserve={whole}")
        self._reserved_total = reserved
        return None

    async def _attempt(self, step: int, call: Call, attempt: int) -> ToolEnded:
        outer, tool = self._order.request, call.tool
        key = idempotency_key(environment=outer.key, run=outer.run_id, step=step, tool=tool, args=call.args)
        before = earlier(call.builds_on, self._calls_by_step.get)
        request = replace(outer, step=step, attempt=attempt, tool=tool, args=call.args, key=key, earlier=before)
        # What people have decided on the agent is not on this.
        request = replace(request, timeout_ms=call.timeout_ms, decision="")
        async with self._free:
            heartbeat = Heartbeat()
            tried = asyncio.ensure_future(self._perform(StartTool(0, request, False), heartbeat, self._threads))
            self._left.add(tried)
            tried.add_done_callback(self._left.discard)
            reason = "cancelled"
            try:
                await asyncio.wait([tried], timeout=call.timeout_ms / 1000)
                if tried.done():
                    return tried.result()
                reason = "timeout"
            finally:
                if not tried.done():
                    heartbeat.cancel(reason)
                    tried.cancel()
        return ToolEnded(0, "unknown", code="timeout", message=f"no answer within {call.timeout_ms} ms")

    def _over(self, execution: Execution, end: Returned | Raised) -> Any:
        for task, error in execution.unheard:
            _log.warning("agent.task_failed", run_id=self._order.request.run_id, task=task, error=repr(error))
        if isinstance(end, Raised):
            raise end.error
        return end.value

    async def _drop(self) -> None:
        for task in self._under_way.values():
            task.cancel()
        if self._execution is not None:
            with suppress(asyncio.CancelledError):
                await self._turn(self._execution.close)
        self._turns.shutdown(wait=False)
        self._threads.shutdown(wait=False)


def _watched(work: Callable[[], _R]) -> _R:
    with watch.watching():
        return work()
