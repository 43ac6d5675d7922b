"""Agents in memory: what they may be declared with, and what is refused there before it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from refold import App, Context, Retry, UsageError
from refold.core.run.intents import Wait
from refold.sdk import loop
from refold.testing import run

app = App("in-memory")


@app.tool(effect="pure")
def double(n: int, *, idempotency_key: str = "") -> int:
    return 2 * n


@app.tool(effect="keyed")
def pay(n: int, *, idempotency_key: str) -> int:
    return n


async def waits(ctx: Context) -> None:
    await ctx.wait_for("a")


async def answers(ctx: Context) -> None:
    ctx.callback("a")


async def runs(ctx: Context) -> None:
    await asyncio.gather(ctx.run("x"), ctx.run("y"))


async def starts(context: Context) -> None:
    context.start("x")


async def publishes(ctx: Context) -> None:
    ctx.publish("x")


async def hidden(ctx: Context) -> None:
    async def inner() -> None:
        await ctx.wait_for("a")

    await inner()


async def _helper(number: int, ctx: Context) -> None:
    await ctx.wait_for("a")


async def helped(ctx: Context) -> None:
    await _helper(1, ctx)


async def pays(ctx: Context) -> int:
    return await ctx.call(pay, 1)


@pytest.mark.parametrize("body", [waits, answers, runs, starts, publishes, hidden, helped, pays])
def test_what_needs_the_log_is_refused_where_the_agent_is_declared(body: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r'runs in memory, and .*: leave durability="memory" out'):
        app.agent(durability="memory", name=f"refused-{body.__name__}")(body)

    assert f"refused-{body.__name__}" not in app.agents
    assert f"agent:refused-{body.__name__}" not in app.tools


def _asked(intent: Any) -> Any:
    return loop.step(intent)


@pytest.mark.parametrize("what", ["wait_for", "callback", "publish", "intent", "keyed", "approval", "pool", "agent"])
def test_what_the_declaration_does_not_show_ends_the_run_before_it_happens(what: str) -> None:
    other = App("other")
    happened: list[str] = []

    @other.tool(effect="keyed")
    def keyed(*, idempotency_key: str) -> None:
        happened.append("keyed")

    @other.tool(effect="pure", approval="required")
    def approval() -> None:
        happened.append("approval")

    @other.tool(effect="pure", pool="gpu")
    def pool() -> None:
        happened.append("pool")

    @other.agent(durability="memory")
    async def agent(ctx: Context, name: str) -> None:
        try:
            if name in ("wait_for", "callback"):
                await getattr(ctx, name)("a")
            elif name == "publish":
                getattr(ctx, name)("a")
            elif name == "intent":
                await _asked(Wait("a", "", 0))
            else:
                await ctx.call(*(("agent:agent", {}) if name == "agent" else (name,)))
        except Exception:  # noqa: BLE001 - it would be heard if it came so
            happened.append("caught")

    ran = run(other, "agent", name=what)

    assert (ran.status, happened) == ("failed", [])
    assert ran.failure is not None
    assert ran.failure.message.startswith("agent agent runs in memory, and ")


def test_options_belong_to_their_durability() -> None:
    for options in ({"timeout": timedelta(seconds=1)}, {"retry": Retry(attempts=3)}, {"pool": "gpu"}):
        with pytest.raises(UsageError, match="is for durability='memory'"):
            app.agent(**options)(waits)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="use log or memory"):
        app.agent(durability="disk")(waits)  # type: ignore[call-overload]


def test_no_tool_can_have_the_name_of_an_agent() -> None:
    with pytest.raises(UsageError, match="not a tool name"):
        app.tool(name="agent:doubles")(double)


def test_the_code_of_its_tools_belongs_to_its_version() -> None:
    async def doubles(ctx: Context) -> int:
        doubled: int = await ctx.call("double", 1)
        return doubled

    def made(version: str, *, effect: Any = "pure") -> App:
        found = App("made")
        found.tool(effect=effect, version=version)(double)
        found.agent(durability="memory")(doubles)
        found.agent(name="logged")(doubles)
        return found

    one, two, keyed = made("1"), made("2"), made("3", effect="keyed")

    assert one.agents["doubles"].code != two.agents["doubles"].code
    assert one.tools["agent:doubles"].facts.version != two.tools["agent:doubles"].facts.version
    assert one.agents["doubles"].code == made("1").agents["doubles"].code
    assert keyed.agents["doubles"].code == made("4", effect="keyed").agents["doubles"].code
    assert one.agents["logged"].code == two.agents["logged"].code


def test_each_declared_version_is_a_call_of_its_own() -> None:
    other = App("other")

    @other.agent(name="ship", version="1", durability="memory")
    async def old(ctx: Context) -> str:
        return "old"

    @other.agent(name="ship", version="2", durability="memory")
    async def new(ctx: Context) -> str:
        return "new"

    ran = run(other, "ship")

    assert (ran.value, ran.calls[0].tool) == ("new", "agent:ship@2")
    assert {"agent:ship@1", "agent:ship@2"} <= set(other.tools)
