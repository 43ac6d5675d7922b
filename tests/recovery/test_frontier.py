"""Code that goes wrong where nobody has been before, or wants too much, ends its own run alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from refold import App, Context
from refold.engine.planner.settings import Bounds
from tests.recovery.rig import Rig


def double(n: int) -> int:
    """A call that anybody may make."""
    return 2 * n


async def good(ctx: Context) -> int:
    """One call."""
    doubled: int = await ctx.call(double, 1)
    return doubled


async def exits(ctx: Context) -> None:
    """An argparse somewhere below."""
    raise SystemExit(2)


def made(agent: Callable[..., Any], *, name: str = "ship") -> App:
    """An app with this agent."""
    app = App("shop")
    app.tool(effect="pure")(double)
    app.agent(name=name)(agent)
    return app


async def notes(ctx: Context) -> None:
    """Never waits."""
    while True:
        ctx.note("again")


async def bomb(ctx: Context) -> None:
    """Two of it, and two of each."""
    await asyncio.gather(bomb(ctx), bomb(ctx))


async def long(ctx: Context) -> None:
    """Many steps."""
    for n in range(1_000):
        await ctx.call(double, n)


async def raises(ctx: Context) -> None:
    """Its own error, at its frontier."""
    raise Untold


async def by_hand(ctx: Context) -> None:
    """What no context would make."""
    from refold.core.run.intents import Note
    from refold.sdk import loop

    loop.running("a note").record(Note(kind=5, data=None))  # type: ignore[arg-type]


async def cancelled(ctx: Context) -> None:
    """What asyncio raises to stop code."""
    raise asyncio.CancelledError


class Untold(Exception):  # noqa: N818
    """Has no text."""

    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        (notes, "budget_turn"),
        (bomb, "budget_turn"),
        (raises, "Untold"),
        (exits, "SystemExit"),
        (by_hand, "usage"),
        (cancelled, "CancelledError"),
    ],
)
def test_code_that_goes_wrong_at_its_frontier_ends_its_own_run_alone(agent: Any, code: str) -> None:
    app = made(agent, name="bad")
    app.agent(name="ship")(good)
    rig = Rig(app, Bounds(turn=2_000))

    rig.start("r-0", "ship")
    rig.start("r-1", "bad")
    rig.start("r-2", "ship")
    rig.run()

    assert rig.state("r-1").end.failure.code == code  # type: ignore[union-attr]
    assert len(rig.asked("r-0")) == len(rig.asked("r-2")) == 1


@pytest.mark.parametrize(
    ("budget", "code"), [(Bounds(steps=20), "budget_steps"), (Bounds(history_bytes=20_000), "budget_bytes")]
)
def test_a_run_has_a_budget_and_its_failure_says_so(budget: Bounds, code: str) -> None:
    rig = Rig(made(long), budget)
    rig.start("r-1", "ship")
    rig.run()
    while not rig.state("r-1").over:
        rig.finish("r-1")
        rig.run()

    end: Any = rig.state("r-1").end
    assert end.failure.code == code
    assert "REFOLD_PLANNER__RUN" in end.failure.message
