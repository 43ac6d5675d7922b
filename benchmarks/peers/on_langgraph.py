"""Refold's peer LangGraph: a graph with a checkpoint on Postgres after each step, `durability="sync"`."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any, TypedDict

from benchmarks.peers.load import driven, report, stamp
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool


class State(TypedDict):
    """What a run keeps."""

    done: int
    steps: int


def _step(state: State) -> dict[str, int]:
    stamp(state["done"])
    return {"done": state["done"] + 1}


def _next(state: State) -> str:
    return "step" if state["done"] < state["steps"] else END


async def opened(url: str) -> Any:
    """The graph on a pool of connections."""
    how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: Any = AsyncConnectionPool(url, min_size=20, max_size=20, open=False, timeout=300, kwargs=how)
    await pool.open()
    saver = AsyncPostgresSaver(pool)
    await saver.setup()
    graph = StateGraph(State)
    graph.add_node("step", _step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", _next)
    return graph.compile(checkpointer=saver)


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    graph = loop.run_until_complete(opened(json.loads(sys.argv[1])["postgres"]))

    async def run(steps: int) -> None:
        """A run under an id of its own."""
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": steps + 10}
        await graph.ainvoke({"done": 0, "steps": steps}, config, durability="sync")

    report(driven(run, loop))
