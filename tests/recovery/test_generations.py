"""A run that lives on: it ends one history and begins the next with what it carries, once, whatever dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refold import App, Budget, Context
from refold.core.errors import UsageError
from refold.core.events import RunContinued, RunRequested, SignalReceived, WaitEnded
from refold.core.ids import RunId, generation_id, home, next_generation, root_of, run_id
from refold.testing import crash_matrix, run, start
from tests.recovery.rig import Rig

app = App("living")


@app.tool(effect="pure", cost="0.10")
def step(n: int) -> int:
    """A call."""
    return n


@app.agent
async def chat(ctx: Context, seen: list[Any], every: int = 2) -> list[Any]:
    """Takes signals, and begins anew after so many; ends when one is `end`."""
    for _ in range(every):
        data = (await ctx.wait_for("go")).data
        if data == "end":
            return [*seen, ctx.generation]
        seen = [*seen, data]
    return ctx.continue_as({"seen": seen, "every": every})  # type: ignore[no-any-return]


def test_ids_of_generations() -> None:
    assert next_generation(RunId("chat-7")) == "chat-7+2"
    assert next_generation(RunId("chat-7+2")) == "chat-7+3"
    assert root_of("chat-7+2.5") == "chat-7"
    assert home("chat-7+12.5", 12) == home("chat-7", 12)
    assert run_id("chat-7+10.5") == "chat-7+10.5"
    assert generation_id("a", 1) == "a"
    for wrong in ("a+1", "a+0", "a+", "a+2+3", "a.1+2", "+2"):
        with pytest.raises(Exception, match="is not a run id"):
            run_id(wrong)


def told(rig: Rig, many: int) -> None:
    for number in range(many):
        rig.tell("c", f"s-{number}", number)
        rig.run()


def test_a_run_goes_on_by_its_plain_name() -> None:
    rig = Rig(app)
    rig.start("c", "chat", seen=[])
    rig.run()
    told(rig, 5)
    rig.tell("c", "s-end", "end")
    rig.run()

    assert rig.state("c").status == rig.state("c+2").status == "continued"
    assert rig.state("c+3").status == "completed"
    assert getattr(rig.state("c+3").end, "result", "") == "[0,1,2,3,4,3]"
    request = rig.state("c+2").request
    assert request is not None
    assert request.continues is not None
    assert request.continues.head == rig.state("c").head.id
    assert request.requester == "ann"
    assert len([record for record in rig.records("run-completed") if record.value]) == 1
    assert rig.letters() == 0


@pytest.mark.parametrize("turns", range(1, 26, 2))
def test_each_signal_is_taken_once_though_planners_die(turns: int) -> None:
    rig = Rig(app)
    rig.start("c", "chat", seen=[])
    for number in range(5):
        rig.tell("c", f"s-{number}", number)
    for _ in range(turns):
        rig._turn()
    rig.deploy(app)
    for number in range(5):  # said again
        rig.tell("c", f"s-{number}", number)
    rig._turn()
    rig.deploy(app)
    rig.start("c", "chat", seen=[])
    rig.tell("c", "s-end", "end")
    rig.run()

    assert getattr(rig.state("c+3").end, "result", "") == "[0,1,2,3,4,3]"
    events = [event for run in ("c", "c+2", "c+3") for event in rig.history(run)]
    taken = [event.signal_id for event in events if isinstance(event, WaitEnded)]
    assert taken == [*(f"s-{number}" for number in range(5)), "s-end"]
    assert sum(isinstance(event, RunRequested) for event in events) == 3
    assert rig.letters() == 0


def test_untaken_signals_are_carried_and_taken_ones_are_not_taken_again() -> None:
    rig = Rig(app)
    rig.start("c", "chat", seen=[])
    rig.run()
    for number in range(4):
        rig.tell("c", f"s-{number}", number)
    rig.run()

    carried = [event.signal_id for event in rig.history("c+2") if isinstance(event, SignalReceived)]
    assert carried
    told(rig, 4)
    rig.tell("c", "s-end", "end")
    rig.run()
    assert getattr(rig.state("c+3").end, "result", "") == "[0,1,2,3,3]"


def test_operators_reach_the_latest_generation() -> None:
    rig = Rig(app)
    rig.start("c", "chat", seen=[])
    rig.run()
    told(rig, 2)
    rig.operate("c", "pause")
    rig.run()
    assert rig.state("c+2").paused
    rig.deploy(app)
    rig.operate("c", "resume")
    rig.run()
    rig.tell("c", "x-1", 7)
    rig.run()
    assert not rig.state("c+2").paused
    rig.operate("c", "cancel")
    rig.run()

    assert rig.state("c+2").status == "cancelled"
    rig.later(60_000)
    rig.deploy(app)
    rig.tell("c", "late", 1)
    rig.run()
    assert rig.letters() == 1, "closed"


def test_a_repeated_request_means_the_run_and_another_one_is_refused() -> None:
    rig = Rig(app)
    rig.start("c", "chat", seen=[])
    rig.run()
    told(rig, 2)
    rig.start("c", "chat", seen=[])
    rig.run()
    assert rig.letters() == 0
    rig.start("c", "chat", seen=[1])
    rig.run()
    assert rig.letters() == 1
    rig.start("c+9", "chat", seen=[])
    rig.run()
    assert rig.letters() == 2
    assert rig.events("c+9") == []


def test_a_generation_has_what_is_left_of_the_budget() -> None:
    async def spender(ctx: Context, left: int) -> int:
        await ctx.call(step, left)
        return ctx.continue_as({"left": left - 1}) if left else 0

    code = App("spending")
    code._by_function, code.tools = app._by_function, app.tools
    code.agent(budget=Budget(usd="0.35"))(spender)
    rig = Rig(code)
    rig.start("r", "spender", left=9)
    for _ in range(8):
        rig.run()
        rig.finish()
    rig.run()

    assert rig.state("r+3").status == "continued"
    assert rig.state("r+4").status == "failed"
    assert "budget_usd" in str(rig.state("r+4").end)


def test_it_is_refused_while_a_call_is_open_and_in_a_child() -> None:
    async def open_call(ctx: Context) -> Any:
        task = asyncio.create_task(ctx.call(step, 1))
        await asyncio.sleep(0)
        try:
            return ctx.continue_as({})
        finally:
            await task

    async def above(ctx: Context) -> Any:
        return await ctx.run("below")

    async def below(ctx: Context) -> Any:
        return ctx.continue_as({})

    async def unfit(ctx: Context, n: int = 1) -> Any:
        return ctx.continue_as({"n": "x"})

    code = App("refusing")
    code._by_function, code.tools = app._by_function, app.tools
    for body in (open_call, above, below, unfit):
        code.agent(body)
    for name in ("open_call", "above", "unfit"):
        ended = run(code, name)
        assert ended.failure is not None, name
        assert UsageError.code in str(ended.failure) or "child" in str(ended.failure), ended.failure


def test_a_new_version_takes_over_with_the_next_generation() -> None:
    async def other(ctx: Context, seen: list[Any], every: int = 2) -> list[Any]:
        return [*seen, "other"]

    old, new = App("v"), App("v")
    old.agent(name="chat", version="1")(chat)
    new.agent(name="chat", version="1")(chat)
    new.agent(name="chat", version="2")(other)
    rig = Rig(old)
    rig.start("c", "chat", seen=[])
    rig.run()
    told(rig, 1)
    rig.deploy(new)
    rig.tell("c", "s-8", 8)
    rig.run()

    assert rig.state("c").version.startswith("1")
    assert rig.state("c+2").version.startswith("2")
    assert getattr(rig.state("c+2").end, "result", "") == '[0,8,"other"]'


def test_the_size_of_the_history_is_equal_in_every_replay() -> None:
    async def sized(ctx: Context) -> list[Any]:
        found = []
        for n in range(3):
            await ctx.call(step, n)
            found.append([ctx.history.steps, ctx.history.bytes, ctx.should_continue])
        return found

    code = App("sized")
    code._by_function, code.tools = app._by_function, app.tools
    code.agent(sized)
    sizes = run(code, "sized").value
    assert [size[0] for size in sizes] == [1, 2, 3]
    assert sizes[0][1] < sizes[1][1] < sizes[2][1]
    assert RunContinued("{}").input == "{}"


def test_the_testing_kit_runs_all_generations() -> None:
    begun = start(app, "chat", seen=[])
    for number in range(3):
        begun.latest.signal("go", number)
    begun.latest.signal("go", "end")

    assert begun.status == "continued"
    assert begun.value == [0, 1, 2, 2]
    assert begun.latest.state.run_id == "r-1+2"
    assert [each.state.run_id for each in begun.family] == ["r-1", "r-1+2"]


def test_a_crash_matrix_kills_in_all_generations() -> None:
    bought: dict[str, int] = {}

    async def buyer(ctx: Context, left: int) -> int:
        await ctx.call(buy, left)
        return ctx.continue_as({"left": left - 1}) if left else 7

    code = App("buying")

    @code.tool(effect="keyed")
    def buy(n: int, *, idempotency_key: str) -> int:
        bought[idempotency_key] = n
        return n

    code.agent(buyer)
    report = crash_matrix(code, "buyer", {"left": 2})

    assert report.ok
    assert report.effects == {"buy": 3}
    assert report.entries == 6
