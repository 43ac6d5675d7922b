"""The loop of agents, rule by rule: ordinary asyncio, and what it does where a replay could not follow."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from refold.core.events import LAST_MS, SleepStarted
from refold.sdk.loop import Loop
from tests.sdk.replays import Code, Run, call, value

PLACE: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")
YEAR_S = 365 * 24 * 3600


# Time


def test_a_timer_is_a_step_and_its_time_is_that_of_the_entry_that_woke_the_code() -> None:
    async def code() -> list[float]:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(2)
        return [before, loop.time()]

    run = Run(code)
    assert [step.until_ms for step in run.state.steps if isinstance(step, SleepStarted)] == [2_100]

    run.execution.moment.now_ms = 2_250
    run.record(run.execution.settle(1, run.outcome(1)))

    assert value(run) == [0.1, 2.25]


def test_the_time_is_never_before_a_timer_that_fired_and_never_goes_back() -> None:
    async def code() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(60)
        fired = loop.time()
        await call("a")
        return [fired, loop.time(), time.time()]

    run = Run(code)
    run.settle(1)  # the entry says 0.201
    run.settle(2)

    assert value(run) == [60.1, 60.1, 60.1]


def test_every_clock_that_a_library_may_read_is_the_time_of_the_log() -> None:
    clocks = [time.time, time.monotonic, time.perf_counter]
    exact = [time.time_ns, time.monotonic_ns, time.perf_counter_ns]

    async def code() -> list[float]:
        await asyncio.sleep(60)
        return [*(clock() for clock in clocks), *(clock() / 1_000_000_000 for clock in exact)]

    run = Run(code)
    run.settle(1)

    assert value(run) == [60.1] * 6
    assert time.perf_counter() < 40 * YEAR_S


def test_a_sleep_of_zero_gives_way_and_is_no_step() -> None:
    async def code() -> list[str]:
        done: list[str] = []

        async def other() -> None:
            done.append("other")

        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        await asyncio.sleep(-5)
        done.append("main")
        await task
        return done

    run = Run(code)

    assert value(run) == ["other", "main"]
    assert run.execution.steps == 0


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 9_000 * YEAR_S])
def test_a_sleep_without_an_end_that_a_date_could_show_is_over_with_the_year_9999(seconds: float) -> None:
    async def code() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(seconds))
            await call("a")

    run = Run(code)
    run.execution.close()

    assert run.execution.end is None
    assert all(step.until_ms <= LAST_MS for step in run.state.steps if isinstance(step, SleepStarted))


def test_what_waits_for_ever_ends_when_it_is_cancelled() -> None:
    async def code() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            got = await call("a")
            group.cancel_scope.cancel()
        return str(got)

    run = Run(code)
    run.settle(len(run.state.steps))

    assert value(run) == "1"


def test_a_timeout_around_what_does_not_wait_costs_no_step() -> None:
    async def code() -> int:
        async with asyncio.timeout(5):  # noqa: ASYNC100
            pass
        with anyio.fail_after(5):  # noqa: ASYNC100
            return 1

    assert value(Run(code)) == 1
    assert Run(code).execution.steps == 0


# Turns


def test_a_run_is_driven_within_a_loop_that_runs() -> None:
    async def code() -> str:
        return str(await call("a")) + str(type(asyncio.get_running_loop()) is Loop)

    async def planner() -> Run:
        outer, task = asyncio.get_running_loop(), asyncio.current_task()
        async with asyncio.timeout(60):
            run = Run(code)
            run.settle(1)
            run.execution.close()
            await asyncio.sleep(0)
        assert asyncio.get_running_loop() is outer
        assert asyncio.current_task() is task
        return run

    assert value(asyncio.run(planner())) == "1True"


def test_collectors_and_hooks_are_as_they_were_after_a_turn() -> None:
    before = gc.isenabled(), sys.get_asyncgen_hooks(), PLACE.get()

    async def numbers() -> AsyncGenerator[int, None]:
        yield 1

    async def code() -> None:
        PLACE.set("agent")
        async for _ in numbers():
            await call("a")

    run = Run(code)
    run.settle(1)

    assert (gc.isenabled(), sys.get_asyncgen_hooks(), PLACE.get()) == before
    assert time.time() > YEAR_S


# Dropping


def test_dropped_code_leaves_its_async_withs() -> None:
    left: list[str] = []

    @asynccontextmanager
    async def within(name: str) -> AsyncIterator[None]:
        token = PLACE.set(name)
        try:
            yield
        finally:
            PLACE.reset(token)
            left.append(name)

    async def code() -> None:
        async with within("outer"), asyncio.TaskGroup() as group:
            group.create_task(inner())
            with anyio.CancelScope(), anyio.CancelScope(shield=True):
                await call("a")

    async def inner() -> None:
        async with within("inner"), asyncio.timeout(9):
            await call("b")

    run = Run(code)
    run.execution.close()

    assert left == ["inner", "outer"]


def stubborn_asks() -> Code:
    async def code() -> None:
        while True:
            try:
                await call("a")
            except asyncio.CancelledError:
                continue

    return code()


def stubborn_gives_way() -> Code:
    async def code() -> None:
        await call("a")

    async def never_ends() -> None:
        while True:
            try:
                await code()
            except BaseException:  # noqa: BLE001
                await asyncio.sleep(0)

    return never_ends()


@pytest.mark.parametrize("code", [stubborn_asks, stubborn_gives_way])
def test_code_that_does_not_end_when_it_is_dropped_is_ended(code: Callable[[], Code]) -> None:
    run = Run(code)
    begun = time.process_time()

    run.execution.close()

    assert time.process_time() - begun < 20
    assert run.execution.steps == 1


def test_what_is_dropped_leaves_nothing_behind() -> None:
    async def code() -> None:
        async with anyio.create_task_group() as group:
            for tool in "abc":
                group.start_soon(within, tool)

    async def within(tool: str) -> None:
        with anyio.move_on_after(5):
            await call(tool)

    backend = sys.modules["anyio._backends._asyncio"]
    gc.collect()
    before = len(backend._task_states), sum(isinstance(thing, Loop) for thing in gc.get_objects())
    for _ in range(20):
        run = Run(code)
        run.settle(1)
        run.execution.close()
    del run
    gc.collect()

    after = len(backend._task_states), sum(isinstance(thing, Loop) for thing in gc.get_objects())
    assert after[0] <= before[0]  # what earlier tests have left may be collected meanwhile
    assert after[1] <= before[1]
