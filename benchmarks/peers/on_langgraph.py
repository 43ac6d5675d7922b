"""Refold's peer LangGraph: a graph with a checkpoint on Postgres after each step, `durability="sync"`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from typing import Any, TypedDict

from benchmarks.peers import load
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool


class State(TypedDict):
    """The state of a run."""

    total: int


def node(i: int) -> Any:
    """Return the node of a step."""

    async def step(state: State) -> State:
        return {"total": state["total"] + load.step(i)}

    return step


async def opened(url: str) -> tuple[Any, Any]:
    """Return a graph of ten nodes in a row, and its pool of connections."""
    how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    # A thousand runs wait for twenty connections; the pool's own patience is half a minute.
    pool: Any = AsyncConnectionPool(url, min_size=20, max_size=20, open=False, timeout=300, kwargs=how)
    await pool.open()
    saver = AsyncPostgresSaver(pool)
    await saver.setup()
    graph = StateGraph(State)
    for i in range(load.STEPS):
        graph.add_node(f"step-{i}", node(i))
        graph.add_edge(f"step-{i - 1}" if i else START, f"step-{i}")
    graph.add_edge(f"step-{load.STEPS - 1}", END)
    return graph.compile(checkpointer=saver), pool


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    loop = asyncio.new_event_loop()
    graph, pool = loop.run_until_complete(opened(wanted["postgres"]))

    async def run() -> int:
        """A run under an id of its own."""
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": load.STEPS + 10}
        ended = await graph.ainvoke({"total": 0}, config, durability="sync")
        return int(ended["total"])

    load.report(load.driven(run, loop), (os.getpid(), wanted["postgres_pid"]))
    loop.run_until_complete(pool.close())
