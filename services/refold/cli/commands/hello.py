"""The default app of `refold dev`."""

import asyncio

from refold.sdk.app import App
from refold.sdk.context import Context

hello_app = App("hello")


@hello_app.tool(effect="pure")
def greet(name: str) -> str:
    """Greets somebody."""
    return f"Hello {name}"


@hello_app.tool(effect="pure")
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@hello_app.agent
async def hello(ctx: Context, name: str = "world", seconds: float = 1.0) -> str:
    """Sleeps a moment, durably, and greets: kill a service meanwhile and it still greets once."""
    ctx.note("plan", {"greet": name, "after": seconds})
    await asyncio.sleep(seconds)
    return await ctx.call(greet, name)
