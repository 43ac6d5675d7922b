"""One agent hands work to others. One of them fails, and the report says so beside what the others have found.

refold dev examples/orchestrator.py
refold run start report --id report-1 --input '{"topics": ["tides", "dragons", "winds"]}' --wait
"""

from __future__ import annotations

import asyncio

from refold import App, ChildFailed, Context, TerminalError

app = App("research")


@app.tool(effect="pure")
async def search(topic: str) -> str:
    """Looks something up, which takes a while."""
    await asyncio.sleep(3)
    if topic == "dragons":
        raise TerminalError("there are none")
    return f"all about {topic}"


@app.agent
async def worker(ctx: Context, topic: str) -> str:
    ctx.status(f"looks up {topic}")
    return await ctx.call(search, topic)


@app.agent
async def report(ctx: Context, topics: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"found": [], "missing": []}

    async def one(topic: str) -> None:
        try:
            found["found"].append(await ctx.run(worker, {"topic": topic}))
        except ChildFailed:  # not let out: a TaskGroup would cancel the others
            found["missing"].append(topic)

    async with asyncio.TaskGroup() as group:
        for topic in topics:
            group.create_task(one(topic))
    return found
