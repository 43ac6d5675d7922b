"""What runs a program: an agent on `ctx` as anybody writes one. On plain asyncio it is the same code that is judged by.

Whatever it gets it puts into its result, so that what reached the wrong place shows there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from refold.core.errors import CallbackError, CallFailed, ChildFailed, RefoldError
from refold.sdk.retry import Retry

HANDLED = (CallFailed, ChildFailed, CallbackError, TimeoutError, ExceptionGroup, ValueError)
AGENT = "program"
"""By what name programs run each other."""

BASE, CAP = timedelta(milliseconds=100), timedelta(milliseconds=400)


async def perform(ctx: Any, node: dict[str, Any]) -> Any:
    """Does what a part of a program says; its value, or what went wrong, if it handles that."""
    try:
        return await _DOES[node["do"]](ctx, node)
    except HANDLED as error:
        if not node.get("handles"):
            raise
        return [type(error).__name__, error.fields.get("code", error.code) if isinstance(error, RefoldError) else ""]


def _seconds(node: dict[str, Any]) -> float:
    return float(node["ms"]) / 1000


def _all(ctx: Any, node: dict[str, Any]) -> list[Awaitable[Any]]:
    return [perform(ctx, part) for part in node["of"]]


def _tasks(ctx: Any, node: dict[str, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(perform(ctx, part)) for part in node["of"]]


async def _call(ctx: Any, node: dict[str, Any]) -> Any:
    more = {"retry": Retry(node["tries"], BASE, CAP)} if node["tries"] else {}
    return await ctx.call(node["tool"], node["n"], **more)


async def _sleep(ctx: Any, node: dict[str, Any]) -> Any:
    await asyncio.sleep(_seconds(node))


async def _wait(ctx: Any, node: dict[str, Any]) -> Any:
    unknown_runs = timedelta(milliseconds=node["ms"])
    signal = await ctx.wait_for(node["name"], match=node["match"], timeout=unknown_runs)
    if node.get("answers"):
        ctx.answer(signal, node["n"])
    return [signal.id, signal.data]


async def _answer(ctx: Any, node: dict[str, Any]) -> Any:
    return await ctx.callback(f"answer-{node['n']}", schema=int, timeout=timedelta(milliseconds=node["ms"]))


async def _run(ctx: Any, node: dict[str, Any]) -> Any:
    return await ctx.run(AGENT, {"tree": node["tree"]}, on_parent_end=_at_end(node))


async def _start(ctx: Any, node: dict[str, Any]) -> Any:
    child = ctx.start(AGENT, {"tree": node["tree"]}, on_parent_end=_at_end(node))
    if node["then"] == "cancel":
        await asyncio.sleep(node["n"] / 100)
        child.cancel()
    return await child if node["then"] == "await" else node["then"]


def _at_end(node: dict[str, Any]) -> str:
    return "abandon" if node["outlives"] else "cancel"


async def _say(ctx: Any, node: dict[str, Any]) -> Any:
    if node["how"] == "note":
        ctx.note("at", node["n"])
    elif node["how"] == "checkpoint":
        ctx.checkpoint(f"at {node['n']}")
    elif node["how"] == "expose":
        ctx.expose(f"at-{node['n'] % 4}", node["n"])
    else:
        ctx.status(f"at {node['n']}")


async def _publish(ctx: Any, node: dict[str, Any]) -> Any:
    ctx.publish("left", {"tool": node["tool"]})


async def _raise(ctx: Any, node: dict[str, Any]) -> Any:
    raise ValueError(f"at {node['n']}")


async def _row(ctx: Any, node: dict[str, Any]) -> Any:
    return [await perform(ctx, part) for part in node["of"]]


async def _gather(ctx: Any, node: dict[str, Any]) -> Any:
    return list(await asyncio.gather(*_all(ctx, node)))


async def _settle(ctx: Any, node: dict[str, Any]) -> Any:
    found = await asyncio.gather(*_all(ctx, node), return_exceptions=True)
    return [type(each).__name__ if isinstance(each, BaseException) else each for each in found]


async def _group(ctx: Any, node: dict[str, Any]) -> Any:
    async def member(part: dict[str, Any]) -> Any:
        try:
            return await perform(ctx, part)
        finally:
            ctx.note("left", part["n"])  # in which order they leave that are cancelled is for the loop to keep

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(member(part)) for part in node["of"]]
    return [task.result() for task in tasks]


async def _race(ctx: Any, node: dict[str, Any]) -> Any:
    tasks = _tasks(ctx, node)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return [[place, task.result()] for place, task in enumerate(tasks) if task.done()]
    finally:
        for task in tasks:
            task.cancel()


async def _first(ctx: Any, node: dict[str, Any]) -> Any:
    """The first that has not failed. The others go on by themselves, until the program is over."""
    for task in asyncio.as_completed(_tasks(ctx, node)):
        try:
            return ["first", await task]
        except HANDLED:
            continue
    raise ValueError("none")


async def _timeout(ctx: Any, node: dict[str, Any]) -> Any:
    async with asyncio.timeout(_seconds(node)):
        return await perform(ctx, node["of"][0])


async def _wait_for(ctx: Any, node: dict[str, Any]) -> Any:
    return await asyncio.wait_for(perform(ctx, node["of"][0]), _seconds(node))


async def _again(ctx: Any, node: dict[str, Any]) -> Any:
    for _ in range(node["times"] - 1):
        try:
            return await perform(ctx, node["of"][0])
        except HANDLED:
            ctx.note("again", node["n"])
    return await perform(ctx, node["of"][0])


async def _clean(ctx: Any, node: dict[str, Any]) -> Any:
    try:
        return await perform(ctx, node["of"][0])
    finally:
        await ctx.call(node["tool"], node["n"])


async def _limited(ctx: Any, node: dict[str, Any]) -> Any:
    permits = asyncio.Semaphore(2)

    async def one(part: dict[str, Any]) -> Any:
        async with permits:
            return await perform(ctx, part)

    return list(await asyncio.gather(*map(one, node["of"])))


async def _aside(ctx: Any, node: dict[str, Any]) -> Any:
    other = asyncio.create_task(perform(ctx, node["of"][0]))
    found = await perform(ctx, node["of"][1])
    if node["then"] == "cancel":
        other.cancel()
    return [found, await other] if node["then"] == "await" else found


async def _shield(ctx: Any, node: dict[str, Any]) -> Any:
    return await asyncio.shield(perform(ctx, node["of"][0]))


_DOES: dict[str, Callable[[Any, dict[str, Any]], Awaitable[Any]]] = {
    "call": _call,
    "sleep": _sleep,
    "wait": _wait,
    "answer": _answer,
    "run": _run,
    "start": _start,
    "say": _say,
    "publish": _publish,
    "raise": _raise,
    "row": _row,
    "gather": _gather,
    "settle": _settle,
    "group": _group,
    "race": _race,
    "first": _first,
    "timeout": _timeout,
    "wait_for": _wait_for,
    "again": _again,
    "clean": _clean,
    "limited": _limited,
    "aside": _aside,
    "shield": _shield,
}
