"""`crash_matrix`: what it finds in tools that are not what they are declared to be, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from refold import DID_NOT_HAPPEN, App, Context
from refold.testing import AgentRun, Boundary, CrashError, answer, crash_matrix


class Bank:
    """A receiver: it knows keys, if it is told any."""

    def __init__(self) -> None:
        self.transfers: list[str] = []
        self._keys: dict[str, str] = {}

    def pay(self, what: str, key: str = "") -> str:
        if key not in self._keys or not key:
            self.transfers.append(what)
            self._keys[key] = f"payment-{len(self.transfers)}"
        return self._keys[key]

    @property
    def moved(self) -> int:
        return len(self.transfers)


BANK = Bank()
app = App("shop")


@app.tool(effect="keyed")
def pay(amount: int, *, idempotency_key: str) -> str:
    return BANK.pay(f"pay {amount}", idempotency_key)


@app.tool(effect="keyed")
def pay_twice(amount: int, *, idempotency_key: str) -> str:
    return BANK.pay(f"pay {amount}")


@app.tool(effect="keyed")
def key_lost_on_the_way(amount: int, *, idempotency_key: str) -> str:
    return BANK.pay(f"pay {amount} for {idempotency_key}")


@app.tool(effect="pure")
def look_up(amount: int) -> str:
    return BANK.pay("looked up")


@app.tool(effect="once")
def shout(amount: int) -> str:
    return BANK.pay(f"shout {amount}")


@app.tool(effect="probed", probe=lambda *, idempotency_key: DID_NOT_HAPPEN)
def forgetful(amount: int) -> str:
    return BANK.pay(f"forgetful {amount}")


@app.tool(effect="keyed")
def refuses_the_second_time(amount: int, *, idempotency_key: str) -> str:
    if idempotency_key in BANK._keys:
        raise ValueError("there is such a payment")
    return BANK.pay("x", idempotency_key)


@app.agent
async def buys(ctx: Context, tool: str) -> list[str]:
    first = await ctx.call(tool, amount=1)
    await asyncio.sleep(86_400)
    return [first, await ctx.call(tool, amount=2)]


@app.agent
async def twenty(ctx: Context) -> int:
    for amount in range(20):
        await ctx.call(pay, amount)
    return 20


@app.agent
async def waits(ctx: Context) -> Any:
    try:
        return (await ctx.wait_for("paid", timeout=timedelta(days=1))).data
    except TimeoutError:
        return await ctx.call(shout, 3)


def matrix(tool: str, effects: Callable[[], int] | None) -> str:
    with pytest.raises(CrashError) as raised:
        crash_matrix(app, "buys", {"tool": tool}, effects=effects)
    assert str(raised.value) == str(raised.value.report)
    return str(raised.value)


@pytest.mark.parametrize("effects", [lambda: BANK.moved, None])
def test_tools_that_are_what_they_say_pass_at_every_boundary(effects: Callable[[], int] | None) -> None:
    report = crash_matrix(app, "buys", {"tool": "pay"}, effects=effects)

    assert report.ok
    # request, first result, a day later, second result; each of two tools twice; and undisturbed
    assert (report.entries, report.tools_run, report.cases) == (4, 2, 1 + 4 + 2 + 2)
    assert (report.effects, report.doubts) == ({"pay": 2}, {})


@pytest.mark.parametrize("effects", [lambda: BANK.moved, None])
def test_a_tool_that_does_not_use_its_key_is_found(effects: Callable[[], int] | None) -> None:
    text = matrix("pay_twice", effects)

    assert (
        "pay_twice (keyed) acted 2 times with the executor killed between the effect and the log hearing of it" in text
    )
    assert 'step 1, pay_twice({"amount":1}), key ' in text
    assert "it does not use its idempotency_key" in text


def test_a_receiver_that_is_not_given_the_key_as_a_key_is_found_by_what_it_did() -> None:
    assert "whoever it calls does not recognise its idempotency_key" in matrix(
        "key_lost_on_the_way", lambda: BANK.moved
    )


def test_a_tool_that_is_declared_pure_and_acts_is_found_without_a_kill() -> None:
    with pytest.raises(CrashError) as raised:
        crash_matrix(app, "buys", {"tool": "look_up"}, effects=lambda: BANK.moved)

    first = raised.value.report.repeated[0]
    assert (first.tool, first.times, first.boundary) == ("look_up", 1, Boundary("planner", 0))
    assert "declare it keyed, probed or once" in str(raised.value)


def test_a_probe_that_says_no_of_what_happened_is_found() -> None:
    assert "its probe said that it did not happen, and it had" in matrix("forgetful", None)


def test_a_tool_that_fails_the_second_time_leads_the_run_astray() -> None:
    with pytest.raises(CrashError) as raised:
        crash_matrix(app, "buys", {"tool": "refuses_the_second_time"}, effects=lambda: BANK.moved)

    assert [boundary for boundary, _ in raised.value.report.astray] == [Boundary("after", 1), Boundary("after", 2)]
    assert "(keyed), made again, came to be in doubt (there is such a payment) with the exec" in str(raised.value)


def test_a_call_that_is_made_once_is_never_made_twice_and_people_are_asked() -> None:
    report = crash_matrix(app, "buys", {"tool": "shout"}, effects=lambda: BANK.moved)

    assert report.doubts == {"shout": 4}
    assert "people were asked what came of: shout (4)" in str(report)


def test_runs_that_wait_for_somebody_are_driven_by_the_test() -> None:
    def told(run: AgentRun) -> None:
        run.signal("paid", 7).finish()

    report = crash_matrix(app, "waits", {}, drive=told)
    late = crash_matrix(app, "waits", {}, effects=lambda: BANK.moved)

    assert (report.effects, late.effects) == ({}, {"shout": 1})


def test_scripts_may_be_made_anew_for_each_run() -> None:
    made: list[int] = []

    def scripts() -> dict[str, Any]:
        made.append(1)
        return {"pay": "done"}

    report = crash_matrix(app, "buys", {"tool": "pay"}, tools=scripts)

    assert len(made) == report.cases


def test_a_matrix_of_twenty_steps_has_sixty_one_kills() -> None:
    report = crash_matrix(app, "twenty", {}, effects=lambda: BANK.moved)

    assert report.cases == 1 + 21 + 2 * 20


def test_a_matrix_takes_scripts_of_agents_and_what_people_say_too() -> None:
    local = App("many")
    local.tool(effect="once", approval="required", name="shout")(louder)

    @local.agent
    async def child(ctx: Context) -> int:
        raise AssertionError("it is scripted")

    @local.agent
    async def parent(ctx: Context) -> int:
        return await ctx.run("child") + await ctx.call("shout", 1)

    report = crash_matrix(local, "parent", {}, agents={"child": 2}, decisions={"shout": answer(3)})

    assert (report.ok, report.effects) == (True, {})


def louder(amount: int) -> int:
    return amount
