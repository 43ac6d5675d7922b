"""Patches that make addresses, clocks and randomness of the standard library and anyio functions of the run, in threads
that run an agent's code. They touch private names, so versions of Python and anyio belong to an agent's version."""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, tzinfo
from types import ModuleType
from typing import Any

from refold.core.errors import UsageError
from refold.sdk.determinism import watch
from refold.sdk.determinism.banned import CONCURRENCY, ORIGINAL
from refold.sdk.loop import Loop

_ANYIO = "anyio._backends._asyncio"

_PASSED_OVER = frozenset({"uuid", "secrets", "random", "tempfile", __name__})
"""Modules that draw on behalf of callers: the caller's place counts."""


class _Thread(threading.local):
    loop: Loop | None = None


_THREAD = _Thread()
_installed = False


def enter(loop: Loop) -> Loop | None:
    """Make a loop the one that the patches of this thread answer from; return the one before, for `leave`."""
    before, _THREAD.loop = _THREAD.loop, loop
    return before


def leave(before: Loop | None) -> None:
    _THREAD.loop = before


def install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    asyncio.as_completed = asyncio.tasks.as_completed = _completing_in_order(asyncio.as_completed)
    asyncio.all_tasks = asyncio.tasks.all_tasks = _listing_by_birth(asyncio.all_tasks)
    asyncio.tasks._GatheringFuture.__hash__ = _hash_by_ordinal  # type: ignore[attr-defined]
    # `random` has imported it under a name of its own.
    os.urandom = random._urandom = _drawn(os.urandom, "randbytes")  # type: ignore[attr-defined]
    for name, original in list(vars(random).items()):
        # All that draws from the module's own generator, in any version of Python; `seed` and its state stay its own.
        if getattr(original, "__self__", None) is random._inst and name not in ("seed", "getstate", "setstate"):
            setattr(random, name, _drawn(original, name))
    random.Random.seed = _seeding_from_run(random.Random.seed)  # type: ignore[method-assign]
    # A library that tries again, or waits, by any of these clocks does the same in a replay.
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, _on_loop_clock(getattr(time, name), Loop.time))
        setattr(time, f"{name}_ns", _on_loop_clock(getattr(time, f"{name}_ns"), _nanoseconds))
    for name in ("callHandlers",):
        setattr(logging.Logger, name, _outside(getattr(logging.Logger, name)))
    if sys.version_info < (3, 12):  # later versions report threads to the watch
        threading._start_new_thread = _refusing_threads(threading._start_new_thread)  # type: ignore[attr-defined]
    if _ANYIO in sys.modules:
        _order_scopes(importlib.import_module(_ANYIO))  # another thread may be in the middle of its import
    else:
        sys.meta_path.insert(0, _AnyioFinder())


def tell_time(module: ModuleType) -> None:
    """Replace `datetime` of a framework's module by one on the loop's clock: `datetime.now` is in C."""
    if module.datetime is datetime:
        module.datetime = _LoopDatetime  # type: ignore[attr-defined]


def forget(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Remove dropped tasks from anyio's tables, which would hold them for ever."""
    module = sys.modules.get(_ANYIO)
    if module is not None:
        for task in tasks:
            getattr(module, "_task_states", {}).pop(task, None)


def _drawn(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    def draw(*args: Any, **options: Any) -> Any:
        loop = _THREAD.loop
        if loop is None:
            return original(*args, **options)
        return getattr(loop.random_at(_caller()), name)(*args, **options)

    return _with_original(draw, original)


# `random.Random()` reads the operating system below `os.urandom`, where no patch reaches.
def _seeding_from_run(original: Callable[..., None]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        loop = _THREAD.loop
        original(self, loop.random_at(_caller()).getrandbits(256) if a is None and loop is not None else a, version)

    return seed


def _outside(original: Callable[[logging.Logger, logging.LogRecord], None]) -> Callable[..., None]:
    """Log method that runs its handlers as if no agent's loop were running, and does nothing in a replay."""

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        loop = _THREAD.loop
        if loop is None:
            original(self, record)
        elif not loop.moment.replaying:
            leave(None)
            # Handlers may open files and start threads, fail no run, and get each line once.
            asyncio._set_running_loop(None)
            try:
                with watch.unwatched(), suppress(Exception):
                    original(self, record)
            finally:
                asyncio._set_running_loop(loop)
                leave(loop)

    return call_handlers


def _refusing_threads(original: Callable[..., int]) -> Callable[..., int]:
    def start(*args: Any, **options: Any) -> int:
        if _THREAD.loop is not None:
            raise UsageError("an agent did something that a replay would do again (a thread)", hint=CONCURRENCY)
        return original(*args, **options)

    return start


def _on_loop_clock(original: Callable[[], Any], answer: Callable[[Loop], Any]) -> Callable[[], Any]:
    def now() -> Any:
        loop = _THREAD.loop
        return original() if loop is None else answer(loop)

    return _with_original(now, original)


def _nanoseconds(loop: Loop) -> int:
    return round(loop.time() * 1_000) * 1_000_000


def _with_original(patch: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    setattr(patch, ORIGINAL, original)
    return patch


def _caller() -> str:
    """Code that draws a random number: `module:function:instruction`, equal in all processes with the same code."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _PASSED_OVER:
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}:{frame.f_lasti}"


def _hash_by_ordinal(future: asyncio.Future[Any]) -> int:
    loop = future.get_loop()
    if not isinstance(loop, Loop):
        return object.__hash__(future)
    if not hasattr(future, "ordinal"):
        future.ordinal = loop.next_ordinal()  # type: ignore[attr-defined]
    return future.ordinal  # type: ignore[attr-defined, no-any-return]


def _completing_in_order(original: Callable[..., Any]) -> Callable[..., Any]:
    def as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
        if _THREAD.loop is not None and not asyncio.isfuture(fs) and not asyncio.iscoroutine(fs):
            # The original makes the tasks in the order of a set of coroutines, that is, of addresses.
            fs = [asyncio.ensure_future(awaitable) for awaitable in dict.fromkeys(fs)]
        return original(fs, timeout=timeout)

    return as_completed


def _listing_by_birth(original: Callable[..., set[asyncio.Task[Any]]]) -> Callable[..., set[asyncio.Task[Any]]]:
    def all_tasks(loop: Any = None) -> set[asyncio.Task[Any]]:
        running = _THREAD.loop
        if running is None or loop not in (None, running):
            return original(loop)
        # The original adds them as it finds them among all tasks of the process, and a set keeps some of that order.
        return set(running.live())

    return _with_original(all_tasks, original)


def _order_scopes(module: ModuleType) -> None:
    """Order anyio's cancel scopes, which lie in sets, and end its cancellation within a turn."""

    class OrdinalScope(module.CancelScope):  # type: ignore[misc, name-defined]
        __slots__ = ("ordinal",)

        def __init__(self, *args: Any, **options: Any) -> None:
            """Number the scope within its run, to hash by: sets by address would have another order in a replay."""
            loop = _THREAD.loop
            self.ordinal = object.__hash__(self) if loop is None else loop.next_ordinal()
            super().__init__(*args, **options)

        def __hash__(self) -> int:
            return self.ordinal

        def _deliver_cancellation(self, origin: Any) -> bool:
            again = bool(super()._deliver_cancellation(origin))
            if again and origin is self and (loop := _THREAD.loop) is not None:
                loop.redelivers(self)
            return again

    module.CancelScope = OrdinalScope  # type: ignore[attr-defined]


# Python's own class: a test that freezes time may have replaced it, with a metaclass of its own.
_Datetime: Any = next(base for base in datetime.__mro__ if base.__name__ == "datetime")


class _AsDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Datetime)


class _LoopDatetime(_Datetime, metaclass=_AsDatetime):  # type: ignore[misc]
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        loop = _THREAD.loop
        return datetime.now(tz) if loop is None else _Datetime.fromtimestamp(loop.time(), tz)


class _AnyioFinder(importlib.abc.MetaPathFinder):
    """Import hook that patches anyio's backend, which may be imported within a turn."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _ANYIO:
            return None
        # First: `find_spec` below would call this method again.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _order_scopes(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
