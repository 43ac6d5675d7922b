"""The smallest app: one tool, one agent.

refold dev examples/hello.py
refold run start hello --input '{"name": "Ada"}'
"""

from __future__ import annotations

import asyncio

from refold import App, Context

app = App("greetings")


@app.tool(effect="pure")
def greet(name: str) -> str:
    """Finds words for somebody."""
    return f"Hello {name}!"


@app.agent
async def hello(ctx: Context, name: str) -> str:
    """Greets, and again after a while. Kill anything in between: the run goes on, and nobody is greeted twice."""
    first = await ctx.call(greet, name)
    await asyncio.sleep(2)
    second = await ctx.call(greet, f"{name}, {ctx.now():%H:%M}")
    return f"{first} {second}"
