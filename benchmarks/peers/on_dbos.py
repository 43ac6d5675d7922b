"""Refold's peer DBOS, as its documentation recommends: a workflow whose steps are `DBOS.step`, on Postgres."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from benchmarks.peers import load
from dbos import DBOS, DBOSConfig


@DBOS.step()
async def step(i: int) -> int:
    """A step that does nothing."""
    return load.step(i)


@DBOS.workflow()
async def run() -> int:
    """Ten steps, one after the other."""
    return sum([await step(i) for i in range(load.STEPS)])


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    url = wanted["postgres"].replace("postgresql://", "postgresql+psycopg://")
    DBOS(config=DBOSConfig(name="peer", system_database_url=url, log_level="ERROR", console_log_level="ERROR"))
    DBOS.launch()
    load.report(load.driven(run, asyncio.new_event_loop()), (os.getpid(), wanted["postgres_pid"]))
    DBOS.destroy()
