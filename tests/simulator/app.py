"""The simulated app: a tool of each class, the same with a decision required, and small agents that ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from hashlib import blake2b
from typing import Any

from refold.core.approval.decision import ToolFacts
from refold.core.errors import CallbackError, CallFailed, ChildFailed
from refold.core.messages import EarlierCall
from refold.core.wire import canonical
from refold.sdk.app import App
from refold.sdk.budget import Budget
from refold.sdk.context import Context
from refold.sdk.loop import running
from refold.sdk.memory import MemoryAgent
from refold.sdk.retry import Retry
from refold.sdk.tool import DID_NOT_HAPPEN
from tests.simulator.minds.thinking import PRICES, think
from tests.simulator.mistakes import disagrees, hungers
from tests.simulator.programs.perform import perform
from tests.simulator.revised import APART, OLDER, REVISED, add_revised

simulated = App("simulated", prices=PRICES)
TIMEOUT_MS, PRICED, RECALL = 800, "buy", "recall"
_TIMEOUT, _PATIENCE = timedelta(milliseconds=TIMEOUT_MS), timedelta(milliseconds=2_500)
_RETRY = Retry(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=400))


@simulated.tool(effect="pure", timeout=_TIMEOUT, retry=_RETRY)
def look(n: int) -> dict[str, int]:
    """Reads something."""
    return {"effect": n}


@simulated.tool(effect="keyed", timeout=_TIMEOUT, retry=_RETRY)
def push(n: int, *, idempotency_key: str) -> dict[str, int]:
    """Acts on a receiver that knows keys."""
    return {"effect": n}


@simulated.tool(effect="keyed", key_window=timedelta(milliseconds=2_300), timeout=_TIMEOUT, retry=_RETRY)
def pushed_briefly(n: int, *, idempotency_key: str) -> dict[str, int]:
    """Acts on a receiver that forgets keys."""
    return {"effect": n}


@simulated.tool(effect="probed", probe=lambda n: DID_NOT_HAPPEN, timeout=_TIMEOUT, retry=_RETRY)
def book(n: int) -> dict[str, int]:
    """Acts on a receiver that can be asked."""
    return {"effect": n}


@simulated.tool(effect="once", timeout=_TIMEOUT, retry=_RETRY)
def pay(n: int) -> dict[str, int]:
    """Acts, and nobody can say afterwards."""
    return {"effect": n}


_INSIST = Retry(attempts=2, base=timedelta(milliseconds=100), retry_if=("failed",), then="hold")


@simulated.tool(effect="keyed", timeout=_TIMEOUT, retry=_INSIST)
def push_or_hold(n: int, *, idempotency_key: str) -> dict[str, int]:
    """Acts on a receiver that knows keys, or waits for an operator."""
    return {"effect": n}


@simulated.tool(effect="once", timeout=_TIMEOUT, retry=Retry(attempts=1, then="hold"))
def pay_or_hold(n: int) -> dict[str, int]:
    """Acts, and nobody can say afterwards; what has not happened waits for an operator."""
    return {"effect": n}


@simulated.tool(effect="keyed", approval="required", version="1", timeout=_TIMEOUT, retry=_RETRY)
def wipe_push(n: int, *, idempotency_key: str) -> dict[str, int]:
    """Harms a receiver that knows keys."""
    return {"effect": n}


@simulated.tool(
    effect="probed", probe=lambda n: DID_NOT_HAPPEN, approval="required", version="1", timeout=_TIMEOUT, retry=_RETRY
)
def wipe_book(n: int) -> dict[str, int]:
    """Harms a receiver that can be asked."""
    return {"effect": n}


@simulated.tool(effect="once", approval="required", version="1", timeout=_TIMEOUT, retry=_RETRY)
def wipe_pay(n: int) -> dict[str, int]:
    """Harms, and nobody can say afterwards."""
    return {"effect": n}


@simulated.tool(name=PRICED, effect="pure", cost="0.10", timeout=_TIMEOUT, retry=_RETRY)
def buy(n: int) -> dict[str, int]:
    """Costs something each time it is made, whatever comes of it."""
    return {"effect": n}


@simulated.tool(effect="pure", timeout=_TIMEOUT, retry=_RETRY)
def model(name: str, mind: str, turn: int, told: str) -> Any:
    """Says what is to be done next."""


@simulated.tool(effect="pure", timeout=_TIMEOUT, retry=_RETRY)
def recall(n: int, before: str) -> dict[str, int]:
    """Is told of calls before this one: `before` is a digest of them."""
    return {"effect": n}


FACTS: dict[str, ToolFacts] = {tool.name: tool.facts for tool in simulated.tools.values()}
"""What everybody knows of the tools: executors, checker and attackers alike."""

DANGEROUS = ("wipe_push", "wipe_book", "wipe_pay")
"""The tools that never run without a decision."""

CLAIMED_EFFECTS = ("probed", "once")
"""The classes whose every attempt is a link of the claim chain."""


@simulated.agent
async def one(ctx: Context, tool: str) -> Any:
    """One call."""
    return await ctx.call(tool, 1)


@simulated.agent
async def three(ctx: Context) -> list[Any]:
    """Three calls in a row, of three classes, with a note."""
    ctx.note("plan", ["push", "book", "pay"])
    return [await ctx.call("push", 1), await ctx.call("book", 2), await ctx.call("pay", 3)]


@simulated.agent
async def fan(ctx: Context) -> list[Any]:
    """Three calls at once."""
    return list(await asyncio.gather(ctx.call("push", 1), ctx.call("look", 2), ctx.call("book", 3)))


@simulated.agent
async def twins(ctx: Context) -> list[Any]:
    """Two `once` calls at once with equal arguments."""
    return list(await asyncio.gather(ctx.call("pay", 1), ctx.call("pay", 1)))


@simulated.agent
async def sleeper(ctx: Context) -> Any:
    """Sleeps, then acts."""
    await asyncio.sleep(0.7)
    return await ctx.call("push", 1)


@simulated.agent
async def failing(ctx: Context) -> None:
    """Acts, then raises."""
    await ctx.call("push", 1)
    raise ValueError("the agent gives up")


@simulated.agent
async def handling(ctx: Context, tool: str) -> Any:
    """Handles a call that failed."""
    try:
        return await ctx.call(tool, 1)
    except CallFailed as failure:
        ctx.note("failed", failure.fields["code"])
        return await ctx.call("push", 2)


@simulated.agent
async def both(ctx: Context, tool: str) -> list[Any]:
    """Two calls at once with equal arguments; one may fail."""
    found = await asyncio.gather(ctx.call(tool, 1), ctx.call(tool, 1), return_exceptions=True)
    return [str(each) if isinstance(each, Exception) else each for each in found]


@simulated.agent
async def thrice(ctx: Context, tool: str) -> list[Any]:
    """The same call three times, one after the other."""
    return [await ctx.call(tool, 1), await ctx.call(tool, 1), await ctx.call(tool, 1)]


@simulated.agent
async def race(ctx: Context, tool: str) -> Any:
    """Two calls and a timer: the first one counts, and the others are given up."""
    tasks = [asyncio.create_task(ctx.call(tool, 1)), asyncio.create_task(ctx.call("push", 2))]
    tasks.append(asyncio.create_task(asyncio.sleep(0.4)))
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    failed = [task for task in done if task.exception()]
    return [task.result() for task in done if task not in failed]


@simulated.agent
async def hurried(ctx: Context, tool: str) -> Any:
    """Waits for a call as long as it likes, then does something else."""
    try:
        async with asyncio.timeout(0.15):
            return await ctx.call(tool, 1)
    except (TimeoutError, CallFailed):
        return await ctx.call("push", 2)


@simulated.agent
async def group(ctx: Context, tool: str) -> Any:
    """Three tasks of which the first failure ends the others; their clean-up acts, too."""

    async def part(name: str, number: int) -> Any:
        try:
            return await ctx.call(name, number)
        finally:
            ctx.note("over", number)
            await ctx.call("look", number)

    try:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(part(name, number)) for number, name in enumerate((tool, "push", "book"))]
    except BaseExceptionGroup:
        return "one has failed"
    return [task.result() for task in made]


async def _signalled(ctx: Context, match: str = "") -> str | None:
    try:
        return (await ctx.wait_for("go", match=match, timeout=_PATIENCE)).id
    except TimeoutError:
        return None


@simulated.agent
async def waiter(ctx: Context, match: str = "") -> list[str | None]:
    """Waits for a signal, acts, and waits for another."""
    found = await _signalled(ctx, match)
    await ctx.call("push", 1)
    return [found, await _signalled(ctx, match)]


@simulated.agent
async def pair(ctx: Context) -> list[str | None]:
    """Two equal waits at once, and then another."""
    found = await asyncio.gather(_signalled(ctx), _signalled(ctx))
    return [*found, await _signalled(ctx)]


@simulated.agent
async def late(ctx: Context) -> list[str | None]:
    """Sleeps while it is told something, and then waits: for one that matches, for any, and for the first of two."""
    await asyncio.sleep(0.3)
    found = [*await asyncio.gather(_signalled(ctx, "data.n == 2"), _signalled(ctx))]
    race = [asyncio.create_task(_signalled(ctx)) for _ in range(2)]
    done, losers = await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)
    for loser in losers:
        loser.cancel()
    return [*found, *(task.result() for task in race if task in done)]


@simulated.agent
async def living(ctx: Context, seen: list[str | None], left: int) -> Any:
    """Waits for a signal, acts, and goes on with a new history, so often."""
    seen = [*seen, await _signalled(ctx)]
    await ctx.call("push", len(seen))
    return ctx.continue_as({"seen": seen, "left": left - 1}) if left else seen


@simulated.agent
async def caller(ctx: Context) -> Any:
    """Makes a token, acts, and waits for whoever has it."""
    paid = ctx.callback("paid", schema=int, timeout=timedelta(milliseconds=1_500))
    await ctx.call("push", 1)
    try:
        return await paid
    except CallbackError as failure:
        return failure.message
    except TimeoutError:
        return None


@simulated.agent
async def parent(ctx: Context, tool: str) -> Any:
    """Has somebody else do it."""
    return await ctx.run("handling", {"tool": tool})


@simulated.agent
async def grandparent(ctx: Context, tool: str) -> Any:
    """Has somebody else have it done, and acts."""
    return [await ctx.run("parent", {"tool": tool}), await ctx.call("push", 1)]


@simulated.agent
async def siblings(ctx: Context, tool: str) -> list[Any]:
    """Two others and a call at once, and one of them fails."""
    both = ctx.run("one", {"tool": tool}), ctx.run("failing")
    found = await asyncio.gather(*both, ctx.call("push", 1), return_exceptions=True)
    return [str(each) if isinstance(each, Exception) else each for each in found]


@simulated.agent
async def impatient(ctx: Context, tool: str) -> Any:
    """Waits for another for a while, and then acts itself."""
    try:
        return await asyncio.wait_for(ctx.run("thrice", {"tool": tool}), timeout=0.15)
    except (TimeoutError, ChildFailed):
        return await ctx.call("push", 1)


@simulated.agent
async def leaving(ctx: Context, tool: str) -> Any:
    """Starts two, of which one outlives it, tells of something, and waits for neither."""
    ctx.start("thrice", {"tool": tool})
    ctx.start("one", {"tool": tool}, on_parent_end="abandon")
    ctx.publish("left", {"tool": tool})
    return await ctx.call("push", 1)


@simulated.agent
async def submitter(ctx: Context, tool: str) -> Any:
    """Starts two runs of their own, of which one has its home elsewhere, before and after it acts."""
    ctx.submit("one", {"tool": tool}, id=f"{ctx.run_id}-a")
    done = await ctx.call("push", 1)
    ctx.submit("one", {"tool": tool}, id=f"{ctx.run_id}-b")
    ctx.submit("one", {"tool": tool}, id=f"{ctx.run_id}-a")
    return done


@simulated.agent(budget=Budget(usd="0.45"))
async def shopper(ctx: Context, times: int) -> list[Any]:
    """Buys, one after the other, within a budget."""
    return [await ctx.call(PRICED, n) for n in range(times)]


@simulated.agent
async def errand(ctx: Context, times: int) -> int:
    """Buys for somebody."""
    return len([await ctx.call(PRICED, n) for n in range(times)])


@simulated.agent(budget=Budget(usd="0.75", soft=0.5, calls=40))
async def market(ctx: Context, times: int) -> list[Any]:
    """Has three buy at once, within one budget, and buys what is left."""
    three = [ctx.run("errand", {"times": times}) for _ in range(3)]
    found = await asyncio.gather(*three, return_exceptions=True)
    return [*(str(each) for each in found), await ctx.call(PRICED, 99)]


@simulated.agent(budget=Budget(usd="0.75"))
async def fickle(ctx: Context, times: int) -> Any:
    """Has somebody buy for a while, and then buys itself."""
    try:
        return await asyncio.wait_for(ctx.run("errand", {"times": times}), timeout=0.15)
    except (TimeoutError, ChildFailed):
        return [await ctx.call(PRICED, n) for n in range(times)]


LONG = 70_000
"""Characters that do not stay in the log."""


@simulated.agent
async def wordy(ctx: Context, text: str, tool: str) -> str:
    """Notes what is long, acts, and returns what is long."""
    ctx.note("long", text + "noted")
    await ctx.call(tool, 1)
    return text[::-1]


@simulated.agent
async def reader(ctx: Context, tool: str) -> list[Any]:
    """Hands something long to two others, one after the other, and acts with what they say."""
    first: str = await ctx.run("wordy", {"text": "a" * LONG, "tool": tool})
    acted = await ctx.call("push", 1)
    second: str = await ctx.run("wordy", {"text": first + "b", "tool": "push"})
    return [len(second) - LONG, acted, second[:2]]


@simulated.on("left")
async def hearing(ctx: Context, tool: str) -> Any:
    """Hears that somebody has left."""
    return await ctx.call(tool, 1)


@simulated.agent
async def program(ctx: Context, tree: Any) -> Any:
    """Whatever a tree says: see `programs`."""
    return await perform(ctx, tree)


@simulated.agent
async def talker(ctx: Context, turns: int) -> list[int]:
    """Makes calls, each of which builds on the two before it, and so on all."""
    before, said = list[EarlierCall](), list[int]()
    for turn in range(turns):
        args = canonical.dumps({"n": turn, "before": told(before)})
        on = tuple(each.step for each in before[-2:])
        step = running("a talker").ask(simulated.tools[RECALL].call(args, builds_on=on))
        try:
            found = await step
        except CallFailed:
            continue
        before.append(EarlierCall(step.step, args, canonical.dumps(found)))
        said.append(found["effect"])
    return said


def told(before: list[EarlierCall]) -> str:
    """A digest of calls and their results."""
    text = canonical.dumps([[each.step, each.args, each.result] for each in sorted(before, key=lambda each: each.step)])
    return blake2b(text.encode(), digest_size=8).hexdigest()


@simulated.agent
async def thinker(ctx: Context, mind: str, by_ms: int = 0) -> Any:
    """Does what a model says, see `minds`; it should be over by a time."""
    return await think(ctx, mind)


@simulated.agent(budget=Budget(tokens=1_500, usd="0.25", calls=9, soft=0.6, then="ask", same=2))
async def helper(ctx: Context, mind: str) -> Any:
    """Does what a model says for another agent, within a budget of its own."""
    return await think(ctx, mind)


@simulated.agent(durability="memory", timeout=_TIMEOUT, retry=_RETRY)
async def whole(ctx: Context) -> Any:
    """All of it is one call, which may be made again."""
    return await ctx.call(look, 1)


FACTS |= {each.tool.name: each.tool.facts for each in simulated.agents.values() if isinstance(each, MemoryAgent)}

add_revised(simulated)


def _older() -> App:
    """The app of before the last deploy: it has not the newest version."""
    app = App("simulated", prices=PRICES)
    app.tools.update(simulated.tools)
    app.agents.update({name: agent for name, agent in simulated.agents.items() if name != REVISED})
    add_revised(app, (APART, OLDER))
    return app


def _with(before: Callable[[Context], Any] | None) -> App:
    """The same tools, and agents that along their history do something else first; None: no agents."""
    app = App("simulated", prices=PRICES)
    app.tools.update(simulated.tools)
    if before:
        for agent in simulated.agents.values():
            if agent.function.__module__ == __name__:  # and not what every app has
                app.agent(_changed(agent.function, before))
        add_revised(app, changed=lambda code: _changed(code, before))
    return app


def _changed(function: Callable[..., Any], before: Callable[[Context], Any]) -> Callable[..., Any]:
    @wraps(function)
    async def changed(ctx: Context, *args: Any, **more: Any) -> Any:
        await before(ctx)
        return await function(ctx, *args, **more)

    return changed


BEFORE = _older()
"""What some planners still run while a deploy is under way."""

OTHERS = {"none": _with(None), "other": _with(disagrees), "hungry": _with(hungers)}
"""Apps that are deployed by mistake. What begins under them goes on under the right one: they differ along history."""
