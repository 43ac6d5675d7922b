"""Agents with all that a history can have, and recorded runs of them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from refold import App, Budget, CallFailed, Context, NotDone, TerminalError
from refold.core.messages import RunOperation
from refold.testing import AgentRun, answer, attempts, edit, reject
from tests.forks.recording import Noted

app = App("zoo")
POLICY = {
    "fallback": {"approvers": ["*"], "not_requester": False, "expires": "24h"},
    "doubt": {"approvers": ["*"], "not_requester": False},
    "rules": [
        {"name": "no gold", "when": 'tool.name == "buy" && args.item == "gold"', "deny": "no gold"},
        {
            "name": "two look",
            "when": 'tool.name == "buy"',
            "require": {"approvers": ["role:lead"], "quorum": 2, "expires": "2h"},
        },
        {"name": "the rest", "when": "true", "allow": True},
    ],
}


def acted(tool: str) -> None:
    """A line in the file that is named to whoever runs tools."""
    if file := os.environ.get("FORK_TEST_ACTED"):
        with Path(file).open("a") as lines:
            lines.write(f"{tool}\n")


@app.tool(effect="pure")
def look(what: str) -> str:
    """Looks."""
    acted("look")
    return what


@app.tool(effect="once")
def buy(item: str, many: int = 1) -> str:
    """Buys."""
    acted("buy")
    return f"{many} {item}"


@app.tool(effect="keyed")
def pay(amount: int, *, idempotency_key: str) -> str:
    """Pays."""
    acted("pay")
    return idempotency_key[:8]


@app.tool(effect="once", approval="required")
def drop(table: str) -> str:
    """Drops a table, if somebody lets it."""
    acted("drop")
    return table


@app.agent
async def shops(ctx: Context, items: list[str]) -> list[str]:
    """Buys one after the other, whatever people say."""
    done = []
    for item in items:
        ctx.note("want", {"item": item, "at": ctx.now().isoformat()})
        try:
            done.append(await ctx.call(buy, item))
        except CallFailed as failed:
            done.append(f"{failed.message}")
    ctx.status(f"{len(done)} done")
    return done


@app.agent
async def fans(ctx: Context, many: int) -> list[Any]:
    """Equal calls at once, which end differently."""
    found = await asyncio.gather(*(ctx.call(look, "same") for _ in range(many)), return_exceptions=True)
    return [str(each) for each in found] + [await ctx.call(pay, many)]


@app.agent
async def hurries(ctx: Context) -> str:
    """Gives up what takes too long, and sleeps."""
    try:
        async with asyncio.timeout(1):
            await asyncio.sleep(60)
    except TimeoutError:
        await asyncio.sleep(5)
    first = asyncio.create_task(ctx.call(look, "a"))
    second = asyncio.create_task(asyncio.sleep(3_600))
    done, rest = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    return f"{len(done)} {ctx.random.randint(0, 99)} {ctx.uuid().hex[:4]}"


@app.agent
async def waits(ctx: Context) -> str:
    """Waits for others, and for a callback."""
    first = await ctx.wait_for("go", match="data > 2", timeout=timedelta(hours=1))
    with suppress(TimeoutError):
        await ctx.wait_for("never", timeout=timedelta(minutes=1))
    callback = ctx.callback("paid")
    await ctx.call(look, callback.token)
    paid = await callback
    return f"{first.data} {paid}"


@app.agent
async def drops(ctx: Context) -> str:
    """Drops a table."""
    return await ctx.call(drop, "t")


@app.agent
async def parent(ctx: Context) -> list[str]:
    """Has three others work, of which one fails."""
    found = await asyncio.gather(
        ctx.run(shops, {"items": ["tea"]}), ctx.run(fails), ctx.run(middle), return_exceptions=True
    )
    return [str(each) for each in found]


@app.agent
async def middle(ctx: Context) -> str:
    """Has another one work."""
    return str(await ctx.run(fans, {"many": 2}))


@app.agent
async def fails(ctx: Context) -> str:
    """Fails."""
    await ctx.call(look, "before")
    raise TerminalError("it is broken")


@app.agent(budget=Budget(calls=3))
async def spends(ctx: Context) -> str:
    """Calls more than it may."""
    for number in range(5):
        await ctx.call(look, str(number))
    return "all"


@app.agent
async def tells(ctx: Context) -> str:
    """Tells others of something, sleeps, and takes a way that is new."""
    ctx.publish("bought", {"item": "tea"})
    ctx.checkpoint("told")
    if ctx.patched("sleeps"):
        await asyncio.sleep(10)
    return str(await ctx.call(look, "end"))


@app.on("bought")
async def hears(ctx: Context, item: str) -> str:
    """Hears of it."""
    ctx.note("heard", ctx.now().isoformat())
    return str(await ctx.call(look, item))


def start(app: App, agent: str, **inputs: Any) -> AgentRun:
    """A run that notes the order of the entries of its family."""
    options = {name: inputs.pop(name) for name in ("tools", "decisions", "policy", "name") if name in inputs}
    return Noted(app, agent, inputs, **options)


def _waited() -> AgentRun:
    run = start(app, "waits").signal("go", 1).signal("go", 3).finish()
    return run.answer(run.calls[0].args["what"], 7).finish()


def _doubted() -> AgentRun:
    run = start(app, "shops", items=["tea", "tea"], tools={buy: attempts(RuntimeError("who knows"), "tea")}).finish()
    run.resolve(run.doubts[0], "happened", "1 tea")
    return run.finish()


def _again() -> AgentRun:
    run = start(app, "shops", items=["tea"], tools={buy: attempts(RuntimeError("who knows"), "tea")}).finish()
    run.resolve(run.doubts[0], "did_not_happen")
    return run.finish()


def _paused() -> AgentRun:
    run = start(app, "parent").pause("look first").finish()
    return run.resume().finish()


def _live() -> AgentRun:
    run = start(app, "hurries")
    run.settle(1)
    return run


def _operated(run: AgentRun, kind: str, **said: Any) -> AgentRun:
    """What an operator says of a run."""
    run._send(RunOperation(run.state.run_id, f"{kind}-1", kind, json.dumps(said), "olga"))
    return run


def _asked_again() -> AgentRun:
    """People are asked a second time: their decision covers no attempt so late."""
    late = NotDone("busy", retry_after=7_200)
    asks = {"name": "asks", "when": 'tool.name == "pay"', "require": {"approvers": ["*"], "valid": "1h"}}
    policy = {**POLICY, "rules": [asks, *POLICY["rules"]]}
    return start(app, "fans", many=1, policy=policy, tools={pay: attempts(late, "p")}).finish()


def _cancelled() -> AgentRun:
    run = start(app, "parent")
    run.settle(1)
    _operated(run, "annotate", note="it goes wrong")
    return _operated(run, "cancel", reason="enough")


RUNS: dict[str, Callable[[], AgentRun]] = {
    "plain": lambda: start(app, "shops", items=["tea", "tea", "milk"]).finish(),
    "rejected": lambda: start(
        app, "shops", items=["tea", "gold", "tea"], policy=POLICY, decisions={"buy": reject("too dear")}
    ).finish(),
    "edited": lambda: start(
        app, "shops", items=["tea"], policy=POLICY, decisions={"buy": edit(item="tea", many=3)}
    ).finish(),
    "answered": lambda: start(app, "shops", items=["tea"], policy=POLICY, decisions={"buy": answer("given")}).finish(),
    "expired": lambda: start(app, "shops", items=["tea"], policy=POLICY, decisions={"buy": "expire"}).finish(),
    "approved": lambda: start(app, "drops").finish(),
    "asked": lambda: start(app, "drops"),
    "fans": lambda: start(
        app, "fans", many=4, tools={look: attempts("1", NotDone("busy"), TerminalError("no"), "3", "4", "5", "6")}
    ).finish(),
    "retried": lambda: start(
        app, "fans", many=1, tools={pay: attempts(NotDone("busy"), RuntimeError("lost"), "p")}
    ).finish(),
    "asked again": _asked_again,
    "hurries": lambda: start(app, "hurries").finish(),
    "live": _live,
    "waited": _waited,
    "doubted": _doubted,
    "again": _again,
    "family": lambda: start(app, "parent").finish(),
    "paused": _paused,
    "fails": lambda: start(app, "fails").finish(),
    "tells": lambda: start(app, "tells").finish(),
    "cancelled": _cancelled,
    "spends": lambda: start(app, "spends").finish(),
}
"""Runs by what happens in them."""
