"""How agents end on their loop: what they leave running, what nobody hears of, what never waits."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio
import anyio.to_thread
import pytest

from refold.core.events import CallProposed
from refold.sdk import execution
from tests.sdk.replays import Run, call, error, tools, value


def test_what_an_agent_leaves_running_is_cancelled_and_its_clean_up_may_call() -> None:
    async def left() -> None:
        try:
            await call("left")
        finally:
            await call("clean")

    async def code() -> str:
        task = asyncio.create_task(left())
        await call("a")
        return f"returned, {task.done()}"

    run = Run(code)
    run.settle(1)
    assert run.execution.end is None
    assert tools(run) == ["a", "left", "clean"]
    assert list(run.state.given_up) == [2]

    run.settle(3)

    assert value(run) == "returned, False"


@pytest.mark.parametrize("clean", ["gather", "wait_for", "group", "anyio"])
def test_a_clean_up_at_the_end_may_have_tasks_of_its_own(clean: str) -> None:
    heard: list[Any] = []

    async def clean_up() -> None:
        if clean == "gather":
            heard.append(await asyncio.gather(call("b"), call("c")))
        elif clean == "wait_for":
            heard.append([await asyncio.wait_for(call("b"), 5), await call("c")])
        elif clean == "group":
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(call(tool)) for tool in "bc"]
            heard.append([task.result() for task in made])
        else:
            results: list[Any] = []
            async with anyio.create_task_group() as group:
                for tool in "bc":
                    group.start_soon(keeps, results, tool)
            heard.append(results)

    async def keeps(results: list[Any], tool: str) -> None:
        results.append(await call(tool))

    async def left() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await clean_up()

    async def code() -> str:
        asyncio.create_task(left())  # noqa: RUF006
        await asyncio.sleep(0)
        return "over"

    run = Run(code)
    while calls := [step for step in run.open if isinstance(run.state.steps[step - 1], CallProposed)]:
        run.settle(calls[0])

    assert heard == [["1", "1"]]
    assert value(run) == "over"


def test_what_a_clean_up_leaves_running_is_cancelled_in_its_turn() -> None:
    async def again() -> None:
        await call("again")

    async def left() -> None:
        try:
            await call("left")
        finally:
            asyncio.create_task(again())  # noqa: RUF006

    async def code() -> int:
        asyncio.create_task(left())  # noqa: RUF006
        await asyncio.sleep(0)
        return 1

    assert value(Run(code)) == 1


def test_tasks_that_bring_forth_tasks_for_ever_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MOST_CALLBACKS", 10_000)
    monkeypatch.setattr(execution, "UNWIND_CALLBACKS", 1_000)

    async def hydra() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            asyncio.create_task(hydra())  # noqa: RUF006
            await asyncio.sleep(0)

    async def code() -> None:
        asyncio.create_task(hydra())  # noqa: RUF006
        await asyncio.sleep(0)

    assert "more than 10,000 things" in str(error(Run(code)))


def test_failed_tasks_that_nobody_awaited_are_told() -> None:
    async def fails(number: int) -> None:
        if number:
            await call("a")
        raise ValueError(f"number {number}")

    async def code() -> str:
        tasks = [asyncio.create_task(fails(number), name=f"failing-{number}") for number in (1, 0, 2)]
        asyncio.get_running_loop().call_soon(int, "x")
        with pytest.raises(ValueError, match="number 2"):
            await tasks[2]
        return str(await call("b"))

    run = Run(code)
    for step in (1, 2, 3):
        run.settle(step)

    assert value(run) == "1"
    unheard = [(name, str(failure)) for name, failure in run.execution.unheard]
    assert unheard[1:] == [("failing-1", "number 1"), ("failing-0", "number 0")]
    assert unheard[0][0].startswith("Exception in callback")


def test_tasks_that_wait_for_each_other_are_named() -> None:
    async def code() -> None:
        event = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(event.wait(), name="waiter")
            await call("a")

    run = Run(code)
    assert run.execution.waits_for_nothing == ""

    run.settle(1)

    assert "waiter (Event.wait, line" in run.execution.waits_for_nothing
    assert run.execution.waits_for_nothing.startswith("main (")


def test_code_that_never_waits_ends_with_a_reason_and_hands_the_planner_back() -> None:
    async def code() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    assert "more than 1,000,000 things" in str(error(Run(code)))


def test_a_task_that_exits_ends_itself_and_whoever_awaits_it_hears() -> None:
    async def exits() -> NoReturn:
        sys.exit(3)

    async def code() -> str:
        try:
            await asyncio.create_task(exits())
        except SystemExit as stopped:
            return f"exit {stopped.code}, {await call('a')}"
        return "not heard"  # type: ignore[unreachable]

    run = Run(code)
    run.settle(1)

    assert value(run) == "exit 3, 1"


def test_generators_that_were_left_are_closed_at_the_end_in_the_order_of_their_birth() -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncGenerator[int, None]:
        try:
            for number in range(9):
                yield number
        finally:
            closed.append(name)
            await call(f"closes {name}")

    async def code() -> list[str]:
        for name in "abc":
            async for _ in numbers(name):
                break
            gc.collect()
        return list(closed)

    run = Run(code)
    for step in (1, 2, 3):
        run.settle(step)

    assert value(run) == []
    assert closed == ["a", "b", "c"]
    assert tools(run) == ["closes a", "closes b", "closes c"]


def test_generators_that_are_over_are_not_held() -> None:
    @asynccontextmanager
    async def within() -> AsyncIterator[int]:
        yield 1

    async def code() -> None:
        for _ in range(2_000):
            async with within():
                pass
        await call("a")

    assert len(Run(code).execution._generators) < 200
