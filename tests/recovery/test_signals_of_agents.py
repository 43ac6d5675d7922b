"""An agent tells another run something: once, whatever becomes of the planner that says it."""

from __future__ import annotations

from typing import Any

import pytest

from refold import App, Context
from refold.core.events import SignalSent
from refold.testing import run
from tests.recovery.rig import Rig

app = App("telling")


@app.agent
async def listener(ctx: Context, many: int = 1) -> list[Any]:
    """Waits for so many signals."""
    return [(await ctx.wait_for("told")).data for _ in range(many)]


@app.agent
async def speaker(ctx: Context, to: str, many: int = 1) -> str:
    """Tells another run something, so often, and sleeps in between."""
    for number in range(many):
        ctx.signal(to, "told", {"number": number})
    return "said"


@pytest.mark.parametrize("first", ["listener", "speaker"])
def test_a_run_is_told_whoever_begins_first(first: str) -> None:
    rig = Rig(app, partitions=3)
    asks = [("l", "listener", {"many": 2}), ("s", "speaker", {"to": "l", "many": 2})]
    for name, agent, given in sorted(asks, key=lambda each: each[1] != first):
        rig.start(name, agent, **given)
        rig.run()

    assert finish(rig, "l") == '[{"number":0},{"number":1}]'
    assert [each.run_id for each in rig.history("s") if isinstance(each, SignalSent)] == ["l", "l"]


@pytest.mark.parametrize("deaths", range(1, 9))
def test_it_is_told_once_though_the_planner_dies_anywhere(deaths: int) -> None:
    rig = Rig(app)
    rig.start("l", "listener", many=2)
    rig.start("s", "speaker", to="l")
    for _ in range(deaths):
        rig._turn()
    rig.deploy(app)
    rig.run()

    received = [event for event in rig.history("l") if type(event).__name__ == "SignalReceived"]
    assert len(received) == 1


def test_what_it_says_is_checked_where_it_is_said() -> None:
    async def body(ctx: Context, how: str) -> None:
        ways: dict[str, tuple[Any, ...]] = {"run": ("a run", "x"), "name": ("r", ""), "data": ("r", "x", object())}
        ctx.signal(*ways[how])

    checked = App("checked")
    checked.agent(name="wrong")(body)
    for how in ("run", "name", "data"):
        ended = run(checked, "wrong", how=how)
        assert ended.failure is not None, how


def finish(rig: Rig, name: str) -> str:
    end = rig.state(name).end
    return str(getattr(end, "result", end))
