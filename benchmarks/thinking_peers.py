"""The agent of `benchmarks.thinking` alone and on DBOS: `python -m benchmarks.thinking_peers --db sqlite:///FILE`.

DBOS is nothing that Refold needs, so this runs in an environment of its own:
`python -m venv /tmp/peers && /tmp/peers/bin/pip install pydantic-ai-slim==2.68.0 dbos==3.4.0 'psycopg[binary]'`.
Without `--db` the agent is alone. The tool is a step as well, as the tools of Refold are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.reader import reader

PAGES, LIVE, ROUNDS = 9, 50, 3


async def rate(one: Callable[[], Awaitable[Any]]) -> dict[str, list[int]]:
    """Steps a second of 50 agents that live at once."""
    await one()
    spans = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(LIVE)))
        spans.append(time.perf_counter() - begun)
    return {
        "steps_per_s": sorted(round(LIVE * (2 * PAGES + 1) / each) for each in spans),
        "requests_per_s": sorted(round(LIVE * (PAGES + 1) / each) for each in spans),
    }


def on_dbos(url: str) -> dict[str, list[int]]:
    """The same with every request and every tool call a step of DBOS."""
    from dbos import DBOS
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    DBOS(config={"name": "thinking", "system_database_url": url, "log_level": "ERROR", "console_log_level": "ERROR"})
    agent: Any = reader(PAGES)
    for tool in agent._function_toolset.tools.values():
        tool.function_schema.function = DBOS.step(name="page")(tool.function_schema.function)
    agent = type(agent)(
        agent.model,
        name="reader",
        instructions="Read all pages.",
        tools=list(agent._function_toolset.tools.values()),
        capabilities=[DBOSDurability()],
    )

    @DBOS.workflow()
    async def run() -> str:
        return str((await agent.run("read")).output)

    DBOS.launch()
    try:
        return asyncio.run(rate(run))
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default="", help="a database of SQLite or Postgres")
    chosen = parser.parse_args()
    plain = reader(PAGES)
    found = on_dbos(chosen.db) if chosen.db else asyncio.run(rate(lambda: plain.run("read")))
    print(json.dumps({"db": chosen.db.partition(":")[0], "load": os.getloadavg(), **found}))
