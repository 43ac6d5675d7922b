"""Pauses in the kit: what a test sees of a run that is paused is what production does."""

from __future__ import annotations

import asyncio

import pytest

from refold import App, Context, NotDone, UsageError
from refold.testing import assert_history, attempts, start

app = App("pauses")


@app.tool(effect="pure")
def look(what: str) -> str:
    """Looks."""
    return what


@app.tool(effect="once", approval="required")
def drop(table: str) -> str:
    """Drops a table, if somebody lets it."""
    return table


@app.agent
async def looks(ctx: Context) -> str:
    """Looks, sleeps, and looks again."""
    found: str = await ctx.call(look, "one")
    await asyncio.sleep(60)
    return found + await ctx.call(look, "two")


@app.agent
async def drops(ctx: Context) -> str:
    """Drops a table."""
    return await ctx.call(drop, "t")


@app.agent
async def sends(ctx: Context) -> str:
    """Has another look."""
    return await ctx.run(looks)


def test_a_paused_run_keeps_what_comes_and_has_it_when_it_goes_on() -> None:
    run = start(app, "looks").pause("look first").finish()
    kept = run.history[-2:], run.status, run.open

    run.resume().finish()

    assert kept == (["RunSuspended", "CallCompleted"], "suspended", [])
    assert run.value == "onetwo"
    assert_history(run, "RunPaused", "CallCompleted", "RunUnpaused", "SleepStarted", "SleepEnded", "RunCompleted")


def test_no_retry_and_no_timer_goes_on_meanwhile() -> None:
    run = start(app, "looks", tools={look: attempts(NotDone("busy"), "a", "b")})
    run.pause().finish()
    run.settle(1)
    failed = run.state.open[1].phase

    run.resume()
    run.settle(1)
    run.pause().settle(2)

    assert failed == "backoff"
    assert run.open == [2]
    assert run.resume().finish().value == "ab"


def test_what_people_let_go_meanwhile_goes_out_then() -> None:
    run = start(app, "drops").pause().finish()
    decided = run.history[-1], run.ran["drop"]

    run.resume().finish()

    assert decided == ("ApprovalDecided", 0)
    assert (run.value, run.ran["drop"]) == ("t", 1)


def test_children_are_paused_too() -> None:
    run = start(app, "sends").pause().finish()
    [child] = run.children
    stands = child.status, [pause.role for pause in child.state.paused]

    run.resume().finish()

    assert stands == ("suspended", ["parent"])
    assert run.value == "onetwo"


def test_a_child_is_not_resumed_without_its_parent() -> None:
    run = start(app, "sends").pause()

    with pytest.raises(UsageError, match="resume that one"):
        run.children[0].resume()
