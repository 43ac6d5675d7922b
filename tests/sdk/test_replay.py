"""Agent code against history: bare coroutines over steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.errors import CallFailed as CallFailedError
from refold.core.errors import NonDeterminismError
from refold.core.events import CallCompleted, CallProposed, RetryPolicy
from refold.core.run.intents import Call
from refold.core.run.persistent import PersistentList
from refold.core.run.replay import Moment, Raised, Returned, replay
from refold.core.run.state import RunState
from refold.sdk.execution import Execution
from tests.core.histories import examples
from tests.sdk.replays import Code, Run, call, note


async def two_calls() -> list[str]:
    first = await call("a")
    return [first, await call("b", first)]


async def wide() -> Any:
    note("plan")
    pairs = asyncio.gather(call("d"), call("e"), return_exceptions=True)
    results = await asyncio.gather(call("a"), pair("b"), asyncio.sleep(0.5), pairs, return_exceptions=True)
    return [results, await call("f")]


async def pair(tool: str) -> str:
    return str(await call(tool)) + str(await call(f"{tool}2"))


def test_code_runs_to_its_frontier_and_on_from_there() -> None:
    run = Run(two_calls)
    assert run.open == [1]

    run.settle(1, "7")
    run.settle(2, "8")

    assert run.execution.end == Returned(["7", "8"])
    assert [step.args for step in run.state.steps if isinstance(step, CallProposed)] == ["{}", "7"]


def test_a_replay_stops_where_the_code_stood() -> None:
    run = Run(two_calls)
    run.settle(1, "7")

    execution = run.again()

    assert execution.end is None
    assert execution.settle(2, CallCompleted(2, 1, "8")) == []
    assert execution.end == Returned(["7", "8"])


def test_a_gather_asks_for_all_at_once_and_gives_results_in_order() -> None:
    run = Run(wide)
    assert [getattr(step, "tool", None) for step in run.state.steps] == [None, "d", "e", "a", "b", None]

    for step in (6, 5, 3, 2, 4):
        run.settle(step, str(step))
    run.settle(7, "7")
    run.settle(8, "8")

    assert run.execution.end == Returned([["4", "57", None, ["2", "3"]], "8"])


@examples
@given(st.integers(0, 2**32), st.integers(0, 20))
def test_whatever_the_order_of_completions_a_replay_comes_to_the_same_place(seed: int, upto: int) -> None:
    rng, run = random.Random(seed), Run(wide)
    for _ in range(upto):
        if run.open:
            run.settle(rng.choice(run.open), rng.choice(["1", "2"]))

    execution = run.again()

    assert execution.end == run.execution.end
    assert execution.steps == run.execution.steps == len(run.state.steps)


def test_a_failure_of_a_call_reaches_the_code_and_may_be_handled() -> None:
    async def careful() -> str:
        try:
            return str(await call("a"))
        except CallFailedError:
            return "handled"

    run = Run(careful)
    run.settle(1, None)

    assert run.execution.end == Returned("handled")
    assert run.again().end == Returned("handled")


def test_a_gather_raises_the_first_failure_in_time_and_gives_the_others_up() -> None:
    async def code() -> None:
        await asyncio.gather(call("a"), call("b"), call("c"))

    run = Run(code)
    run.settle(3, None)

    assert isinstance(run.execution.end, Raised)
    assert isinstance(run.execution.end.error, CallFailedError)
    assert sorted(run.state.given_up) == [1, 2]


def test_an_error_of_the_code_ends_it() -> None:
    async def code() -> None:
        note("thought", "1")
        raise ValueError("mine")

    end = Run(code).execution.end

    assert isinstance(end, Raised)
    assert str(end.error) == "mine"


def test_thousands_of_notes_need_no_deep_stack() -> None:
    async def code() -> int:
        for n in range(5_000):
            note("n", str(n))
        return 5_000

    assert Run(code).execution.end == Returned(5_000)


async def other_tool() -> None:
    await call("x")


async def other_args() -> None:
    await call("a", "[]")


async def sleeps_instead() -> None:
    await asyncio.sleep(5)


async def notes_first() -> None:
    note("plan")
    await two_calls()


async def ends_early() -> str:
    return str(await call("a"))


async def asks_for_more() -> None:
    await asyncio.gather(call("a"), call("b", "7"), call("c"))


@pytest.mark.parametrize(
    ("code", "step", "expected", "found", "change"),
    [
        (other_tool, 1, "call a({})", "call x({})", "renamed"),
        (other_args, 1, "call a({})", "call a([])", "arguments"),
        (sleeps_instead, 1, "call a({})", "sleep", "replaced"),
        (notes_first, 1, "call a({})", "note plan", "added"),
        (ends_early, 2, "call b(7)", "nothing", "removed"),
    ],
)
def test_code_that_differs_from_history_is_told_where_and_how(
    code: Callable[[], Code], step: int, expected: str, found: str, change: str
) -> None:
    run = Run(two_calls)
    run.settle(1, "7")

    with pytest.raises(NonDeterminismError) as caught:
        run.again(code)

    assert caught.value.fields == {"step": step, "expected": expected, "found": found, "change": change}


def test_a_settled_step_that_the_code_does_not_wait_for_is_told() -> None:
    run = Run(asks_for_more)
    run.settle(3, "1")

    with pytest.raises(NonDeterminismError, match=r"step 2 is call b\(7\) in history, and the code asked for nothing"):
        run.again(two_calls)


def test_new_steps_beyond_the_history_are_returned_and_not_compared() -> None:
    run = Run(two_calls)
    run.settle(1, "7")
    run.state.steps = PersistentList(run.state.steps[:-1])

    beyond = replay(Execution(two_calls(), Moment(), "seed"), run.state, unseen=1)

    assert [(step, intent.args) for step, intent in beyond if isinstance(intent, Call)] == [(2, "7")]


def test_what_code_does_of_what_it_has_seen_is_never_beyond_the_history() -> None:
    run = Run(two_calls)
    run.settle(1, "7")
    run.state.steps = PersistentList(run.state.steps[:-1])

    with pytest.raises(NonDeterminismError) as raised:
        run.again()

    assert raised.value.fields == {"step": 2, "expected": "nothing", "found": "call b(7)", "change": "added"}


def test_code_that_raises_along_its_history_is_no_end_of_it() -> None:
    async def broken() -> None:
        await call("a")
        raise ImportError("no such module here")

    run = Run(two_calls)
    run.settle(1, "7")

    with pytest.raises(NonDeterminismError, match="step 2 is call b") as raised:
        run.again(broken)

    assert isinstance(raised.value.__cause__, ImportError)


@examples
@given(st.integers(0, 2**32))
def test_code_that_was_held_for_a_while_comes_to_the_same_place_ever_after(seed: int) -> None:
    rng, run, unseen = random.Random(seed), Run(wide), 0
    while run.open or unseen:
        if unseen and (not run.open or rng.random() < 0.3):
            run.catch_up(unseen)  # its hold is taken back, and it is driven along all that has come
            unseen = 0
        elif unseen or rng.random() < 0.5:
            run.outcome(rng.choice(run.open), rng.choice(["1", "2", None]))
            unseen += 1
        else:
            run.settle(rng.choice(run.open), rng.choice(["1", "2", None]))

    assert run.execution.end is not None
    assert describe_end(run.again()) == describe_end(run.execution)


def describe_end(execution: Execution) -> str:
    end = execution.end
    return f"{execution.steps} {end if isinstance(end, Returned) else type(getattr(end, 'error', None))}"


def test_time_is_that_of_the_record_that_woke_the_code() -> None:
    seen: list[tuple[int, bool]] = []
    moment = Moment()

    async def code() -> None:
        seen.append((moment.now_ms, moment.replaying))
        await call("a")
        seen.append((moment.now_ms, moment.replaying))
        await call("b")

    state = RunState("run-1", started_ms=100)
    policy = RetryPolicy()
    state.steps = PersistentList(
        CallProposed(n, tool, "{}", "k", "p", "keyed", 1, policy) for n, tool in ((1, "a"), (2, "b"))
    )
    state.outcomes = state.outcomes.add(1, (222, CallCompleted(1, 1, "1"), 0))

    replay(Execution(code(), moment, "seed"), state)

    assert [now for now, _ in seen] == [100, 222]
    assert not moment.replaying
