"""Agents that wait for signals and callbacks: what they get, what is recorded, and that a replay is the same."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from refold import App, CallbackError, Context, NonDeterminismError, UsageError
from refold.core.events import (
    CallbackCreated,
    RunSuspended,
    SignalReceived,
    SleepStarted,
    StepGivenUp,
    WaitEnded,
    WaitExpired,
    WaitStarted,
)
from refold.testing import replay, start
from refold.testing.agents import START_MS, AgentRun

app = App("waiting")
HOUR = timedelta(hours=1)


class Payment(BaseModel):
    """What a payment provider says."""

    paid: int


tokens: list[str] = []


@app.tool(effect="keyed", keyed_by="arguments")
def hand_out(token: str) -> None:
    """Gives somebody the token."""
    tokens.append(token)


@app.agent
async def one(ctx: Context) -> list[Any]:
    """Waits once."""
    signal = await ctx.wait_for("go")
    return [signal.id, signal.name, signal.data, signal.actor]


@app.agent
async def twice(ctx: Context) -> list[Any]:
    """Two equal waits at once."""
    found = await asyncio.gather(ctx.wait_for("go"), ctx.wait_for("go"))
    return [signal.data for signal in found]


@app.agent
async def picky(ctx: Context) -> Any:
    """Waits for one of them."""
    return (await ctx.wait_for("go", match="data.n == 2")).data


@app.agent
async def patient(ctx: Context) -> str:
    """Waits for an hour."""
    try:
        await ctx.wait_for("go", timeout=HOUR)
    except TimeoutError as error:
        return str(error)
    return "came"


@app.agent
async def first(ctx: Context) -> Any:
    """The first of two; the other is given up."""
    waits = [asyncio.create_task(ctx.wait_for(name)) for name in ("a", "b")]
    done, late = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    again = await ctx.wait_for("b")
    return [done.pop().result().name, again.data]


@app.agent
async def limited(ctx: Context) -> str:
    """A timeout of asyncio around a wait."""
    try:
        async with asyncio.timeout(60):
            await ctx.wait_for("go")
    except TimeoutError:
        return "late"
    return "came"


@app.agent
async def paying(ctx: Context) -> int:
    """Hands a token out, and waits for who has it."""
    paid = ctx.callback("paid", schema=Payment, timeout=HOUR)
    await ctx.call(hand_out, paid.token)
    try:
        return (await paid).paid
    except CallbackError:
        return -1
    except TimeoutError:
        return -2


def names(run: AgentRun) -> list[str]:
    return [type(event).__name__ for event in run.events]


def handed(run: AgentRun) -> str:
    """Goes on until the token is handed out."""
    run.settle(2)
    return tokens[-1]


def test_a_wait_gives_the_signal() -> None:
    run = start(app, "one")

    run.signal("go", {"n": 1}, actor="bob", signal_id="s-1")

    assert run.value == ["s-1", "go", {"n": 1}, "bob"]
    run.check()


def test_two_equal_waits_take_a_signal_each() -> None:
    run = start(app, "twice").signal("go", 1)
    assert run.status == "suspended"

    run.signal("go", 2)

    assert run.value == [1, 2]
    run.check()


def test_two_waits_of_one_turn_take_what_was_kept_one_after_the_other() -> None:
    run = start(app, "later").signal("go", 1).signal("go", 2).signal("go", 3)

    run.finish()

    assert run.value == [1, 2]
    assert len(run.state.mail.kept) == 1
    run.check()


@app.agent
async def later(ctx: Context) -> list[Any]:
    """Sleeps first."""
    await asyncio.sleep(60)
    return await twice(ctx)


@app.agent
async def wasteful(ctx: Context) -> Any:
    """Two waits at once, of which the first that ends is enough."""
    await asyncio.sleep(60)
    waits = [asyncio.create_task(ctx.wait_for("go")) for _ in range(2)]
    done, late = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    return [done.pop().result().data, (await ctx.wait_for("go")).data]


def test_what_is_given_up_has_taken_nothing() -> None:
    run = start(app, "wasteful").signal("go", 1).signal("go", 2).finish()

    assert run.value == [1, 2]
    assert names(run)[-8:] == [
        "SleepEnded",
        "WaitStarted",
        "WaitStarted",
        "WaitEnded",
        "StepGivenUp",
        "WaitStarted",
        "WaitEnded",
        "RunCompleted",
    ]
    run.check()


def test_a_wait_takes_only_what_it_matches() -> None:
    run = start(app, "picky").signal("go", {"n": 1}).signal("go", 7).signal("go", {"n": 2})

    assert run.value == {"n": 2}
    assert names(run).count("MatchFailed") == 1
    run.check()


def test_a_timeout_is_an_error_that_the_agent_sees() -> None:
    run = start(app, "patient").finish()

    assert run.value == "no signal go came in time"
    assert run.events[-2] == WaitExpired(1)
    assert run.now_ms == START_MS + 3_600_000
    run.check()


def test_the_loser_of_a_race_is_given_up_and_takes_nothing() -> None:
    run = start(app, "first").signal("a").signal("b", 2)

    assert run.value == ["a", 2]
    assert StepGivenUp(2) in run.events
    assert run.state.mail.taken["signal-2"] == 3
    run.check()


def test_a_timeout_of_asyncio_gives_the_wait_up() -> None:
    run = start(app, "limited").finish()

    assert run.value == "late"
    assert StepGivenUp(2) in run.events
    assert not run.state.mail.waits
    run.check()


@pytest.mark.parametrize("lost", [False, True])
def test_whoever_has_the_token_gives_the_result(lost: bool) -> None:
    run = start(app, "paying")
    token = handed(run)
    if lost:
        run.take_over()

    run.answer(token, {"paid": 7})

    assert run.value == 7
    run.check()


def test_what_does_not_fit_is_refused_and_the_callback_waits_on() -> None:
    run = start(app, "paying")
    token = handed(run)

    with pytest.raises(UsageError, match="waits on"):
        run.answer(token, {"paid": "no"})

    assert run.answer(token, {"paid": 7}).value == 7


def test_a_callback_may_fail_or_expire() -> None:
    failing, expiring = start(app, "paying"), start(app, "paying")

    failing.answer(handed(failing), failure="declined")
    expiring.finish()

    assert failing.value == -1
    assert expiring.value == -2


def test_an_answer_before_the_await_is_there_when_it_is_awaited() -> None:
    run = start(app, "paying")
    made = next(event for event in run.events if isinstance(event, CallbackCreated))
    order = next(call for call in run.calls if call.tool == "hand_out")

    run.answer(order.args["token"], {"paid": 7}).finish()

    assert made.digest not in order.args["token"]
    assert run.value == 7
    run.check()


def test_the_match_is_part_of_the_history() -> None:
    run = start(app, "one")

    with pytest.raises(
        NonDeterminismError, match=r"step 1 is wait for go in history and wait for go where data\.n == 2"
    ):
        run.check("picky")


@app.agent
async def wrong(ctx: Context, name: str, match: str = "", callback: bool = False) -> str:
    """Asks for what cannot be."""
    try:
        if callback:
            ctx.callback(name)
        else:
            await ctx.wait_for(name, match=match)
    except UsageError as error:
        return error.message
    return "taken"


@pytest.mark.parametrize("asks", [{"name": "a b"}, {"name": "a", "match": "data."}, {"name": "", "callback": True}])
def test_what_cannot_be_is_said_at_once(asks: dict[str, Any]) -> None:
    assert "taken" not in start(app, "wrong", **asks).value


def test_what_is_recorded_of_a_wait() -> None:
    run = start(app, "one").signal("go", {"n": 1}, actor="bob", signal_id="s-1")

    assert run.events[2:6] == [
        WaitStarted(1, "go"),
        RunSuspended("wait", "go"),
        SignalReceived("s-1", "go", '{"n":1}', "bob"),
        WaitEnded(1, "s-1"),
    ]


def test_a_replay_sleeps_until_the_recorded_time_whatever_the_code_computes_today() -> None:
    app, hours = App("zones"), [1]

    @app.agent
    async def ticks(ctx: Context) -> list[str]:
        tick = await ctx.sleep_until(ctx.now() + timedelta(hours=hours[0]))
        past = await ctx.sleep_until(tick - timedelta(hours=2))
        return [tick.isoformat(), past.isoformat(), ctx.now().isoformat()]

    slept = start(app, "ticks").finish()
    begun = slept.state.started_ms

    assert slept.value == [f"{datetime.fromtimestamp(begun / 1000 + 3600 * h, UTC).isoformat()}" for h in (1, -1, 1)]
    hours[0] = 5  # as after a change of the rules of a zone
    replay(app, slept)
    assert [event.until_ms - begun for event in slept.events if isinstance(event, SleepStarted)] == [
        3_600_000,
        -3_600_000,
    ]


def test_a_time_without_a_zone_is_no_time_to_sleep_until() -> None:
    app = App("zones")

    @app.agent
    async def naive(ctx: Context) -> None:
        await ctx.sleep_until(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused

    assert "tzinfo" in str(start(app, "naive").finish().failure)
