"""Agent code that raises whatever can be raised, wherever it can."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from refold import App, Context, Retry, testing
from refold.core.errors import CallFailed, TerminalError, UsageError, text_of
from refold.core.events import RetryPolicy
from refold.core.run.intents import Call
from refold.core.run.replay import Raised, Returned
from refold.core.run.state import Settled
from refold.sdk import loop
from tests.sdk.replays import Run, call, note


def test_dropping_code_runs_its_finally_blocks_and_hears_nothing() -> None:
    left: list[str] = []

    async def code() -> None:
        try:
            await call("a")
        finally:
            left.append("finally")
            await call("b")

    run = Run(code)
    run.execution.close()

    assert left == ["finally"]
    assert run.execution.steps == 1


async def _within_a_timeout() -> None:
    async with asyncio.timeout(5):
        await call("a")


async def _in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(call("a"))


async def _of_a_generator() -> None:
    async def numbers() -> AsyncIterator[str]:
        while True:
            with suppress(BaseException):
                yield await call("a")

    async for _ in numbers():
        return


WAITS: list[Callable[[], Awaitable[Any]]] = [
    lambda: call("a"),
    lambda: asyncio.sleep(5),
    lambda: asyncio.wait_for(call("a"), 5),
    lambda: asyncio.gather(call("a"), call("b")),
    lambda: asyncio.Event().wait(),
    lambda: asyncio.Queue[int]().get(),
    lambda: anyio.sleep(5),
    _within_a_timeout,
    _in_a_group,
    _of_a_generator,
]
HELD: list[Any] = []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("in_a_task", [False, True])
@pytest.mark.parametrize("wait", WAITS)
def test_code_that_catches_everything_ends_when_it_is_dropped_and_not_in_a_collector(
    wait: Callable[[], Awaitable[Any]], in_a_task: bool, held: bool
) -> None:
    rounds, most = [0], 20_000
    event: list[asyncio.Event] = []

    async def listens() -> None:
        event.append(asyncio.Event())
        while rounds[0] < most:
            try:
                await wait()
                await event[0].wait()  # of the loop of the run, and of no other
            except:  # noqa: E722
                rounds[0] += 1

    async def code() -> None:
        coroutine = listens()
        if held:
            HELD.append(coroutine)
        await (asyncio.create_task(coroutine) if in_a_task else coroutine)

    run = Run(code)
    assert run.execution.close()
    del run
    HELD.clear()
    gc.collect()

    assert rounds[0] < most


@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_code_that_raises_what_ends_programs_ends_itself_alone(error: BaseException) -> None:
    async def inner() -> None:
        raise error

    async def code() -> None:
        await asyncio.gather(inner(), call("a"))

    run = Run(code)

    assert isinstance(run.execution.end, Raised)
    assert type(run.execution.end.error) is type(error)
    assert run.execution.steps == 0  # asked for and given up within one turn, a call never becomes a step


def test_code_that_is_dropped_may_raise_and_ask_in_all_its_branches() -> None:
    heard: list[str] = []

    async def clean(name: str) -> None:
        try:
            await call(name)
        finally:
            heard.append(name)
            if name == "b":
                note("kind", "1")
            raise SystemExit

    async def code() -> None:
        await asyncio.gather(clean("a"), clean("b"), clean("c"))

    run = Run(code)
    run.execution.close()

    assert sorted(heard) == ["a", "b", "c"]


def test_what_reads_an_outcome_may_raise_anything() -> None:
    def exits(outcome: Settled) -> str:
        raise SystemExit("a validator")

    async def code() -> str:
        try:
            await loop.step(Call("a", "{}", "default", "pure", 1_000, RetryPolicy(), 0, exits))
        except SystemExit:
            return "heard"
        return "not heard"

    run = Run(code)
    run.settle(1)

    assert run.execution.end == Returned("heard")


class Untold(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Sly(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise SystemExit

    def __str__(self) -> str:
        return self


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Untold(), "(it cannot be told: its __str__ raises)"),
        (ValueError(), "ValueError"),
        (ValueError(Sly("sly")), "sly"),
        (ValueError("\ud800"), "?"),
        (ValueError("a" * 9_999), "a" * 2_000),
    ],
)
def test_every_error_has_a_text(error: BaseException, text: str) -> None:
    assert text_of(error) == text


def test_a_group_of_errors_says_what_is_in_it() -> None:
    inner = ExceptionGroup("more", [UsageError("no socket", hint="call a tool")])
    group = ExceptionGroup("two", [ValueError("one"), inner])

    assert text_of(group) == (
        "two (2 sub-exceptions): ValueError: one; "
        "ExceptionGroup: more (1 sub-exception): UsageError: no socket: call a tool"
    )
    assert len(text_of(ExceptionGroup("many", [ValueError("x" * 500)] * 50))) == 2_000


def test_a_failure_names_what_it_was_raised_from() -> None:
    app = App("causes")

    @app.tool(effect="pure", retry=Retry(attempts=1))
    def refuses() -> None:
        try:
            raise OSError("connection reset")
        except OSError as error:
            raise TerminalError("no price") from error

    @app.agent
    async def agent(ctx: Context) -> None:
        try:
            await ctx.call(refuses)
        except CallFailed as error:
            raise LookupError(error.fields["message"]) from ValueError("bad")

    failure = testing.run(app, "agent").failure

    assert failure is not None
    assert failure.message == "no price (from OSError: connection reset) (from ValueError: bad)"


@pytest.mark.parametrize("circle", [False, True])
def test_causes_of_causes_have_an_end(circle: bool) -> None:
    first, last = ValueError("v" * 5_000), KeyError("k")
    first.__cause__ = last
    last.__cause__ = first if circle else None

    assert len(text_of(last)) <= 2_000
    assert len(text_of(first)) <= 2_000


def test_a_task_that_failed_and_that_nothing_awaits_is_logged_when_its_run_is_dropped(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = App("tasks")

    async def fails() -> None:
        raise ValueError("lost")

    @app.agent
    async def waits(ctx: Context) -> None:
        HELD.append(asyncio.create_task(fails()))
        asyncio.gather(fails())
        await ctx.wait_for("never")

    testing.start(app, "waits").take_over()
    HELD.clear()

    assert "task.failed" in (out := capsys.readouterr().out)
    assert "lost" in out
    assert "was never retrieved: ValueError: lost" in caplog.text
