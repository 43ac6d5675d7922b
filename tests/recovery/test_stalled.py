"""Runs whose code does not go with their history stand still, visibly, and go on with code that does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from refold import App, Context
from refold.core.ids import RunId
from refold.core.messages import Hold
from refold.core.wire import codec
from refold.engine.planner.agents.stalls import LONGEST_RETRY_MS, RETRY_MS
from refold.engine.planner.settings import Bounds
from refold.engine.ports.log import Outgoing
from tests.recovery.rig import Rig


def double(n: int) -> int:
    """A call that anybody may make."""
    return 2 * n


def made(agent: Callable[..., Any] | None = None, *, name: str = "ship") -> App:
    """An app with this agent."""
    app = App("shop", version=agent.__name__ if agent else "none")
    app.tool(effect="pure")(double)
    if agent:
        app.agent(name=name)(agent)  # type: ignore[call-overload]
    return app


async def good(ctx: Context) -> list[Any]:
    """Two calls, one after the other, beside a long sleep."""

    async def calls() -> list[int]:
        first = await ctx.call(double, 1)
        return [first, await ctx.call(double, first)]

    return await asyncio.gather(calls(), asyncio.sleep(3600))


async def changed(ctx: Context) -> list[Any]:
    """Other steps than those that history has."""
    ctx.note("plan")
    return await good(ctx)


async def imports(ctx: Context) -> list[Any]:
    """Its host lacks a module."""
    if ctx.replaying:
        raise ImportError("no module named there")
    return await good(ctx)


async def exits(ctx: Context) -> list[Any]:
    """An argparse somewhere below."""
    raise SystemExit(2)


async def hungry(ctx: Context) -> list[Any]:
    """Asks for more memory than there is."""
    raise MemoryError


WRONG = [
    (changed, "non_determinism"),
    (None, "unknown_agent"),
    (imports, "ImportError"),
    (exits, "SystemExit"),
    (hungry, "MemoryError"),
]


@pytest.mark.parametrize(("agent", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_wrong_deploy_fails_no_run_and_a_rollback_completes_all(agent: Any, reason: str) -> None:
    rig, runs = Rig(made(good)), [f"r-{n}" for n in range(20)]
    for run in runs:
        rig.start(run, "ship")
    rig.run()
    for run in runs[10:]:
        rig.finish(run)
    rig.run()

    rig.deploy(made(agent))
    for run in runs:
        rig.finish(run)
    rig.later(3_600_000)
    wrong = {run: rig.state(run).status for run in runs}
    holds = [rig.hold(run) for run in runs]
    rig.deploy(made(good))
    for run in runs:
        rig.finish(run)
    rig.run()

    assert set(wrong.values()) <= {"running", "suspended"}
    assert {hold and (hold.kind, hold.reason) for hold in holds} == {("stalled", reason)}
    assert {rig.state(run).status for run in runs} == {"completed"}
    assert {rig.state(run).end.result for run in runs} == {"[[1,1],null]"}  # type: ignore[union-attr]
    assert rig.holds() == rig.letters() == 0


def test_a_thousand_live_runs_outlive_a_wrong_deploy() -> None:
    rig = Rig(made(good), Bounds())
    for n in range(1_000):
        rig.start(f"r-{n}", "ship")
    rig.run()

    rig.deploy(made(changed))
    rig.finish()
    rig.later(3_600_000)
    stalled, wrong = rig.holds(), rig.statuses()
    rig.deploy(made(good))
    while rig.finish():
        rig.run()

    assert stalled == 1_000
    assert wrong["failed"] == wrong["completed"] == 0
    assert rig.statuses() == {"completed": 1_000}
    assert rig.holds() == 0


def test_runs_that_wait_are_not_touched_by_a_wrong_deploy() -> None:
    rig = Rig(made(good))
    rig.start("r-1", "ship")
    rig.run()

    rig.deploy(made(changed))

    assert rig.hold("r-1") is None


def test_a_run_without_code_starts_when_there_is_some() -> None:
    rig = Rig(made())

    rig.start("r-1", "ship")
    rig.run()
    stalled, before = rig.hold("r-1"), rig.events("r-1")
    rig.deploy(made(good))

    assert stalled is not None
    assert (stalled.reason, stalled.needs) == ("unknown_agent", "")
    assert before == ["RunRequested", "RunStarted"]
    assert rig.events("r-1")[2:4] == ["CallProposed", "CallDispatched"] or len(rig.asked("r-1")) == 1
    assert rig.hold("r-1") is None


def test_a_run_that_began_on_another_python_stands_still_until_there_is_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("refold.sdk.agent.foundation", lambda functions: ("py3.99",))
        rig = Rig(made(good))
        rig.start("r-1", "ship")
        rig.run()
        began = rig.state("r-1").version
    rig.deploy(made(good))
    rig.finish("r-1", result="7")
    rig.later(3_600_000)
    stalled, unseen = rig.hold("r-1"), rig.state("r-1").unseen

    assert began.endswith("+py3.99")
    assert stalled is not None
    assert (stalled.kind, stalled.reason, stalled.needs) == ("stalled", "other_foundation", began)
    assert "the run needs Python 3.99 (here Python 3." in stalled.message
    assert unseen == 2

    monkeypatch.setattr("refold.sdk.agent.foundation", lambda functions: ("py3.99",))
    rig.deploy(made(good))
    rig.finish("r-1", result="8")
    rig.run()

    assert rig.hold("r-1") is None
    assert rig.state("r-1").end.result == "[[7,8],null]"  # type: ignore[union-attr]


def test_what_comes_for_a_stalled_run_is_recorded_and_seen_by_its_code_later() -> None:
    rig = Rig(made(good))
    rig.start("r-1", "ship")
    rig.run()
    rig.deploy(made(changed))
    rig.finish("r-1", result="7")
    rig.run()
    held = rig.state("r-1").unseen
    rig.later(3_600_000)  # the sleep is over, too

    assert held == 1
    assert rig.state("r-1").unseen == 2
    outcomes = [type(outcome).__name__ for _, outcome, _ in rig.state("r-1").outcomes.values()]
    assert outcomes == ["CallCompleted", "SleepEnded"]

    rig.deploy(made(good))
    assert [asked.args for asked in rig.asked("r-1")] == ['{"n":7}']
    assert rig.state("r-1").unseen == 0

    rig.deploy(made(good))  # and ever after
    rig.finish("r-1", result="8")
    rig.run()
    assert rig.state("r-1").end.result == "[[7,8],null]"  # type: ignore[union-attr]


def test_a_run_that_is_quarantined_before_its_first_entry_is_not_driven_and_waits_for_a_human() -> None:
    rig = Rig(made(good))
    hold = Hold(RunId("r-1"), "quarantined", "hang", "it held everything up", code="other")
    rig.broker.write(Outgoing("run-snapshot", 0, b"hold/r-1", codec.encode(hold), (), 0))
    for app in (made(good), made(changed)):
        rig.deploy(app)
    rig.start("r-1", "ship")
    rig.run()
    rig.deploy(made(good))

    assert rig.events("r-1") == ["RunRequested", "RunStarted"]
    assert rig.hold("r-1") == hold

    rig.operate("r-1", "retry")
    rig.run()
    assert len(rig.asked("r-1")) == 1
    assert rig.hold("r-1") is None


@pytest.mark.parametrize("moves", [False, True], ids=["here", "with another planner"])
def test_a_retry_that_is_said_while_a_run_is_paused_counts_when_it_goes_on(*, moves: bool) -> None:
    rig = Rig(made(good))
    rig.start("r-1", "ship")
    rig.run()
    hold = Hold(RunId("r-1"), "quarantined", "hang", "it held everything up")
    rig.broker.write(Outgoing("run-snapshot", 0, b"hold/r-1", codec.encode(hold), (), 0))
    rig.deploy(made(good))
    rig.finish("r-1")
    rig.run()

    for said in ("pause", "retry", "resume"):
        assert not rig.asked("r-1")
        rig.operate("r-1", said)
        rig.later(10_000)
        if moves:
            rig.deploy(made(good))

    assert rig.hold("r-1") is None
    assert len(rig.asked("r-1")) == 1


def test_what_a_retry_of_a_paused_run_has_tried_in_vain_stands_still_again() -> None:
    rig = Rig(made(good))
    rig.start("r-1", "ship")
    rig.run()
    rig.deploy(made(changed))
    rig.finish("r-1")
    rig.run()

    for said in ("pause", "retry", "resume"):
        rig.operate("r-1", said)
        rig.run()

    assert rig.news.count("run.stalled") == 2
    assert rig.hold("r-1")


def test_the_same_code_is_not_tried_again_but_when_a_human_says_so() -> None:
    rig = Rig(made(good))
    rig.start("r-1", "ship")
    rig.run()
    rig.deploy(made(changed))
    rig.finish("r-1")
    rig.run()

    rig.deploy(made(changed))
    silent = list(rig.news)
    rig.operate("r-1", "retry")
    rig.run()

    assert "run.stalled" not in silent
    assert rig.news.count("run.stalled") == 1
    assert rig.hold("r-1")


def test_a_human_lets_a_run_go_on_or_ends_it() -> None:
    rig = Rig(made(good))
    for run in ("r-1", "r-2", "r-3"):
        rig.start(run, "ship")
    rig.run()
    rig.deploy(made(changed))
    for run in ("r-1", "r-2"):
        rig.finish(run)
    rig.run()

    rig.operate("r-1", "fail", reason="never mind")
    rig.signal("r-2", "cancel")
    rig.operate("r-3", "fail")
    rig.operate("r-3", "retry")
    rig.run()

    assert rig.state("r-1").status == "failed"
    assert rig.state("r-1").end.failure.code == "given_up"  # type: ignore[union-attr]
    assert rig.state("r-2").status == "cancelled"
    assert rig.state("r-3").status in ("running", "suspended")
    assert (rig.holds(), rig.letters()) == (0, 1)  # only what is held can be given up


def test_what_may_pass_by_itself_is_tried_again_more_and_more_seldom() -> None:
    rig = Rig(made(good))
    rig.start("r-1", "ship")
    rig.run()
    rig.deploy(made(hungry))
    rig.finish("r-1")
    rig.run()
    tries = []
    for _ in range(10):
        hold = rig.hold("r-1")
        assert hold is not None
        tries.append(hold.retry_ms - rig.now)
        rig.later(tries[-1])

    assert tries[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert tries[-1] == LONGEST_RETRY_MS


def test_a_lack_of_memory_is_no_word_of_the_agents_even_at_its_frontier() -> None:
    rig = Rig(made(hungry))
    rig.start("r-1", "ship")
    rig.run()
    hold = rig.hold("r-1")
    rig.deploy(made(good))

    assert hold is not None
    assert (hold.reason, hold.retry_ms) == ("MemoryError", rig.now + RETRY_MS)
    assert len(rig.asked("r-1")) == 1
