"""Execution of one run's code: driven turn by turn to where it waits, and unwound when it is dropped. As under
`asyncio.run`, remaining tasks are cancelled and awaited at the end: their clean-up may call tools."""

import asyncio
import contextvars
import ctypes
import gc
import inspect
import sys
import weakref
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from refold.core.errors import NonDeterminismError, UsageError
from refold.core.run.intents import GIVE_UP
from refold.core.run.replay import Moment, Raised, Returned, Wanted
from refold.core.run.state import Settled, next_step
from refold.sdk import patches
from refold.sdk.loop import RESTING, Loop, StepFuture, Task, Timer, TooBusyError, Waiting, is_unheard

MOST_CALLBACKS = 1_000_000
"""Callbacks of a turn, about a second: code without a wait would block its planner for ever."""

MOST_READY = 40_000
"""Queued callbacks, perhaps a task of 4 KiB each: tasks that make two tasks each would take all memory."""

MOST_ASKED = 20_000
"""Steps requested in one turn. An entry of 2 MiB holds 17,000 calls of the smallest kind."""

UNWIND_ROUNDS = 8
"""Attempts to cancel dropped code before it is forced to end."""

UNWIND_CALLBACKS = 250_000
"""Callbacks of such a round: enough for every task."""

CROWD = 64
"""Generators held before finished ones are released."""

_WAITING = StepFuture, Timer
_Outside = tuple[Any, Any, Any, bool, Any]


class Execution:
    """Code of one run. `start` and `settle` return its requests; `end` is set when it is over, also after more than
    `most` requests in a turn. Step numbers `left` by retries are skipped. `handed` counts bytes of large values."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        moment: Moment,
        seed: str = "",
        most: int = MOST_ASKED,
        left: tuple[tuple[int, int], ...] = (),
        *,
        context: Any = None,
    ) -> None:
        patches.install()
        self.moment = moment
        self.end: Returned | Raised | None = None
        self.handed = 0
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._behind = left
        self._loop = Loop(moment, seed, MOST_READY, most)
        self._loop.context = context
        self._main: Task | None = None
        # Nothing of the planner's context is to be seen, which another planner may not have.
        self._context = contextvars.Context()
        self._generators: list[AsyncGenerator[Any, Any]] = []
        self._crowd = CROWD
        self._left = 0
        self._ending: list[Task] = []
        self._closer: Task | None = None

    @property
    def steps(self) -> int:
        return self._loop.steps.count

    @property
    def exposed(self) -> dict[str, str]:
        """Values that the code has exposed so far, by name; its status has none."""
        return self._loop.exposed

    @property
    def tasks(self) -> int:
        return len(self._loop.tasks)

    @property
    def unheard(self) -> list[tuple[str, BaseException]]:
        """Failures of tasks and callbacks that were never awaited, by name. Complete at the end."""
        failed = [t for t in self._loop.tasks.values() if t is not self._main and t.done() and not t.cancelled()]
        tasks = [(t.get_name(), error) for t in failed if is_unheard(t) and (error := t._exception) is not None]
        return [*self._loop.unheard, *tasks]

    @property
    def waits_for_nothing(self) -> str:
        """Names and lines of tasks that no input can wake, as they wait for each other; else empty."""
        if self.end is not None or self._main is None or self._loop.steps.open:
            return ""
        return ", ".join(f"{task.get_name()} ({_place_of(task)})" for task in self._loop.live())

    def start(self) -> Wanted:
        with self._turn():
            self._main = self._loop.create_task(self._coroutine, name="main", context=self._context)
        return self._run()

    def settle(self, step: int, outcome: Settled) -> Wanted:
        """Feed the outcome of a step. **Raises** NonDeterminismError if the code does not wait for it."""
        steps = self._loop.steps
        waiting = steps.open.pop(step, None)
        if waiting is None:
            if step in steps.gone:
                return []
            message = f"history settles step {step} and the code has not asked for it"
            raise NonDeterminismError(message, step=step, hint="restore the old code")
        steps.measure(outcome)
        return self._run(waiting, outcome)

    def close(self) -> bool:
        """Drop the code, and requests and errors of its `finally` blocks. Return True if a coroutine did not end."""
        loop = self._loop
        loop.closing = True
        # A coroutine that has not begun would warn that it was never awaited.
        if self._coroutine is not None and self._main is None:
            self._coroutine.close()
        for _ in range(UNWIND_ROUNDS):
            if not (live := loop.live()):
                break
            try:
                with self._turn():
                    self._left = UNWIND_CALLBACKS
                    _cancel(live)
                    self._run_callbacks()
            except TooBusyError:  # the next round would come no further
                break
            except BaseException:  # noqa: BLE001 - errors of clean-up are dropped
                continue
        self._coroutine, self._main, self._closer, self._ending, refused = None, None, None, [], False
        with suppress(BaseException), self._turn():
            for task in loop.live():
                refused = self._force(task) or refused
            for generator in self._generators:
                with suppress(BaseException):
                    self._context.run(generator.aclose().send, None)
        for task in loop.tasks.values():
            task._log_traceback = False  # it is in the log, or dropped with the run
        patches.forget(loop.tasks.values())
        self._close_unawaited()
        loop.ready = RESTING
        loop.tasks.clear()
        self._generators.clear()
        return refused

    def _run(self, waiting: Waiting | None = None, outcome: Settled | None = None) -> Wanted:
        """Run one turn, begun by the `outcome` of a waiting step or by queued callbacks; return the new requests."""
        steps, outside = self._loop.steps, self._enter()
        self._left = MOST_CALLBACKS
        try:
            if waiting is not None:
                self._context.run(waiting.settle, outcome)
            self._run_callbacks()
            if self._main is not None and self._main.done() and self.end is None:
                self._wind_up(self._main)
            # Checked again: the code may have caught the error of `ask`.
            if len(steps.requests) > steps.most:
                raise TooBusyError(steps.most)
        except TooBusyError as error:
            self.close()
            self.end = Raised(error)
            steps.requests, steps.abandoned = [], []
        finally:
            self._leave(outside)
        return self._number_requests() if steps.requests or steps.abandoned else []

    def _number_requests(self) -> Wanted:
        steps = self._loop.steps
        new: Wanted = [(step, GIVE_UP) for step in sorted(steps.abandoned)]
        for request in steps.requests:
            if isinstance(request, _WAITING):
                # One that was cancelled within the turn never becomes a step.
                if not request.cancelled():
                    steps.count = next_step(steps.count, self._behind)
                    request.step = steps.count
                    steps.open[steps.count] = request
                    steps.measure(request.intent)
                    new.append((steps.count, request.intent))
            elif request.numbered:
                steps.count = next_step(steps.count, self._behind)
                steps.measure(request)
                new.append((steps.count, request))
            else:
                new.append((0, request))
        steps.requests, steps.abandoned = [], []
        return new

    def _run_callbacks(self) -> None:
        loop, left = self._loop, self._left
        ready = loop.ready
        loop.begin_turn()
        while ready:
            left -= 1
            # The queue too: the code may have caught the error of `call_soon`.
            if left < 0 or len(ready) > MOST_READY:
                raise TooBusyError(MOST_CALLBACKS if left < 0 else MOST_READY)
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._run()
                except (SystemExit, KeyboardInterrupt):
                    continue  # it has ended its task, and must not end the planner; it is reported at the end
        self._left = left

    def _wind_up(self, main: Task) -> None:
        """Once the agent's coroutine is over, end its tasks with all that their clean-up begins."""
        while all(task.done() for task in self._ending):
            live = self._loop.live()
            if not live and self._closer is None and self._generators:
                self._closer = self._loop.create_task(_close_all(self._generators), name="end", context=self._context)
                self._ending = [self._closer]
            elif live:
                self._ending = live
                _cancel(live)
            else:
                self.end = self._end_of(main)
                return
            self._run_callbacks()

    def _end_of(self, main: Task) -> Returned | Raised:
        if main.cancelled():
            return Raised(asyncio.CancelledError("the agent has cancelled itself"))
        if (error := main.exception()) is not None:
            return Raised(error)
        for coroutine, intent in self._loop.unawaited.values():
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                self._close_unawaited()
                hint = "put `await` in front of it"
                return Raised(UsageError(f"the agent never awaited its {intent.words}", hint=hint))
        self._close_unawaited()
        return Returned(main.result())

    def _close_unawaited(self) -> None:
        for coroutine, _ in list(self._loop.unawaited.values()):
            coroutine.close()
        self._loop.unawaited.clear()

    def _force(self, task: Task) -> bool:
        """End a task that ignores its cancellation; return True if a coroutine of it goes on."""
        # Destroyed here, on its own loop and as its own task, its next wait ends it. Under a garbage collector each
        # wait would raise, and code that catches everything would loop for ever.
        loop, coroutines = self._loop, _await_chain(task.get_coro())
        asyncio.tasks._enter_task(loop, task)
        try:
            with suppress(BaseException):
                (coroutines or [task.get_coro()])[0].close()
            refused = [weakref.ref(coroutine) for coroutine in coroutines if coroutine.cr_frame is not None]
            if refused:
                (ended := _nothing()).close()
                asyncio.Task.__init__(task, ended, loop=loop)  # the only way to take its coroutine from a task
                del coroutines
            for reference in refused:
                if (survivor := reference()) is not None:  # user code refers to it: no collector may ever close it
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(survivor))
        finally:
            asyncio.tasks._leave_task(loop, task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return bool(refused)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        outside = self._enter()
        try:
            yield
        finally:
            self._leave(outside)

    def _hold_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        # Without a reference, its end would depend on the collector.
        self._generators.append(generator)
        if len(self._generators) > self._crowd:
            self._generators[:] = [live for live in self._generators if getattr(live, "ag_frame", None)]
            self._crowd = CROWD + 2 * len(self._generators)

    def _enter(self) -> _Outside:
        """Make the run's loop the running one of this thread; return the state to restore by `_leave`."""
        loop, task = _get_running_loop(), None
        if loop is not None and (task := asyncio.current_task(loop)) is not None:
            asyncio.tasks._leave_task(loop, task)
        outside = loop, task, sys.get_asyncgen_hooks(), gc.isenabled(), patches.enter(self._loop)
        # A collector would run `__del__`.
        gc.disable()
        sys.set_asyncgen_hooks(self._hold_generator, _keep_open)
        _set_running_loop(self._loop)
        if self._loop.ready is RESTING:
            self._loop.ready = deque()
        return outside

    def _leave(self, outside: _Outside) -> None:
        loop, task, hooks, collects, run = outside
        patches.leave(run)
        _set_running_loop(loop)
        sys.set_asyncgen_hooks(*hooks)
        if collects:
            gc.enable()
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
        if not self._loop.ready and loop is not self._loop:
            self._loop.ready = RESTING


def _await_chain(coroutine: Any) -> list[Any]:
    chain = []
    while inspect.iscoroutine(coroutine):
        chain.append(coroutine)
        coroutine = coroutine.cr_await
    return chain


async def _nothing() -> None: ...


def _cancel(tasks: list[Task]) -> None:
    # Each once: awaiting tasks pass it on, and a tree of them would be walked for each.
    before = [task.cancelling() for task in tasks]
    for task, count in zip(tasks, before, strict=True):
        if task.cancelling() == count:
            task.cancel()


def _keep_open(generator: AsyncGenerator[Any, Any]) -> None:
    """Finalizer that does nothing: generators are held until their run is over."""


async def _close_all(generators: list[AsyncGenerator[Any, Any]]) -> None:
    while generators:
        with suppress(Exception):
            await generators.pop(0).aclose()


def _place_of(task: Task) -> str:
    stack = task.get_stack(limit=1)
    name = getattr(task.get_coro(), "__qualname__", "?")
    return f"{name}, line {stack[0].f_lineno}" if stack else name
