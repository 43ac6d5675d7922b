"""The event loop on which agents run: ordinary asyncio, without a selector, sockets or threads.

Only recorded outcomes move it. A *turn* is one outcome and all callbacks that follow from it, in order, live and in
replay alike: the same history leads the same code to the same place. Timers are durable; the clock shows the time of
the entry that woke the code.
"""

import asyncio
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from refold.core.errors import UsageError, text_of
from refold.core.events import LAST_MS
from refold.core.run.intents import Intent, Sleep
from refold.core.run.replay import Moment
from refold.core.wire.canonical import utf8_bytes
from refold.sdk.determinism.banned import CONCURRENCY, WORLD

MOST_REDELIVERED = 100
"""Deliveries of one anyio cancellation in a turn: it repeats until the task ends, maybe for months."""

MOST_REFUSED = 100
"""Refusals of requests by dropped code before it is suspended."""

YEARS_S = 10 * 365 * 86_400
"""A longer wait is logged: rather a mistake in a number."""

_log = logging.getLogger(__name__)

RESTING: deque[asyncio.Handle] = deque(maxlen=0)
"""Ready queue between turns: empty, and additions are dropped. Shared, as a deque takes 760 bytes."""


class NotHereError(UsageError, NotImplementedError):
    """Refusal of a loop method. Frameworks catch NotImplementedError."""


class Task(asyncio.Task[Any]):
    """A task that hashes by its place in the run: sets of tasks have an order, and addresses differ."""

    def __init__(self, coroutine: Any, *, loop: "Loop", **options: Any) -> None:
        self.ordinal = loop.next_ordinal()  # before the rest: asyncio puts the task into a set at once
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.ordinal


class Future(asyncio.Future[Any]):
    def __init__(self, *, loop: "Loop") -> None:
        self.ordinal = loop.next_ordinal()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.ordinal


class StepFuture(Future):
    """Future of a step: only its recorded outcome settles it, and cancelling it gives up the step."""

    def __init__(self, intent: Intent, *, loop: "Loop") -> None:
        super().__init__(loop=loop)
        self.intent, self.step, self._steps = intent, 0, loop.steps

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        if self.step:
            self._steps.give_up(self.step)
        return True

    def settle(self, outcome: Any) -> None:
        if self.done():
            return
        try:
            value = self.intent.value_of(outcome)
        except StopIteration as failure:  # no future takes one
            self.set_exception(RuntimeError(f"reading an outcome raised {failure!r}"))
        except BaseException as failure:  # noqa: BLE001 - the agent's types read it, and may raise anything
            self.set_exception(failure)
        else:
            self.set_result(value)


class Timer(asyncio.TimerHandle):
    def __init__(self, when: float, callback: Callable[..., object], args: Any, loop: "Loop", context: Any) -> None:
        super().__init__(when, callback, args, loop, context)
        self._fire = loop.fire
        # Rounded first: as a float, 0.1 + 0.2 s would be 301 ms.
        until_ms = math.ceil(round(when * 1000, 3)) if when < LAST_MS / 1000 else LAST_MS
        self.intent, self.step = Sleep(until_ms), 0

    def settle(self, outcome: Any) -> None:
        self._fire(self)


Waiting = StepFuture | Timer


_TEXTS = ("args", "input", "data", "result", "schema")


class Book:
    """Steps of a run: `requests` of this turn, `open` ones, those given up (`abandoned`: this turn, `gone`: ever)."""

    def __init__(self, most: int) -> None:
        self.most, self.count, self.bytes = most, 0, 0
        self.open: dict[int, Waiting] = {}
        self.gone: set[int] = set()
        self.requests: list[Waiting | Intent] = []
        self.abandoned: list[int] = []

    def ask(self, request: Waiting | Intent) -> None:
        """Add a request. **Raises** TooBusyError above the limit: code may request in an endless loop."""
        if len(self.requests) > self.most:
            raise TooBusyError(self.most)
        self.requests.append(request)

    def measure(self, recorded: Any) -> None:
        """Add the size of a request's or an outcome's texts."""
        texts = (getattr(recorded, name, "") for name in _TEXTS)
        self.bytes += sum([utf8_bytes(text) for text in texts if isinstance(text, str)])

    def so_far(self) -> int:
        """Number of steps, including the unnumbered ones of this turn."""
        counted = (entry.numbered if isinstance(entry, Intent) else not entry.cancelled() for entry in self.requests)
        return self.count + sum(counted)

    def give_up(self, step: int) -> None:
        """Close an open step that the code awaits no longer: the turn requests `GIVE_UP`, an outcome is ignored."""
        if self.open.pop(step, None) is not None:
            self.gone.add(step)
            self.abandoned.append(step)


if TYPE_CHECKING:
    # It has all methods of a loop: those not defined here are refused below.
    _LOOP: Any = object
else:
    _LOOP = asyncio.AbstractEventLoop


class Loop(_LOOP):  # type: ignore[misc]
    """Event loop of a run. `unawaited`: coroutines of steps. `context`: the agent's first argument, for libraries.
    `exposed`: the code's values for readers, as JSON by name."""

    context: Any = None

    def __init__(self, moment: Moment, seed: str, most: int, most_asked: int) -> None:
        self.moment, self.steps = moment, Book(most_asked)
        self._seed, self._most = seed, most
        # Two runs side by side in asyncio's one set of all tasks must not collide, so each counts from elsewhere.
        self._ordinal = int.from_bytes(blake2b(seed.encode(), digest_size=7).digest())
        self.ready = RESTING
        self.tasks: dict[int, Task] = {}
        self.unawaited: dict[int, tuple[Coroutine[Any, Any, Any], Intent]] = {}
        self.unheard: list[tuple[str, BaseException]] = []
        self.exposed: dict[str, str] = {}
        self.closing = False
        self._refused = 0
        self._time = 0.0
        self._numbers = 0
        self._crowd = 64
        self._places: dict[str, Random] = {}
        self._redelivered: dict[Any, int] = {}
        self._parked: list[asyncio.Handle] = []

    # Steps

    def ask(self, intent: Intent) -> StepFuture:
        """Request a step, numbered when the turn ends; return its future. **Raises** CancelledError in dropped code."""
        future = StepFuture(intent, loop=self)
        if not self.closing:
            self.steps.ask(future)
        elif self._refused < MOST_REFUSED:
            self._refused += 1
            raise asyncio.CancelledError("the run is dropped here")
        return future

    def record(self, intent: Intent) -> None:
        if not self.closing:
            self.steps.ask(intent)

    def passed(self) -> bool:
        """True if recorded history goes past this place of the code."""
        return self.moment.recorded or (self.moment.stays > 0 and self.steps.so_far() < self.moment.stays)

    def fire(self, timer: Timer) -> None:
        """Queue the callback of a timer, and move the clock to its time at least."""
        if not timer.cancelled():
            self.reach(timer.when())
            self.ready.append(timer)

    def reach(self, when: float) -> None:
        """Move the clock to a time at least, in seconds since 1970: the entry that ended a sleep may be earlier."""
        self._time = max(self.time(), when)

    def next_ordinal(self) -> int:
        self._ordinal += 1
        return self._ordinal

    def random_at(self, place: str) -> Random:
        """Random generator for one place in the code: draws at other places do not change its numbers."""
        if place not in self._places:
            self._places[place] = Random(f"{self._seed}/{place}")
        return self._places[place]

    # The interface of asyncio

    def time(self) -> float:
        """Time of the entry that woke the code, in seconds since 1970. Never goes back."""
        self._time = max(self._time, self.moment.now_ms / 1000)
        return self._time

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        if len(self.ready) > self._most:
            raise TooBusyError(self._most)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Request a durable sleep until `when`, in seconds since 1970; a time that is past fires within this turn."""
        if math.isnan(when):
            raise ValueError("the time of a timer is not a number")
        if YEARS_S < when - self.time() < math.inf:
            _log.warning("an agent waits for more than ten years")
        timer = Timer(when, callback, args, self, context)
        if when <= self.time():
            self.ready.append(timer)
        elif not self.closing and when != math.inf:
            self.steps.ask(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, Timer) and handle.step:
            self.steps.give_up(handle.step)

    def create_future(self) -> Future:
        return Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None, **options: Any) -> Task:
        if options.get("eager_start"):
            raise NotHereError("an eager task starts before its turn", hint="leave eager_start out")
        self._numbers += 1
        task = Task(coro, loop=self, name=name or f"task-{self._numbers}", context=context)
        self.tasks[task.ordinal] = task
        # By doubling: a look at all tasks for each new one takes quadratic time.
        if len(self.tasks) > self._crowd:
            self.live()
            self._crowd = 64 + 2 * len(self.tasks)
        return task

    def live(self) -> list[Task]:
        """Unfinished tasks, in order of creation. Drops finished ones, except failures that no code has awaited."""
        tasks = {n: task for n, task in self.tasks.items() if not task.done() or is_unheard(task)}
        self.tasks = tasks
        return [task for task in tasks.values() if not task.done()]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Future:
        """Call a function synchronously: no recorded moment marks the end of a thread."""
        future = self.create_future()
        # As in an executor's thread, where no loop is running.
        asyncio._set_running_loop(None)
        try:
            future.set_result(func(*args))
        except StopIteration as error:
            future.set_exception(RuntimeError(f"a function of an executor raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - as in an executor's thread, whatever it is
            future.set_exception(error)
        finally:
            asyncio._set_running_loop(self)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect failures of callbacks, which a replay repeats; log those that the garbage collector finds."""
        if (error := context.get("exception")) is None:
            return
        text = str(context.get("message", "")).partition(" at 0x")[0]
        if "handle" in context:
            self.unheard.append((text, error))
        elif not self.closing and not self.moment.replaying:
            _log.warning("%s: %s: %s", text, type(error).__name__, text_of(error))

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.closing

    def get_debug(self) -> bool:
        return False

    def _ignore(self, *settings: object) -> None:
        """Does nothing: debugging output would differ from turn to turn, and the log has the unhandled failures."""

    set_debug = set_exception_handler = get_task_factory = get_exception_handler = _ignore

    async def shutdown_asyncgens(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's
        """Does nothing: the run closes its generators at its end, and there is no executor."""

    shutdown_default_executor = shutdown_asyncgens

    # Turns

    def begin_turn(self) -> None:
        if self._redelivered:
            self._redelivered.clear()
            self.ready.extend(self._parked)
            self._parked.clear()

    def redelivers(self, scope: Any) -> None:
        """Count a repeated cancellation by an anyio scope; after many, defer it to the next turn."""
        count = self._redelivered[scope] = self._redelivered.get(scope, 0) + 1
        if count > MOST_REDELIVERED and self.ready and self.ready[-1] is scope._cancel_handle:
            self._parked.append(self.ready.pop())


def _refusing_method(name: str) -> Callable[..., NoReturn]:
    hint = CONCURRENCY if name in _CONCURRENT else WORLD

    def refused(self: Loop, *args: Any, **options: Any) -> NoReturn:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and "_sync" not in frame.f_code.co_name:
            frame = None if frame.f_globals.get("__name__") == "refold.sdk.execution" else frame.f_back
        if frame is not None:  # as `AbstractAgent.run_sync` of pydantic-ai, which the author has written
            caller, method = frame.f_code.co_qualname, frame.f_code.co_name.replace("_sync", "")
            raise NotHereError(f"{caller} runs a loop of its own: {name}", hint=f"write `await` and `{method}(...)`")
        raise NotHereError(f"the loop of an agent has no {name}", hint=hint)

    return refused


_CONCURRENT = {"call_soon_threadsafe", "run_forever", "run_until_complete", "set_task_factory", "set_default_executor"}

for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and getattr(Loop, _name) is getattr(asyncio.AbstractEventLoop, _name):
        setattr(Loop, _name, _refusing_method(_name))


class TooBusyError(UsageError):
    def __init__(self, most: int) -> None:
        problem = f"the code did more than {most:,} things without waiting for anything"
        hint = "let it sleep or call something now and then, and do fewer at once"
        super().__init__(problem, hint=hint, code="budget_turn")


def is_unheard(task: Task) -> bool:
    """True if a task failed and no code has retrieved its exception, by asyncio's own mark for its warning."""
    return bool(getattr(task, "_log_traceback", False))


def running(feature: str) -> Loop:
    """Loop of the agent whose code is running. **Raises** UsageError elsewhere."""
    loop = asyncio._get_running_loop()
    if not isinstance(loop, Loop):
        raise UsageError(f"{feature} is for an agent's own code", hint="in a tool or a test, call the function itself")
    return loop


def step(intent: Intent) -> Coroutine[Any, Any, Any]:
    """Coroutine of a step, requested when it begins (awaited, or made a task)."""
    loop = asyncio._get_running_loop()
    if not isinstance(loop, Loop):
        loop = running(intent.words)
    number = loop.next_ordinal()
    coroutine = _begun(loop, number, intent)
    loop.unawaited[number] = coroutine, intent
    return coroutine


async def _begun(loop: Loop, number: int, intent: Intent) -> Any:
    del loop.unawaited[number]
    return await loop.ask(intent)
