"""What a guide says of clean-up: a run that is cancelled runs no code, and its parent may undo its work."""

from __future__ import annotations

import asyncio

from refold import App, ChildFailed, Context
from refold.testing import run


def test_a_parent_undoes_the_work_of_a_child_that_was_cancelled() -> None:
    app, written = App("travel"), list[str]()

    @app.tool(effect="once")
    def write(line: str) -> None:
        written.append(line)

    @app.agent
    async def book(ctx: Context) -> None:
        await ctx.call(write, "booked")
        try:
            await asyncio.sleep(600)
        finally:
            await ctx.call(write, "finally")

    @app.agent
    async def trip(ctx: Context) -> str:
        child = asyncio.create_task(ctx.run(book, {}))
        await asyncio.sleep(5)
        child.cancel()
        try:
            await child
        except (ChildFailed, asyncio.CancelledError):
            await ctx.call(write, "undone")
        return "ok"

    assert run(app, "trip").value == "ok"
    assert written == ["booked", "undone"]
