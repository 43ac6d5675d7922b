"""What a run is told while its code is held goes to the waits that the code still wants when it has caught up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from refold import App, Context
from refold.core.events import CallbackCompleted, RunRequested, StepGivenUp, WaitEnded, WaitExpired
from refold.core.ids import RunId, callback_token
from refold.core.messages import DeadLetter
from refold.core.wire import codec
from tests.recovery.rig import Rig

Agent = Callable[[Context], Awaitable[Any]]
MINUTE = 60_000


def double(n: int) -> int:
    """A call that anybody may make."""
    return 2 * n


def made(agent: Agent, *, changed: bool = False) -> App:
    """An app with this agent, or with one that asks for other steps than those that history has."""

    async def run(ctx: Context) -> Any:
        if changed:
            ctx.note("plan")
        return await agent(ctx)

    app = App("shop", version=f"{agent.__name__}-{changed}")
    app.tool(effect="pure")(double)
    app.agent(name="ship")(run)
    return app


def held(agent: Agent) -> Rig:
    """A planner whose code does not go with the history of its run."""
    rig = Rig(made(agent))
    rig.start("r-1", "ship")
    rig.run()
    rig.deploy(made(agent, changed=True))
    return rig


def caught_up(rig: Rig, agent: Agent) -> Rig:
    """The planner has the right code again."""
    rig.deploy(made(agent))
    rig.run()
    return rig


def waits(rig: Rig) -> list[object]:
    """What became of the waits of the run, in order."""
    return [event for event in rig.history("r-1") if isinstance(event, WaitEnded | WaitExpired | StepGivenUp)]


def result(rig: Rig) -> str:
    """What the run returned."""
    end = rig.state("r-1").end
    return str(getattr(end, "result", end))


async def twice(ctx: Context) -> list[Any]:
    """Gives its first wait up after a minute, and waits once more."""
    try:
        async with asyncio.timeout(60):
            return ["first", (await ctx.wait_for("go")).data]
    except TimeoutError:
        return ["second", (await ctx.wait_for("go")).data]


async def at_once(ctx: Context) -> list[Any]:
    """Two waits that are equal, for ten minutes, beside a nap."""

    async def wait() -> Any:
        try:
            return (await ctx.wait_for("go", timeout=timedelta(minutes=10))).data
        except TimeoutError:
            return "late"

    return await asyncio.gather(asyncio.sleep(60), wait(), wait())


async def paid(ctx: Context) -> str:
    """Gives a callback up after a minute."""
    answer = ctx.callback("paid")
    try:
        async with asyncio.timeout(60):
            return str(await answer)
    except TimeoutError:
        await asyncio.sleep(60)
        return "given up"


def test_a_signal_goes_to_no_wait_that_the_code_gives_up_when_it_has_seen_what_came_before() -> None:
    rig = held(twice)
    rig.later(MINUTE)

    rig.tell("r-1", "s-1", 7)
    rig.run()
    kept = list(rig.state("r-1").mail.kept)
    caught_up(rig, twice)

    assert kept == ["s-1"]
    assert [type(event).__name__ for event in waits(rig)] == ["StepGivenUp", "WaitEnded"]
    assert result(rig) == '["second",7]'


def test_the_first_thing_that_wakes_held_code_is_a_signal_that_it_waits_for() -> None:
    rig = held(twice)

    rig.tell("r-1", "s-1", 7)
    rig.later(MINUTE)
    caught_up(rig, twice)

    assert result(rig) == '["first",7]'


def test_signals_that_were_kept_go_to_the_waits_that_are_open_in_order() -> None:
    rig = held(at_once)
    rig.later(MINUTE)

    for number in range(3):
        rig.tell("r-1", f"s-{number}", number)
    rig.later(MINUTE)
    rig.deploy(made(at_once, changed=True))  # a successor that is as wrong knows as much
    caught_up(rig, at_once)

    assert result(rig) == "[null,0,1]"
    assert list(rig.state("r-1").mail.kept) == ["s-2"]


def test_code_that_had_nothing_to_say_when_it_caught_up_hears_what_comes_then() -> None:
    rig = held(at_once)
    rig.later(MINUTE)
    caught_up(rig, at_once)

    for number in range(2):
        rig.tell("r-1", f"s-{number}", number)
        rig.run()

    assert result(rig) == "[null,0,1]"


def test_a_wait_does_not_expire_over_what_came_in_time_while_its_code_was_held() -> None:
    rig = held(at_once)
    rig.later(MINUTE)

    rig.tell("r-1", "s-1", 1)
    rig.later(10 * MINUTE)
    before = waits(rig)
    caught_up(rig, at_once)

    assert before == []
    assert [type(event) for event in waits(rig)] == [WaitEnded, WaitExpired]
    assert result(rig) == '[null,1,"late"]'


def test_what_was_sent_in_time_is_in_time_though_nobody_was_there_to_read_it() -> None:
    rig = held(at_once)
    rig.later(MINUTE)

    rig.tell("r-1", "s-1", 1)
    rig.now += 20 * MINUTE
    rig.deploy(made(at_once, changed=True))
    rig.run()
    caught_up(rig, at_once)

    assert result(rig) == '[null,1,"late"]'


def test_what_comes_too_late_is_for_no_wait_that_was_open() -> None:
    rig = held(at_once)
    rig.later(10 * MINUTE)

    rig.tell("r-1", "s-1", 1)
    rig.run()
    caught_up(rig, at_once)

    assert result(rig) == '[null,"late","late"]'


def test_an_answer_to_a_callback_counts_though_its_code_gives_it_up_when_it_has_caught_up() -> None:
    rig = held(paid)
    rig.later(MINUTE)
    [seed] = [event.seed for event in rig.history("r-1") if isinstance(event, RunRequested)]
    token = callback_token(RunId("r-1"), seed, 1)

    rig.resolve(token, "now")
    caught_up(rig, paid)
    rig.resolve(token, "again")
    rig.run()
    rig.later(MINUTE)

    assert any(isinstance(event, CallbackCompleted) for event in rig.history("r-1"))
    assert result(rig) == '"given up"'
    [letter] = [codec.decode(DeadLetter, each.value) for each in rig.broker.log("dead-letter", 0).records]
    assert "its first answer counts" in letter.reason
