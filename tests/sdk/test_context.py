"""The context: every bit that an agent sees is the same when its run is recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from refold import App, CallFailed, Context, NonDeterminismError, Retry, TerminalError, UsageError
from refold.core.events import CallProposed, RetryPolicy
from refold.core.run.intents import Call
from refold.core.run.replay import Moment
from refold.sdk.execution import Execution
from refold.testing import AgentRun, run, start
from refold.testing.agents import START_MS

app = App("tests")
caught: list[CallFailed] = []


@app.tool(effect="pure", timeout=timedelta(seconds=9), retry=Retry(attempts=2, base=timedelta(seconds=1)))
def double(n: int) -> int:
    if n < 0:
        raise TerminalError("negative")
    return 2 * n


@app.agent
async def branches(ctx: Context, width: int, depth: int) -> list[Any]:
    """Several branches that call, sleep, draw and note, interleaved as their answers come."""

    async def branch(number: int) -> list[Any]:
        seen: list[Any] = []
        for level in range(depth):
            seen.append(await ctx.call(double, number * 10 + level))
            seen.append([ctx.random.random(), str(ctx.uuid()), ctx.now().isoformat()])
            if level % 2:
                await asyncio.sleep(number)
            ctx.note("level", [number, level, seen[-1]])
        return seen

    return await asyncio.gather(*(branch(number) for number in range(width)))


@given(st.data(), st.integers(0, 4), st.integers(0, 3))
def test_wherever_it_crashes_a_run_stands_where_it_stood(data: st.DataObject, width: int, depth: int) -> None:
    driven = start(app, "branches", width=width, depth=depth)

    while driven.open:
        driven.take_over()
        driven.settle(data.draw(st.sampled_from(driven.open)))

    assert driven.status == "completed"
    assert len(driven.value) == width


@app.agent
async def summary(ctx: Context) -> list[Any]:
    results = await asyncio.gather(ctx.call(double, 1), ctx.call(double, n=2), asyncio.sleep(1))
    return [*results, await asyncio.gather()]


def test_gather_gives_results_in_the_order_of_asking_whatever_ends_first() -> None:
    driven = start(app, "summary").finish(pick=lambda steps: steps[-1])

    assert driven.value == [2, 4, None, []]


@app.agent
async def handles(ctx: Context) -> list[Any]:
    try:
        await ctx.call(double, -1)
    except CallFailed as error:
        caught.append(error)
    parts = await asyncio.gather(ctx.call(double, -1), ctx.call(double, 3), return_exceptions=True)
    return [isinstance(parts[0], CallFailed), parts[1], await asyncio.gather(ctx.call(double, 4), ctx.call(double, -4))]


def test_an_agent_may_catch_a_failed_call_and_an_uncaught_one_ends_it() -> None:
    driven = run(app, "handles")

    assert caught[0].fields["code"] == "terminal"
    assert caught[0].fields["message"] == "negative"
    assert len(driven.state.steps) == 5
    with pytest.raises(CallFailed, match="double failed: negative"):
        _ = driven.value


def asked(ask: Callable[[], Awaitable[Any]]) -> Call:
    """What code asks for that asks for one thing."""

    async def code() -> None:
        await ask()

    execution = Execution(code(), Moment(), "seed")
    [(_, intent)] = execution.start()
    execution.close()
    assert isinstance(intent, Call)
    return intent


def test_a_call_carries_what_the_tool_declares_unless_the_call_says_otherwise() -> None:
    ctx = Context("r-1", seed="s", moment=Moment(), find=app.find, find_agent=app.find_agent)

    plain = asked(lambda: ctx.call(double, 3))
    special = asked(lambda: ctx.call("double", n=3, retry=Retry(attempts=7), timeout=timedelta(minutes=2)))

    assert (plain.tool, plain.args, plain.pool, plain.effect) == ("double", '{"n":3}', "default", "pure")
    assert (plain.timeout_ms, plain.retry) == (9000, RetryPolicy(2, 1000, 60_000))
    assert (special.args, special.timeout_ms, special.retry.attempts) == ('{"n":3}', 120_000, 7)


def test_a_call_that_cannot_work_raises_before_anything_is_asked_for() -> None:
    ctx = Context("r-1", seed="s", moment=Moment(), find=app.find, find_agent=app.find_agent)

    with pytest.raises(UsageError, match="app tests has no tool undo"):
        ctx.call("undo")
    with pytest.raises(UsageError, match="app tests has no tool print"):
        ctx.call(print, 3)
    with pytest.raises(UsageError, match="tool double: n: Input should be a valid integer"):
        ctx.call(double, "many")
    with pytest.raises(UsageError, match="call double.* is for an agent's own code"):
        ctx.call(double, 1)


@pytest.mark.parametrize(("name", "instead"), [("gather", "asyncio.gather"), ("sleep", "asyncio.sleep")])
def test_what_a_context_has_no_longer_says_what_to_write(name: str, instead: str) -> None:
    ctx = Context("r-1", seed="s", moment=Moment(), find=app.find, find_agent=app.find_agent)

    with pytest.raises(AttributeError, match=f"a context has no {name}: write .*{instead}"):
        getattr(ctx, name)


def test_time_stands_still_between_waits_and_moves_with_history() -> None:
    local = App("clock")
    local.tool(effect="pure")(double)

    @local.agent
    async def watch(ctx: Context) -> list[datetime]:
        seen = [ctx.now(), ctx.now()]
        await asyncio.sleep(300)
        seen.append(ctx.now())
        await asyncio.sleep(-5)
        seen.append(ctx.now())
        await ctx.call(double, 1)
        return [*seen, ctx.now()]

    seen = run(local, "watch").value

    began = datetime.fromtimestamp(START_MS / 1000, UTC)
    after = [(time - began).total_seconds() for time in seen]
    assert after == [0, 0, 300, 300, 301]


def test_random_numbers_and_ids_come_from_the_seed_alone() -> None:
    def draws(seed: str) -> list[Any]:
        ctx = Context("r-1", seed=seed, moment=Moment(), find=app.find, find_agent=app.find_agent)
        return [ctx.random.random(), ctx.uuid(), ctx.uuid(), ctx.random.random()]

    first = draws("a")

    assert first == draws("a")
    assert len({*map(str, first), *map(str, draws("b"))}) == 8
    assert isinstance(first[1], UUID)
    assert first[1].version == 4


def test_a_note_is_recorded_as_canonical_json_and_never_waits() -> None:
    local = App("notes")

    @local.agent
    async def think(ctx: Context) -> str:
        ctx.note("plan", {"b": 1, "a": [timedelta(seconds=1), ctx.uuid()]})
        ctx.note("thought")
        return "done"

    driven = start(local, "think")

    (first, second) = driven.notes
    assert driven.value == "done"
    assert (first[0], first[1]["a"][0], first[1]["b"]) == ("plan", "PT1S", 1)
    assert second == ("thought", None)


@pytest.mark.parametrize("data", [{"a", "b"}, {"x": [frozenset("ab")]}, object(), float("nan"), {"n": 10**4_300}])
def test_a_note_that_no_replay_could_repeat_is_refused(data: Any) -> None:
    ctx = Context("r-1", seed="s", moment=Moment(), find=app.find, find_agent=app.find_agent)

    with pytest.raises(UsageError, match="data of note 'plan' is not JSON"):
        ctx.note("plan", data)


def forgetful(local: App) -> None:
    @local.agent
    async def forgets(ctx: Context) -> None:
        ctx.call(double, 1)

    @local.agent
    async def twice(ctx: Context) -> None:
        call = ctx.call(double, 1)
        await call
        await call

    @local.agent
    async def cancels_unbegun(ctx: Context) -> None:
        asyncio.create_task(ctx.call(double, 1)).cancel()


def test_a_step_that_is_never_awaited_or_awaited_twice_ends_the_run_with_the_reason() -> None:
    local = App("forgetful")
    local.tool(effect="pure")(double)
    forgetful(local)

    with pytest.raises(UsageError, match=r"never awaited its call double\(\{\"n\":1\}\)"):
        _ = run(local, "forgets").value
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        _ = run(local, "twice").value
    assert run(local, "cancels_unbegun").value is None


def test_log_lines_are_written_once_although_the_code_runs_again() -> None:
    local = App("logs")
    local.tool(effect="pure")(double)

    @local.agent
    async def talks(ctx: Context) -> None:
        ctx.log.info("started", n=1)
        await ctx.call(double, 1)
        ctx.log.bind(part="end").warning("almost")
        await ctx.call(double, 2)
        ctx.log.error("ended")

    with capture_logs() as lines:
        driven = start(local, "talks")
        driven.settle(1)
        driven.check()
        driven.take_over()
        driven.settle(2)

    assert [line["event"] for line in lines] == ["started", "almost", "ended"]
    assert lines[1] == {"event": "almost", "log_level": "warning", "part": "end", "run_id": "r-1"}


def changed(history: AgentRun, name: str) -> str:
    with pytest.raises(NonDeterminismError) as error:
        history.check(name)
    return str(error.value)


def test_code_that_no_longer_fits_its_history_is_told_which_step_what_was_expected_and_what_was_found() -> None:
    local = App("versions")
    local.tool(effect="pure")(double)

    @local.agent
    async def original(ctx: Context) -> None:
        ctx.note("plan", 1)
        await ctx.call(double, 1)
        await asyncio.sleep(1)

    @local.agent
    async def other_args(ctx: Context) -> None:
        ctx.note("plan", 1)
        await ctx.call(double, 2)

    @local.agent
    async def other_kind(ctx: Context) -> None:
        ctx.note("plan", 1)
        await asyncio.sleep(1)

    @local.agent
    async def shorter(ctx: Context) -> None:
        ctx.note("plan", 1)
        await ctx.call(double, 1)

    history = start(local, "original")
    history.settle(2)

    other = changed(history, "other_args")
    assert 'step 2 is call double({"n":1}) in history and call double({"n":2}) in the code' in other
    assert 'step 2 is call double({"n":1}) in history and sleep in the code' in changed(history, "other_kind")
    assert "step 3 is sleep in history, and the code ended" in changed(history, "shorter")


def test_what_is_recorded_is_what_was_asked() -> None:
    driven = start(app, "summary")

    first = driven.state.steps[0]

    assert isinstance(first, CallProposed)
    assert (first.step, first.tool, first.args) == (1, "double", '{"n":1}')
    assert driven.open == [1, 2, 3]
