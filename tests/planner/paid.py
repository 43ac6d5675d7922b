"""Agents that take of a budget, and executors that are played: what each attempt takes is said in its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from refold import App, Budget, CallFailed, ChildFailed, Context, Limit, Price, Reserve, Retry
from refold.core.events import Failure
from refold.core.messages import ToolRequest, ToolResult
from refold.core.run.account import BudgetAccount
from refold.engine.ports.log import Outgoing
from tests.recovery.rig import Rig

Answer = Callable[[ToolRequest], "ToolResult | None"]


def think(n: int) -> dict[str, Any]:
    """Never runs: its result is played."""
    return {"n": n}


def fetch(n: int) -> int:
    """Costs a quarter of a dollar each time."""
    return n


def look(n: int) -> int:
    """Costs nothing."""
    return n


async def thought(ctx: Context, n: int, **more: Any) -> Any:
    reserve = Reserve(model="test:big", input_tokens=1_000, output_tokens=500, **more)
    return await ctx.call(think, n, reserve=reserve)


async def thinker(ctx: Context, times: int) -> int:
    """Thinks, one after the other."""
    for n in range(times):
        await thought(ctx, n)
    return times


async def crowd(ctx: Context, times: int) -> int:
    """Thinks of all at once."""
    return len(await asyncio.gather(*(thought(ctx, n) for n in range(times))))


async def wise(ctx: Context, times: int) -> list[str]:
    """Thinks in a cheaper way when it is told to."""
    ways = []
    for n in range(times):
        try:
            await thought(ctx, n)
            ways.append("big")
        except CallFailed as failed:
            ways.append(str(failed.fields["code"]))
            small = Reserve(model="test:small", input_tokens=1_000, output_tokens=500, cheap=True)
            await ctx.call(think, n, reserve=small)
    return ways


async def looker(ctx: Context, times: int, same: bool = False) -> list[str]:
    """Looks, at another thing each time."""
    seen = []
    for n in range(times):
        try:
            seen.append(str(await ctx.call(look, 0 if same else n)))
        except CallFailed as failed:
            seen.append(str(failed.fields["code"]))
    return seen


async def buyer(ctx: Context, times: int) -> int:
    """Buys, one after the other."""
    return sum([await ctx.call(fetch, n) for n in range(times)])


async def hand(ctx: Context, times: int) -> int:
    """Thinks for somebody."""
    for n in range(times):
        await thought(ctx, n)
    return times


async def boss(ctx: Context, hands: int, times: int) -> list[str]:
    """Has others think, at once, and says what came of them."""

    async def one() -> str:
        try:
            return str(await ctx.run(hand, {"times": times}))
        except ChildFailed as failed:
            return str(failed.fields["code"])

    return await asyncio.gather(*(one() for _ in range(hands)))


async def follower(ctx: Context, times: int) -> int:
    """Has another one think, and thinks itself as soon as that has ended."""
    await ctx.run(hand, {"times": times})
    await thought(ctx, times)
    return times


async def quitter(ctx: Context, hands: int, times: int) -> int:
    """Has others think, and does not wait for them."""
    tasks = [asyncio.create_task(ctx.run(hand, {"times": times})) for _ in range(hands)]
    await ctx.call(look, 1)
    for task in tasks:
        task.cancel()
    await ctx.call(look, 2)
    return hands


def made(budget: Budget | None = None, *, inner: Budget | None = None, limits: Iterable[Limit] = ()) -> App:
    """An app of which the agents have these budgets: `inner` is of those that others start."""
    prices = {"test:big": Price(input=1, output=10), "test:small": Price("0.10", "0.50")}
    app = App("paid", prices=prices, limits=limits)
    app.tool(effect="pure", retry=Retry(attempts=3, base=timedelta(seconds=1)))(think)
    app.tool(effect="once", cost="0.25")(fetch)
    app.tool(effect="pure")(look)
    app.agent(budget=inner)(hand)
    for agent in (thinker, crowd, wise, looker, buyer, boss, follower, quitter):
        app.agent(budget=budget)(agent)
    return app


def usage(model: str = "test:big", read: int = 1_000, written: int = 500) -> str:
    """A result that says what it took."""
    said = {"model": model, "input_tokens": read, "output_tokens": written, "requests": 1}
    return json.dumps({"answer": "yes", "usage": said})


def completed(asked: ToolRequest, result: str, **more: Any) -> ToolResult:
    """An attempt that has a result."""
    return ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, "completed", result, **more)


def ended(asked: ToolRequest, status: str, code: str = "gone") -> ToolResult:
    """An attempt that has none."""
    failure = Failure(code, "it is gone")
    return ToolResult(asked.call_id, asked.run_id, asked.step, asked.attempt, status, failure=failure)


def pays(asked: ToolRequest) -> ToolResult:
    """What is asked for is done, and takes what was reserved."""
    model = "test:big"
    return completed(asked, usage(model) if asked.tool == "think" else json.dumps(json.loads(asked.args)["n"]))


class Paid(Rig):
    """A planner whose executors answer as they are told, each request once."""

    def __init__(self, code: App, answer: Answer = pays, *, partitions: int = 1) -> None:
        self.answer, self.made = answer, list[ToolRequest]()
        self._known: set[tuple[str, int]] = set()
        self._app = code
        super().__init__(code, partitions=partitions)

    def pump(self, turns: int = 10_000) -> None:
        """Takes turns until nothing happens any more, or so many."""
        quiet = 0
        for _ in range(turns):
            quiet = 0 if self._turn() | self._act() else quiet + 1
            if quiet == 3:
                return

    def boot(self) -> None:
        """The planner dies, and another takes its place."""
        self.deploy(self._app)

    def account(self, run: str) -> BudgetAccount:
        """What a run has taken."""
        account = self.state(run).account
        assert account is not None
        return account

    def told(self, run: str, *kinds: type[Any]) -> list[Any]:
        """The events of a run, of these kinds."""
        return [event for event in self.history(run) if isinstance(event, kinds)]

    def say(self, result: ToolResult) -> None:
        """An executor's word."""
        self._write("tool-completed.default", result.call_id, result)

    def ask(self, request: dict[str, Any]) -> None:
        """Somebody asks for a run, in JSON."""
        value = json.dumps(request).encode()
        self.broker.write(Outgoing("run-requested", 0, request["run_id"].encode(), value, (), 0))

    def _act(self) -> bool:
        acted = False
        for asked in self.asked():
            if (asked.call_id, asked.attempt) in self._known:
                continue
            self._known.add((asked.call_id, asked.attempt))
            self.made.append(asked)
            if (result := self.answer(asked)) is not None:
                acted = True
                self.say(result)
        return acted
