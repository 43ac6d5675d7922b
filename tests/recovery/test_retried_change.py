"""A failed run goes on with code that has changed: which version it gets, and which way it takes at a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from refold import App, Context
from refold.core.events import CallProposed, PatchTaken, RunCompleted
from refold.core.ids import LIFE_CALLBACKS, RunId, callback_digest, callback_token
from refold.sdk.source import spoken
from tests.recovery.retrying import begun, charge, fail, failed, retry, shop, three
from tests.recovery.rig import Rig


async def two(ctx: Context) -> int:
    """The first is another."""
    return sum([await ctx.call(charge, n) for n in (11, 2, 3)])


async def patched(ctx: Context) -> int:
    """The second and the third are others for who comes to them new."""
    done = [await ctx.call(charge, 1)]
    done.append(await ctx.call(charge, 22 if ctx.patched("second") else 2))
    done.append(await ctx.call(charge, 33 if ctx.patched("third") else 3))
    return sum(done)


def ended(rig: Rig, code: App) -> list[str]:
    """The run goes to its end, with a planner more for every call; the arguments of all of its steps."""
    while rig.finish("r-1"):
        rig.run()
        rig.deploy(code)
    assert rig.state("r-1").status == "completed"
    assert not rig.holds()
    return [step.args for step in rig.state("r-1").steps if isinstance(step, CallProposed)]


def patches(rig: Rig) -> list[str]:
    return [event.patch for event in rig.history("r-1") if isinstance(event, PatchTaken)]


def test_a_retried_run_goes_on_with_its_version() -> None:
    rig = failed(shop(three, named=True))
    rig.deploy(both := shop(three, two, named=True))

    retry(rig, **{"from": 2})

    assert ended(rig, both) == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":2}', '{"n":3}']
    assert spoken(rig.state("r-1").version)[0] == "three"


def asking(name: str, *, fails: bool) -> App:
    """An agent that has somebody outside answer."""

    async def asks(ctx: Context) -> object:
        await ctx.call(charge, 1)
        kept = ctx.callback("kept")
        await ctx.call(charge, 2)
        left, answered = ctx.callback(name), await kept
        if fails:
            raise ValueError("a bug")
        return [answered, await left]

    return shop(asks)


def answered_and_failed() -> tuple[Rig, Callable[[int], str]]:
    """A run that has failed with one callback answered and the next one open, and its tokens by number."""
    rig = begun(asking("newsletter", fails=True), done=2)
    request = rig.state("r-1").request
    assert request is not None
    token = partial(callback_token, RunId("r-1"), request.seed)
    rig.resolve(token(1), "yes")
    rig.run()
    assert rig.state("r-1").status == "failed"
    return rig, token


def test_the_token_of_a_callback_that_a_retry_has_left_behind_answers_nothing() -> None:
    rig, token = answered_and_failed()
    kept, left = token(1), token(2)
    step = rig.state("r-1").callbacks[callback_digest(left)]
    rig.deploy(asking("million", fails=False))
    retry(rig, **{"from": step})

    rig.resolve(left, "yes")
    rig.run()
    assert rig.state("r-1").status == "suspended"
    for _ in range(2):
        rig.deploy(asking("million", fails=False))  # its code is run from the top, and makes the same tokens
    [made] = set(rig.state("r-1").callbacks.keys()) - {callback_digest(kept), callback_digest(left)}
    anew = next(each for each in (token(LIFE_CALLBACKS + n) for n in range(9)) if callback_digest(each) == made)
    rig.resolve(anew, "no")
    rig.run()

    assert rig.state("r-1").end == RunCompleted('["yes","no"]')


def test_a_second_retry_from_an_earlier_step_makes_other_tokens_again() -> None:
    rig, token = answered_and_failed()
    first, second = token(2), token(LIFE_CALLBACKS + 2)
    rig.deploy(asking("newsletter", fails=True))
    retry(rig, **{"from": rig.state("r-1").callbacks[callback_digest(first)]})
    assert callback_digest(second) in rig.state("r-1").callbacks
    rig.deploy(asking("million", fails=False))
    retry(rig, **{"from": 3})
    rig.finish()
    rig.run()

    for left in (first, second):
        rig.resolve(left, "yes")
        rig.run()

    assert rig.state("r-1").status == "suspended"


def test_a_retried_run_whose_version_is_gone_stalls_until_it_is_there() -> None:
    rig = failed(shop(three, named=True))
    rig.deploy(shop(two, named=True))

    retry(rig, **{"from": 2})

    hold = rig.hold("r-1")
    assert hold is not None
    assert (hold.reason, spoken(hold.needs)[0]) == ("unknown_version", "three")
    assert not rig.asked("r-1")
    rig.deploy(both := shop(three, two, named=True))
    assert ended(rig, both)[3:] == ['{"n":2}', '{"n":3}']


def test_a_retry_of_the_call_that_failed_keeps_the_way_to_it() -> None:
    rig = failed(shop(three))
    rig.deploy(code := shop(patched))

    retry(rig)

    assert ended(rig, code) == ['{"n":1}', '{"n":2}', '{"n":3}']
    assert patches(rig) == []


@pytest.mark.parametrize(
    ("step", "again", "taken"),
    [(3, ['{"n":33}'], ["third"]), (2, ['{"n":22}', '{"n":33}'], ["second", "third"])],
)
def test_a_step_that_is_done_again_comes_to_a_change_as_new(step: int, again: list[str], taken: list[str]) -> None:
    rig = failed(shop(three))
    rig.deploy(code := shop(patched))

    retry(rig, **{"from": step})

    assert ended(rig, code)[3:] == again
    assert patches(rig) == taken


def test_a_change_that_was_taken_before_what_is_done_again_stays_taken() -> None:
    rig = failed(shop(patched))
    assert patches(rig) == ["second", "third"]

    retry(rig, **{"from": 3})

    assert sorted(rig.state("r-1").patches) == ["second", "third"]
    assert ended(rig, shop(patched))[3:] == ['{"n":33}']
    assert patches(rig) == ["second", "third", "third"]


def test_a_change_that_is_left_behind_is_none_any_more() -> None:
    rig = failed(shop(patched))
    rig.deploy(code := shop(three))

    retry(rig, **{"from": 2})

    assert dict(rig.state("r-1").patches) == {}
    assert ended(rig, code)[3:] == ['{"n":2}', '{"n":3}']


async def side(ctx: Context) -> None:
    """Three calls in one turn."""
    await asyncio.gather(*(ctx.call(charge, n) for n in (1, 2, 3)))


async def side_patched(ctx: Context) -> None:
    """The same, with a change before the first and one before the third."""

    async def call(name: str, new: int, old: int) -> None:
        await ctx.call(charge, new if ctx.patched(name) else old)

    await asyncio.gather(call("first", 11, 1), ctx.call(charge, 2), call("third", 33, 3))


def torn(app: App) -> Rig:
    """A run that has failed by the third of three calls in one turn."""
    rig = begun(app)
    first, second, third = rig.asked("r-1")
    rig.finish_one(first)
    rig.finish_one(second)
    rig.run()
    fail(rig, third.call_id)
    return rig


def test_of_a_turn_that_stays_in_part_the_rest_comes_to_a_change_as_new() -> None:
    rig = torn(shop(side))
    rig.deploy(code := shop(side_patched))

    retry(rig, **{"from": 3})

    assert ended(rig, code) == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":33}']
    assert patches(rig) == ["third"]


def test_of_a_turn_that_stays_in_part_a_change_before_the_rest_stays_taken() -> None:
    rig = torn(code := shop(side_patched))

    retry(rig, **{"from": 3})

    assert ended(rig, code)[3:] == ['{"n":33}']
    assert patches(rig) == ["first", "third", "third"]
