"""What ended a run is raised for it by its retry: steps, children, a deadline; a sleep begins anew."""

from __future__ import annotations

import asyncio

import pytest

from refold import Context
from refold.core.ids import RunId
from refold.core.messages import RunRequest
from refold.core.topics import RUN_LOG
from refold.core.wire import codec
from refold.engine.ports.log import Outgoing
from tests.recovery.retrying import begun, charge, finish, retry, shop, three
from tests.recovery.rig import Rig


def test_a_limit_that_ended_a_run_is_raised_for_it() -> None:
    rig = begun(shop(three), 2, steps=2)
    state = rig.state("r-1")
    assert state.end is not None
    assert state.end.failure.code == "budget_steps"  # type: ignore[union-attr]
    assert "refold run retry --steps" in state.end.failure.message  # type: ignore[union-attr]

    retry(rig, steps=5)
    finish(rig)

    assert rig.state("r-1").status == "completed"


async def hears(ctx: Context) -> None:
    """Is told of it."""


async def starts(ctx: Context) -> None:
    """Has three others started, one after the other."""
    for _ in range(3):
        await ctx.call(charge, 1)
        ctx.publish("begun")


def test_the_number_of_runs_that_a_run_may_start_is_raised_for_it() -> None:
    app = shop(starts)
    app.on("begun")(hears)
    rig = begun(app, 3, children=2)
    assert rig.state("r-1").end.failure.code == "budget_children"  # type: ignore[union-attr]
    assert "refold run retry --children" in rig.state("r-1").end.failure.message  # type: ignore[union-attr]

    retry(rig, children=3)

    assert rig.state("r-1").status == "completed"
    assert rig.state("r-1").children == 3


def test_a_run_that_misses_its_deadline_fails_also_while_it_sleeps_and_gets_another_by_a_retry() -> None:
    rig = Rig(shop(naps))
    request = RunRequest(RunId("r-1"), "shop", "{}", "ann", deadline_ms=rig.now + 60_000)
    rig.broker.write(Outgoing("run-requested", 0, b"r-1", codec.encode(request), (), 0))
    rig.run()
    finish(rig)
    rig.deploy(shop(naps))

    rig.later(60_000)

    assert rig.state("r-1").end.failure.code == "deadline"  # type: ignore[union-attr]
    retry(rig, deadline_ms=rig.now + 7_200_000)
    rig.later(3_600_000)
    finish(rig)
    assert rig.state("r-1").status == "completed"


async def naps(ctx: Context) -> None:
    """Sleeps an hour after its call."""
    await ctx.call(charge, 1)
    await asyncio.sleep(3_600)
    await ctx.call(charge, 2)


def test_a_sleep_that_is_begun_again_takes_its_whole_time() -> None:
    rig = begun(shop(naps))
    finish(rig)
    rig.later(3_601_000)
    rig.fail("r-1", "busy")
    rig.later(86_400_000)
    assert rig.state("r-1").status == "failed"

    retry(rig, **{"from": 2})

    assert rig.state("r-1").status == "suspended"
    rig.later(3_599_000)
    assert rig.state("r-1").status == "suspended"
    rig.later(2_000)
    assert rig.asked("r-1")


def look(text: str) -> int:
    """Reads."""
    return len(text)


async def asks_much(ctx: Context) -> None:
    """Four calls at once, each with much to say."""
    await asyncio.gather(*(ctx.call(look, f"{n}" + "x" * 900_000) for n in range(4)))


@pytest.mark.parametrize(
    ("topic_bytes", "retried"),
    [(8 << 20, True), (2_000, True), (50, False)],
    ids=["over the limit", "over that of the topic", "the topic takes nothing at all"],
)
def test_a_retry_that_wants_to_write_too_much_has_failed_and_its_planner_goes_on(
    topic_bytes: int, retried: bool
) -> None:
    app = shop(asks_much)
    app.tool(effect="pure")(look)
    app.agent(three)
    rig = Rig(app)
    rig.start("r-1", "shop")
    rig.run()
    rig.refuses = {RUN_LOG: topic_bytes}

    retry(rig)

    rig.refuses = {}
    assert rig.events("r-1") == ["RunRequested", "RunFailed", *(["RunRetried", "RunFailed"] if retried else [])]
    assert rig.state("r-1").end.failure.code == "too_large"  # type: ignore[union-attr]
    assert rig.letters() == (not retried), "one that is in the log has its answer there, though it was read before"
    rig.start("r-2", "three")
    rig.run()
    assert rig.asked("r-2")
