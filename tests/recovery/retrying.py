"""Runs that have failed at a call that costs money, and an operator who lets them go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold import App, Context, Retry
from refold.engine.planner.settings import Bounds
from tests.recovery.rig import Rig


def charge(n: int, *, idempotency_key: str) -> int:
    """Costs money."""
    return n


async def three(ctx: Context) -> int:
    """Three calls, one after the other."""
    return sum([await ctx.call(charge, n) for n in (1, 2, 3)])


def shop(*agents: Callable[..., Any], named: bool = False) -> App:
    """An app that has these functions as one agent, or as its versions, named as they are."""
    made = App("shop")
    made.tool(effect="once", retry=Retry(attempts=1))(charge)
    for agent in agents:
        made.agent(name="shop", version=agent.__name__ if named else "")(agent)
    return made


def begun(app: App, done: int = 0, **budget: Any) -> Rig:
    """A run of which so many calls are done, one after the other."""
    rig = Rig(app, Bounds(**budget))
    rig.start("r-1", "shop")
    rig.run()
    for _ in range(done):
        rig.finish()
        rig.run()
    return rig


def failed(app: App, done: int = 2) -> Rig:
    """A run whose call has failed after so many that are done."""
    rig = begun(app, done)
    fail(rig)
    assert rig.state("r-1").status == "failed"
    return rig


def fail(rig: Rig, call: str = "", *, code: str = "busy", status: str = "failed") -> None:
    """The open calls have failed, or one."""
    rig.fail("r-1", code, call=call, status=status)
    rig.run()


def finish(rig: Rig, *, result: str = "1") -> None:
    """The open calls are done."""
    rig.finish(result=result)
    rig.run()


def retry(rig: Rig, **data: Any) -> None:
    """An operator lets the failed run go on."""
    rig.operate("r-1", "retry", seq=rig.state("r-1").head.seq, **data)
    rig.run()
