"""What tests say of histories, and histories that no code of today has made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from refold import App, Context, NonDeterminismError, UsageError
from refold.sdk.source import spoken
from refold.testing import assert_called, assert_history, replay, run, start

app = App("histories")


@app.tool(effect="pure")
def pay(amount: int, currency: str = "EUR") -> str:
    return f"{amount} {currency}"


@app.tool(effect="pure")
def tell(text: str) -> None:
    return None


@app.agent(name="bill", version="1")
async def bill_in_euro(ctx: Context, amount: int) -> str:
    return await ctx.call(pay, amount)


@app.agent(name="bill", version="2")
async def bill(ctx: Context, amount: int) -> str:
    paid: str = await ctx.call(pay, amount, "USD")
    await asyncio.sleep(86_400)
    await ctx.call(tell, paid)
    return paid


def test_calls_are_asserted_by_tool_arguments_and_number() -> None:
    done = run(app, "bill", amount=3)

    [call] = assert_called(done, pay, {"amount": 3})
    assert call.result == "3 USD"
    assert_called(done, "tell", times=1)
    assert_called(done, pay, {"amount": 4}, times=0)


@pytest.mark.parametrize(
    ("tool", "args", "times", "wrong"),
    [
        (pay, {"amount": 4}, None, 'pay with {"amount":4} was called 0 times, not once or more; there is: {"amount":3'),
        (pay, None, 2, "pay was called 1 times, not 2 times"),
        (bill, None, None, "app histories has no tool bill"),
    ],
)
def test_a_call_that_was_not_made_is_told_with_those_that_were(
    tool: Callable[..., Any], args: Any, times: int | None, wrong: str
) -> None:
    with pytest.raises((AssertionError, UsageError)) as raised:
        assert_called(run(app, "bill", amount=3), tool, args, times=times)

    assert wrong in str(raised.value)


def test_events_are_asserted_in_their_order_and_by_what_they_say() -> None:
    done = run(app, "bill", amount=3)

    assert_history(
        done,
        ("CallProposed", {"tool": "pay", "args": {"amount": 3, "currency": "USD"}}),
        "SleepEnded",
        ("CallProposed", {"tool": "tell"}),
        ("RunCompleted", {"result": '"3 USD"'}),
    )


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [
        (
            ["SleepEnded", ("CallProposed", {"tool": "pay"})],
            "number 2: CallProposed tool='pay', and there is none after",
        ),
        ([("RunCompleted", {"result": "5"})], "number 1: RunCompleted result='5', and there is none\n"),
        (["SleepEnded", "SleepEnded"], "expected as number 2: SleepEnded, and there is none after event"),
        (["SleptWell"], "there is no event SleptWell"),
    ],
)
def test_an_event_that_is_not_there_is_told_with_the_history(expected: Any, wrong: str) -> None:
    done = run(app, "bill", amount=3)

    with pytest.raises((AssertionError, UsageError)) as raised:
        assert_history(done, *expected)

    assert wrong in str(raised.value)
    assert ("RunCompleted  result=" in str(raised.value)) is ("SleptWell" not in wrong)


def test_a_history_is_made_by_code_that_is_gone_and_held_against_that_of_today() -> None:
    async def first(ctx: Context, amount: int) -> str:
        paid: str = await ctx.call(pay, amount, "USD")
        await asyncio.sleep(86_400)
        return paid

    async def another(ctx: Context, amount: int) -> str:
        ctx.note("amount", amount)
        return ""

    half = start(app, "bill", code=first, amount=3)
    half.settle(1)

    assert replay(app, half).status == "suspended"
    with pytest.raises(NonDeterminismError, match="step 1 is note amount in history"):
        replay(app, run(app, "bill", code=another, amount=3))
    with pytest.raises(UsageError, match="app empty has no agent for this run"):
        replay(App("empty"), half)


def test_a_run_of_an_older_version_goes_on_with_that() -> None:
    old = run(app, "bill", code=bill_in_euro, amount=3)

    assert (old.value, spoken(old.state.version)[0]) == ("3 EUR", "1")
    assert spoken(run(app, "bill", amount=3).state.version)[0] == "2"
    assert replay(app, old).over
    assert app.agents["bill"].function is bill


def test_code_that_cannot_stand_in_is_refused() -> None:
    with pytest.raises(UsageError, match="agent 'bill' is not an async function"):
        start(app, "bill", code=pay, amount=3)
