"""Calls that wait for an operator when their attempts are used up, and failures that are not tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from refold import App, CallFailed, Context, Retry
from refold.core.events import CallDispatched, CallHeld, DoubtResolved, RunResumed, RunSuspended
from refold.core.events import CallFailed as Failed
from tests.recovery.rig import Rig

DAY_MS = 86_400_000


def charge(n: int, *, idempotency_key: str) -> int:
    """Costs money."""
    return n


async def pays(ctx: Context) -> int:
    """One call, and one that depends on it."""
    return await ctx.call(charge, 1) + await ctx.call(charge, 2)


async def catches(ctx: Context) -> str:
    """Handles its failure."""
    try:
        return str(await ctx.call(charge, 1))
    except CallFailed as failure:
        return f"no: {failure.fields['code']}"


async def hurries(ctx: Context) -> str:
    """Waits for an hour at most."""
    try:
        async with asyncio.timeout(3_600):
            return str(await ctx.call(charge, 1))
    except TimeoutError:
        return "late"


def app(agent: Callable[..., Any] = pays, *, effect: Any = "keyed", **retry: Any) -> App:
    made = App("shop", version=agent.__name__)
    policy: dict[str, Any] = {"attempts": 2, "base": timedelta(seconds=1), "then": "hold"}
    made.tool(effect=effect, retry=Retry(**{**policy, **retry}))(charge)
    made.agent(name="shop")(agent)
    return made


def begun(code: App) -> Rig:
    rig = Rig(code)
    rig.start("r", "shop")
    rig.run()
    return rig


def use_up(rig: Rig, attempts: int = 2) -> None:
    """The open call fails as often as it may."""
    for _ in range(attempts):
        rig.fail("r", "busy")
        rig.run()
        rig.later(60_000)


def resolve(rig: Rig, verdict: str, attempt: int, **more: Any) -> None:
    rig.now += 1
    rig.operate("r", "resolve", step=1, attempt=attempt, verdict=verdict, **more)
    rig.run()


def sent(rig: Rig) -> list[int]:
    """The attempts that went out."""
    return [event.attempt for event in rig.history("r") if isinstance(event, CallDispatched)]


def test_a_call_whose_attempts_are_used_up_waits_for_an_operator_and_for_nothing_else() -> None:
    code = app()
    rig = begun(code)

    use_up(rig)
    rig.later(DAY_MS)
    rig.deploy(code)
    rig.later(DAY_MS)

    assert sent(rig) == [1, 2]
    [held] = [event for event in rig.history("r") if isinstance(event, CallHeld)]
    assert (held.step, held.attempt, held.failure.code) == (1, 2, "busy")
    said = [event for event in rig.history("r") if isinstance(event, RunSuspended)][-1]
    assert said == RunSuspended("held", f"r/{rig.state('r').seqs[0]}")
    assert rig.state("r").status == "suspended"


def test_a_held_call_gets_as_many_attempts_anew_under_its_key_and_is_held_again() -> None:
    rig = begun(app())
    [before] = rig.asked("r")
    use_up(rig)
    assert not rig.asked("r"), "its order is taken back"

    resolve(rig, "did_not_happen", 2)
    [after] = rig.asked("r")
    use_up(rig)

    assert (after.attempt, after.key, after.call_id) == (3, before.key, before.call_id)
    assert sent(rig) == [1, 2, 3, 4]
    assert [type(event).__name__ for event in rig.history("r")].count("CallHeld") == 2
    assert RunResumed(after.call_id) in rig.history("r")
    resolve(rig, "did_not_happen", 4)
    rig.finish()
    rig.run()
    rig.finish()
    rig.run()
    assert rig.state("r").status == "completed"


def test_attempts_anew_wait_as_long_in_between_as_the_first_ones() -> None:
    rig = begun(app(attempts=6, cap=timedelta(hours=1)))
    for _ in range(6):
        rig.fail("r", "busy")
        rig.run()
        rig.later(3_600_000)
    resolve(rig, "did_not_happen", 6)

    rig.fail("r", "busy")
    rig.run()
    rig.later(1_000)

    assert sent(rig)[-1] == 8


def test_a_held_call_is_answered_in_the_place_of_its_tool() -> None:
    code = app()
    rig = begun(code)
    use_up(rig)
    for _ in range(3):
        rig.later(6_000)  # a snapshot has it
    rig.deploy(code)

    resolve(rig, "happened", 2, result="no number")
    refused = rig.letters()
    resolve(rig, "happened", 2, result=40, comment="by hand")
    rig.finish(result="2")
    rig.run()

    assert refused == 1
    assert rig.state("r").end.result == "42"  # type: ignore[union-attr]
    [said] = [event for event in rig.history("r") if isinstance(event, DoubtResolved)]
    assert (said.verdict, said.actor, said.comment) == ("happened", "op", "by hand")


def test_a_held_call_that_is_let_fail_raises_its_own_failure_in_the_agent() -> None:
    rig = begun(app(catches))
    use_up(rig)

    resolve(rig, "give_up", 2)

    assert rig.state("r").end.result == '"no: busy"'  # type: ignore[union-attr]


def test_a_run_that_failed_for_a_held_call_is_retried_with_that_call() -> None:
    rig = begun(app())
    [before] = rig.asked("r")
    use_up(rig)
    assert not rig.asked("r"), "its order is taken back"
    resolve(rig, "give_up", 2)
    assert rig.state("r").status == "failed"

    rig.operate("r", "retry", seq=rig.state("r").head.seq)
    rig.run()

    [after] = rig.asked("r")
    assert (after.key, after.attempt) == (before.key, 1)


def test_a_word_that_was_said_before_a_call_was_held_again_is_for_the_first_time_alone() -> None:
    rig = begun(app())
    use_up(rig)
    resolve(rig, "did_not_happen", 2)
    use_up(rig)

    resolve(rig, "did_not_happen", 2)
    resolve(rig, "give_up", 2)

    assert sent(rig) == [1, 2, 3, 4]
    assert rig.state("r").open[1].phase == "held"


def test_a_held_call_that_nobody_waits_for_any_more_is_closed() -> None:
    rig = begun(app(hurries))
    use_up(rig)

    rig.later(3_600_000)
    resolve(rig, "did_not_happen", 2)

    assert rig.state("r").end.result == '"late"'  # type: ignore[union-attr]
    assert not rig.asked("r")
    assert sent(rig) == [1, 2]


def test_a_once_call_that_is_known_not_to_have_happened_goes_out_by_an_operator_s_word() -> None:
    rig = begun(app(effect="once"))
    use_up(rig)

    resolve(rig, "did_not_happen", 2)

    assert sent(rig) == [1, 2, 3]
    assert not rig.letters()


def test_what_may_have_happened_is_in_doubt_and_not_held() -> None:
    rig = begun(app(effect="once"))

    rig.fail("r", "timeout", status="unknown")
    rig.run()

    assert rig.state("r").open[1].phase == "doubt"


def test_a_result_that_comes_for_a_held_call_after_all_counts() -> None:
    rig = begun(app())
    [first] = rig.asked("r")
    use_up(rig)

    rig.finish_one(first, result="1")
    rig.run()

    assert "CallCompleted" in rig.events("r")


@pytest.mark.parametrize(("code", "retryable"), [("broke", True), ("busy", False)])
def test_a_failure_that_is_not_tried_again_raises_and_is_not_held(code: str, retryable: bool) -> None:
    rig = begun(app(retry_if=("busy", "timeout")))

    rig.fail("r", code, retryable=retryable)
    rig.run()

    assert sent(rig) == [1]
    [failed] = [event for event in rig.history("r") if isinstance(event, Failed)]
    assert failed.failure.code == code
    assert rig.state("r").status == "failed"


def test_a_failure_of_a_code_that_is_meant_is_tried_again() -> None:
    rig = begun(app(retry_if=("busy", "timeout"), then="raise"))

    use_up(rig)

    assert sent(rig) == [1, 2]
    assert rig.state("r").status == "failed"


def test_what_may_have_happened_is_tried_again_whatever_its_code_is() -> None:
    rig = begun(app(retry_if=("busy",)))

    rig.fail("r", "timeout", status="unknown")
    rig.run()
    rig.later(60_000)

    assert sent(rig) == [1, 2]


def test_a_held_call_of_a_paused_run_goes_out_when_that_goes_on() -> None:
    rig = begun(app())
    use_up(rig)
    rig.operate("r", "pause")
    rig.run()

    resolve(rig, "did_not_happen", 2)
    paused = sent(rig)
    rig.now += 1
    rig.operate("r", "resume")
    rig.run()

    assert paused == [1, 2]
    assert sent(rig) == [1, 2, 3]
