"""The model: a program on the asyncio that Python has, told what came of each thing in the order in which it came.

Nothing here is durable, and nothing of Refold decides anything: no loop of agents, no replay, no fold. A loop that
neither sleeps nor listens runs the program, and what it waits for is settled by whoever drives it.
"""

from __future__ import annotations

import asyncio
import json
import math
from asyncio import base_events
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

Key = tuple[Any, ...]
"""What is asked for, as it can be told from the log: the kind, and what it is given."""

Arguments = Callable[[str, int], Any]
"""What a tool is given that a part of a program calls, by the tool and the number of the part."""

_TIMED = ("sleep", "wait", "answer")
"""The kinds whose keys end with a time."""


@dataclass(slots=True, eq=False)
class Ask:
    """Something that a program has asked for, in a turn. `left`: it does not wait for it any more."""

    key: Key
    turn: int
    settle: Callable[[Callable[[], Any]], None]
    left: bool = False


class Notebook:
    """What a program asks for. `asked` is new, `open` are those that somebody has given a number, `left` of these those
    that it does not wait for any more. `values` are what it exposes, the last of each name."""

    def __init__(self) -> None:
        self.turn = 0
        self.asked: list[Ask] = []
        self.open: dict[int, Ask] = {}
        self.left: set[int] = set()
        self.values: dict[str, str] = {}

    def leave(self, ask: Ask) -> None:
        """A program waits for something no longer. What it has only just asked for it never has."""
        ask.left = True
        for step in [step for step, each in self.open.items() if each is ask]:
            del self.open[step]
            self.left.add(step)
        if ask in self.asked and ask.turn == self.turn:
            self.asked.remove(ask)

    def number(self, step: int, key: Key, *, late: bool = False) -> bool:
        """The first of those that were asked for with this key has this number; whether there is one.

        `late`: what waits until some time may wait until another, and what was asked for first has the first number.
        """
        cut = -1 if late and key[0] in _TIMED else None
        ask = next((ask for ask in self.asked if ask.key[:cut] == key[:cut]), None)
        if ask is None:
            return False
        self.asked.remove(ask)
        if ask.left:
            self.left.add(step)
        else:
            self.open[step] = ask
        return True


class _Future(asyncio.Future[Any]):
    on_cancel: Callable[[], None] = staticmethod(lambda: None)

    def cancel(self, msg: Any = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self.on_cancel()
        return cancelled


class _Timer(asyncio.TimerHandle):
    on_cancel: Callable[[], None] = staticmethod(lambda: None)

    def cancel(self) -> None:
        super().cancel()
        self.on_cancel()


class _Nothing:
    """Of files and sockets there are none."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


if TYPE_CHECKING:
    # What is overridden here takes anything: nobody but asyncio calls it.
    _LOOP: Any = object
else:
    _LOOP = base_events.BaseEventLoop


class PlainLoop(_LOOP):  # type: ignore[misc]
    """The loop of asyncio without a world around it. `now_ms` is its time, and its timers are in a `book`."""

    def __init__(self, book: Notebook) -> None:
        super().__init__()
        self._selector = _Nothing()
        self._book = book
        self._now_s = 0.0
        self._busy = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_exception_handler(lambda *_: None)

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def set_time(self, now_ms: int) -> None:
        """The time is at least this."""
        self._now_s = max(self._now_s, now_ms / 1000)

    def time(self) -> float:
        return self._now_s

    def call_soon(self, *given: Any, **more: Any) -> Any:
        self._busy = True
        return super().call_soon(*given, **more)

    def call_at(self, when: float, callback: Any, *given: Any, context: Any = None) -> Any:
        if when <= self.time():
            return self.call_soon(callback, *given, context=context)
        timer = _Timer(when, callback, given, self, context)
        ask = Ask(("sleep", math.ceil(round(when * 1000, 3))), self._book.turn, lambda _: self._fire(timer))
        timer.on_cancel = lambda: self._book.leave(ask)
        self._book.asked.append(ask)
        return timer

    def _fire(self, timer: _Timer) -> None:
        if not timer.cancelled():
            self.call_soon(timer._callback, *timer._args, context=timer._context)  # type: ignore[attr-defined]

    def create_task(self, coroutine: Any, **more: Any) -> Any:
        task = super().create_task(coroutine, **more)
        self.tasks.append(task)
        return task

    def ask(self, *key: Any) -> asyncio.Future[Any]:
        """A future for something that is asked for."""
        future = _Future(loop=self)

        def settle(outcome: Callable[[], Any]) -> None:
            try:
                future.set_result(outcome())
            except Exception as error:  # noqa: BLE001 - what a program is to see
                future.set_exception(error)

        ask = Ask(key, self._book.turn, settle)
        future.on_cancel = lambda: self._book.leave(ask)
        self._book.asked.append(ask)
        return future

    def run_on(self) -> None:
        """Until all that it runs waits."""
        self._busy = True
        while self._busy:
            self._busy = False
            super().call_soon(self.stop)
            self.run_forever()


class PlainContext:
    """What a program gets as its context: it asks, and remembers nothing."""

    def __init__(self, loop: PlainLoop, book: Notebook, arguments: Arguments) -> None:
        self._loop, self._book, self._arguments = loop, book, arguments

    def call(self, tool: str, n: int, **_: Any) -> Coroutine[Any, Any, Any]:
        return self._later("call", tool, self._arguments(tool, n))

    def run(self, agent: str, given: Any, *, on_parent_end: str) -> Coroutine[Any, Any, Any]:
        return self._later("child", agent, given, on_parent_end == "abandon")

    def start(self, agent: str, given: Any, *, on_parent_end: str) -> asyncio.Future[Any]:
        return self._loop.ask("child", agent, given, on_parent_end == "abandon")

    def wait_for(self, name: str, *, match: str, timeout: Any) -> Coroutine[Any, Any, Any]:
        return self._later("wait", name, match, self._until_ms(timeout))

    def callback(self, name: str, *, schema: Any, timeout: Any) -> asyncio.Future[Any]:
        return self._loop.ask("answer", name, self._until_ms(timeout))

    def answer(self, signal: Any, value: Any) -> None:
        self._say("reply", signal.id, value)

    def note(self, kind: str, data: Any) -> None:
        self._say("note", kind, data)

    def checkpoint(self, name: str) -> None:
        self._say("checkpoint", name)

    def publish(self, event: str, data: Any) -> None:
        self._say("publish", event, data)

    def status(self, text: str) -> None:
        """Nothing waits for it, and it is no step."""
        self._book.values[""] = text

    def expose(self, name: str, value: Any) -> None:
        """The last one of a name holds, and it is no step either."""
        self._book.values[name] = json.dumps(value)

    def _say(self, *key: Any) -> None:
        self._book.asked.append(Ask(key, self._book.turn, lambda _: None))

    def _until_ms(self, timeout: Any) -> int:
        return round(self._loop.time() * 1000) + int(timeout.total_seconds() * 1000)

    async def _later(self, *key: Any) -> Any:
        return await self._loop.ask(*key)


class Plain:
    """A program that plain asyncio runs. `end` is its task when all of it is over."""

    def __init__(self, program: Callable[[Any], Coroutine[Any, Any, Any]], arguments: Arguments) -> None:
        self.book, self._arguments = Notebook(), arguments
        self._loop = PlainLoop(self.book)
        self._program = program
        self._main: asyncio.Task[Any] | None = None
        self.end: asyncio.Task[Any] | None = None
        self._ending: list[asyncio.Task[Any]] = []

    def start(self, now_ms: int) -> None:
        """It begins."""
        self._loop.set_time(now_ms)
        self._main = self._loop.create_task(self._program(PlainContext(self._loop, self.book, self._arguments)))
        self._run_on()

    def settle(self, step: int, outcome: Callable[[], Any], now_ms: int) -> None:
        """Something that it waits for is over: `outcome` gives a value, or raises."""
        self.book.turn += 1
        self._loop.set_time(now_ms)
        self.book.open.pop(step).settle(outcome)
        self._run_on()

    def close(self) -> None:
        """Nobody is interested in it any more."""
        for task in self._loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for _ in range(3):
            for task in self._loop.tasks:
                task.cancel()
            self._loop.run_on()
        self._loop.close()

    def _run_on(self) -> None:
        self._loop.run_on()
        # As `asyncio.run` ends a program: what is left is cancelled, and waited for.
        while self._main is not None and self._main.done() and all(task.done() for task in self._ending):
            self._ending = [task for task in self._loop.tasks if not task.done()]
            if not self._ending:
                self.end = self._main
                return
            for task in self._ending:
                task.cancel()
            self._loop.run_on()


def came(signal_id: str, data: Any) -> Any:
    """What a wait gives."""
    return SimpleNamespace(id=signal_id, data=data)
