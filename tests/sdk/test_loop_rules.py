"""What the loop of agents keeps from them, and what it does not do: a replay could not follow."""

from __future__ import annotations

import asyncio
import contextvars
import random
import secrets
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from refold.core.errors import UsageError
from refold.core.run.replay import Moment
from refold.sdk.determinism import watch
from refold.sdk.execution import Execution
from tests.sdk.replays import Run, call, error, tools, value

PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


# What each run has of its own


def test_an_agent_sees_nothing_of_the_context_around_it() -> None:
    seen: list[str] = []

    async def generator() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            seen.append(f"closing {PLACE.get()}")

    async def code() -> None:
        seen.append(PLACE.get())
        await asyncio.gather(inner("left"), inner("right"))
        async for _ in generator():
            break
        seen.append(PLACE.get())

    async def inner(place: str) -> None:
        PLACE.set(place)
        await call("a")
        seen.append(PLACE.get())

    token = PLACE.set("planner")
    run = Run(code)
    run.settle(2)
    run.settle(1)

    assert seen == ["nowhere", "right", "left", "nowhere", "closing nowhere"]
    assert PLACE.get() == "planner"
    PLACE.reset(token)


def test_what_libraries_draw_comes_of_the_run_alone_and_each_place_has_its_own() -> None:
    def drawn(*, also: bool) -> list[Any]:
        async def code() -> list[Any]:
            if also:
                random.random()
                uuid.uuid4()
            return [random.random(), uuid.uuid4(), secrets.token_hex(4), random.Random().random(), random.choice("abc")]

        found: list[Any] = value(Run(code))
        return found

    assert drawn(also=False)[:4] == drawn(also=False)[:4]
    same = [one == other for one, other in zip(drawn(also=False)[:4], drawn(also=True)[:4], strict=True)]
    assert same == [True, True, True, True]
    assert random.random() != random.random()


def test_sets_of_tasks_and_futures_have_the_same_order_in_every_run_of_the_code() -> None:
    async def code() -> list[str]:
        tasks = {asyncio.create_task(call(str(number)), name=str(number)) for number in range(50)}
        done, _ = await asyncio.wait([*tasks, asyncio.create_task(call("last"), name="last")], timeout=1)
        return [task.get_name() for task in [*tasks, *done]]

    def order() -> list[str]:
        run = Run(code)
        for step in range(1, 40):
            run.settle(step)
        run.settle(52)
        found: list[str] = value(run)
        return found

    first, litter = order(), [object() for _ in range(1_000)]

    assert order() == first
    assert len(litter) == 1_000


def test_all_tasks_come_in_the_same_order_whatever_else_runs_in_the_process() -> None:
    async def work(number: int) -> None:
        for _ in range(number * 3 % 7):
            asyncio.get_running_loop().create_future()
        await call(str(number))

    async def code() -> list[str]:
        tasks = []
        for number in range(12):
            tasks.append(asyncio.create_task(work(number), name=str(number)))
            await asyncio.sleep(0)
        await call("last")
        return [task.get_name() for task in asyncio.all_tasks() if task in tasks]

    def order() -> list[str]:
        run = Run(code)
        run.settle(13)
        found: list[str] = value(run)
        return found

    async def other() -> None:
        await call("other")

    first, others = order(), [Execution(other(), Moment(), f"other {number}") for number in range(200)]
    for each in others:
        each.start()

    assert order() == first
    for each in others:
        each.close()


def test_two_runs_side_by_side_hash_apart() -> None:
    hashes: list[int] = []

    async def code() -> None:
        hashes.extend(hash(asyncio.get_running_loop().create_future()) for _ in range(100))
        await call("a")

    for number in range(50):
        Execution(code(), Moment(), f"seed {number}").start()

    assert len(set(hashes)) == 5_000


# What there is not


@pytest.mark.parametrize(
    ("refused", "hint"),
    [
        (lambda loop: loop.call_soon_threadsafe(print), "asyncio.gather"),
        (lambda loop: loop.run_forever(), "asyncio.gather"),
        (lambda loop: loop.set_task_factory(asyncio.Task), "asyncio.gather"),
        (lambda loop: loop.set_default_executor(None), "asyncio.gather"),
        (lambda loop: loop.create_connection(asyncio.Protocol, "::1", 80), "@app.tool"),
        (lambda loop: loop.getaddrinfo("localhost", 80), "@app.tool"),
        (lambda loop: loop.subprocess_shell(asyncio.Protocol, "ls"), "@app.tool"),
        (lambda loop: loop.add_reader(0, print), "@app.tool"),
        (lambda loop: loop.add_signal_handler(2, print), "@app.tool"),
    ],
)
def test_what_a_replay_could_not_repeat_the_loop_does_not_do(refused: Callable[[Any], Any], hint: str) -> None:
    async def code() -> None:
        refused(asyncio.get_running_loop())

    failure = error(Run(code))

    assert isinstance(failure, UsageError)
    assert isinstance(failure, NotImplementedError)
    assert hint in failure.hint


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are none before 3.12")
def test_eager_tasks_are_refused() -> None:
    async def code() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(UsageError, match="eager"):
            loop.create_task(asyncio.Event().wait, eager_start=True)  # type: ignore[call-arg, arg-type]  # noqa: RUF006
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]

    assert isinstance(error(Run(code)), UsageError)


def test_an_executor_runs_here_and_now_and_sees_no_loop() -> None:
    def plain(number: int) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return f"{number} {random.random()}"

    async def code() -> list[str]:
        loop = asyncio.get_running_loop()
        results = [await loop.run_in_executor(None, plain, 1), await asyncio.to_thread(plain, 1)]
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        assert asyncio.get_running_loop() is loop
        return results

    run, other = Run(code), Run(code)

    assert value(run) == value(other)
    assert run.execution.steps == 0


def test_a_thread_of_anyio_is_refused_by_the_watch() -> None:
    async def code() -> None:
        await anyio.to_thread.run_sync(int)

    with watch.watching():
        run = Run(code)

    assert "a replay would do again" in str(error(run))


def test_a_cancellation_that_is_swallowed_does_not_keep_a_turn_alive() -> None:
    async def code() -> str:
        with anyio.CancelScope() as scope:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                return str(await call("a"))
        return "never"

    run = Run(code)
    assert tools(run) == ["a"]

    run.settle(1)

    assert value(run) == "1"
