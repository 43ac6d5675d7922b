"""The test kit and families: children that are cancelled while they wait, and runs that signal each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refold import App, Context
from refold.testing import crash_matrix, run

app = App("families")


@app.tool(effect="pure")
def echo(n: int) -> int:
    return n


@app.agent
async def sleeps(ctx: Context) -> None:
    await asyncio.sleep(1_000)


@app.agent
async def calls(ctx: Context) -> None:
    await ctx.call(echo, 1)
    await asyncio.gather(asyncio.sleep(1_000), ctx.wait_for("never"))


@app.agent
async def by_timeout(ctx: Context, child: str) -> Any:
    try:
        await asyncio.wait_for(ctx.run(child, {}), 5)
    except TimeoutError:
        return "timeout"


@app.agent
async def by_cancel(ctx: Context, child: str) -> Any:
    task = asyncio.create_task(ctx.run(child, {}))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    return "cancelled"


@app.agent
async def by_end(ctx: Context, child: str) -> Any:
    ctx.start(child, {})
    await asyncio.sleep(1)
    return "end"


@pytest.mark.parametrize("child", ["sleeps", "calls"])
@pytest.mark.parametrize(("agent", "value"), [("by_timeout", "timeout"), ("by_cancel", "cancelled"), ("by_end", "end")])
def test_a_child_that_waits_while_it_is_cancelled_ends_with_its_parent(agent: str, value: str, child: str) -> None:
    ended = run(app, agent, child=child)

    assert (ended.value, [each.status for each in ended.children]) == (value, ["cancelled"])


@app.agent
async def answers(ctx: Context, parent: str) -> Any:
    asked = (await ctx.wait_for("ask")).data
    ctx.signal(parent, "answer", asked * 2)
    ctx.signal("nobody", "hello", asked)
    return "answered"


@app.agent
async def asks(ctx: Context, early: bool) -> Any:
    child = ctx.start(answers, {"parent": ctx.run_id})
    if not early:
        await asyncio.sleep(1)
    ctx.signal(f"{ctx.run_id}.1", "ask", 7)
    answer = (await ctx.wait_for("answer")).data
    return [answer, await child]


@pytest.mark.parametrize("early", [True, False])
def test_signals_reach_runs_of_the_family_and_others_are_kept_for_the_test(early: bool) -> None:
    ended = run(app, "asks", early=early)

    assert ended.value == [14, "answered"]
    assert [(each.run_id, each.name, each.data) for each in ended.children[0].sent] == [("nobody", "hello", "7")]
    assert ended.sent == []


def test_a_family_that_talks_goes_through_the_crash_matrix() -> None:
    report = crash_matrix(app, "asks", {"early": False})

    assert report.cases > 5
    assert not report.astray
